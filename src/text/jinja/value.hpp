// Values of the template language and the heap that they live on during one rendering.
//
// A Value is 16 bytes without an owner: everything it points to lies in an arena that is freed as a
// whole, so that namespaces and macros may refer to each other in circles. Text is a list of spans
// over memory that stays (the template, the caller's JSON, the arena), each with its origin;
// joining and cutting text copies no bytes.
//
// Errors stick: the first failure is kept by the heap, and what runs on until loops and statements
// notice works with undefined values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "text/jinja/template.hpp"

namespace decant::detail::jinja {

/// Where text comes from: a message's index, or one of these.
using Origin = std::int32_t;
inline constexpr Origin kFromTemplate = -2, kFromContent = -1;

/// Containers within containers; bounds every recursion over values.
inline constexpr std::uint32_t kMaxNesting = 100;

enum class Type : std::uint8_t {
  missing,  // no value at all: an argument that was not given
  undefined,
  none,
  boolean,
  integer,
  big,  // an integer above the range of `integer`: it prints and compares
  real,
  string,
  list,
  tuple,
  dict,
  range,
  view,       // keys, values or items of a dict
  generator,  // what filters such as map and select give: iterated once
  space,      // namespace
  macro,
  method,
  function,
  loop,
  cycler,
  joiner,
};

struct Span {
  const char* data;
  std::size_t size;
  Origin origin;
};

struct Str;
struct List;
struct Dict;
struct Range;
struct View;
struct Generator;
struct Space;
struct Macro;
struct Bound;
struct Function;
struct Loop;
struct Cycler;
struct Joiner;
struct Undefined;

struct Value {
  Type type = Type::missing;
  union {
    bool boolean;
    std::int64_t integer = 0;
    std::uint64_t big;
    double real;
    Str* string;
    List* list;  // also of a tuple
    Dict* dict;
    Range* range;
    View* view;
    Generator* generator;
    Space* space;
    Macro* macro;
    Bound* bound;
    const Function* function;
    Loop* loop;
    Cycler* cycler;
    Joiner* joiner;
    Undefined* undefined;  // may be null
  };

  bool is(Type t) const { return type == t; }
  bool given() const { return type != Type::missing; }
  bool is_undefined() const { return type == Type::undefined; }
  bool is_string() const { return type == Type::string; }
  bool is_sequence() const { return type == Type::list || type == Type::tuple; }
  /// What Python's int covers here: also booleans.
  bool is_integer() const { return type == Type::integer || type == Type::boolean; }
  bool is_number() const { return is_integer() || type == Type::real || type == Type::big; }
  std::int64_t as_integer() const { return type == Type::boolean ? boolean : integer; }
  double as_real() const {
    if (type == Type::real) return real;
    return type == Type::big ? static_cast<double>(big) : static_cast<double>(as_integer());
  }

  static Value none() { return make(Type::none, &Value::integer, 0); }
  static Value of(bool x) { return make(Type::boolean, &Value::boolean, x); }
  static Value of(std::int64_t x) { return make(Type::integer, &Value::integer, x); }
  static Value of(double x) { return make(Type::real, &Value::real, x); }
  static Value of_size(std::size_t x) { return of(static_cast<std::int64_t>(x)); }
  template <class T>
  static Value make(Type type, T Value::*member, std::type_identity_t<T> x) {
    Value v;
    v.type = type;
    v.*member = x;
    return v;
  }
};
static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) == 16);

/// Items of which several arrays may be beginnings: what grows in a loop is not copied each time.
template <class T>
struct Memory {
  T* items;
  std::size_t used, capacity;
};

/// Text as spans. Flattened in place when somebody needs it in one piece.
struct Str {
  const Span* spans = nullptr;
  std::size_t n_spans = 0;
  std::size_t size = 0;            // bytes
  bool markup = false;             // the result of `escape` or `safe`
  Memory<Span>* memory = nullptr;  // where the spans lie, or null
};

struct List {
  const Value* items = nullptr;
  std::size_t size = 0;
  std::uint32_t depth = 1;
  bool group = false;  // of groupby: a tuple whose fields have names
  Memory<Value>* memory = nullptr;
  std::span<const Value> view() const { return {items, size}; }
};

struct Entry {
  Value key, value;
};

struct Dict {
  const Entry* entries = nullptr;
  std::size_t size = 0;
  std::uint32_t depth = 1;
  std::span<const Entry> view() const { return {entries, size}; }
};

struct Range {
  std::int64_t start, stop, step;
  std::size_t size;
  std::int64_t at(std::size_t i) const { return start + static_cast<std::int64_t>(i) * step; }
};

