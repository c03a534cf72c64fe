// One rendering: variables, the evaluation of the tree, and the tables of what can be called.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/parser.hpp"

namespace decant::detail::jinja {

class Run;

struct Keyword {
  std::string_view name;
  Value value;
};

/// Arguments of a call, after * and ** were spread.
struct Args {
  std::span<const Value> values;
  std::span<const Keyword> keywords;
};

using Callable = Value (*)(Run& run, const Value& self, const Args& args);

struct FilterInfo {
  std::string_view name;
  Callable call;
};

/// Tests give booleans.
struct TestInfo {
  std::string_view name;
  Callable call;
};

struct Function {
  std::string_view name;
  Callable call;
};

/// A method of a type; null `call`: the sandbox forbids it or Decant lacks it.
struct MethodInfo {
  Type type;
  std::string_view name;
  Callable call;
  bool unsafe = false;
};

/// Null if there is none of that name.
const FilterInfo* find_filter(std::string_view name);
std::span<const FilterInfo> sequence_filters();
const TestInfo* find_test(std::string_view name);
const Function* find_function(std::string_view name);
const MethodInfo* find_method(Type type, std::string_view name);

/// A value that remembers its method.
struct Bound {
  Value self;
  const MethodInfo* method;
};

struct Space {
  Growing<Entry> entries;
};

/// The variables of a loop's pass, a macro's call and so on; the outermost are in Run.
struct Scope {
  struct Variable {
    std::uint32_t name;
    Value value;
  };
  Scope* parent;
  Growing<Variable> variables;
  bool captured = false;  // by a macro, which may outlive it
};

struct Macro {
  const Node* node;
  Scope* scope;  // where it was defined
};

struct Loop {
  const List* items;
  const Range* range;            // instead of the items, or null
  const Node* node;              // for_
  const Node* test;              // its condition; null: none, or all items have passed it
  Scope* scope;                  // around it
  const Error* error = nullptr;  // at the end of the items
  std::size_t next = 0;          // in items
  std::int64_t index0 = -1;
  std::int64_t depth0 = 0;
  Value before = {}, current = {};
  Value after = {};               // looked at ahead
  const List* changed = nullptr;  // the arguments of the last call
  std::int64_t length = -1;       // once it was asked for

  std::size_t size() const { return range != nullptr ? range->size : items->size; }
  Value at(std::size_t i) const {
    return range != nullptr ? Value::of(range->at(i)) : items->items[i];
  }
};

class Run : public Heap {
 public:
  Run(const Program& program, const ChatTemplateLimits& limits, const ChatTime& now);

  /// Where an outermost variable is; null if the template does not mention it.
  Value* variable(std::string_view name);
  /// Renders everything; look at failed() afterwards.
  void render(Text& out);

  const ChatTime& now() const { return now_; }

  // ---- for filters, tests and methods

  /// Sorts arguments into `to` by their names ("first second"; "-" goes by place alone); those not
  /// given stay missing.
  bool bind(const Args& args, std::string_view function, std::string_view names,
            std::span<Value> to, std::size_t required = 0);
  Value call(const Value& callee, const Args& args);
  Value attribute(const Value& of, std::string_view name);
  Value item(const Value& of, const Value& key);
  /// obj.a.0.b as filters name it; a null path is the object itself.
  Value attribute_path(const Value& of, const Value& path);
  Value filter(std::string_view name, const Value& input, const Args& args);
  Value test(std::string_view name, const Value& input, const Args& args);
  /// A number that must be an integer; `otherwise` if missing or none.
  std::int64_t integer(const Value& v, std::int64_t otherwise);
  /// The text of an argument that must be a string; empty if missing.
  std::string_view string_argument(const Value& v, std::string_view function);

  // ---- loops
  bool loop_next(Loop& loop, Value& item);
  bool loop_peek(Loop& loop);  // fills loop.after; false at the end
  std::int64_t loop_length(Loop& loop);
  Value loop_attribute(Loop& loop, std::string_view name);
  Value run_recursive(Loop& loop, const Value& items);

 private:
  enum class Flow : std::uint8_t { none, break_, continue_ };

