// Operations on text that keep the origin of every part, and the methods of strings.
#include "text/jinja/run.hpp"
#include "text/jinja/unicode.hpp"

namespace decant::detail::jinja {

// ---- case

// Every character through `map`(out, character, byte position in the whole), span by span.
template <class Map>
static Value jinja_map_text(Run& run, const Value& s, Map map) {
  run.view(s);  // in one piece, so that spans hold whole characters
  const Str& from = *s.string;
  if (!run.spend(from.size / 8)) return Heap::undefined();
  Text text(run);
  std::string out;
  std::size_t at = 0;
  for (std::size_t i = 0; i < from.n_spans; ++i) {
    std::string_view rest(from.spans[i].data, from.spans[i].size);
    out.clear();
    while (!rest.empty()) {
      const Utf8Char c = utf8_decode(rest);
      if (c.state == Utf8::whole) {
        map(out, c.code_point, at);
      } else {
        out += rest[0];
      }
      at += c.length;
      rest.remove_prefix(c.length);
    }
    text.add_copy(out, from.spans[i].origin);
  }
  return text.finish(from.markup);
}

Value upper_case(Run& run, const Value& s) {
  return jinja_map_text(
      run, s, [](std::string& out, std::uint32_t c, std::size_t) { append_upper(out, c); });
}

static bool jinja_case_ignorable(std::uint32_t c) {
  return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xa8 || c == 0xad ||
         c == 0xb7 || c == 0x2019 || (c >= 0x300 && c <= 0x36f);
}

// A capital sigma at the end of a word becomes the final one.
static void jinja_append_lower(std::string& out, std::uint32_t c, std::string_view whole,
                               std::size_t at) {
  if (c != 0x3a3) return append_lower(out, c);
  std::string_view before = whole.substr(0, at), after = whole.substr(at + 2);
  const auto cased_before = [&] {
    while (!before.empty()) {
      const Utf8Char d = utf8_decode_last(before);
      if (!jinja_case_ignorable(d.code_point)) return is_cased(d.code_point);
      before.remove_suffix(d.length);
    }
    return false;
  };
  const auto cased_after = [&] {
    while (!after.empty()) {
      const Utf8Char d = utf8_decode(after);
      if (!jinja_case_ignorable(d.code_point)) return is_cased(d.code_point);
      after.remove_prefix(d.length);
    }
    return false;
  };
  append_utf8(out, cased_before() && !cased_after() ? 0x3c2 : 0x3c3);
}

Value lower_case(Run& run, const Value& s) {
  const std::string_view whole = run.view(s);
  return jinja_map_text(run, s, [&](std::string& out, std::uint32_t c, std::size_t at) {
    jinja_append_lower(out, c, whole, at);
  });
}

Value capitalized(Run& run, const Value& s) {
  const std::string_view whole = run.view(s);
  return jinja_map_text(run, s, [&](std::string& out, std::uint32_t c, std::size_t at) {
    if (at == 0) {
      append_title(out, c);
    } else {
      jinja_append_lower(out, c, whole, at);
    }
  });
}

Value title_case(Run& run, const Value& s) {
  const std::string_view whole = run.view(s);
  bool inside = false;
  return jinja_map_text(run, s, [&](std::string& out, std::uint32_t c, std::size_t at) {
    if (inside) {
      jinja_append_lower(out, c, whole, at);
    } else {
      append_title(out, c);
    }
    inside = is_cased(c);
  });
}

Value title_words(Run& run, const Value& s) {
  const std::string_view whole = run.view(s);
  bool begins = true;
  return jinja_map_text(run, s, [&](std::string& out, std::uint32_t c, std::size_t at) {
    const bool separator = c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_blank(c);
    if (begins || separator) {
      append_upper(out, c);
    } else {
      jinja_append_lower(out, c, whole, at);
    }
    begins = separator;
  });
}

static Value jinja_swap_case(Run& run, const Value& s) {
  const std::string_view whole = run.view(s);
  return jinja_map_text(run, s, [&](std::string& out, std::uint32_t c, std::size_t at) {
    if (is_upper_char(c)) {
      jinja_append_lower(out, c, whole, at);
    } else {
      append_upper(out, c);
    }
  });
}

// ---- cutting and joining

Value stripped(Run& run, const Value& s, const Value& chars, Side side) {
  const std::string_view whole = run.view(s);
  std::string_view text = whole;
  const bool blanks = !chars.given() || chars.is(Type::none);
  if (!blanks && !chars.is_string()) return run.fail("strip needs a text");
  const std::string_view set = blanks ? std::string_view() : run.view(chars);
  const auto goes = [&](std::string_view character, const Utf8Char& c) {
    run.spend(1 + set.size() / 64);
    return blanks ? is_blank(c.code_point) : set.find(character) != set.npos;
  };
  while (side != Side::right && !text.empty()) {
    const Utf8Char c = utf8_decode(text);
    if (!goes(text.substr(0, c.length), c)) break;
    text.remove_prefix(c.length);
  }
  while (side != Side::left && !text.empty()) {
    const Utf8Char c = utf8_decode_last(text);
    if (!goes(text.substr(text.size() - c.length), c)) break;
    text.remove_suffix(c.length);
  }
  if (text.empty()) return run.text("");
  const auto begin = static_cast<std::size_t>(text.data() - whole.data());
  return run.slice(*s.string, begin, begin + text.size());
}

Value replaced(Run& run, const Value& s, const Value& from, const Value& to, std::int64_t count) {
  const std::string_view text = run.view(s), old = run.view(from);
  if (!run.spend(search_steps(text, old))) return Heap::undefined();
  Text out(run);
  std::size_t at = 0;
  while (count != 0 && !run.failed()) {
    std::size_t found = text.find(old, at);
    if (found == text.npos) break;
    if (old.empty()) {  // before every character and at the end
      out.add(*to.string);
      if (at == text.size()) return out.finish(s.string->markup);
      found = at + utf8_decode(text.substr(at)).length;
      out.add(*s.string, at, found);
    } else {
      out.add(*s.string, at, found);
      out.add(*to.string);
    }
    at = found + old.size();
    --count;
    run.spend(1);
  }
  out.add(*s.string, at, text.size());
  return out.finish(s.string->markup);
}

Value justified(Run& run, const Value& s, std::int64_t width, std::string_view fill, Side side) {
  std::size_t n = 0;
  length(run, s, n);
  if (width <= static_cast<std::int64_t>(n)) return s;
  const auto pad = static_cast<std::size_t>(width) - n;
  if (pad > run.limits().output_bytes / 4 || !run.reserve(pad, 4)) {
    return run.fail("a text is padded to too many characters");
  }
  // Python's center puts the odd one to the left if the width is odd.
  std::size_t left = side == Side::left ? 0 : pad;
  if (side == Side::both) left = pad / 2 + (pad & static_cast<std::size_t>(width) & 1);
  const auto filling = [&](std::size_t count) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) out += fill;
    return out;
  };
  Text text(run);
  text.add_copy(filling(left));
  text.add(*s.string);
  text.add_copy(filling(pad - left));
  return text.finish(s.string->markup);
}