enum class ViewKind : std::uint8_t { keys, values, items };
struct View {
  const Dict* dict;
  ViewKind kind;
};

/// The values are computed ahead; an error on the way waits until the iteration gets there.
struct Generator {
  const Value* items;
  std::size_t size;
  std::size_t next = 0;
  const Error* error = nullptr;
};

struct Cycler {
  const List* items;
  std::size_t next = 0;
};

struct Joiner {
  Value separator;
  bool used = false;
};

/// Why a value is undefined, for the error when it is used.
struct Undefined {
  enum Kind : std::uint8_t { variable, attribute, unsafe, hint } kind;
  std::string_view name;    // or the hint
  const char* object = "";  // the type of the object without the attribute
};

class Heap {
 public:
  explicit Heap(const ChatTemplateLimits& limits) : limits_(limits) {}
  Heap(Heap&&) = default;
  const ChatTemplateLimits& limits() const { return limits_; }

  // ---- errors
  bool failed() const { return static_cast<bool>(error_); }
  const Error& error() const { return error_; }
  Error take_error() { return std::exchange(error_, Error()); }
  void set_error(const Error& error) {
    if (!failed()) error_ = error;
  }
  /// Keeps the first error, prefixed with the template's line; returns undefined.
  template <class... Args>
  Value fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    return fail(format_error(code, format, fmt::make_format_args(args...)));
  }
  template <class... Args>
  Value fail(fmt::format_string<Args...> format, Args&&... args) {
    return fail(format_error(ErrorCode::invalid_argument, format, fmt::make_format_args(args...)));
  }
  Value fail(const Error& without_line);
  /// For values that cannot take part in an operation.
  Value fail_undefined(const Value& v);

  std::uint32_t line = 1;  // of the template, where we are

  // ---- limits
  /// Counts work; false (and an error) beyond the limit.
  bool spend(std::uint64_t steps) {
    steps_ += steps;
    return steps_ <= limits_.steps || too_long();
  }
  /// Before anything whose size is up to the template.
  bool reserve(std::size_t n, std::size_t item_bytes = 1);

  // ---- memory
  void* allocate(std::size_t bytes);
  template <class T>
  T* make(const T& from) {
    static_assert(std::is_trivially_destructible_v<T>);
    return new (allocate(sizeof(T))) T(from);
  }
  /// Uninitialised. Reserve first.
  template <class T>
  T* array(std::size_t n) {
    return static_cast<T*>(allocate(n * sizeof(T)));
  }
  /// Errors have an owner and are kept apart.
  const Error* keep(Error error);

  // ---- values
  static Value undefined() { return Value::make(Type::undefined, &Value::undefined, nullptr); }
  Value undefined(Undefined why) {
    return Value::make(Type::undefined, &Value::undefined, make(why));
  }
  /// Text that outlives this heap, for example a literal.
  Value text(std::string_view text, Origin origin = kFromTemplate);
  Value copy(std::string_view text, Origin origin = kFromTemplate);
  Value str(const Str& s) { return Value::make(Type::string, &Value::string, make(s)); }
  Value list(std::span<const Value> items, Type type = Type::list);
  Value pair(const Value& a, const Value& b);
  Value generator(const Value* items, std::size_t size, const Error* error = nullptr);

  /// The text in one piece.
  std::string_view view(const Str& s) {
    if (s.n_spans > 1) flatten(const_cast<Str&>(s));
    return s.n_spans == 0 ? std::string_view() : std::string_view(s.spans->data, s.size);
  }
  std::string_view view(const Value& string) { return view(*string.string); }
  /// A part of a text, in bytes.
  Value slice(const Str& s, std::size_t begin, std::size_t end);

 private:
  bool too_long();
  void flatten(Str& s);

  ChatTemplateLimits limits_;
  std::uint64_t steps_ = 0;
  std::size_t bytes_ = 0;  // allocated so far
  Error error_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* free_ = nullptr;
  std::size_t left_ = 0;
  std::vector<std::unique_ptr<Error>> errors_;
};

