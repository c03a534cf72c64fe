// Python's two ways to format: "%s" % x and "{}".format(x).
#include "base/fp_contract.hpp"

#include <charconv>
#include <cmath>

#include "text/jinja/run.hpp"
#include "text/jinja/unicode.hpp"

namespace decant::detail::jinja {

namespace {

struct JinjaSpec {
  std::string_view fill = " ";
  char align = 0;  // < > ^ =, or 0: by the type
  char sign = '-';
  bool alternate = false;
  std::int64_t width = 0;
  char grouping = 0;  // , or _
  std::int64_t precision = -1;
  char type = 0;
};

// Sign, prefix (0x) and digits of a number.
struct JinjaNumber {
  std::string sign, prefix, digits;
};

}  // namespace

static constexpr std::int64_t kJinjaMaxWidth = 1 << 20;

static void jinja_group(std::string& digits, char separator, std::size_t size) {
  std::size_t end = 0;  // of the whole part
  while (end < digits.size() && digits[end] != '.' && digits[end] != 'e') ++end;
  for (std::size_t at = end; at > size; at -= size) digits.insert(at - size, 1, separator);
}

static JinjaNumber jinja_integer_text(std::int64_t x, const JinjaSpec& spec) {
  JinjaNumber n;
  const char type = spec.type;
  const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  const std::uint64_t magnitude =
      x < 0 ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
  char buffer[72];
  n.digits.assign(buffer, std::to_chars(buffer, buffer + sizeof buffer, magnitude, base).ptr);
  if (type == 'X') {
    for (char& c : n.digits) c = c >= 'a' ? static_cast<char>(c - 32) : c;
  }
  if (spec.alternate && base != 10) n.prefix = {'0', type};
  n.sign = x < 0 ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.grouping != 0) jinja_group(n.digits, spec.grouping, base == 10 ? 3 : 4);
  return n;
}

// False for a precision that is too large.
static bool jinja_real_text(double x, const JinjaSpec& spec, JinjaNumber& n) {
  const bool percent = spec.type == '%';
  const char kind = percent ? 'f' : static_cast<char>(spec.type | 0x20);
  if (percent) x *= 100;
  n.sign = std::signbit(x) && !std::isnan(x) ? "-"
           : spec.sign == '-'                ? ""
                                             : std::string(1, spec.sign);
  const double magnitude = std::fabs(x);
  if (!std::isfinite(x)) {
    n.digits = std::isnan(x) ? "nan" : "inf";
  } else if (spec.type == 0 && spec.precision < 0) {
    append_real(n.digits, magnitude);
  } else {
    if (spec.precision > 400) return false;
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    const auto format = kind == 'e'   ? std::chars_format::scientific
                        : kind == 'f' ? std::chars_format::fixed
                                      : std::chars_format::general;
    char buffer[1024];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, magnitude, format,
                                   kind == 'g' && precision == 0 ? 1 : precision);
    n.digits.assign(buffer, end.ptr);
    // Without a type there is always a digit behind the point.
    if (spec.type == 0 && n.digits.find_first_of(".e") == n.digits.npos) n.digits += ".0";
  }
  if (spec.type == 'E' || spec.type == 'F' || spec.type == 'G') {
    for (char& c : n.digits) c = c >= 'a' ? static_cast<char>(c - 32) : c;
  }
  if (spec.grouping != 0 && std::isfinite(x)) jinja_group(n.digits, spec.grouping, 3);
  if (percent) n.digits += '%';
  return true;
}

// Adds a text of `size` characters with the padding that the spec asks for.
template <class Add>
static void jinja_pad(Text& out, const JinjaSpec& spec, std::size_t size, char align, Add add) {
  std::string left, right;
  if (spec.width > static_cast<std::int64_t>(size)) {
    const std::size_t pad = static_cast<std::size_t>(spec.width) - size;
    const std::size_t before = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    for (std::size_t i = 0; i < before; ++i) left += spec.fill;
    for (std::size_t i = before; i < pad; ++i) right += spec.fill;
  }
  if (!left.empty()) out.add_copy(left);
  add();
  if (!right.empty()) out.add_copy(right);
}

