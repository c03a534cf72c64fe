// Recursive descent, with one function for all infix operators. Chains such as a + b + c become one
// node, so that only real nesting nests. After an error the current token is `end`, and everything
// unwinds.
#include "text/jinja/parser.hpp"

#include <initializer_list>
#include <unordered_set>

#include "text/jinja/run.hpp"

namespace decant::detail::jinja {

/// Tags within tags and brackets within brackets; nodes within nodes.
static constexpr int kJinjaMaxParseDepth = 100, kJinjaMaxTreeDepth = 300;

namespace {

class JinjaParser {
 public:
  explicit JinjaParser(Program& program) : program_(program), heap_(program.heap) {
    for (const auto name : {"loop", "caller", "kwargs", "varargs"}) identifier(name);
    tokens_ = tokenize_template(heap_, program.source, program.strings);
  }

  void run() {
    program_.root = statements({});
    if (!heap_.failed() && !at(TokenType::end)) fail("unexpected end of block");
    if (!heap_.failed()) check(*program_.root, false, 0);
    for (Node* macro : macros_) find_uses(macro);
    if (!heap_.failed()) find_hidden(*program_.root);
  }

 private:
  using Kids = std::vector<const Node*>;
  using Names = std::initializer_list<std::string_view>;

  // ---- tokens

  const Token& token(std::size_t ahead = 0) const {
    const std::size_t i = heap_.failed() ? tokens_.size() : at_ + ahead;
    return i < tokens_.size() ? tokens_[i] : tokens_.back();
  }
  bool at(TokenType type) const { return token().type == type; }
  bool at_name(std::string_view name) const { return at(TokenType::name) && token().text == name; }
  Token next() {
    const Token t = token();
    if (at_ + 1 < tokens_.size()) ++at_;
    return t;
  }
  bool skip(TokenType type) {
    if (!at(type)) return false;
    next();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!at_name(name)) return false;
    next();
    return true;
  }
  void fail(std::string_view what) {
    heap_.line = token().line;
    heap_.fail("{}", what);
  }
  Token expect(TokenType type, std::string_view what) {
    if (!at(type)) {
      heap_.line = token().line;
      heap_.fail("expected {}, got {}", what, describe(token()));
    }
    return next();
  }
  std::string_view expect_name() { return expect(TokenType::name, "a name").text; }

  // ---- nodes

  Node* node(Op op, Kids kids = {}) {
    heap_.reserve(1, sizeof(Node));
    Node& n = program_.nodes.emplace_back();
    n.op = op;
    n.line = token().line;
    n.kids = std::move(kids);
    return &n;
  }
  Node* node(Op op, std::uint32_t line, Kids kids) {
    Node* n = node(op, std::move(kids));
    n->line = line;
    return n;
  }
  std::uint32_t identifier(std::string_view name) {
    const auto [found, fresh] =
        identifiers_.emplace(name, static_cast<std::uint32_t>(program_.names.size()));
    if (fresh) program_.names.push_back(name);
    return found->second;
  }
  Node* name_node(const Token& t) {
    Node* n = node(Op::name, t.line, {});
    n->text = t.text;
    n->name = identifier(t.text);
    return n;
  }
  Node* constant(const Token& t, Value value) {
    Node* n = node(Op::constant, t.line, {});
    n->value = value;
    return n;
  }

  bool enter() {
    if (++depth_ > kJinjaMaxParseDepth) {
      heap_.line = token().line;
      heap_.fail("nested more than {} deep", kJinjaMaxParseDepth);
    }
    return !heap_.failed();
  }
  void leave() { --depth_; }

  // ---- statements

  bool at_any(Names ends) const {
    return std::any_of(ends.begin(), ends.end(), [&](auto name) { return at_name(name); });
  }

