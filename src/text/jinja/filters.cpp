// The filters on values and texts, as jinja2 defines them; those on sequences have their own file.
#include "base/fp_contract.hpp"

#include <charconv>
#include <cmath>

#include "text/jinja/run.hpp"
#include "text/jinja/unicode.hpp"

namespace decant::detail::jinja {

// A filter that takes any value as text.
template <Value (*change)(Run&, const Value&)>
static Value jinja_filter_text(Run& run, const Value& v, const Args& args) {
  if (!run.bind(args, "this filter", "", {})) return Heap::undefined();
  const Value s = to_string(run, v);
  return s.is_string() ? change(run, s) : s;
}

static Value jinja_as_markup(Run& run, const Value& s) {
  const Value v = run.str(*s.string);
  v.string->markup = true;
  return v;
}

static Value jinja_force_escape(Run& run, const Value& s) {
  const Value plain = run.str(*s.string);
  plain.string->markup = false;
  return escaped(run, plain);
}

static Value jinja_same_text(Run&, const Value& s) { return s; }

static Value jinja_count_words(Run& run, const Value& s) {
  std::string_view text = run.view(s);
  run.spend(text.size() / 8);
  std::int64_t n = 0;
  bool inside = false;
  while (!text.empty()) {
    const Utf8Char c = utf8_decode(text);
    const bool word = is_word_char(c.code_point);
    n += word && !inside ? 1 : 0;
    inside = word;
    text.remove_prefix(c.length);
  }
  return Value::of(n);
}

static Value jinja_filter_default(Run& run, const Value& v, const Args& args) {
  Value a[2];
  if (!run.bind(args, "default", "default_value boolean", a)) return Heap::undefined();
  if (!v.is_undefined() && (!truth(a[1]) || truth(v))) return v;
  return a[0].given() ? a[0] : run.text("");
}

static Value jinja_filter_trim(Run& run, const Value& v, const Args& args) {
  Value chars;
  if (!run.bind(args, "trim", "chars", {&chars, 1})) return Heap::undefined();
  const Value s = to_string(run, v);
  return s.is_string() ? stripped(run, s, chars, Side::both) : s;
}

static Value jinja_filter_replace(Run& run, const Value& v, const Args& args) {
  Value a[3];
  if (!run.bind(args, "replace", "old new count", a, 2)) return Heap::undefined();
  const Value s = to_string(run, v), from = to_string(run, a[0]), to = to_string(run, a[1]);
  if (!s.is_string() || !from.is_string() || !to.is_string()) return Heap::undefined();
  return replaced(run, s, from, to, run.integer(a[2], -1));
}

static Value jinja_filter_center(Run& run, const Value& v, const Args& args) {
  Value width;
  if (!run.bind(args, "center", "width", {&width, 1})) return Heap::undefined();
  const Value s = to_string(run, v);
  return s.is_string() ? justified(run, s, run.integer(width, 80), " ", Side::both) : s;
}

static Value jinja_filter_length(Run& run, const Value& v, const Args& args) {
  if (!run.bind(args, "length", "", {})) return Heap::undefined();
  if (v.is(Type::loop)) return Value::of(run.loop_length(*v.loop));
  std::size_t n = 0;
  if (!length(run, v, n)) return run.fail("a {} has no length", type_name(v));
  return Value::of_size(n);
}

static Value jinja_filter_format(Run& run, const Value& v, const Args& args) {
  if (!args.values.empty() && !args.keywords.empty()) {
    return run.fail("format takes positional or keyword arguments, not both");
  }
  const Value s = to_string(run, v);
  if (!s.is_string()) return s;
  if (args.keywords.empty()) return format_percent(run, s, run.list(args.values, Type::tuple));
  Growing<Entry> entries(run);
  for (const Keyword& k : args.keywords) entries.push({run.text(k.name), k.value});
  return format_percent(run, s, make_dict(run, entries.view()));
}

// Lines joined again by \n; blank lines and the first one stay where they are unless asked.
static Value jinja_filter_indent(Run& run, const Value& v, const Args& args) {
  Value a[3];
  if (!run.bind(args, "indent", "width first blank", a)) return Heap::undefined();
  if (!v.is_string()) {
    return v.is_undefined() ? run.fail_undefined(v)
                            : run.fail("indent needs a text, not a {}", type_name(v));
  }
  Value indent = a[0];
  if (!indent.is_string()) {
    indent = justified(run, run.text(""), run.integer(a[0], 4), " ", Side::left);
    if (!indent.is_string()) return indent;
  }
  Text with_end(run);
  with_end.add(*v.string);
  with_end.add(
      "\n", v.string->n_spans > 0 ? v.string->spans[v.string->n_spans - 1].origin : kFromTemplate);
  const Value lines = split_lines(run, with_end.finish(), false);
  if (run.failed()) return lines;
  Text out(run);
  Origin origin = kFromTemplate;  // of the line before, for the newline behind it
  for (std::size_t i = 0; i < lines.list->size && run.spend(1) && !run.failed(); ++i) {
    const Str& line = *lines.list->items[i].string;
    if (i > 0) out.add("\n", origin);
    const bool indented = i == 0 ? truth(a[1]) : line.size > 0 || truth(a[2]);
    if (indented) out.add(*indent.string);
    out.add(line);
    if (line.n_spans > 0) origin = line.spans[line.n_spans - 1].origin;
  }
  return out.finish(v.string->markup);
}

static Value jinja_filter_truncate(Run& run, const Value& v, const Args& args) {
  Value a[4];
  if (!run.bind(args, "truncate", "length killwords end leeway", a)) return Heap::undefined();
  std::size_t size = 0, end_size = 0;
  const Value end = a[2].given() ? a[2] : run.text("...");
  if (!end.is_string()) return run.fail("truncate: the end must be a text");
  if (!length(run, v, size)) return run.fail("a {} has no length", type_name(v));
  length(run, end, end_size);
  const std::int64_t wanted = run.integer(a[0], 255), leeway = run.integer(a[3], 5);
  if (wanted < static_cast<std::int64_t>(end_size) || leeway < 0) {
    return run.fail("truncate: the length or leeway is too small");
  }
  if (static_cast<std::int64_t>(size) - leeway <= wanted) return v;
  if (!v.is_string()) return run.fail("truncate needs a text, not a {}", type_name(v));
  const std::string_view text = run.view(v);
  std::size_t cut = utf8_offset(text, static_cast<std::size_t>(wanted) - end_size);
  if (!truth(a[1])) {
    const std::size_t space = text.substr(0, cut).rfind(' ');
    if (space != text.npos) cut = space;
  }
  Text out(run);
  out.add(*v.string, 0, cut);
  out.add(*end.string);
  return out.finish(v.string->markup);
}

static void jinja_quote_url(Run& run, std::string& out, const Value& v, bool query) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  const Value s = to_string(run, v);
  if (!s.is_string()) return;
  for (const char c : run.view(s)) {
    const auto byte = static_cast<std::uint8_t>(c);
    const bool plain = byte < 0x80 && (is_word_char(byte) || c == '-' || c == '.' || c == '~');
    if (plain || (c == '/' && !query)) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out.append({'%', kHex[byte >> 4], kHex[byte & 15]});
    }
  }
}