static void jinja_add_number(Text& out, const JinjaSpec& spec, const JinjaNumber& n) {
  const std::size_t size = n.sign.size() + n.prefix.size() + n.digits.size();
  const char align = spec.align != 0 ? spec.align : '>';
  if (align != '=') {
    jinja_pad(out, spec, size, align, [&] { out.add_copy(n.sign + n.prefix + n.digits); });
    return;
  }
  if (!n.sign.empty() || !n.prefix.empty()) out.add_copy(n.sign + n.prefix);
  jinja_pad(out, spec, size, '>', [&] { out.add_copy(n.digits); });
}

static void jinja_add_text(Run& run, Text& out, const JinjaSpec& spec, const Value& v, char align) {
  Value s = to_string(run, v);
  if (!s.is_string()) return;
  std::string_view text = run.view(s);
  if (spec.precision >= 0) {
    const std::size_t end = utf8_offset(text, static_cast<std::size_t>(spec.precision));
    s = run.slice(*s.string, 0, end);
    text = text.substr(0, end);
  }
  const std::size_t size = spec.width > 0 ? utf8_length(text) : 0;
  jinja_pad(out, spec, size, spec.align != 0 ? spec.align : align, [&] { out.add(*s.string); });
}

static Value jinja_repr_of(Run& run, const Value& v) {
  std::string text;
  append_repr(run, text, v);
  return run.copy(text, common_origin(run, v));
}

// A number at the beginning of `text`, which it is taken from.
static std::int64_t jinja_take_number(std::string_view& text, std::int64_t otherwise) {
  std::int64_t x = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), x);
  if (text.empty() || text[0] == '-' || read.ptr == text.data()) return otherwise;
  text.remove_prefix(static_cast<std::size_t>(read.ptr - text.data()));
  return read.ec == std::errc() ? std::min(x, kJinjaMaxWidth + 1) : kJinjaMaxWidth + 1;
}

// ---- %

// One conversion of `v`; the spec's type is the letter.
static void jinja_convert(Run& run, Text& out, JinjaSpec& spec, const Value& v) {
  if (v.is_undefined() && spec.type != 's' && spec.type != 'r') {
    run.fail_undefined(v);
    return;
  }
  switch (spec.type) {
    case 's': return jinja_add_text(run, out, spec, v, '>');
    case 'r':
    case 'a': return jinja_add_text(run, out, spec, jinja_repr_of(run, v), '>');
    case 'c':
      if (v.is_string() && utf8_length(run.view(v)) == 1) {
        return jinja_add_text(run, out, spec, v, '>');
      }
      if (v.is_integer() && v.as_integer() >= 0 && v.as_integer() < 0x110000) {
        std::string c;
        append_utf8(c, static_cast<std::uint32_t>(v.as_integer()));
        return jinja_add_text(run, out, spec, run.copy(c), '>');
      }
      run.fail("%c needs one character");
      return;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      const bool decimal = spec.type != 'x' && spec.type != 'X' && spec.type != 'o';
      std::int64_t x = 0;
      if (v.is_integer()) {
        x = v.as_integer();
      } else if (decimal && v.is(Type::real) && std::fabs(v.real) < 9e18) {
        x = static_cast<std::int64_t>(v.real);
      } else {
        run.fail("%{} needs an integer, not a {}", spec.type, type_name(v));
        return;
      }
      JinjaNumber n = jinja_integer_text(x, spec);
      if (spec.precision > static_cast<std::int64_t>(n.digits.size())) {
        n.digits.insert(0, static_cast<std::size_t>(spec.precision) - n.digits.size(), '0');
      }
      return jinja_add_number(out, spec, n);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': {
      JinjaNumber n;
      if (!v.is_number()) {
        run.fail("%{} needs a number, not a {}", spec.type, type_name(v));
      } else if (!jinja_real_text(v.as_real(), spec, n)) {
        run.fail("a format asks for too many digits");
      } else {
        jinja_add_number(out, spec, n);
      }
      return;
    }
    default: run.fail("an unknown format character behind %");
  }
}