  // Up to a tag of `ends`, whose name is then the current token.
  Node* statements(Names ends) {
    Node* body = node(Op::block);
    while (!at(TokenType::end)) {
      if (at(TokenType::data)) {
        const Token t = next();
        Node* n = node(Op::data, t.line, {});
        n->value = heap_.text(t.text);
        body->kids.push_back(n);
      } else if (skip(TokenType::variable_begin)) {
        Node* print = node(Op::print);
        print->kids.push_back(tuple());
        expect(TokenType::variable_end, "end of print statement");
        body->kids.push_back(print);
      } else {
        expect(TokenType::block_begin, "begin of statement block");
        if (at_any(ends)) return body;
        body->kids.push_back(statement());
        expect(TokenType::block_end, "end of statement block");
      }
    }
    if (ends.size() > 0 && !heap_.failed()) {
      heap_.line = token().line;
      heap_.fail("unexpected end of template, expected '{}'", *std::prev(ends.end()));
    }
    return body;
  }

  // The rest of a tag and what follows it.
  Node* body(Names ends) {
    skip(TokenType::colon);
    expect(TokenType::block_end, "end of statement block");
    Node* n = statements(ends);
    return n;
  }
  Node* body(std::string_view end) {
    Node* n = body({end});
    next();
    return n;
  }
  // Of something that becomes a function of its own: no break leaves it.
  Node* function_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Node* n = body(end);
    loops_ = loops;
    return n;
  }

  Node* statement() {
    Node* n = nullptr;
    if (enter()) n = tag();
    leave();
    return n != nullptr ? n : node(Op::block);
  }