static Value jinja_filter_urlencode(Run& run, const Value& v, const Args& args) {
  if (!run.bind(args, "urlencode", "", {})) return Heap::undefined();
  std::string out;
  if (v.is_string() || !iterable(v)) {
    jinja_quote_url(run, out, v, false);
    return run.copy(out, common_origin(run, v));
  }
  Value pairs = v;
  if (v.is(Type::dict)) {
    pairs = Value::make(Type::view, &Value::view, run.make(View{v.dict, ViewKind::items}));
  }
  const List* items = iterate(run, pairs);
  if (items == nullptr) return Heap::undefined();
  for (const Value& item : items->view()) {
    const List* pair = iterate(run, item);
    if (pair == nullptr) return Heap::undefined();
    if (pair->size != 2) return run.fail("urlencode needs pairs");
    if (!out.empty()) out += '&';
    jinja_quote_url(run, out, pair->items[0], true);
    out += '=';
    jinja_quote_url(run, out, pair->items[1], true);
  }
  return run.copy(out, common_origin(run, v));
}

static Value jinja_filter_xmlattr(Run& run, const Value& v, const Args& args) {
  Value space;
  if (!run.bind(args, "xmlattr", "autospace", {&space, 1})) return Heap::undefined();
  if (!v.is(Type::dict)) return run.fail("xmlattr needs a dict");
  Text out(run);
  for (const Entry& e : v.dict->view()) {
    if (e.value.is(Type::none) || e.value.is_undefined()) continue;
    if (!e.key.is_string()) return run.fail("xmlattr needs texts as keys");
    if (run.view(e.key).find_first_of(" \t\n\v\f\r/>=") != std::string_view::npos) {
      return run.fail("xmlattr: a key has a character that attributes cannot have");
    }
    if (out.size() > 0 || !space.given() || truth(space)) out.add(" ");
    out.add_value(escaped(run, e.key));
    out.add("=\"");
    out.add_value(escaped(run, e.value));
    out.add("\"");
  }
  return out.finish();
}