Value format_percent(Run& run, const Value& format, const Value& args) {
  const std::string_view all = run.view(format);
  const bool markup = format.string->markup;
  Text out(run);
  std::size_t used = 0;
  const bool several = args.is(Type::tuple);
  const auto next = [&]() -> Value {
    if (several ? used < args.list->size : used == 0) {
      ++used;
      const Value v = several ? args.list->items[used - 1] : args;
      return markup && (v.is_string() || v.is_sequence()) ? escaped(run, v) : v;
    }
    return run.fail("% has not enough arguments for its format");
  };
  for (std::size_t at = 0; at < all.size() && run.spend(1) && !run.failed();) {
    const std::size_t percent = std::min(all.find('%', at), all.size());
    out.add(*format.string, at, percent);
    if (percent == all.size()) break;
    std::string_view rest = all.substr(percent + 1);
    JinjaSpec spec;
    Value v;
    if (rest.starts_with('(')) {
      std::size_t end = 1;
      for (int depth = 1; end < rest.size() && depth > 0; ++end) {
        depth += rest[end] == '(' ? 1 : rest[end] == ')' ? -1 : 0;
      }
      if (!args.is(Type::dict)) return run.fail("% with names needs a dict");
      const std::string_view key = rest.substr(1, end - 2);
      const Value* found = find(run, *args.dict, key);
      if (found == nullptr) return run.fail("% misses the key '{}'", key.substr(0, 100));
      v = *found;
      rest.remove_prefix(end);
    }
    bool zero = false;
    for (; !rest.empty() && std::string_view("#0- +").find(rest[0]) != rest.npos;
         rest.remove_prefix(1)) {
      if (rest[0] == '#') spec.alternate = true;
      if (rest[0] == '0') zero = true;
      if (rest[0] == '-') spec.align = '<';
      if (rest[0] == '+' || (rest[0] == ' ' && spec.sign == '-')) spec.sign = rest[0];
    }
    if (rest.starts_with('*')) {
      rest.remove_prefix(1);
      spec.width = run.integer(next(), 0);
      if (spec.width < 0) {
        spec.align = '<';
        spec.width = spec.width < -kJinjaMaxWidth ? kJinjaMaxWidth + 1 : -spec.width;
      }
    } else {
      spec.width = jinja_take_number(rest, 0);
    }
    if (rest.starts_with('.')) {
      rest.remove_prefix(1);
      if (rest.starts_with('*')) {
        rest.remove_prefix(1);
        spec.precision = std::max<std::int64_t>(run.integer(next(), 0), 0);
      } else {
        spec.precision = jinja_take_number(rest, 0);
      }
    }
    while (!rest.empty() && (rest[0] == 'h' || rest[0] == 'l' || rest[0] == 'L')) {
      rest.remove_prefix(1);
    }
    if (rest.empty()) return run.fail("% has an incomplete format");
    if (spec.width > kJinjaMaxWidth || spec.precision > kJinjaMaxWidth) {
      return run.fail("a format is too wide");
    }
    spec.type = rest[0];
    rest.remove_prefix(1);
    at = all.size() - rest.size();
    if (spec.type == '%') {
      out.add("%");
      continue;
    }
    const bool number = std::string_view("diuxXoeEfFgG").find(spec.type) != std::string_view::npos;
    if (zero && spec.align == 0 && number) {
      spec.fill = "0";
      spec.align = '=';
    }
    if (!v.given()) v = next();
    if (!run.failed()) jinja_convert(run, out, spec, v);
  }
  // What has items by key may stay unused.
  const bool mapping =
      args.is(Type::dict) || args.is(Type::list) || args.is(Type::range) || args.is_undefined();
  if (!mapping && used < (several ? args.list->size : 1)) {
    return run.fail("% has more arguments than its format takes");
  }
  return out.finish(markup);
}