static bool jinja_ends_line(std::uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

Value split_lines(Run& run, const Value& s, bool keep_ends) {
  const std::string_view text = run.view(s);
  run.spend(text.size() / 8);
  Growing<Value> lines(run);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size() && !run.failed();) {
    const Utf8Char c = utf8_decode(text.substr(at));
    const std::size_t end = at;
    at += c.length;
    if (!jinja_ends_line(c.code_point)) continue;
    if (c.code_point == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push(run.slice(*s.string, begin, keep_ends ? at : end));
    begin = at;
  }
  if (begin < text.size()) lines.push(run.slice(*s.string, begin, text.size()));
  return run.list(lines.view());
}

Value joined(Run& run, const Value& separator, const List& items) {
  Text text(run);
  for (std::size_t i = 0; i < items.size && run.spend(1) && !run.failed(); ++i) {
    if (i > 0) text.add(*separator.string);
    text.add_value(items.items[i]);
  }
  return text.finish();
}

static Value jinja_split_blanks(Run& run, const Value& s, std::int64_t count, bool from_right) {
  const std::string_view text = run.view(s);
  Growing<Value> parts(run);
  std::string_view rest = text;
  const auto strip = [&] {
    while (!rest.empty()) {
      const Utf8Char c = from_right ? utf8_decode_last(rest) : utf8_decode(rest);
      if (!is_blank(c.code_point)) break;
      if (from_right) {
        rest.remove_suffix(c.length);
      } else {
        rest.remove_prefix(c.length);
      }
    }
  };
  for (strip(); !rest.empty() && !run.failed(); strip()) {
    std::string_view word = rest;
    if (count-- != 0) {
      std::size_t n = 0;
      while (n < rest.size()) {
        const Utf8Char c = from_right ? utf8_decode_last(rest.substr(0, rest.size() - n))
                                      : utf8_decode(rest.substr(n));
        if (is_blank(c.code_point)) break;
        n += c.length;
      }
      word = from_right ? rest.substr(rest.size() - n) : rest.substr(0, n);
    }
    const auto begin = static_cast<std::size_t>(word.data() - text.data());
    parts.push(run.slice(*s.string, begin, begin + word.size()));
    if (from_right) {
      rest.remove_suffix(word.size());
    } else {
      rest.remove_prefix(word.size());
    }
  }
  return run.list(parts.view());
}

static Value jinja_split(Run& run, const Value& s, const Args& args, bool from_right) {
  Value a[2];
  if (!run.bind(args, "split", "sep maxsplit", a)) return Heap::undefined();
  std::int64_t count = run.integer(a[1], -1);
  const std::string_view text = run.view(s);
  Value parts;
  if (!a[0].given() || a[0].is(Type::none)) {
    parts = jinja_split_blanks(run, s, count, from_right);
  } else {
    const std::string_view separator = run.string_argument(a[0], "split");
    if (separator.empty()) return run.fail("split needs a separator that is not empty");
    if (!run.spend(search_steps(text, separator))) return Heap::undefined();
    Growing<Value> found(run);
    std::size_t begin = 0, end = text.size();
    while (count-- != 0 && !run.failed()) {
      if (from_right) {
        if (end < separator.size()) break;
        const std::size_t at = text.rfind(separator, end - separator.size());
        if (at == text.npos) break;
        found.push(run.slice(*s.string, at + separator.size(), end));
        end = at;
      } else {
        const std::size_t at = text.find(separator, begin);
        if (at == text.npos) break;
        found.push(run.slice(*s.string, begin, at));
        begin = at + separator.size();
      }
    }
    found.push(run.slice(*s.string, begin, end));
    parts = run.list(found.view());
  }
  if (from_right && parts.is(Type::list)) {
    std::reverse(const_cast<Value*>(parts.list->items),
                 const_cast<Value*>(parts.list->items) + parts.list->size);
  }
  return parts;
}

static Value jinja_partition(Run& run, const Value& s, const Args& args, bool from_right) {
  Value separator;
  if (!run.bind(args, "partition", "-", {&separator, 1}, 1)) return Heap::undefined();
  const std::string_view text = run.view(s), sep = run.string_argument(separator, "partition");
  if (sep.empty()) return run.fail("partition needs a separator that is not empty");
  if (!run.spend(search_steps(text, sep))) return Heap::undefined();
  const std::size_t at = from_right ? text.rfind(sep) : text.find(sep);
  Value* parts = run.array<Value>(3);
  if (at == text.npos) {
    parts[0] = parts[1] = parts[2] = run.text("");
    parts[from_right ? 2 : 0] = s;
  } else {
    parts[0] = run.slice(*s.string, 0, at);
    parts[1] = separator;
    parts[2] = run.slice(*s.string, at + sep.size(), text.size());
  }
  return run.list({parts, 3}, Type::tuple);
}

// ---- searching

namespace {
// A part of a text that start and end (in characters) choose.
struct JinjaPart {
  std::string_view text;
  std::size_t begin = 0;  // characters before it
  bool valid = true;      // false: start lies behind the end
};
}  // namespace

static JinjaPart jinja_part(Run& run, const Value& s, const Value& start, const Value& end) {
  const std::string_view text = run.view(s);
  const auto absent = [](const Value& v) { return !v.given() || v.is(Type::none); };
  if (absent(start) && absent(end)) return {text};
  const auto n = static_cast<std::int64_t>(utf8_length(text));
  const auto bound = [&](const Value& v, std::int64_t otherwise) {
    const std::int64_t i = run.integer(v, otherwise);
    return i < 0 ? std::max<std::int64_t>(i + n, 0) : i;
  };
  const std::int64_t from = bound(start, 0), to = std::min(bound(end, n), n);
  if (from > to || run.failed()) return {{}, 0, false};
  const std::size_t begin = utf8_offset(text, static_cast<std::size_t>(from));
  const std::string_view rest = text.substr(begin);
  return {rest.substr(0, utf8_offset(rest, static_cast<std::size_t>(to - from))),
          static_cast<std::size_t>(from)};
}

enum class JinjaFind { find, rfind, index, rindex };

template <JinjaFind kind>
static Value jinja_find(Run& run, const Value& s, const Args& args) {
  Value a[3];
  if (!run.bind(args, "find", "- - -", a, 1)) return Heap::undefined();
  const std::string_view wanted = run.string_argument(a[0], "find");
  const JinjaPart part = jinja_part(run, s, a[1], a[2]);
  if (!run.spend(search_steps(part.text, wanted))) return Heap::undefined();
  std::size_t at = part.text.npos;
  if (part.valid) {
    const bool last = kind == JinjaFind::rfind || kind == JinjaFind::rindex;
    at = last ? part.text.rfind(wanted) : part.text.find(wanted);
  }
  if (at != part.text.npos) {
    return Value::of_size(part.begin + utf8_length(part.text.substr(0, at)));
  }
  if (kind == JinjaFind::find || kind == JinjaFind::rfind) return Value::of(std::int64_t{-1});
  return run.fail("index: the text was not found");
}

static Value jinja_count(Run& run, const Value& s, const Args& args) {
  Value a[3];
  if (!run.bind(args, "count", "- - -", a, 1)) return Heap::undefined();
  const std::string_view wanted = run.string_argument(a[0], "count");
  const JinjaPart part = jinja_part(run, s, a[1], a[2]);
  if (!run.spend(search_steps(part.text, wanted))) return Heap::undefined();
  if (!part.valid) return Value::of(std::int64_t{0});
  if (wanted.empty()) return Value::of_size(utf8_length(part.text) + 1);
  std::int64_t n = 0;
  for (std::size_t at = part.text.find(wanted); at != part.text.npos;
       at = part.text.find(wanted, at + wanted.size())) {
    ++n;
  }
  return Value::of(n);
}

template <bool ends>
static Value jinja_has_affix(Run& run, const Value& s, const Args& args) {
  Value a[3];
  const char* name = ends ? "endswith" : "startswith";
  if (!run.bind(args, name, "- - -", a, 1)) return Heap::undefined();
  const JinjaPart part = jinja_part(run, s, a[1], a[2]);
  const auto fits = [&](const Value& affix) {
    const std::string_view text = run.string_argument(affix, name);
    return part.valid && (ends ? part.text.ends_with(text) : part.text.starts_with(text));
  };
  if (!a[0].is(Type::tuple)) return Value::of(fits(a[0]));
  for (const Value& affix : a[0].list->view()) {
    if (fits(affix)) return Value::of(true);
  }
  return Value::of(false);
}

template <bool suffix>
static Value jinja_remove_affix(Run& run, const Value& s, const Args& args) {
  Value affix;
  if (!run.bind(args, "removeprefix", "-", {&affix, 1}, 1)) return Heap::undefined();
  const std::string_view text = run.view(s);
  const std::string_view part = run.string_argument(affix, "removeprefix");
  if (suffix && text.ends_with(part)) {
    return run.slice(*s.string, 0, text.size() - part.size());
  }
  if (!suffix && text.starts_with(part)) return run.slice(*s.string, part.size(), text.size());
  return s;
}

// ---- classes

// str.isX: whether all characters pass, and there is one.
template <bool (*test)(std::uint32_t)>
static Value jinja_all(Run& run, const Value& s, const Args&) {
  std::string_view text = run.view(s);
  run.spend(text.size() / 8);
  bool all = !text.empty();
  while (all && !text.empty()) {
    const Utf8Char c = utf8_decode(text);
    all = test(c.code_point);
    text.remove_prefix(c.length);
  }
  return Value::of(all);
}

static bool jinja_is_alnum(std::uint32_t c) { return is_letter(c) || is_numeric(c); }

// Whether all characters with case have this one, and there is one.
template <bool (*wanted)(std::uint32_t)>
static Value jinja_has_case(Run& run, const Value& s, const Args&) {
  std::string_view text = run.view(s);
  run.spend(text.size() / 8);
  bool any = false;
  while (!text.empty()) {
    const Utf8Char c = utf8_decode(text);
    if (wanted(c.code_point)) {
      any = true;
    } else if (is_cased(c.code_point)) {
      return Value::of(false);
    }
    text.remove_prefix(c.length);
  }
  return Value::of(any);
}

static Value jinja_is_title(Run& run, const Value& s, const Args&) {
  std::string_view text = run.view(s);
  bool any = false, inside = false;
  while (!text.empty()) {
    const Utf8Char c = utf8_decode(text);
    const bool begins = is_upper_char(c.code_point) || is_title_char(c.code_point);
    if ((begins && inside) || (is_lower_char(c.code_point) && !inside)) return Value::of(false);
    inside = is_cased(c.code_point);
    any |= inside;
    text.remove_prefix(c.length);
  }
  return Value::of(any);
}

static Value jinja_is_ascii(Run& run, const Value& s, const Args&) {
  const std::string_view text = run.view(s);
  return Value::of(std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; }));
}