// ---- numbers

// Python's int(text, base) and float(text): white space around, single underscores inside.
static bool jinja_digits(std::string_view text, std::string& out) {
  while (!text.empty() && is_blank(utf8_decode(text).code_point)) {
    text.remove_prefix(utf8_decode(text).length);
  }
  while (!text.empty() && is_blank(utf8_decode_last(text).code_point)) {
    text.remove_suffix(utf8_decode_last(text).length);
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || text[i + 1] == '_' || text[i - 1] == '_') {
      return false;
    }
  }
  return !out.empty();
}

static std::optional<std::int64_t> jinja_parse_integer(Run& run, std::string_view text, int base) {
  std::string digits;
  if (!jinja_digits(text, digits)) return std::nullopt;
  std::string_view rest = digits;
  const bool negative = rest[0] == '-';
  if (negative || rest[0] == '+') rest.remove_prefix(1);
  if (rest.size() > 2 && rest[0] == '0') {
    const char letter = static_cast<char>(rest[1] | 0x20);
    const int named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      rest.remove_prefix(2);
      base = named;
    }
  }
  if (base == 0) base = 10;
  if (rest.empty() || rest[0] == '-' || base < 2 || base > 36) return std::nullopt;
  std::string with_sign(negative ? "-" : "");
  with_sign += rest;
  std::int64_t x = 0;
  const char* end = with_sign.data() + with_sign.size();
  const auto read = std::from_chars(with_sign.data(), end, x, base);
  if (read.ptr != end) return std::nullopt;
  if (read.ec != std::errc()) {
    run.fail(ErrorCode::unsupported, "integers beyond 64 bits");
    return std::nullopt;
  }
  return x;
}

static std::optional<double> jinja_parse_real(std::string_view text) {
  std::string digits;
  if (!jinja_digits(text, digits)) return std::nullopt;
  const char* begin = digits.data() + (digits[0] == '+' ? 1 : 0);
  const char* end = digits.data() + digits.size();
  double x = 0;
  const auto read = std::from_chars(begin, end, x);  // also inf and nan, as Python
  if (read.ptr != end || begin == end || (begin != digits.data() && *begin == '-')) {
    return std::nullopt;
  }
  if (digits.find('(') != digits.npos) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) {
    const bool small = digits.find("e-") != digits.npos || digits.find("E-") != digits.npos;
    x = small ? 0.0 : HUGE_VAL;
    if (*begin == '-') x = -x;
  }
  return x;
}

static std::optional<std::int64_t> jinja_whole(Run& run, double x) {
  if (!std::isfinite(x)) return std::nullopt;
  x = std::trunc(x);
  if (x >= 9223372036854775808.0 || x < -9223372036854775808.0) {
    run.fail(ErrorCode::unsupported, "integers beyond 64 bits");
    return std::nullopt;
  }
  return static_cast<std::int64_t>(x);
}

static Value jinja_filter_int(Run& run, const Value& v, const Args& args) {
  Value a[2];
  if (!run.bind(args, "int", "default base", a)) return Heap::undefined();
  const Value otherwise = a[0].given() ? a[0] : Value::of(std::int64_t{0});
  if (v.is_undefined()) return run.fail_undefined(v);
  if (v.is_integer()) return Value::of(v.as_integer());
  if (v.is(Type::big)) return v;
  std::optional<std::int64_t> x;
  if (v.is(Type::real)) x = jinja_whole(run, v.real);
  if (v.is_string()) {
    const int base = static_cast<int>(std::clamp<std::int64_t>(run.integer(a[1], 10), -1, 99));
    x = jinja_parse_integer(run, run.view(v), base);
    if (!x && !run.failed()) {
      if (const auto real = jinja_parse_real(run.view(v))) x = jinja_whole(run, *real);
    }
  }
  return x ? Value::of(*x) : otherwise;
}