// ---- {}

static bool jinja_parse_spec(std::string_view text, JinjaSpec& spec) {
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    const std::size_t n = utf8_decode(text).length;
    if (text.size() > n && is_align(text[n])) {
      spec.fill = text.substr(0, n);
      spec.align = text[n];
      text.remove_prefix(n + 1);
    } else if (is_align(text[0])) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  const auto skip = [&](char c) {
    if (!text.starts_with(c)) return false;
    text.remove_prefix(1);
    return true;
  };
  for (const char c : {'+', '-', ' '}) {
    if (skip(c)) {
      spec.sign = c;
      break;
    }
  }
  spec.alternate = skip('#');
  if (skip('0') && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = jinja_take_number(text, 0);
  if (skip(',')) spec.grouping = ',';
  if (skip('_')) spec.grouping = '_';
  if (skip('.')) {
    spec.precision = jinja_take_number(text, -1);
    if (spec.precision < 0) return false;
  }
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  return text.empty() && spec.width <= kJinjaMaxWidth && spec.precision <= kJinjaMaxWidth;
}

static void jinja_format_value(Run& run, Text& out, const Value& v, std::string_view format) {
  JinjaSpec spec;
  if (format.empty()) return out.add_value(v);
  if (!jinja_parse_spec(format, spec)) {
    run.fail("the format '{}'", format.substr(0, 100));
    return;
  }
  const auto type_is = [&](std::string_view types) {
    return spec.type == 0 || types.find(spec.type) != types.npos;
  };
  if (v.is_string()) {
    const bool zeros = spec.align == '=' && spec.fill == "0";
    if (zeros) spec.align = '<';
    if (type_is("s") && spec.align != '=') return jinja_add_text(run, out, spec, v, '<');
  } else if (v.is(Type::real) || (v.is_integer() && spec.type != 0 && type_is("eEfFgG%"))) {
    JinjaNumber n;
    if (type_is("eEfFgG%") && jinja_real_text(v.as_real(), spec, n)) {
      return jinja_add_number(out, spec, n);
    }
  } else if (v.is_integer()) {
    if (spec.type == 'c' && v.as_integer() >= 0 && v.as_integer() < 0x110000) {
      std::string c;
      append_utf8(c, static_cast<std::uint32_t>(v.as_integer()));
      return jinja_add_text(run, out, spec, run.copy(c), '<');
    }
    if (type_is("bdoxXn") && spec.precision < 0) {
      return jinja_add_number(out, spec, jinja_integer_text(v.as_integer(), spec));
    }
  }
  run.fail("the format '{}' does not fit a {}", format.substr(0, 100), type_name(v));
}

namespace {

class JinjaBraces {
 public:
  JinjaBraces(Run& run, const Args& args) : run_(run), args_(args) {}

  // Formats what `text` says; `source` is the value it is part of, for origins, or null.
  void format(Text& out, std::string_view text, const Value* source, int depth) {
    const std::string_view all = text;
    while (!text.empty() && run_.spend(1) && !run_.failed()) {
      const std::size_t n = std::min(text.find_first_of("{}"), text.size());
      const std::size_t at = all.size() - text.size();
      add(out, all, source, at, at + n);
      text.remove_prefix(n);
      if (text.empty()) return;
      if (text.size() > 1 && text[1] == text[0]) {
        add(out, all, source, at + n, at + n + 1);
        text.remove_prefix(2);
        continue;
      }
      if (text[0] == '}') return fail("a single '}'");
      if (depth == 2) return fail("braces nested too deeply");
      // The field ends at the brace that closes it; a [key] may hold any.
      std::size_t end = 1;
      for (int open = 1; end < text.size(); ++end) {
        open += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
        if (open == 0) break;
      }
      if (end == text.size()) return fail("a '{' without '}'");
      field(out, text.substr(1, end - 1), depth);
      text.remove_prefix(end + 1);
    }
  }

 private:
  void add(Text& out, std::string_view all, const Value* source, std::size_t begin,
           std::size_t end) {
    if (source != nullptr) {
      out.add(*source->string, begin, end);
    } else {
      out.add_copy(all.substr(begin, end - begin));
    }
  }
  void fail(std::string_view what) { run_.fail("format: {}", what); }

  void field(Text& out, std::string_view text, int depth) {
    const std::size_t name_end = std::min(text.find_first_of("!:"), text.size());
    Value v = value(text.substr(0, name_end));
    text.remove_prefix(name_end);
    if (text.starts_with('!')) {
      if (text.size() < 2 || (text.size() > 2 && text[2] != ':')) return fail("a wrong '!'");
      if (text[1] == 'r' || text[1] == 'a') {
        v = jinja_repr_of(run_, v);
      } else if (text[1] == 's') {
        v = to_string(run_, v);
      } else {
        return fail("an unknown conversion behind '!'");
      }
      text.remove_prefix(2);
    }
    if (text.starts_with(':')) text.remove_prefix(1);
    if (run_.failed()) return;
    if (text.find('{') == text.npos) return jinja_format_value(run_, out, v, text);
    Text spec(run_);
    format(spec, text, nullptr, depth + 1);
    const Value whole = spec.finish();
    if (!run_.failed()) jinja_format_value(run_, out, v, run_.view(whole));
  }

  Value value(std::string_view name) {
    const std::size_t end = std::min(name.find_first_of(".["), name.size());
    Value v = argument(name.substr(0, end));
    name.remove_prefix(end);
    while (!name.empty() && !run_.failed()) {
      const bool is_item = name[0] == '[';
      name.remove_prefix(1);
      const std::size_t stop = is_item ? name.find(']') : name.find_first_of(".[");
      if (is_item && stop == name.npos) return run_.fail("format: a '[' without ']'");
      std::string_view part = name.substr(0, std::min(stop, name.size()));
      name.remove_prefix(std::min(part.size() + (is_item ? 1 : 0), name.size()));
      if (is_item) {
        const std::int64_t index = jinja_take_number(part, -1);
        v = part.empty() && index >= 0 ? run_.item(v, Value::of(index))
                                       : run_.item(v, run_.text(part));
      } else {
        v = run_.attribute(v, part);
      }
    }
    return v;
  }

  Value argument(std::string_view name) {
    std::string_view rest = name;
    std::int64_t index = jinja_take_number(rest, -1);
    const bool numbered = index >= 0 && rest.empty();
    if (name.empty() || numbered) {
      if (name.empty() ? numbered_ : automatic_) {
        return run_.fail("format: numbered and automatic fields do not mix");
      }
      (name.empty() ? automatic_ : numbered_) = true;
      const std::size_t i = name.empty() ? next_++ : static_cast<std::size_t>(index);
      if (i < args_.values.size()) return args_.values[i];
      return run_.fail("format has not enough arguments");
    }
    for (const Keyword& k : args_.keywords) {
      if (k.name == name) return k.value;
    }
    return run_.fail("format misses the argument '{}'", name.substr(0, 100));
  }

  Run& run_;
  const Args& args_;
  std::size_t next_ = 0;
  bool automatic_ = false, numbered_ = false;
};

}  // namespace

Value format_braces(Run& run, const Value& format, const Args& args) {
  Text out(run);
  JinjaBraces(run, args).format(out, run.view(format), &format, 0);
  return out.finish(format.string->markup);
}

}  // namespace decant::detail::jinja