  bool enter(const Node& n);
  void leave() { --depth_; }

  void execute(const Node& n);
  void execute_block(const Node& n);
  void execute_if(const Node& n);
  void execute_for(const Node& n, const Value& items, std::int64_t depth0);
  void execute_in_scope(const Node& block, Scope* parent);
  void execute_with(const Node& n);
  void execute_set_block(const Node& n);
  void execute_filter_block(const Node& n);
  void execute_call_block(const Node& n);
  void add_string(const Value& v);

  Value evaluate(const Node& n);
  Value evaluate_list(const Node& n, Type type);
  Value evaluate_dict(const Node& n);
  Value evaluate_item(const Node& n);
  Value evaluate_call(const Node& n, const Value* caller);
  Value evaluate_filter(const Node& n);
  Value evaluate_test(const Node& n);
  Value evaluate_compare(const Node& n);
  Value evaluate_chain(const Node& n);
  Value evaluate_concat(const Node& n);
  Args evaluate_arguments(const Node& n, std::size_t first, const Value* caller);

  Value lookup(const Node& name);
  void assign(const Node& target, const Value& value);
  void assign_name(std::uint32_t name, const Value& value);
  void assign_member(const Node& target, const Value& value);
  Scope* new_scope(Scope* parent) { return make(Scope{parent, Growing<Scope::Variable>(*this)}); }
  Value make_macro(const Node& n);
  Value call_macro(const Macro& macro, const Args& args);
  Value captured_text(const Node& block, Scope* scope);

  const Program& program_;
  ChatTime now_;
  std::vector<Value> variables_;  // the outermost, by identifier
  Scope* scope_ = nullptr;        // null: the outermost
  Text* out_ = nullptr;
  Value captured_;  // the input of a block's filter
  Flow flow_ = Flow::none;
  int depth_ = 0;
};

// ---- operators (operators.cpp)

Value arithmetic(Run& run, Infix op, const Value& a, const Value& b);
bool compare(Run& run, Infix op, const Value& a, const Value& b);
bool contains(Run& run, const Value& container, const Value& item);
Value negated(Run& run, const Value& v);
Value slice_of(Run& run, const Value& v, const Value& start, const Value& stop, const Value& step);
// ---- text (text.cpp): what filters and methods of strings share; `s` is a string

/// What a search costs at worst.
inline std::uint64_t search_steps(std::string_view text, std::string_view wanted) {
  return text.size() / 16 + text.size() / 256 * wanted.size();
}
enum class Side : std::uint8_t { both, left, right };
Value upper_case(Run& run, const Value& s);
Value lower_case(Run& run, const Value& s);
Value capitalized(Run& run, const Value& s);
/// As str.title: a word begins behind anything that has no case.
Value title_case(Run& run, const Value& s);
/// As the filter: a word begins behind white space, -, (, {, [ and <.
Value title_words(Run& run, const Value& s);
/// Without white space, or without the characters of `chars`, at its ends.
Value stripped(Run& run, const Value& s, const Value& chars, Side side);
/// The first `count` occurrences; a negative count is all.
Value replaced(Run& run, const Value& s, const Value& from, const Value& to, std::int64_t count);
/// Padded to `width` characters; the side is where the text goes, both is the middle.
Value justified(Run& run, const Value& s, std::int64_t width, std::string_view fill, Side side);
/// Ends of lines as Python sees them: also \v, \f, U+001C to U+001E, U+0085, U+2028, U+2029.
Value split_lines(Run& run, const Value& s, bool keep_ends);
Value joined(Run& run, const Value& separator, const List& items);
/// Sorted by name, as the other tables of methods.
std::span<const MethodInfo> string_methods();

// ---- formats (format.cpp)

/// str % args.
Value format_percent(Run& run, const Value& format, const Value& args);
/// str.format.
Value format_braces(Run& run, const Value& format, const Args& args);
/// Text with &, <, >, ' and " as entities; markup stays.
Value escaped(Run& run, const Value& v);
/// Rounds to so many decimals, half to even, as Python's round.
double rounded(double x, std::int64_t decimals);

}  // namespace decant::detail::jinja