  Node* tag() {
    const Token t = next();
    if (t.type != TokenType::name) return fail("tag name expected"), nullptr;
    const std::string_view name = t.text;
    if (name == "if") return if_tag(t.line);
    if (name == "for") return for_tag(t.line);
    if (name == "set") return set_tag(t.line);
    if (name == "macro") return macro_tag(t.line);
    if (name == "call") return call_tag(t.line);
    if (name == "filter") return filter_tag(t.line);
    if (name == "with") return with_tag(t.line);
    if (name == "print") {
      Node* n = node(Op::print, t.line, {});
      while (!at(TokenType::block_end) && !at(TokenType::end)) {
        if (!n->kids.empty()) expect(TokenType::comma, "','");
        n->kids.push_back(expression());
      }
      return n;
    }
    if (name == "generation") return node(Op::scope, t.line, {function_body("endgeneration")});
    if (name == "block") return block_tag(t.line);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return fail("break or continue outside of a loop"), nullptr;
      return node(name == "break" ? Op::break_ : Op::continue_, t.line, {});
    }
    if (name == "autoescape") {
      if (skip_name("false") || skip_name("False")) {
        return node(Op::scope, t.line, {body("endautoescape")});
      }
      heap_.line = t.line;
      heap_.fail(ErrorCode::unsupported, "autoescape");
      return nullptr;
    }
    if (name == "include" || name == "import" || name == "from" || name == "extends") {
      while (!at(TokenType::block_end) && !at(TokenType::end)) next();
      Node* n = node(Op::unsupported, t.line, {});
      n->text = name;
      return n;
    }
    heap_.line = t.line;
    heap_.fail("unknown tag '{}'", name.substr(0, 100));
    return nullptr;
  }

  Node* if_tag(std::uint32_t line) {
    Node* n = node(Op::if_, line, {});
    for (;;) {
      n->kids.push_back(tuple(false));
      n->kids.push_back(body({"elif", "else", "endif"}));
      const Token t = next();
      if (t.text == "elif") continue;
      if (t.text == "else") n->kids.push_back(body("endif"));
      return n;
    }
  }

  Node* for_tag(std::uint32_t line) {
    Node* n = node(Op::for_, line, {});
    ++fors_;
    n->kids.push_back(target(false, "in"));
    if (!skip_name("in")) fail("expected 'in'");
    n->kids.push_back(tuple(false, false, "recursive"));
    n->kids.push_back(skip_name("if") ? expression() : nullptr);
    n->flag = skip_name("recursive");
    ++loops_;
    n->kids.push_back(body({"else", "endfor"}));
    --loops_;
    n->kids.push_back(next().text == "else" ? body("endfor") : nullptr);
    --fors_;
    return n;
  }

  Node* set_tag(std::uint32_t line) {
    const Node* to = target(true, {});
    if (skip(TokenType::assign)) return node(Op::set, line, {to, tuple()});
    const Node* filter = filters(nullptr);
    const Node* captured = body("endset");
    return node(Op::set_block, line, {to, captured, filter});
  }

  void signature(Node* macro) {
    expect(TokenType::lparen, "'('");
    bool defaults = false;
    while (!at(TokenType::rparen) && !at(TokenType::end)) {
      if (!macro->kids.empty()) expect(TokenType::comma, "','");
      Node* param = node(Op::param);
      param->text = expect_name();
      param->name = identifier(param->text);
      if (skip(TokenType::assign)) {
        defaults = true;
        param->kids.push_back(expression());
      } else if (defaults) {
        fail("a parameter without default follows one with default");
      }
      macro->kids.push_back(param);
    }
    expect(TokenType::rparen, "')'");
  }

  void macro_body(Node* macro, std::string_view end) {
    macro->kids.push_back(function_body(end));
    macros_.push_back(macro);
  }

  Node* macro_tag(std::uint32_t line) {
    Node* n = node(Op::macro, line, {});
    n->text = expect_name();
    n->name = identifier(n->text);
    signature(n);
    macro_body(n, "endmacro");
    return n;
  }

  Node* call_tag(std::uint32_t line) {
    Node* caller = node(Op::macro, line, {});
    if (at(TokenType::lparen)) signature(caller);
    const Node* call = expression();
    if (call->op != Op::call) fail("expected a call");
    macro_body(caller, "endcall");
    return node(Op::call_block, line, {call, caller});
  }

  Node* filter_tag(std::uint32_t line) {
    const Node* chain = one_filter(nullptr);
    chain = filters(chain);
    return node(Op::filter_block, line, {chain, body("endfilter")});
  }

  Node* with_tag(std::uint32_t line) {
    Node* n = node(Op::with, line, {});
    while (!at(TokenType::block_end) && !at(TokenType::end)) {
      if (!n->kids.empty()) expect(TokenType::comma, "','");
      n->kids.push_back(target(false, {}));
      expect(TokenType::assign, "'='");
      n->kids.push_back(expression());
    }
    n->kids.push_back(body("endwith"));
    return n;
  }

  Node* block_tag(std::uint32_t line) {
    const std::string_view name = expect_name();
    const bool scoped = skip_name("scoped");
    skip_name("required");
    Node* n = node(Op::scope, line, {function_body("endblock")});
    n->flag = !scoped;
    skip_name(name);
    return n;
  }

  // ---- targets of assignments

  const Node* target(bool members, std::string_view end) {
    return target_tuple(members, end, false);
  }

  const Node* target_tuple(bool members, std::string_view end, bool parentheses) {
    Node* all = node(Op::tuple);
    bool is_tuple = false;
    while (!at(TokenType::end)) {
      if (is_tuple) expect(TokenType::comma, "','");
      if (at(TokenType::variable_end) || at(TokenType::block_end) || at(TokenType::rparen) ||
          (!end.empty() && at_name(end))) {
        break;
      }
      all->kids.push_back(one_target(members));
      if (!at(TokenType::comma)) break;
      is_tuple = true;
    }
    if (is_tuple || (parentheses && all->kids.empty())) return all;
    if (!all->kids.empty()) return all->kids[0];
    fail("expected a name to assign to");
    return all;
  }

  const Node* one_target(bool members) {
    if (skip(TokenType::lparen)) {
      const Node* inner = enter() ? target_tuple(false, {}, true) : node(Op::tuple);
      leave();
      expect(TokenType::rparen, "')'");
      return inner;
    }
    const Token t = expect(TokenType::name, "a name to assign to");
    if (is_constant_name(t.text)) fail("constants cannot be assigned to");
    Node* name = name_node(t);
    if (members && skip(TokenType::dot)) {
      Node* n = node(Op::member, t.line, {name});
      n->text = expect_name();
      return n;
    }
    if (t.text == "loop" && fors_ > 0) fail("the special variable 'loop' cannot be assigned to");
    return name;
  }

  static bool is_constant_name(std::string_view name) {
    return name == "true" || name == "True" || name == "false" || name == "False" ||
           name == "none" || name == "None";
  }

  // ---- expressions

  // One expression, or several with commas between them.
  const Node* tuple(bool conditionals = true, bool parentheses = false, std::string_view end = {}) {
    const std::uint32_t line = token().line;
    Kids items;
    bool is_tuple = false;
    while (!at(TokenType::end)) {
      if (is_tuple) expect(TokenType::comma, "','");
      if (at(TokenType::variable_end) || at(TokenType::block_end) || at(TokenType::rparen) ||
          (!end.empty() && at_name(end))) {
        break;
      }
      items.push_back(expression(conditionals));
      if (!at(TokenType::comma)) break;
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return items[0];
    if (!is_tuple && !parentheses) {
      heap_.line = token().line;
      heap_.fail("expected an expression, got {}", describe(token()));
    }
    return node(Op::tuple, line, std::move(items));
  }

  const Node* expression(bool conditionals = true) {
    const Node* n = nullptr;
    if (enter()) n = conditionals ? conditional() : infix(1);
    leave();
    return n != nullptr ? n : node(Op::constant);
  }

  const Node* conditional() {
    const std::uint32_t line = token().line;
    const Node* value = infix(1);
    while (skip_name("if")) {
      const Node* test = infix(1);
      const Node* other = skip_name("else") ? expression() : nullptr;
      value = node(Op::conditional, line, {value, test, other});
    }
    return value;
  }

  struct InfixInfo {
    int level = 0;  // how tightly it binds; 0: no operator
    Infix infix = Infix::eq;
    int tokens = 1;
  };
  static constexpr int kOr = 1, kAnd = 2, kNot = 3, kCompare = 4, kAdd = 5, kConcat = 6, kMul = 7,
                       kPow = 8;

  InfixInfo infix_here() const {
    switch (token().type) {
      case TokenType::eq: return {kCompare, Infix::eq};
      case TokenType::ne: return {kCompare, Infix::ne};
      case TokenType::lt: return {kCompare, Infix::lt};
      case TokenType::lteq: return {kCompare, Infix::lteq};
      case TokenType::gt: return {kCompare, Infix::gt};
      case TokenType::gteq: return {kCompare, Infix::gteq};
      case TokenType::add: return {kAdd, Infix::add};
      case TokenType::sub: return {kAdd, Infix::sub};
      case TokenType::tilde: return {kConcat};
      case TokenType::mul: return {kMul, Infix::mul};
      case TokenType::div: return {kMul, Infix::div};
      case TokenType::floordiv: return {kMul, Infix::floordiv};
      case TokenType::mod: return {kMul, Infix::mod};
      case TokenType::pow: return {kPow, Infix::pow};
      case TokenType::name:
        if (token().text == "or") return {kOr};
        if (token().text == "and") return {kAnd};
        if (token().text == "in") return {kCompare, Infix::in};
        if (token().text == "not" && token(1).type == TokenType::name && token(1).text == "in") {
          return {kCompare, Infix::not_in, 2};
        }
        return {};
      default: return {};
    }
  }

  // Operators of `lowest` level and above; all of them go from left to right.
  const Node* infix(int lowest) {
    const Node* left = nullptr;
    int highest = kPow;
    if (lowest <= kNot && at_name("not")) {
      const std::uint32_t line = next().line;
      left = enter() ? infix(kNot) : node(Op::constant);
      leave();
      left = node(Op::not_, line, {left});
      highest = kAnd;
    } else {
      left = unary(true);
    }
    for (;;) {
      const InfixInfo here = infix_here();
      if (here.level < lowest || here.level > highest || here.level == 0) return left;
      static constexpr Op kOps[] = {Op::or_,    Op::or_,        Op::and_,
                                    Op::not_,   Op::compare,    Op::arithmetic,
                                    Op::concat, Op::arithmetic, Op::arithmetic};
      Node* chain = node(kOps[here.level], left->line, {left});
      for (InfixInfo i = here; i.level == here.level; i = infix_here()) {
        for (int n = 0; n < i.tokens; ++n) next();
        chain->kids.push_back(infix(here.level + 1));
        chain->infix.push_back(i.infix);
      }
      left = chain;
      highest = here.level - 1;
    }
  }

  const Node* unary(bool with_filters) {
    const Node* n = nullptr;
    if (at(TokenType::sub) || at(TokenType::add)) {
      const Token sign = next();
      n = enter() ? unary(false) : node(Op::constant);
      leave();
      n = node(sign.type == TokenType::sub ? Op::negate : Op::plus, sign.line, {n});
    } else {
      n = primary();
    }
    n = postfix(n);
    while (with_filters) {
      if (at(TokenType::pipe)) {
        n = filters(n);
      } else if (at_name("is")) {
        n = test(n);
      } else if (at(TokenType::lparen)) {
        n = call(n);
      } else {
        break;
      }
    }
    return n;
  }

  const Node* primary() {
    const Token t = next();
    switch (t.type) {
      case TokenType::name:
        if (t.text == "true" || t.text == "True") return constant(t, Value::of(true));
        if (t.text == "false" || t.text == "False") return constant(t, Value::of(false));
        if (t.text == "none" || t.text == "None") return constant(t, Value::none());
        return name_node(t);
      case TokenType::string: {
        if (!at(TokenType::string)) return constant(t, heap_.text(t.text));
        std::string joined(t.text);
        while (at(TokenType::string)) joined += next().text;
        return constant(t, heap_.copy(joined));
      }
      case TokenType::integer:
      case TokenType::real: return constant(t, t.number);
      case TokenType::lparen: {
        const Node* inner = tuple(true, true);
        expect(TokenType::rparen, "')'");
        return inner;
      }
      case TokenType::lbracket: {
        Node* n = node(Op::list, t.line, {});
        while (!at(TokenType::rbracket) && !at(TokenType::end)) {
          if (!n->kids.empty()) expect(TokenType::comma, "','");
          if (at(TokenType::rbracket)) break;
          n->kids.push_back(expression());
        }
        expect(TokenType::rbracket, "']'");
        return n;
      }
      case TokenType::lbrace: {
        Node* n = node(Op::dict, t.line, {});
        while (!at(TokenType::rbrace) && !at(TokenType::end)) {
          if (!n->kids.empty()) expect(TokenType::comma, "','");
          if (at(TokenType::rbrace)) break;
          n->kids.push_back(expression());
          expect(TokenType::colon, "':'");
          n->kids.push_back(expression());
        }
        expect(TokenType::rbrace, "'}'");
        return n;
      }
      default:
        heap_.line = t.line;
        heap_.fail("unexpected {}", describe(t));
        return node(Op::constant);
    }
  }

  const Node* postfix(const Node* n) {
    for (;;) {
      if (at(TokenType::dot)) {
        n = member(n);
      } else if (at(TokenType::lbracket)) {
        n = subscript(n);
      } else if (at(TokenType::lparen)) {
        n = call(n);
      } else {
        return n;
      }
    }
  }

  const Node* member(const Node* of) {
    const std::uint32_t line = next().line;
    const Token t = next();
    if (t.type == TokenType::integer) {
      return node(Op::item, line, {of, constant(t, t.number)});
    }
    if (t.type != TokenType::name) return fail("expected a name or a number after '.'"), of;
    Node* n = node(Op::attribute, line, {of});
    n->text = t.text;
    n->value = heap_.text(t.text);
    return n;
  }

  const Node* subscript(const Node* of) {
    const std::uint32_t line = next().line;
    Kids items;
    while (!at(TokenType::rbracket) && !at(TokenType::end)) {
      if (!items.empty()) expect(TokenType::comma, "','");
      items.push_back(subscript_item());
    }
    expect(TokenType::rbracket, "']'");
    const Node* item = items.size() == 1 ? items[0] : node(Op::tuple, line, std::move(items));
    return node(Op::item, line, {of, item});
  }

  const Node* subscript_item() {
    const std::uint32_t line = token().line;
    const Node* start = at(TokenType::colon) ? nullptr : expression();
    if (!skip(TokenType::colon)) return start;
    const auto part = [&]() -> const Node* {
      const bool absent = at(TokenType::colon) || at(TokenType::rbracket) || at(TokenType::comma);
      return absent ? nullptr : expression();
    };
    const Node* stop = part();
    const Node* step = skip(TokenType::colon) ? part() : nullptr;
    return node(Op::slice, line, {start, stop, step});
  }

  void arguments(Node* n) {
    expect(TokenType::lparen, "'('");
    bool comma = false, keywords = false, star = false, star_star = false;
    while (!at(TokenType::rparen) && !at(TokenType::end)) {
      if (comma) {
        expect(TokenType::comma, "','");
        if (at(TokenType::rparen)) break;
      }
      bool good = !star_star;
      if (skip(TokenType::mul)) {
        good = good && !star;
        star = true;
        n->kids.push_back(node(Op::star, {expression()}));
      } else if (skip(TokenType::pow)) {
        star_star = true;
        n->kids.push_back(node(Op::star_star, {expression()}));
      } else if (at(TokenType::name) && token(1).type == TokenType::assign) {
        keywords = true;
        Node* keyword = node(Op::keyword);
        keyword->text = next().text;
        next();
        keyword->kids.push_back(expression());
        n->kids.push_back(keyword);
      } else {
        good = good && !star && !keywords;
        n->kids.push_back(expression());
      }
      if (!good) fail("invalid order of arguments");
      comma = true;
    }
    expect(TokenType::rparen, "')'");
  }

  const Node* call(const Node* callee) {
    Node* n = node(Op::call, {callee});
    arguments(n);
    return n;
  }

  std::string_view dotted_name() {
    const std::string_view first = expect_name();
    if (!at(TokenType::dot)) return first;
    std::string name(first);
    while (skip(TokenType::dot)) name.append(1, '.').append(expect_name());
    return program_.strings.emplace_back(std::move(name));
  }

  const Node* filters(const Node* input) {
    while (skip(TokenType::pipe)) input = one_filter(input);
    return input;
  }

  const Node* one_filter(const Node* input) {
    Node* n = node(Op::filter, {input});
    n->text = dotted_name();
    n->filter = find_filter(n->text);
    if (at(TokenType::lparen)) arguments(n);
    return n;
  }

  const Node* test(const Node* input) {
    const std::uint32_t line = next().line;
    const bool negated = skip_name("not");
    Node* n = node(Op::test, line, {input});
    n->text = dotted_name();
    n->test = find_test(n->text);
    switch (token().type) {
      case TokenType::lparen: arguments(n); break;
      case TokenType::name:
        if (at_name("else") || at_name("or") || at_name("and")) break;
        if (at_name("is")) fail("tests with 'is' cannot be chained");
        [[fallthrough]];
      case TokenType::string:
      case TokenType::integer:
      case TokenType::real:
      case TokenType::lbracket:
      case TokenType::lbrace: n->kids.push_back(postfix(primary())); break;
      default: break;
    }
    return negated ? node(Op::not_, line, {n}) : n;
  }

  // ---- after parsing

  void find_uses(Node* macro) {
    if (heap_.failed()) return;  // and the tree may be too deep
    const Node& block = *macro->kids.back();
    macro->uses = {mentions(block, "caller"), mentions(block, "kwargs"),
                   mentions(block, "varargs")};
    for (const Node* param : macro->kids) {
      if (param->op != Op::param) continue;
      if (param->text == "kwargs") macro->uses.kwargs = false;
      if (param->text == "varargs") macro->uses.varargs = false;
      if (param->text == "caller" && macro->uses.caller && param->kids.empty()) {
        heap_.line = macro->line;
        heap_.fail("the parameter 'caller' of a macro needs a default");
      }
    }
  }

  // Names in the order in which the outermost statements load and store them: one that is stored
  // first, and not just within an `if`, hides the caller's variable from the beginning on.
  void find_hidden(const Node& n) {
    switch (n.op) {
      case Op::name: seen_.insert(n.name); return;
      case Op::block:
      case Op::print:
        for (const Node* kid : n.kids) find_hidden(*kid);
        return;
      case Op::if_: {
        const std::size_t before = program_.hidden.size();
        for (const Node* kid : n.kids) find_hidden(*kid);
        program_.hidden.resize(before);
        return;
      }
      case Op::for_: return find_hidden(*n.kids[1]);
      case Op::set: find_hidden(*n.kids[1]); return hide(*n.kids[0]);
      case Op::set_block: return hide(*n.kids[0]);
      case Op::macro: return hide(n);
      case Op::call_block: return find_hidden(*n.kids[0]);
      case Op::filter_block: return find_hidden(*n.kids[0]);
      case Op::with:
        for (std::size_t i = 1; i + 1 < n.kids.size(); i += 2) find_hidden(*n.kids[i]);
        return;
      case Op::scope: return;
      default:
        for (const Node* kid : n.kids) {
          if (kid != nullptr) find_hidden(*kid);
        }
    }
  }
  void hide(const Node& target) {
    if (target.op == Op::tuple) {
      for (const Node* kid : target.kids) hide(*kid);
    } else if (target.op == Op::member) {
      find_hidden(*target.kids[0]);
    } else if (seen_.insert(target.name).second) {
      program_.hidden.push_back(target.name);
    }
  }

  static bool mentions(const Node& n, std::string_view name) {
    if (n.op == Op::name && n.text == name) return true;
    return std::any_of(n.kids.begin(), n.kids.end(),
                       [&](const Node* kid) { return kid != nullptr && mentions(*kid, name); });
  }

  // Unknown filters and tests are errors at once, except directly within `if` (of either kind),
  // where they are when they are reached. Bodies of loops, macros and the like begin anew.
  void check(const Node& n, bool within_if, int depth) {
    if (heap_.failed()) return;
    if (depth > kJinjaMaxTreeDepth) {
      heap_.line = n.line;
      heap_.fail("an expression is nested too deeply");
      return;
    }
    const bool unknown =
        (n.op == Op::filter && n.filter == nullptr) || (n.op == Op::test && n.test == nullptr);
    if (unknown && !within_if) {
      heap_.line = n.line;
      heap_.fail(ErrorCode::unsupported, "there is no {} named '{}'",
                 n.op == Op::filter ? "filter" : "test", n.text.substr(0, 100));
      return;
    }
    const bool is_if = n.op == Op::if_ || n.op == Op::conditional;
    for (std::size_t i = 0; i < n.kids.size(); ++i) {
      if (n.kids[i] == nullptr) continue;
      bool inner = within_if || is_if;
      switch (n.op) {
        case Op::for_: inner = inner && i == 1; break;
        case Op::with: inner = inner && i + 1 < n.kids.size() && i % 2 == 1; break;
        case Op::call_block: inner = inner && i == 0; break;
        case Op::macro:
        case Op::filter_block:
        case Op::set_block:
        case Op::scope: inner = false; break;
        default: break;
      }
      check(*n.kids[i], inner, depth + 1);
    }
  }

  Program& program_;
  Heap& heap_;
  std::vector<Token> tokens_;
  std::unordered_map<std::string_view, std::uint32_t> identifiers_;
  std::vector<Node*> macros_;
  std::unordered_set<std::uint32_t> seen_;  // of find_hidden
  std::size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // around us, in this function
  int fors_ = 0;   // around us at all
};

}  // namespace

void parse_template(Program& program) { JinjaParser(program).run(); }

}  // namespace decant::detail::jinja