static Value jinja_is_printable(Run& run, const Value& s, const Args& args) {
  return s.string->size == 0 ? Value::of(true) : jinja_all<is_printable>(run, s, args);
}

static Value jinja_is_identifier(Run& run, const Value& s, const Args& args) {
  const std::string_view text = run.view(s);
  if (text.empty() || is_numeric(utf8_decode(text).code_point)) return Value::of(false);
  return jinja_all<is_word_char>(run, s, args);
}

// ---- methods

template <Value (*change)(Run&, const Value&)>
static Value jinja_simple(Run& run, const Value& s, const Args& args) {
  return run.bind(args, "this method", "", {}) ? change(run, s) : Heap::undefined();
}

template <Side side>
static Value jinja_strip(Run& run, const Value& s, const Args& args) {
  Value chars;
  if (!run.bind(args, "strip", "-", {&chars, 1})) return Heap::undefined();
  return stripped(run, s, chars, side);
}

static Value jinja_replace(Run& run, const Value& s, const Args& args) {
  Value a[3];
  if (!run.bind(args, "replace", "- - -", a, 2)) return Heap::undefined();
  if (!a[0].is_string() || !a[1].is_string()) return run.fail("replace needs texts");
  return replaced(run, s, a[0], a[1], run.integer(a[2], -1));
}

