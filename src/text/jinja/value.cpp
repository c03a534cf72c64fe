// The heap, text as spans, and what Python's operators do with values.
#include "base/fp_contract.hpp"

#include "text/jinja/value.hpp"

#include <cmath>

#include "base/checked.hpp"
#include "text/jinja/unicode.hpp"

namespace decant::detail::jinja {

// ---- heap

Value Heap::fail(const Error& without_line) {
  if (!failed()) {
    error_ =
        make_error(without_line.code(), "chat template, line {}: {}", line, without_line.message());
  }
  return undefined();
}

bool Heap::too_long() {
  fail("more than {} steps; the template may never end", limits_.steps);
  return false;
}

bool Heap::reserve(std::size_t n, std::size_t item_bytes) {
  const auto bytes = checked_mul(n, item_bytes);
  if (bytes && *bytes <= limits_.memory_bytes && bytes_ <= limits_.memory_bytes - *bytes) {
    return spend(1 + *bytes / 64);
  }
  fail("rendering needs more than {} bytes of memory", limits_.memory_bytes);
  return false;
}

void* Heap::allocate(std::size_t bytes) {
  constexpr std::size_t kAlign = alignof(std::max_align_t), kBlock = std::size_t{1} << 16;
  bytes = (bytes + kAlign - 1) / kAlign * kAlign;
  bytes_ += bytes;
  if (bytes_ > limits_.memory_bytes) reserve(1);  // small things add up too
  if (bytes > left_) {
    // What is large gets a block of its own, and the present one stays in use.
    const std::size_t block = bytes > kBlock / 4 ? bytes : kBlock;
    blocks_.push_back(std::unique_ptr<char[]>(new char[block]));
    if (block == bytes) return blocks_.back().get();
    free_ = blocks_.back().get();
    left_ = block;
  }
  void* to = free_;
  free_ += bytes;
  left_ -= bytes;
  return to;
}

const Error* Heap::keep(Error error) {
  errors_.push_back(std::make_unique<Error>(std::move(error)));
  return errors_.back().get();
}

Value Heap::fail_undefined(const Value& v) {
  const Undefined* why = v.is_undefined() ? v.undefined : nullptr;
  if (why == nullptr) return fail("an undefined value is used");
  switch (why->kind) {
    case Undefined::variable: return fail("'{}' is undefined", why->name.substr(0, 200));
    case Undefined::attribute:
      return fail("'{}' has no attribute '{}'", why->object, why->name.substr(0, 200));
    case Undefined::unsafe:
      return fail("access to attribute '{}' of '{}' is unsafe", why->name.substr(0, 200),
                  why->object);
    case Undefined::hint: break;
  }
  return fail("{}", why->name.substr(0, 200));
}

Value Heap::text(std::string_view text, Origin origin) {
  if (text.empty()) return str({});
  return str({make(Span{text.data(), text.size(), origin}), 1, text.size(), false});
}

Value Heap::copy(std::string_view text, Origin origin) {
  if (text.empty() || !reserve(text.size())) return str({});
  char* to = array<char>(text.size());
  std::memcpy(to, text.data(), text.size());
  return this->text({to, text.size()}, origin);
}

static std::uint32_t jinja_depth(const Value& v) {
  switch (v.type) {
    case Type::list:
    case Type::tuple: return v.list->depth;
    case Type::dict: return v.dict->depth;
    case Type::view: return v.view->dict->depth + 1;
    default: return 0;
  }
}

Value Heap::list(std::span<const Value> items, Type type) {
  List list{items.data(), items.size()};
  for (const Value& v : items) list.depth = std::max(list.depth, jinja_depth(v) + 1);
  if (list.depth > kMaxNesting) return fail("values are nested more than {} deep", kMaxNesting);
  return Value::make(type, &Value::list, make(list));
}

Value Heap::pair(const Value& a, const Value& b) {
  Value* items = array<Value>(2);
  items[0] = a;
  items[1] = b;
  return list({items, 2}, Type::tuple);
}

Value Heap::generator(const Value* items, std::size_t size, const Error* error) {
  return Value::make(Type::generator, &Value::generator, make(Generator{items, size, 0, error}));
}

// Other texts may share the old spans, so new ones are made.
void Heap::flatten(Str& s) {
  if (!reserve(s.size) || !reserve(s.n_spans, sizeof(Span))) {
    s = {};
    return;
  }
  char* to = array<char>(s.size);
  Span* spans = array<Span>(s.n_spans);
  std::size_t n = 0, at = 0;
  for (std::size_t i = 0; i < s.n_spans; ++i) {
    const Span& from = s.spans[i];
    std::memcpy(to + at, from.data, from.size);
    if (n > 0 && spans[n - 1].origin == from.origin) {
      spans[n - 1].size += from.size;
    } else {
      spans[n++] = {to + at, from.size, from.origin};
    }
    at += from.size;
  }
  s.spans = spans;
  s.n_spans = n;
  s.memory = nullptr;
}

Value Heap::slice(const Str& s, std::size_t begin, std::size_t end) {
  if (begin == 0 && end == s.size) return str(s);
  if (s.n_spans == 1) {
    const Value part = text({s.spans->data + begin, end - begin}, s.spans->origin);
    part.string->markup = s.markup;
    return part;
  }
  Text part(*this);
  part.add(s, begin, end);
  return part.finish(s.markup);
}

// ---- text

void Text::add(Span span) {
  if (span.size == 0) return;
  size_ += span.size;
  if (size_ > heap_->limits().output_bytes) {
    size_ -= span.size;
    heap_->fail("a text is longer than {} bytes", heap_->limits().output_bytes);
    return;
  }
  if (spans_.size() > n_shared_) {
    Span& last = spans_.back();
    if (last.origin == span.origin && last.data + last.size == span.data) {
      last.size += span.size;
      return;
    }
  }
  const std::size_t n = spans_.size();
  spans_.push(span);
  if (spans_.size() == n) size_ -= span.size;
}

void Text::add(const Str& s) {
  if (size_ == 0 && s.memory != nullptr) {
    spans_.continue_from(s.memory, s.n_spans);
    n_shared_ = s.n_spans;
    size_ = s.size;
    return;
  }
  for (std::size_t i = 0; i < s.n_spans; ++i) add(s.spans[i]);
}

void Text::add(const Str& s, std::size_t begin, std::size_t end) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < s.n_spans && at < end; ++i) {
    const Span& span = s.spans[i];
    const std::size_t from = begin > at ? begin - at : 0;
    const std::size_t to = std::min(span.size, end - at);
    if (from < to) add({span.data + from, to - from, span.origin});
    at += span.size;
  }
}