static Value jinja_filter_float(Run& run, const Value& v, const Args& args) {
  Value otherwise;
  if (!run.bind(args, "float", "default", {&otherwise, 1})) return Heap::undefined();
  if (v.is_undefined()) return run.fail_undefined(v);
  if (v.is_number()) return Value::of(v.as_real());
  if (v.is_string()) {
    if (const auto x = jinja_parse_real(run.view(v))) return Value::of(*x);
  }
  return otherwise.given() ? otherwise : Value::of(0.0);
}

static Value jinja_filter_abs(Run& run, const Value& v, const Args& args) {
  if (!run.bind(args, "abs", "", {})) return Heap::undefined();
  if (v.is_integer() && v.as_integer() >= 0) return Value::of(v.as_integer());
  if (v.is(Type::big)) return v;
  if (v.is(Type::real)) return Value::of(std::fabs(v.real));
  return negated(run, v);
}

static Value jinja_filter_round(Run& run, const Value& v, const Args& args) {
  Value a[2];
  if (!run.bind(args, "round", "precision method", a)) return Heap::undefined();
  const std::int64_t precision = std::clamp<std::int64_t>(run.integer(a[0], 0), -400, 400);
  const std::string_view method = a[1].given() ? run.string_argument(a[1], "round") : "common";
  if (!v.is_number()) {
    return v.is_undefined() ? run.fail_undefined(v)
                            : run.fail("round needs a number, not a {}", type_name(v));
  }
  if (method == "common") {
    if (v.is(Type::real)) return Value::of(rounded(v.real, precision));
    if (precision >= 0) return v.is_integer() ? Value::of(v.as_integer()) : v;
    const auto x = jinja_whole(run, rounded(v.as_real(), precision));
    return x ? Value::of(*x) : Heap::undefined();
  }
  if (method != "ceil" && method != "floor") {
    return run.fail("round: the method must be common, ceil or floor");
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_real() * unit;
  return Value::of((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

static Value jinja_filter_filesize(Run& run, const Value& v, const Args& args) {
  Value binary;
  if (!run.bind(args, "filesizeformat", "binary", {&binary, 1})) return Heap::undefined();
  const Value no_number = Value::none();
  const Value number = jinja_filter_float(run, v, {{&no_number, 1}, {}});
  if (!number.is(Type::real)) return run.fail("filesizeformat needs a number");
  const double bytes = number.real, base = truth(binary) ? 1024 : 1000;
  std::string out;
  if (bytes == 1) return run.text("1 Byte");
  if (bytes < base) {
    const auto whole = jinja_whole(run, bytes);
    append_integer(out, whole ? *whole : 0);
    return run.copy(out + " Bytes");
  }
  static constexpr std::string_view kLetters = "kMGTPEZY";
  double unit = base * base;
  std::size_t i = 0;
  for (; i + 1 < kLetters.size() && bytes >= unit; ++i) unit *= base;
  char buffer[400];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, base * bytes / unit,
                                 std::chars_format::fixed, 1);
  out.append(buffer, end.ptr).append(1, ' ');
  out += truth(binary) && kLetters[i] == 'k' ? 'K' : kLetters[i];
  return run.copy(out + (truth(binary) ? "iB" : "B"));
}

// ---- values

static Value jinja_filter_tojson(Run& run, const Value& v, const Args& args) {
  Value a[4];
  if (!run.bind(args, "tojson", "ensure_ascii indent separators sort_keys", a)) {
    return Heap::undefined();
  }
  JsonStyle style;
  style.ensure_ascii = truth(a[0]);
  style.sort_keys = truth(a[3]);
  Value indent = a[1];
  if (indent.given() && !indent.is(Type::none)) {
    style.pretty = true;
    style.item_separator = ",";
    if (!indent.is_string()) {
      indent = justified(run, run.text(""), run.integer(indent, 0), " ", Side::left);
      if (!indent.is_string()) return indent;
    }
    style.indent = run.view(indent);
  }
  if (a[2].given() && !a[2].is(Type::none)) {
    const List* pair = iterate(run, a[2]);
    if (pair == nullptr) return Heap::undefined();
    if (pair->size != 2) return run.fail("tojson: separators are a pair");
    style.item_separator = run.string_argument(pair->items[0], "tojson");
    style.key_separator = run.string_argument(pair->items[1], "tojson");
  }
  return run.failed() ? Heap::undefined() : to_json(run, v, style);
}

static Value jinja_filter_attr(Run& run, const Value& v, const Args& args) {
  Value name;
  if (!run.bind(args, "attr", "name", {&name, 1}, 1)) return Heap::undefined();
  if (!name.is_string()) return run.fail("attr needs a name");
  // Items of dicts are no attributes, except where both would be found.
  if (v.is(Type::dict) && find_method(Type::dict, run.view(name)) == nullptr) {
    return run.undefined({Undefined::attribute, run.view(name), type_name(v)});
  }
  return run.attribute(v, run.view(name));
}

static Value jinja_filter_items(Run& run, const Value& v, const Args& args) {
  if (!run.bind(args, "items", "", {})) return Heap::undefined();
  if (v.is_undefined()) return run.generator(nullptr, 0);
  const Error* error = nullptr;
  const List* items = nullptr;
  if (v.is(Type::dict)) {
    const Value pairs =
        Value::make(Type::view, &Value::view, run.make(View{v.dict, ViewKind::items}));
    items = iterate(run, pairs);
  } else {
    run.fail("items needs a dict, not a {}", type_name(v));
    error = run.keep(run.take_error());
  }
  return items != nullptr ? run.generator(items->items, items->size)
                          : run.generator(nullptr, 0, error);
}

static Value jinja_filter_unsupported(Run& run, const Value&, const Args&) {
  return run.fail(ErrorCode::unsupported,
                  "the filters pprint, random, striptags, urlize and "
                  "wordwrap");
}

const FilterInfo* find_filter(std::string_view name) {
  static constexpr FilterInfo kFilters[] = {
      {"abs", jinja_filter_abs},
      {"attr", jinja_filter_attr},
      {"capitalize", jinja_filter_text<capitalized>},
      {"center", jinja_filter_center},
      {"count", jinja_filter_length},
      {"d", jinja_filter_default},
      {"default", jinja_filter_default},
      {"e", jinja_filter_text<escaped>},
      {"escape", jinja_filter_text<escaped>},
      {"filesizeformat", jinja_filter_filesize},
      {"float", jinja_filter_float},
      {"forceescape", jinja_filter_text<jinja_force_escape>},
      {"format", jinja_filter_format},
      {"indent", jinja_filter_indent},
      {"int", jinja_filter_int},
      {"items", jinja_filter_items},
      {"length", jinja_filter_length},
      {"lower", jinja_filter_text<lower_case>},
      {"pprint", jinja_filter_unsupported},
      {"random", jinja_filter_unsupported},
      {"replace", jinja_filter_replace},
      {"round", jinja_filter_round},
      {"safe", jinja_filter_text<jinja_as_markup>},
      {"string", jinja_filter_text<jinja_same_text>},
      {"striptags", jinja_filter_unsupported},
      {"title", jinja_filter_text<title_words>},
      {"tojson", jinja_filter_tojson},
      {"trim", jinja_filter_trim},
      {"truncate", jinja_filter_truncate},
      {"upper", jinja_filter_text<upper_case>},
      {"urlencode", jinja_filter_urlencode},
      {"urlize", jinja_filter_unsupported},
      {"wordcount", jinja_filter_text<jinja_count_words>},
      {"wordwrap", jinja_filter_unsupported},
      {"xmlattr", jinja_filter_xmlattr},
  };
  for (const FilterInfo& f : kFilters) {
    if (f.name == name) return &f;
  }
  for (const FilterInfo& f : sequence_filters()) {
    if (f.name == name) return &f;
  }
  return nullptr;
}

}  // namespace decant::detail::jinja