template <Side side>
static Value jinja_justify(Run& run, const Value& s, const Args& args) {
  Value a[2];
  if (!run.bind(args, "ljust, rjust and center", "- -", a, 1)) {
    return Heap::undefined();
  }
  const std::string_view fill = a[1].given() ? run.string_argument(a[1], "center") : " ";
  if (utf8_length(fill) != 1) return run.fail("the fill of a text must be one character");
  return justified(run, s, run.integer(a[0], 0), fill, side);
}

static Value jinja_zfill(Run& run, const Value& s, const Args& args) {
  Value width;
  if (!run.bind(args, "zfill", "-", {&width, 1}, 1)) return Heap::undefined();
  const std::string_view text = run.view(s);
  const bool sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  if (!sign) return justified(run, s, run.integer(width, 0), "0", Side::right);
  const Value digits = run.slice(*s.string, 1, text.size());
  Text out(run);
  out.add(*s.string, 0, 1);
  const Value filled = justified(run, digits, run.integer(width, 0) - 1, "0", Side::right);
  if (filled.is_string()) out.add(*filled.string);
  return out.finish();
}

static Value jinja_split_left(Run& run, const Value& s, const Args& args) {
  return jinja_split(run, s, args, false);
}
static Value jinja_split_right(Run& run, const Value& s, const Args& args) {
  return jinja_split(run, s, args, true);
}
static Value jinja_partition_left(Run& run, const Value& s, const Args& args) {
  return jinja_partition(run, s, args, false);
}
static Value jinja_partition_right(Run& run, const Value& s, const Args& args) {
  return jinja_partition(run, s, args, true);
}

