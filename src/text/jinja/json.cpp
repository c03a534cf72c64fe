// JSON in (the context) and out (tojson, which writes what Python's json.dumps writes).
#include "base/fp_contract.hpp"

#include <cmath>

#include "base/json.hpp"
#include "text/jinja/unicode.hpp"
#include "text/jinja/value.hpp"

namespace decant::detail::jinja {

using JinjaJson = nlohmann::ordered_json;

static Value jinja_json_value(Heap& heap, const JinjaJson& json, Origin origin,
                              std::uint32_t depth) {
  if (depth > kMaxNesting) return heap.fail("JSON is nested more than {} deep", kMaxNesting);
  switch (json.type()) {
    case JinjaJson::value_t::boolean: return Value::of(*json.get_ptr<const bool*>());
    case JinjaJson::value_t::number_integer:
      return Value::of(*json.get_ptr<const JinjaJson::number_integer_t*>());
    case JinjaJson::value_t::number_unsigned: {
      const std::uint64_t x = *json.get_ptr<const JinjaJson::number_unsigned_t*>();
      if (x <= INT64_MAX) return Value::of(static_cast<std::int64_t>(x));
      return Value::make(Type::big, &Value::big, x);
    }
    case JinjaJson::value_t::number_float:
      return Value::of(*json.get_ptr<const JinjaJson::number_float_t*>());
    case JinjaJson::value_t::string:
      return heap.text(*json.get_ptr<const JinjaJson::string_t*>(), origin);
    case JinjaJson::value_t::array: {
      Value* items = heap.array<Value>(json.size());
      std::size_t n = 0;
      for (const JinjaJson& item : json) {
        items[n++] = jinja_json_value(heap, item, origin, depth + 1);
      }
      return heap.list({items, n});
    }
    case JinjaJson::value_t::object: {
      Dict dict{nullptr, json.size()};
      Entry* entries = heap.array<Entry>(json.size());
      dict.entries = entries;
      for (const auto& [key, value] : *json.get_ptr<const JinjaJson::object_t*>()) {
        entries->key = heap.text(key, origin);
        entries->value = jinja_json_value(heap, value, origin, depth + 1);
        const Value& v = entries->value;
        if (v.is(Type::list)) dict.depth = std::max(dict.depth, v.list->depth + 1);
        if (v.is(Type::dict)) dict.depth = std::max(dict.depth, v.dict->depth + 1);
        ++entries;
      }
      return Value::make(Type::dict, &Value::dict, heap.make(dict));
    }
    default: return Value::none();
  }
}

Value from_json(Heap& heap, const JinjaJson& json, Origin origin) {
  return jinja_json_value(heap, json, origin, 0);
}

// A role is no content of its message, whose text alone may be replaced by what was generated.
Value from_messages(Heap& heap, const JinjaJson& messages) {
  if (!messages.is_array()) return from_json(heap, messages, kFromContent);
  Value* items = heap.array<Value>(messages.size());
  std::size_t n = 0;
  for (const JinjaJson& message : messages) {
    const Value v = jinja_json_value(heap, message, static_cast<Origin>(n), 1);
    if (v.is(Type::dict)) {
      for (const Entry& e : v.dict->view()) {
        if (heap.view(e.key) != "role" || !e.value.is_string()) continue;
        const_cast<Entry&>(e).value = heap.text(heap.view(e.value), kFromContent);
      }
    }
    items[n++] = v;
  }
  return heap.list({items, n});
}

namespace {

class JinjaJsonWriter {
 public:
  JinjaJsonWriter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}

  void write(const Value& v, std::size_t level) {
    if (!heap_.spend(1)) return;
    if (out.size() > heap_.limits().output_bytes) {
      heap_.fail("a value is too large for tojson");
      return;
    }
    switch (v.type) {
      case Type::none: out += "null"; return;
      case Type::boolean: out += v.boolean ? "true" : "false"; return;
      case Type::integer:
      case Type::big: append_repr(heap_, out, v); return;
      case Type::real: write_real(v.real); return;
      case Type::string: write_text(heap_.view(v)); return;
      case Type::list:
      case Type::tuple: write_list(*v.list, level); return;
      case Type::dict: write_dict(*v.dict, level); return;
      default: heap_.fail("a {} cannot be written as JSON", type_name(v));
    }
  }

  std::string out;

 private:
  void write_real(double x) {
    if (std::isfinite(x)) {
      append_real(out, x);
    } else {
      out += std::isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity";
    }
  }

  void write_unit(std::uint32_t unit) {
    static constexpr char kHex[] = "0123456789abcdef";
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += kHex[unit >> shift & 15];
  }

  void write_text(std::string_view text) {
    if (!heap_.spend(text.size() / 16)) return;
    out += '"';
    while (!text.empty()) {
      const Utf8Char c = utf8_decode(text);
      const std::string_view bytes = text.substr(0, c.length);
      text.remove_prefix(c.length);
      switch (c.code_point) {
        case '"': out += "\\\""; continue;
        case '\\': out += "\\\\"; continue;
        case '\n': out += "\\n"; continue;
        case '\r': out += "\\r"; continue;
        case '\t': out += "\\t"; continue;
        case '\b': out += "\\b"; continue;
        case '\f': out += "\\f"; continue;
        default: break;
      }
      if (c.code_point < 0x20) {
        write_unit(c.code_point);
      } else if (!style_.ensure_ascii || c.code_point < 0x7f || c.state != Utf8::whole) {
        out += bytes;
      } else if (c.code_point < 0x10000) {
        write_unit(c.code_point);
      } else {
        write_unit(0xd800 + ((c.code_point - 0x10000) >> 10));
        write_unit(0xdc00 + (c.code_point & 0x3ff));
      }
    }
    out += '"';
  }

  void new_line(std::size_t level) {
    if (!style_.pretty) return;
    out += '\n';
    for (std::size_t i = 0; i < level; ++i) out += style_.indent;
  }

  void write_list(const List& list, std::size_t level) {
    out += '[';
    for (std::size_t i = 0; i < list.size && !heap_.failed(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line(level + 1);
      write(list.items[i], level + 1);
    }
    if (list.size > 0) new_line(level);
    out += ']';
  }

  void write_key(const Value& key) {
    if (key.is_string()) return write_text(heap_.view(key));
    if (key.is(Type::tuple) || key.is_undefined()) {
      heap_.fail("a {} cannot be a key in JSON", type_name(key));
      return;
    }
    out += '"';
    write(key, 0);
    out += '"';
  }

  void write_dict(const Dict& dict, std::size_t level) {
    std::vector<const Entry*> entries;
    for (const Entry& e : dict.view()) entries.push_back(&e);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const Entry* a, const Entry* b) { return less(heap_, a->key, b->key); });
    }
    out += '{';
    for (std::size_t i = 0; i < entries.size() && !heap_.failed(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line(level + 1);
      write_key(entries[i]->key);
      out += style_.key_separator;
      write(entries[i]->value, level + 1);
    }
    if (!entries.empty()) new_line(level);
    out += '}';
  }

  Heap& heap_;
  const JsonStyle& style_;
};

}  // namespace

// All of it has one origin: what encloses content must not be taken apart by the tokenizer.
Value to_json(Heap& heap, const Value& v, const JsonStyle& style) {
  JinjaJsonWriter writer(heap, style);
  writer.write(v, 0);
  return heap.copy(writer.out, common_origin(heap, v));
}

}  // namespace decant::detail::jinja
