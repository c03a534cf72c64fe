// Tokens to a tree. One kind of node for everything; what its children are depends on its Op.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/lexer.hpp"

namespace decant::detail::jinja {

struct FilterInfo;
struct TestInfo;

/// What a node is, with its children. [x] may be a null pointer, x... is any number.
enum class Op : std::uint8_t {
  // statements
  block,         // statement...
  data,          // text; `value`
  print,         // expression...
  if_,           // test, block, test, block, ..., block of else if the number is odd
  for_,          // target, iterable, [test], block, [block of else]; flag: recursive
  set,           // target, expression
  set_block,     // target, block, [filter]
  macro,         // param..., block; `uses`
  call_block,    // call, macro that is the caller
  filter_block,  // filter, block
  with,          // target, expression, ..., block
  scope,         // block; flag: sees only top-level variables (a named block)
  break_,
  continue_,
  unsupported,  // text: the tag
  // targets: also name, tuple
  member,  // a namespace's member: kids: name; text
  // expressions
  constant,     // `value`
  name,         // text, `name`
  tuple,        // expression...
  list,         // expression...
  dict,         // key, value, ...
  attribute,    // expression; text, `value` is the name too
  item,         // expression, expression or slice
  slice,        // [start], [stop], [step]
  call,         // callee, argument...
  filter,       // [input], argument...; without input: what a block captured
  test,         // input, argument...
  not_,         // expression
  negate,       // expression
  plus,         // expression
  and_,         // expression...
  or_,          // expression...
  compare,      // expression...; ops between them
  arithmetic,   // expression...; ops between them, from left to right
  concat,       // expression...
  conditional,  // value, test, [else]
  // parts
  param,      // [default]; `name`
  keyword,    // expression; text
  star,       // expression: positional arguments
  star_star,  // expression: keyword arguments
};

/// Operators between the children of compare and arithmetic.
enum class Infix : std::uint8_t {
  eq,
  ne,
  lt,
  lteq,
  gt,
  gteq,
  in,
  not_in,
  add,
  sub,
  mul,
  div,
  floordiv,
  mod,
  pow
};

/// Which hidden arguments a macro's body mentions.
struct MacroUses {
  bool caller = false, kwargs = false, varargs = false;
};

struct Node {
  Op op;
  bool flag = false;
  MacroUses uses;
  std::uint32_t line = 1;
  std::uint32_t name = 0;  // index of an identifier
  std::string_view text;
  Value value;
  std::vector<const Node*> kids;
  std::vector<Infix> infix;
  const FilterInfo* filter = nullptr;  // null: unknown
  const TestInfo* test = nullptr;
};

/// The first identifiers of every program.
inline constexpr std::uint32_t kNameLoop = 0, kNameCaller = 1, kNameKwargs = 2, kNameVarargs = 3;

/// Everything that a compiled template owns. Does not change after parsing.
struct Program {
  explicit Program(const ChatTemplateLimits& limits) : heap(limits) {}
  std::string source;
  std::deque<std::string> strings;
  std::deque<Node> nodes;
  std::vector<std::string_view> names;  // identifiers by index
  std::vector<std::uint32_t> hidden;    // identifiers for which the caller's variables do not count
  const Node* root = nullptr;
  Heap heap;  // of constants
};

/// Parses program.source (newlines normalised); errors go to program.heap.
void parse_template(Program& program);

}  // namespace decant::detail::jinja
