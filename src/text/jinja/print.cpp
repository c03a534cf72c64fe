// str() and repr() of values, exactly as Python prints them.
#include "base/fp_contract.hpp"

#include <charconv>
#include <cmath>

#include "text/jinja/run.hpp"
#include "text/jinja/unicode.hpp"

namespace decant::detail::jinja {

void append_integer(std::string& to, std::int64_t x) {
  char buffer[24];
  to.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, x).ptr);
}

// The shortest digits that read back the same; an exponent below 1e-4 and from 1e16 on.
void append_real(std::string& to, double x) {
  if (!std::isfinite(x)) {
    to += std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
    return;
  }
  char buffer[40];
  const char* end =
      std::to_chars(buffer, buffer + sizeof buffer, x, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  if (text[0] == '-') {
    to += '-';
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  int exponent = 0;
  const char* digits = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits, end, exponent);
  std::string mantissa(1, text[0]);
  if (e > 2) mantissa += text.substr(2, e - 2);
  const int n = static_cast<int>(mantissa.size());
  if (exponent < -4 || exponent >= 16) {
    to += mantissa[0];
    if (n > 1) to.append(1, '.').append(mantissa, 1);
    to += exponent < 0 ? "e-" : "e+";
    if (std::abs(exponent) < 10) to += '0';
    append_integer(to, std::abs(exponent));
  } else if (exponent < 0) {
    to.append("0.").append(static_cast<std::size_t>(-exponent - 1), '0').append(mantissa);
  } else if (exponent + 1 >= n) {
    to.append(mantissa).append(static_cast<std::size_t>(exponent + 1 - n), '0').append(".0");
  } else {
    const auto point = static_cast<std::size_t>(exponent + 1);
    to.append(mantissa, 0, point).append(1, '.').append(mantissa, point);
  }
}

void append_escape(std::string& to, std::uint32_t c) {
  static constexpr char kHex[] = "0123456789abcdef";
  const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
  to += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
  for (int i = digits - 1; i >= 0; --i) to += kHex[c >> 4 * i & 15];
}

static void jinja_repr_text(std::string& to, std::string_view text) {
  const bool doubled = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = doubled ? '"' : '\'';
  to += quote;
  while (!text.empty()) {
    const Utf8Char c = utf8_decode(text);
    const std::string_view bytes = text.substr(0, c.length);
    text.remove_prefix(c.length);
    if (c.state != Utf8::whole) {
      append_escape(to, static_cast<std::uint8_t>(bytes[0]));
    } else if (c.code_point == static_cast<std::uint8_t>(quote) || c.code_point == '\\') {
      to.append(1, '\\').append(bytes);
    } else if (c.code_point == '\n') {
      to += "\\n";
    } else if (c.code_point == '\r') {
      to += "\\r";
    } else if (c.code_point == '\t') {
      to += "\\t";
    } else if (is_printable(c.code_point)) {
      to += bytes;
    } else {
      append_escape(to, c.code_point);
    }
  }
  to += quote;
}

static void jinja_repr(Heap& heap, std::string& to, const Value& v, std::uint32_t depth);

static void jinja_repr_items(Heap& heap, std::string& to, std::span<const Value> items,
                             std::uint32_t depth) {
  bool first = true;
  for (const Value& item : items) {
    if (heap.failed()) return;
    if (!first) to += ", ";
    first = false;
    jinja_repr(heap, to, item, depth);
  }
}

static void jinja_repr_entries(Heap& heap, std::string& to, std::span<const Entry> entries,
                               std::uint32_t depth) {
  to += '{';
  bool first = true;
  for (const Entry& e : entries) {
    if (heap.failed()) return;
    if (!first) to += ", ";
    first = false;
    jinja_repr(heap, to, e.key, depth);
    to += ": ";
    jinja_repr(heap, to, e.value, depth);
  }
  to += '}';
}

// `depth` matters for namespaces, which may contain themselves.
static void jinja_repr(Heap& heap, std::string& to, const Value& v, std::uint32_t depth) {
  if (!heap.spend(1)) return;
  if (to.size() > heap.limits().output_bytes || depth > 2 * kMaxNesting) {
    heap.fail("a value is too large to be printed");
    return;
  }
  ++depth;
  switch (v.type) {
    case Type::missing:
    case Type::undefined: to += "Undefined"; break;
    case Type::none: to += "None"; break;
    case Type::boolean: to += v.boolean ? "True" : "False"; break;
    case Type::integer: append_integer(to, v.integer); break;
    case Type::big: {
      char buffer[24];
      to.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, v.big).ptr);
      break;
    }
    case Type::real: append_real(to, v.real); break;
    case Type::string:
      if (!heap.spend(v.string->size / 16)) return;
      if (v.string->markup) to += "Markup(";
      jinja_repr_text(to, heap.view(v));
      if (v.string->markup) to += ')';
      break;
    case Type::list:
      to += '[';
      jinja_repr_items(heap, to, v.list->view(), depth);
      to += ']';
      break;
    case Type::tuple:
      to += '(';
      jinja_repr_items(heap, to, v.list->view(), depth);
      to += v.list->size == 1 ? ",)" : ")";
      break;
    case Type::dict: jinja_repr_entries(heap, to, v.dict->view(), depth); break;
    case Type::range: {
      const Range& r = *v.range;
      to += "range(";
      append_integer(to, r.start);
      to += ", ";
      append_integer(to, r.stop);
      if (r.step != 1) {
        to += ", ";
        append_integer(to, r.step);
      }
      to += ')';
      break;
    }
    case Type::view: {
      static constexpr const char* kNames[] = {"dict_keys([", "dict_values([", "dict_items(["};
      to += kNames[static_cast<int>(v.view->kind)];
      if (const List* items = iterate(heap, v)) jinja_repr_items(heap, to, items->view(), depth);
      to += "])";
      break;
    }
    case Type::generator: to += "<generator object>"; break;
    case Type::space:
      to += "<Namespace ";
      jinja_repr_entries(heap, to, v.space->entries.view(), depth);
      to += '>';
      break;
    case Type::macro:
      if (v.macro->node->text.empty()) {
        to += "<Macro anonymous>";
      } else {
        to.append("<Macro '").append(v.macro->node->text).append("'>");
      }
      break;
    case Type::method: to.append("<method ").append(v.bound->method->name).append(">"); break;
    case Type::function: to.append("<function ").append(v.function->name).append(">"); break;
    case Type::loop:
      to += "<LoopContext ";
      append_integer(to, static_cast<std::int64_t>(v.loop->index0 + 1));
      to += '/';
      append_integer(to, static_cast<std::int64_t>(v.loop->size()));
      to += '>';
      break;
    case Type::cycler: to += "<Cycler object>"; break;
    case Type::joiner: to += "<Joiner object>"; break;
  }
}

void append_repr(Heap& heap, std::string& to, const Value& v) { jinja_repr(heap, to, v, 0); }

Value to_string(Heap& heap, const Value& v) {
  switch (v.type) {
    case Type::string: return v;
    case Type::missing:
    case Type::undefined: return heap.text("");
    case Type::none: return heap.text("None");
    case Type::boolean: return heap.text(v.boolean ? "True" : "False");
    default: break;
  }
  std::string text;
  append_repr(heap, text, v);
  return heap.copy(text, common_origin(heap, v));
}

}  // namespace decant::detail::jinja