void Text::add_copy(std::string_view text, Origin origin) {
  const Value copied = heap_->copy(text, origin);
  add(*copied.string);
}

void Text::add_value(const Value& v) {
  const Value s = to_string(*heap_, v);
  if (s.is_string()) add(*s.string);
}

// ---- properties

const char* type_name(const Value& v) {
  switch (v.type) {
    case Type::missing:
    case Type::undefined: return "Undefined";
    case Type::none: return "None";
    case Type::boolean: return "bool object";
    case Type::integer:
    case Type::big: return "int object";
    case Type::real: return "float object";
    case Type::string: return "str object";
    case Type::list: return "list object";
    case Type::tuple: return "tuple object";
    case Type::dict: return "dict object";
    case Type::range: return "range object";
    case Type::view: return "dict view object";
    case Type::generator: return "generator object";
    case Type::space: return "namespace object";
    case Type::macro: return "macro object";
    case Type::method: return "method object";
    case Type::function: return "function object";
    case Type::loop: return "loop object";
    case Type::cycler: return "cycler object";
    case Type::joiner: return "joiner object";
  }
  return "object";
}

Origin common_origin(Origin a, Origin b) {
  if (a == b || b == kFromTemplate) return a;
  return a == kFromTemplate ? b : kFromContent;
}

Origin common_origin(Heap& heap, const Value& v) {
  Origin origin = kFromTemplate;
  if (!heap.spend(1)) return origin;
  const auto add = [&](const Value& part) {
    origin = common_origin(origin, common_origin(heap, part));
  };
  switch (v.type) {
    case Type::string:
      for (std::size_t i = 0; i < v.string->n_spans; ++i) {
        origin = common_origin(origin, v.string->spans[i].origin);
      }
      break;
    case Type::list:
    case Type::tuple:
      for (const Value& item : v.list->view()) add(item);
      break;
    case Type::dict:
    case Type::view:
      for (const Entry& e : (v.is(Type::dict) ? v.dict : v.view->dict)->view()) {
        add(e.key);
        add(e.value);
      }
      break;
    case Type::space: return kFromContent;
    default: break;
  }
  return origin;
}

bool truth(const Value& v) {
  switch (v.type) {
    case Type::missing:
    case Type::undefined:
    case Type::none: return false;
    case Type::boolean: return v.boolean;
    case Type::integer: return v.integer != 0;
    case Type::real: return v.real != 0;
    case Type::string: return v.string->size > 0;
    case Type::list:
    case Type::tuple: return v.list->size > 0;
    case Type::dict: return v.dict->size > 0;
    case Type::range: return v.range->size > 0;
    case Type::view: return v.view->dict->size > 0;
    default: return true;
  }
}

static int jinja_order(double a, double b) { return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2; }