/// An array that grows on the heap. What does not fit the limits is dropped (the error sticks).
template <class T>
class Growing {
 public:
  explicit Growing(Heap& heap) : heap_(&heap) {}
  /// Goes on behind the first `n` items of other memory: in it if nobody else has, else in a copy.
  void continue_from(Memory<T>* memory, std::size_t n) {
    memory_ = memory;
    size_ = n;
  }
  void push(const T& item) {
    const bool room = memory_ != nullptr && size_ == memory_->used && size_ < memory_->capacity;
    if (!room && !grow()) return;
    memory_->items[size_++] = item;
    memory_->used = size_;
  }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return memory_->items[i]; }
  T& back() { return memory_->items[size_ - 1]; }
  const T* data() const { return memory_ != nullptr ? memory_->items : nullptr; }
  Memory<T>* memory() const { return memory_; }
  std::span<const T> view() const { return {data(), size_}; }
  void clear() {
    size_ = 0;
    if (memory_ != nullptr) memory_->used = 0;
  }

 private:
  bool grow() {
    const std::size_t capacity = size_ == 0 ? 8 : 2 * size_;
    if (!heap_->reserve(capacity, sizeof(T))) return false;
    Memory<T>* memory = heap_->make(Memory<T>{heap_->array<T>(capacity), size_, capacity});
    if (size_ > 0) {
      std::memcpy(static_cast<void*>(memory->items), memory_->items, size_ * sizeof(T));
    }
    memory_ = memory;
    return true;
  }
  Heap* heap_;
  Memory<T>* memory_ = nullptr;
  std::size_t size_ = 0;
};

/// Puts text together, span by span.
class Text {
 public:
  explicit Text(Heap& heap) : heap_(&heap), spans_(heap) {}
  void add(Span span);
  void add(const Str& s);
  void add(const Str& s, std::size_t begin, std::size_t end);
  /// Text that outlives the heap.
  void add(std::string_view text, Origin origin = kFromTemplate) {
    add({text.data(), text.size(), origin});
  }
  void add_copy(std::string_view text, Origin origin = kFromTemplate);
  /// What printing the value gives.
  void add_value(const Value& v);
  std::size_t size() const { return size_; }
  std::span<const Span> spans() const { return spans_.view(); }
  Value finish(bool markup = false) const {
    return heap_->str({spans_.data(), spans_.size(), size_, markup, spans_.memory()});
  }

 private:
  Heap* heap_;
  Growing<Span> spans_;
  std::size_t n_shared_ = 0;  // of the spans, which another text has too
  std::size_t size_ = 0;
};

// ---- what every value can do (value.cpp)

/// Python's name of the type, for error texts.
const char* type_name(const Value& v);
/// What the text is if all of it must be one thing: content wins over template.
Origin common_origin(Heap& heap, const Value& v);
Origin common_origin(Origin a, Origin b);
bool truth(const Value& v);
bool equal(Heap& heap, const Value& a, const Value& b);
/// Fails for values that have no order.
bool less(Heap& heap, const Value& a, const Value& b);
/// Null if there is none.
const Value* find(Heap& heap, const Dict& dict, const Value& key);
const Value* find(Heap& heap, const Dict& dict, std::string_view key);
/// The first of equal keys keeps its place, the last value counts.
Value make_dict(Heap& heap, std::span<const Entry> entries);
/// Whether it may be a key.
bool hashable(Heap& heap, const Value& v);
/// len(); false where there is none.
bool length(Heap& heap, const Value& v, std::size_t& n);
/// All items. A generator is used up; if it ends in an error, `error` gets it, or without `error`
/// it is raised. Null (and an error) for what cannot be iterated.
const List* iterate(Heap& heap, const Value& v, const Error** error = nullptr);
bool iterable(const Value& v);
/// obj[i] for sequences, with negative indexes; missing where there is none.
Value item_at(Heap& heap, const Value& v, std::int64_t i);
Value add_lists(Heap& heap, const Value& a, const Value& b);

// ---- texts of values (print.cpp)

/// str(v) as a string value; strings stay what they are.
Value to_string(Heap& heap, const Value& v);
void append_repr(Heap& heap, std::string& to, const Value& v);
void append_real(std::string& to, double x);
void append_integer(std::string& to, std::int64_t x);
/// \xNN, \uNNNN or \UNNNNNNNN.
void append_escape(std::string& to, std::uint32_t c);

// ---- JSON (json.cpp)

/// Strings point into `json`. Fails when it is nested too deeply.
Value from_json(Heap& heap, const nlohmann::ordered_json& json, Origin origin);
/// The context's variables: messages with their indexes.
Value from_messages(Heap& heap, const nlohmann::ordered_json& messages);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool pretty = false;
  std::string_view indent;
  std::string_view item_separator = ", ", key_separator = ": ";
};
Value to_json(Heap& heap, const Value& v, const JsonStyle& style);

// ---- strftime (strftime.cpp)

ChatTime current_time();
Value format_time(Heap& heap, std::string_view format, const ChatTime& time, Origin origin);

}  // namespace decant::detail::jinja