static Value jinja_split_lines(Run& run, const Value& s, const Args& args) {
  Value keep;
  if (!run.bind(args, "splitlines", "keepends", {&keep, 1})) return Heap::undefined();
  return split_lines(run, s, truth(keep));
}

static Value jinja_expand_tabs(Run& run, const Value& s, const Args& args) {
  Value size;
  if (!run.bind(args, "expandtabs", "tabsize", {&size, 1})) return Heap::undefined();
  const std::int64_t width = std::clamp<std::int64_t>(run.integer(size, 8), 0, 1000);
  std::int64_t column = 0;
  return jinja_map_text(run, s, [&](std::string& out, std::uint32_t c, std::size_t) {
    if (c == '\t') {
      const std::int64_t n = width > 0 ? width - column % width : 0;
      out.append(static_cast<std::size_t>(n), ' ');
      column += n;
    } else {
      append_utf8(out, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  });
}

// Unlike the filter, the method takes nothing but texts.
static Value jinja_join(Run& run, const Value& s, const Args& args) {
  Value from;
  if (!run.bind(args, "join", "-", {&from, 1}, 1)) return Heap::undefined();
  const List* items = iterate(run, from);
  if (items == nullptr) return Heap::undefined();
  Growing<Value> texts(run);
  bool markup = s.string->markup;
  for (const Value& item : items->view()) {
    if (!item.is_string()) return run.fail("join needs texts, not a {}", type_name(item));
    texts.push(markup ? escaped(run, item) : item);
  }
  const Value text = joined(run, s, {texts.data(), texts.size()});
  if (text.is_string()) text.string->markup = markup;
  return text;
}

static Value jinja_format_map(Run& run, const Value& s, const Args& args) {
  if (args.values.size() != 1 || !args.values[0].is(Type::dict)) {
    return run.fail("format_map takes a dict");
  }
  Growing<Keyword> keywords(run);
  for (const Entry& e : args.values[0].dict->view()) {
    if (e.key.is_string()) keywords.push({run.view(e.key), e.value});
  }
  return format_braces(run, s, {{}, keywords.view()});
}

std::span<const MethodInfo> string_methods() {
  static constexpr Type kStr = Type::string;
  static constexpr MethodInfo kMethods[] = {
      {kStr, "capitalize", jinja_simple<capitalized>},
      {kStr, "casefold", nullptr},
      {kStr, "center", jinja_justify<Side::both>},
      {kStr, "count", jinja_count},
      {kStr, "encode", nullptr},
      {kStr, "endswith", jinja_has_affix<true>},
      {kStr, "expandtabs", jinja_expand_tabs},
      {kStr, "find", jinja_find<JinjaFind::find>},
      {kStr, "format", format_braces},
      {kStr, "format_map", jinja_format_map},
      {kStr, "index", jinja_find<JinjaFind::index>},
      {kStr, "isalnum", jinja_all<jinja_is_alnum>},
      {kStr, "isalpha", jinja_all<is_letter>},
      {kStr, "isascii", jinja_is_ascii},
      {kStr, "isdecimal", jinja_all<is_decimal>},
      {kStr, "isdigit", jinja_all<is_digit_char>},
      {kStr, "isidentifier", jinja_is_identifier},
      {kStr, "islower", jinja_has_case<is_lower_char>},
      {kStr, "isnumeric", jinja_all<is_numeric>},
      {kStr, "isprintable", jinja_is_printable},
      {kStr, "isspace", jinja_all<is_blank>},
      {kStr, "istitle", jinja_is_title},
      {kStr, "isupper", jinja_has_case<is_upper_char>},
      {kStr, "join", jinja_join},
      {kStr, "ljust", jinja_justify<Side::left>},
      {kStr, "lower", jinja_simple<lower_case>},
      {kStr, "lstrip", jinja_strip<Side::left>},
      {kStr, "maketrans", nullptr},
      {kStr, "partition", jinja_partition_left},
      {kStr, "removeprefix", jinja_remove_affix<false>},
      {kStr, "removesuffix", jinja_remove_affix<true>},
      {kStr, "replace", jinja_replace},
      {kStr, "rfind", jinja_find<JinjaFind::rfind>},
      {kStr, "rindex", jinja_find<JinjaFind::rindex>},
      {kStr, "rjust", jinja_justify<Side::right>},
      {kStr, "rpartition", jinja_partition_right},
      {kStr, "rsplit", jinja_split_right},
      {kStr, "rstrip", jinja_strip<Side::right>},
      {kStr, "split", jinja_split_left},
      {kStr, "splitlines", jinja_split_lines},
      {kStr, "startswith", jinja_has_affix<false>},
      {kStr, "strip", jinja_strip<Side::both>},
      {kStr, "swapcase", jinja_simple<jinja_swap_case>},
      {kStr, "title", jinja_simple<title_case>},
      {kStr, "translate", nullptr},
      {kStr, "upper", jinja_simple<upper_case>},
      {kStr, "zfill", jinja_zfill},
  };
  return kMethods;
}

}  // namespace decant::detail::jinja