// -1, 0, 1, or 2 for what has no order (NaN).
static int jinja_number_order(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    const auto x = a.as_integer(), y = b.as_integer();
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (a.is(Type::big) && b.is(Type::big)) return a.big < b.big ? -1 : a.big > b.big ? 1 : 0;
  if (a.is(Type::big) && b.is_integer()) return 1;
  if (a.is_integer() && b.is(Type::big)) return -1;
  const auto against = [](std::int64_t i, double d) {
    if (std::isnan(d)) return 2;
    if (d >= 9223372036854775808.0) return -1;
    if (d < -9223372036854775808.0) return 1;
    const double whole = std::floor(d);
    const auto j = static_cast<std::int64_t>(whole);
    if (i != j) return i < j ? -1 : 1;
    return d > whole ? -1 : 0;
  };
  if (a.is(Type::big) || b.is(Type::big)) {  // and the other one is real
    const double d = a.is(Type::big) ? b.real : a.real;
    const std::uint64_t big = a.is(Type::big) ? a.big : b.big;
    int order = d < 9223372036854775808.0 ? 1 : -1;  // of big against d
    if (std::isnan(d)) return 2;
    if (order == -1 && d < 18446744073709551616.0) {
      const auto whole = static_cast<std::uint64_t>(d);
      order = big < whole ? -1 : big > whole ? 1 : 0;
    }
    return a.is(Type::big) ? order : -order;
  }
  if (a.is_integer()) return against(a.as_integer(), b.as_real());
  if (b.is_integer()) {
    const int order = against(b.as_integer(), a.as_real());
    return order == 2 ? 2 : -order;
  }
  return jinja_order(a.as_real(), b.as_real());
}

bool equal(Heap& heap, const Value& a, const Value& b) {
  if (!heap.spend(1)) return false;
  if (a.is_number() && b.is_number()) return jinja_number_order(a, b) == 0;
  if (a.type != b.type) return false;
  switch (a.type) {
    case Type::missing:
    case Type::undefined:
    case Type::none: return true;
    case Type::string:
      if (a.string->size != b.string->size) return false;
      heap.spend(a.string->size / 64);
      return heap.view(a) == heap.view(b);
    case Type::list:
    case Type::tuple:
      if (a.list->size != b.list->size) return false;
      for (std::size_t i = 0; i < a.list->size; ++i) {
        if (!equal(heap, a.list->items[i], b.list->items[i])) return false;
      }
      return true;
    case Type::dict:
      if (a.dict->size != b.dict->size) return false;
      for (const Entry& e : a.dict->view()) {
        const Value* other = find(heap, *b.dict, e.key);
        if (other == nullptr || !equal(heap, e.value, *other)) return false;
      }
      return true;
    case Type::range:
      return a.range->size == b.range->size &&
             (a.range->size == 0 || (a.range->start == b.range->start &&
                                     (a.range->size == 1 || a.range->step == b.range->step)));
    case Type::method: return false;
    default: return a.list == b.list;  // the same object; all pointers share their storage
  }
}

bool less(Heap& heap, const Value& a, const Value& b) {
  if (!heap.spend(1)) return false;
  if (a.is_number() && b.is_number()) return jinja_number_order(a, b) == -1;
  if (a.is_string() && b.is_string()) {
    heap.spend(std::min(a.string->size, b.string->size) / 64);
    return heap.view(a) < heap.view(b);  // the order of UTF-8 is that of code points
  }
  if (a.is_sequence() && a.type == b.type) {
    const std::size_t n = std::min(a.list->size, b.list->size);
    for (std::size_t i = 0; i < n; ++i) {
      if (!equal(heap, a.list->items[i], b.list->items[i])) {
        return less(heap, a.list->items[i], b.list->items[i]);
      }
    }
    return a.list->size < b.list->size;
  }
  if (a.is_undefined() || b.is_undefined()) {
    heap.fail_undefined(a.is_undefined() ? a : b);
  } else {
    heap.fail("'<' and '>' do not compare {} and {}", type_name(a), type_name(b));
  }
  return false;
}

// ---- dicts

const Value* find(Heap& heap, const Dict& dict, std::string_view key) {
  heap.spend(dict.size / 8);
  for (const Entry& e : dict.view()) {
    if (e.key.is_string() && e.key.string->size == key.size() && heap.view(e.key) == key) {
      return &e.value;
    }
  }
  return nullptr;
}

const Value* find(Heap& heap, const Dict& dict, const Value& key) {
  if (key.is_string()) return find(heap, dict, heap.view(key));
  if (!hashable(heap, key)) return nullptr;
  for (const Entry& e : dict.view()) {
    if (equal(heap, e.key, key)) return &e.value;
  }
  return nullptr;
}

bool hashable(Heap& heap, const Value& v) {
  if (!heap.spend(1)) return false;
  if (v.is(Type::tuple)) {
    for (const Value& item : v.list->view()) {
      if (!hashable(heap, item)) return false;
    }
    return true;
  }
  return !v.is(Type::list) && !v.is(Type::dict) && !v.is(Type::view);
}

Value make_dict(Heap& heap, std::span<const Entry> from) {
  if (!heap.reserve(from.size(), sizeof(Entry))) return Heap::undefined();
  Entry* entries = heap.array<Entry>(from.size());
  Dict dict{entries, 0};
  for (const Entry& e : from) {
    if (!hashable(heap, e.key)) return heap.fail("a {} cannot be a key", type_name(e.key));
    if (const Value* old = find(heap, dict, e.key)) {
      const_cast<Value&>(*old) = e.value;
    } else {
      entries[dict.size++] = e;
    }
    dict.depth = std::max({dict.depth, jinja_depth(e.key) + 1, jinja_depth(e.value) + 1});
  }
  if (dict.depth > kMaxNesting) {
    return heap.fail("values are nested more than {} deep", kMaxNesting);
  }
  return Value::make(Type::dict, &Value::dict, heap.make(dict));
}

// ---- sequences

bool length(Heap& heap, const Value& v, std::size_t& n) {
  switch (v.type) {
    case Type::undefined: n = 0; return true;
    case Type::string:
      heap.spend(v.string->size / 16);
      n = utf8_length(heap.view(v));
      return true;
    case Type::list:
    case Type::tuple: n = v.list->size; return true;
    case Type::dict: n = v.dict->size; return true;
    case Type::range: n = v.range->size; return true;
    case Type::view: n = v.view->dict->size; return true;
    default: return false;
  }
}

bool iterable(const Value& v) {
  switch (v.type) {
    case Type::undefined:
    case Type::string:
    case Type::list:
    case Type::tuple:
    case Type::dict:
    case Type::range:
    case Type::view:
    case Type::generator:
    case Type::loop:
    case Type::cycler: return true;
    default: return false;
  }
}

static Value jinja_view_item(Heap& heap, const Entry& e, ViewKind kind) {
  if (kind == ViewKind::items) return heap.pair(e.key, e.value);
  return kind == ViewKind::keys ? e.key : e.value;
}

const List* iterate(Heap& heap, const Value& v, const Error** error) {
  if (v.is_sequence()) return v.list;
  Growing<Value> items(heap);
  switch (v.type) {
    case Type::undefined: break;
    case Type::string: {
      const std::string_view text = heap.view(v);
      for (std::size_t at = 0; at < text.size() && !heap.failed();) {
        const std::size_t n = utf8_decode(text.substr(at)).length;
        items.push(heap.slice(*v.string, at, at + n));
        at += n;
      }
      break;
    }
    case Type::dict:
      for (const Entry& e : v.dict->view()) items.push(e.key);
      break;
    case Type::range:
      for (std::size_t i = 0; i < v.range->size; ++i) items.push(Value::of(v.range->at(i)));
      break;
    case Type::view:
      for (const Entry& e : v.view->dict->view()) {
        items.push(jinja_view_item(heap, e, v.view->kind));
      }
      break;
    case Type::generator: {
      Generator& g = *v.generator;
      const List list{g.items + g.next, g.size - g.next};
      g.next = g.size;
      if (const Error* raised = std::exchange(g.error, nullptr)) {
        if (error != nullptr) {
          *error = raised;
        } else {
          heap.set_error(*raised);
          return nullptr;
        }
      }
      return heap.make(list);
    }
    default: heap.fail("a {} cannot be iterated", type_name(v)); return nullptr;
  }
  if (heap.failed()) return nullptr;
  return heap.make(List{items.data(), items.size()});
}

Value item_at(Heap& heap, const Value& v, std::int64_t i) {
  std::size_t n = 0;
  if (v.is(Type::dict) || v.is(Type::view) || v.is_undefined() || !length(heap, v, n)) return {};
  if (i < 0) i += static_cast<std::int64_t>(n);
  if (i < 0 || i >= static_cast<std::int64_t>(n)) return {};
  const auto at = static_cast<std::size_t>(i);
  if (v.is_sequence()) return v.list->items[at];
  if (v.is(Type::range)) return Value::of(v.range->at(at));
  const std::string_view text = heap.view(v);
  const std::size_t begin = utf8_offset(text, at);
  return heap.slice(*v.string, begin, begin + utf8_decode(text.substr(begin)).length);
}

Value add_lists(Heap& heap, const Value& a, const Value& b) {
  Growing<Value> items(heap);
  const std::uint32_t depth = std::max(a.list->depth, b.list->depth);
  if (a.list->memory != nullptr) {
    items.continue_from(a.list->memory, a.list->size);
  } else {
    for (const Value& item : a.list->view()) items.push(item);
  }
  for (const Value& item : b.list->view()) items.push(item);
  const List list{items.data(), items.size(), depth, false, items.memory()};
  return Value::make(a.type, &Value::list, heap.make(list));
}

}  // namespace decant::detail::jinja
