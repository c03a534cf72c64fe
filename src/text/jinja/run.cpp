// Walks the tree. Scopes follow jinja2: loops, macros, blocks and `with` have variables of their
// own, `if` has not; macros see the variables of the place where they were defined.
#include "text/jinja/run.hpp"

namespace decant::detail::jinja {

/// Nodes being evaluated within each other. 200 KiB of stack suffice for them (see the tests).
static constexpr int kJinjaMaxRunDepth = 500;

Run::Run(const Program& program, const ChatTemplateLimits& limits, const ChatTime& now)
    : Heap(limits), program_(program), now_(now), variables_(program.names.size()) {
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const Function* f = find_function(program.names[i]);
    if (f == nullptr) continue;
    if (Value* v = variable(f->name)) *v = Value::make(Type::function, &Value::function, f);
  }
}

Value* Run::variable(std::string_view name) {
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (program_.names[i] != name) continue;
    const auto& hidden = program_.hidden;
    return std::find(hidden.begin(), hidden.end(), i) == hidden.end() ? &variables_[i] : nullptr;
  }
  return nullptr;
}

void Run::render(Text& out) {
  out_ = &out;
  execute(*program_.root);
}

bool Run::enter(const Node& n) {
  line = n.line;
  if (++depth_ > kJinjaMaxRunDepth) fail("macros, loops and expressions are nested too deeply");
  return spend(1) && !failed();
}

// ---- statements

void Run::execute(const Node& n) {
  if (enter(n)) {
    switch (n.op) {
      case Op::block: execute_block(n); break;
      case Op::data: out_->add(*n.value.string); break;
      case Op::print:
        for (const Node* kid : n.kids) {
          const Value v = evaluate(*kid);
          if (failed()) break;
          out_->add_value(v);
        }
        break;
      case Op::if_: execute_if(n); break;
      case Op::for_: {
        const Value items = evaluate(*n.kids[1]);
        if (!failed()) execute_for(n, items, 0);
        break;
      }
      case Op::set: {
        const Value v = evaluate(*n.kids[1]);
        if (!failed()) assign(*n.kids[0], v);
        break;
      }
      case Op::set_block: execute_set_block(n); break;
      case Op::macro: assign_name(n.name, make_macro(n)); break;
      case Op::call_block: execute_call_block(n); break;
      case Op::filter_block: execute_filter_block(n); break;
      case Op::with: execute_with(n); break;
      case Op::scope: execute_in_scope(*n.kids[0], n.flag ? nullptr : scope_); break;
      case Op::break_: flow_ = Flow::break_; break;
      case Op::continue_: flow_ = Flow::continue_; break;
      case Op::unsupported: fail(ErrorCode::unsupported, "the tag '{}'", n.text); break;
      default: fail(ErrorCode::internal, "no statement"); break;
    }
  }
  leave();
}

void Run::execute_block(const Node& n) {
  for (const Node* kid : n.kids) {
    execute(*kid);
    if (failed() || flow_ != Flow::none) return;
  }
}

void Run::execute_if(const Node& n) {
  std::size_t i = 0;
  for (; i + 1 < n.kids.size(); i += 2) {
    const bool chosen = truth(evaluate(*n.kids[i]));
    if (failed()) return;
    if (chosen) return execute(*n.kids[i + 1]);
  }
  if (i < n.kids.size()) execute(*n.kids[i]);
}

// `else` runs unless some pass came to its end (a pass that breaks or continues does not count).
void Run::execute_for(const Node& n, const Value& over, std::int64_t depth0) {
  const Error* error = nullptr;
  const Range* range = over.is(Type::range) ? over.range : nullptr;
  const List* items = range == nullptr ? iterate(*this, over, &error) : nullptr;
  if (failed()) return;
  Scope* const around = scope_;
  Loop* loop = make(Loop{items, range, &n, n.kids[2], around, error});
  loop->depth0 = depth0;
  Scope* scope = new_scope(around);
  bool completed = false;
  for (Value item; loop_next(*loop, item);) {
    if (scope->captured) scope = new_scope(around);
    scope->variables.clear();
    scope->variables.push({kNameLoop, Value::make(Type::loop, &Value::loop, loop)});
    scope_ = scope;
    assign(*n.kids[0], item);
    if (!failed()) execute(*n.kids[3]);
    scope_ = around;
    const Flow flow = std::exchange(flow_, Flow::none);
    if (failed() || flow == Flow::break_) break;
    completed |= flow == Flow::none;
  }
  if (!completed && n.kids[4] != nullptr && !failed()) execute_in_scope(*n.kids[4], around);
}

void Run::execute_in_scope(const Node& block, Scope* parent) {
  Scope* const before = scope_;
  scope_ = new_scope(parent);
  execute(block);
  scope_ = before;
}

void Run::execute_with(const Node& n) {
  Scope* const around = scope_;
  Scope* const inner = new_scope(around);
  for (std::size_t i = 0; i + 1 < n.kids.size() && !failed(); i += 2) {
    const Value v = evaluate(*n.kids[i + 1]);
    scope_ = inner;
    assign(*n.kids[i], v);
    scope_ = around;
  }
  scope_ = inner;
  if (!failed()) execute(*n.kids.back());
  scope_ = around;
}

Value Run::captured_text(const Node& block, Scope* scope) {
  Text text(*this);
  Text* const out = std::exchange(out_, &text);
  Scope* const before = std::exchange(scope_, scope);
  execute(block);
  out_ = out;
  scope_ = before;
  return text.finish();
}

void Run::execute_set_block(const Node& n) {
  Scope* const scope = new_scope(scope_);
  Value v = captured_text(*n.kids[1], scope);
  if (failed() || flow_ != Flow::none) return;
  if (n.kids[2] != nullptr) {
    captured_ = v;
    v = evaluate(*n.kids[2]);
  }
  if (!failed()) assign(*n.kids[0], v);
}

void Run::execute_filter_block(const Node& n) {
  Scope* const scope = new_scope(scope_);
  captured_ = captured_text(*n.kids[1], scope);
  if (failed() || flow_ != Flow::none) return;
  add_string(evaluate(*n.kids[0]));
}

// Blocks that are not prints do not turn values into text.
void Run::add_string(const Value& v) {
  if (failed()) return;
  if (v.is_string()) return out_->add(*v.string);
  fail("a block gave a {} instead of text", type_name(v));
}

void Run::execute_call_block(const Node& n) {
  const Value caller = make_macro(*n.kids[1]);
  add_string(evaluate_call(*n.kids[0], &caller));
}

// ---- variables

Value Run::lookup(const Node& n) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const Scope::Variable& v : scope->variables.view()) {
      if (v.name == n.name) return v.value;
    }
  }
  const Value& v = variables_[n.name];
  return v.given() ? v : undefined({Undefined::variable, n.text});
}

void Run::assign_name(std::uint32_t name, const Value& value) {
  if (scope_ == nullptr) {
    variables_[name] = value;
    return;
  }
  for (std::size_t i = 0; i < scope_->variables.size(); ++i) {
    if (scope_->variables[i].name == name) {
      scope_->variables[i].value = value;
      return;
    }
  }
  scope_->variables.push({name, value});
}

void Run::assign_member(const Node& target, const Value& value) {
  const Value space = lookup(*target.kids[0]);
  if (!space.is(Type::space)) {
    fail("'{}' is no namespace, so nothing can be assigned to its members",
         target.kids[0]->text.substr(0, 100));
    return;
  }
  if (target.text.starts_with('_')) {
    fail("members of namespaces cannot begin with an underscore");
    return;
  }
  Growing<Entry>& entries = space.space->entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].key.is_string() && view(entries[i].key) == target.text) {
      entries[i].value = value;
      return;
    }
  }
  entries.push({text(target.text), value});
}

void Run::assign(const Node& target, const Value& value) {
  if (target.op == Op::name) return assign_name(target.name, value);
  if (target.op == Op::member) return assign_member(target, value);
  const List* items = iterate(*this, value);
  if (items == nullptr) return;
  if (items->size != target.kids.size()) {
    fail("{} values cannot be unpacked to {} names", items->size, target.kids.size());
    return;
  }
  for (std::size_t i = 0; i < items->size && !failed(); ++i) {
    assign(*target.kids[i], items->items[i]);
  }
}

// ---- expressions

Value Run::evaluate(const Node& n) {
  Value result;
  if (!enter(n)) {
    leave();
    return undefined();
  }
  switch (n.op) {
    case Op::constant: result = n.value; break;
    case Op::name: result = lookup(n); break;
    case Op::tuple: result = evaluate_list(n, Type::tuple); break;
    case Op::list: result = evaluate_list(n, Type::list); break;
    case Op::dict: result = evaluate_dict(n); break;
    case Op::attribute: result = attribute(evaluate(*n.kids[0]), n.text); break;
    case Op::item: result = evaluate_item(n); break;
    case Op::call: result = evaluate_call(n, nullptr); break;
    case Op::filter: result = evaluate_filter(n); break;
    case Op::test: result = evaluate_test(n); break;
    case Op::not_: result = Value::of(!truth(evaluate(*n.kids[0]))); break;
    case Op::negate: result = negated(*this, evaluate(*n.kids[0])); break;
    case Op::plus: {
      const Value v = evaluate(*n.kids[0]);
      result = arithmetic(*this, Infix::add, Value::of(std::int64_t{0}), v);
      break;
    }
    case Op::and_:
    case Op::or_:
      for (const Node* kid : n.kids) {
        result = evaluate(*kid);
        if (truth(result) == (n.op == Op::or_) || failed()) break;
      }
      break;
    case Op::compare: result = evaluate_compare(n); break;
    case Op::arithmetic: result = evaluate_chain(n); break;
    case Op::concat: result = evaluate_concat(n); break;
    case Op::conditional:
      if (truth(evaluate(*n.kids[1]))) {
        result = evaluate(*n.kids[0]);
      } else if (n.kids[2] != nullptr) {
        result = evaluate(*n.kids[2]);
      } else {
        result = undefined({Undefined::hint, "an inline if without else gave no value"});
      }
      break;
    default: result = fail("this cannot be evaluated here"); break;
  }
  leave();
  return failed() ? undefined() : result;
}

Value Run::evaluate_list(const Node& n, Type type) {
  const std::size_t size = n.kids.size();
  Value* items = array<Value>(size);
  for (std::size_t i = 0; i < size; ++i) items[i] = evaluate(*n.kids[i]);
  return list({items, size}, type);
}

Value Run::evaluate_dict(const Node& n) {
  const std::size_t size = n.kids.size() / 2;
  Entry* entries = array<Entry>(size);
  for (std::size_t i = 0; i < size; ++i) {
    entries[i].key = evaluate(*n.kids[2 * i]);
    entries[i].value = evaluate(*n.kids[2 * i + 1]);
  }
  return failed() ? undefined() : make_dict(*this, {entries, size});
}

Value Run::evaluate_item(const Node& n) {
  const Value of = evaluate(*n.kids[0]);
  const Node& key = *n.kids[1];
  if (key.op != Op::slice) {
    const Value k = evaluate(key);
    return failed() ? undefined() : item(of, k);
  }
  const auto part = [&](std::size_t i) {
    return key.kids[i] != nullptr ? evaluate(*key.kids[i]) : Value::none();
  };
  const Value start = part(0), stop = part(1), step = part(2);
  return failed() ? undefined() : slice_of(*this, of, start, stop, step);
}

Args Run::evaluate_arguments(const Node& n, std::size_t first, const Value* caller) {
  Growing<Value> values(*this);
  Growing<Keyword> keywords(*this);
  for (std::size_t i = first; i < n.kids.size() && !failed(); ++i) {
    const Node& kid = *n.kids[i];
    if (kid.op == Op::keyword) {
      keywords.push({kid.text, evaluate(*kid.kids[0])});
    } else if (kid.op == Op::star) {
      const List* items = iterate(*this, evaluate(*kid.kids[0]));
      if (items == nullptr) break;
      for (const Value& item : items->view()) values.push(item);
    } else if (kid.op == Op::star_star) {
      const Value v = evaluate(*kid.kids[0]);
      if (!v.is(Type::dict)) {
        fail("the argument after ** must be a dict");
        break;
      }
      for (const Entry& e : v.dict->view()) {
        if (e.key.is_string()) keywords.push({view(e.key), e.value});
      }
    } else {
      values.push(evaluate(kid));
    }
  }
  if (caller != nullptr) keywords.push({"caller", *caller});
  return {values.view(), keywords.view()};
}

// Methods are called without a value for them in between.
Value Run::evaluate_call(const Node& n, const Value* caller) {
  const Node& callee = *n.kids[0];
  Value f;
  if (callee.op == Op::attribute) {
    const Value self = evaluate(*callee.kids[0]);
    if (failed()) return undefined();
    const MethodInfo* method = find_method(self.type, callee.text);
    if (method != nullptr && method->call != nullptr) {
      const Args args = evaluate_arguments(n, 1, caller);
      return failed() ? undefined() : method->call(*this, self, args);
    }
    f = attribute(self, callee.text);
  } else {
    f = evaluate(callee);
  }
  if (failed()) return undefined();
  const Args args = evaluate_arguments(n, 1, caller);
  return failed() ? undefined() : call(f, args);
}

Value Run::evaluate_filter(const Node& n) {
  const Value input = n.kids[0] != nullptr ? evaluate(*n.kids[0]) : captured_;
  if (n.filter == nullptr) {
    return fail(ErrorCode::unsupported, "there is no filter named '{}'", n.text.substr(0, 100));
  }
  const Args args = n.kids.size() > 1 ? evaluate_arguments(n, 1, nullptr) : Args();
  return failed() ? undefined() : n.filter->call(*this, input, args);
}

Value Run::evaluate_test(const Node& n) {
  const Value input = evaluate(*n.kids[0]);
  if (n.test == nullptr) {
    return fail(ErrorCode::unsupported, "there is no test named '{}'", n.text.substr(0, 100));
  }
  const Args args = n.kids.size() > 1 ? evaluate_arguments(n, 1, nullptr) : Args();
  return failed() ? undefined() : n.test->call(*this, input, args);
}

Value Run::evaluate_compare(const Node& n) {
  Value left = evaluate(*n.kids[0]);
  for (std::size_t i = 0; i < n.infix.size(); ++i) {
    const Value right = evaluate(*n.kids[i + 1]);
    if (failed() || !detail::jinja::compare(*this, n.infix[i], left, right)) {
      return Value::of(false);
    }
    left = right;
  }
  return Value::of(true);
}

Value Run::evaluate_chain(const Node& n) {
  Value left = evaluate(*n.kids[0]);
  for (std::size_t i = 0; i < n.infix.size() && !failed(); ++i) {
    const Value right = evaluate(*n.kids[i + 1]);
    if (!failed()) left = arithmetic(*this, n.infix[i], left, right);
  }
  return left;
}

Value Run::evaluate_concat(const Node& n) {
  Text text(*this);
  for (const Node* kid : n.kids) {
    const Value v = evaluate(*kid);
    if (failed()) break;
    text.add_value(v);
  }
  return text.finish();
}

// ---- macros

Value Run::make_macro(const Node& n) {
  for (Scope* s = scope_; s != nullptr; s = s->parent) s->captured = true;
  return Value::make(Type::macro, &Value::macro, make(Macro{&n, scope_}));
}

// Arguments go to parameters by place, then by name; what is left over goes to varargs and kwargs
// if the body mentions them.
Value Run::call_macro(const Macro& macro, const Args& args) {
  const Node& n = *macro.node;
  const std::size_t n_params = n.kids.size() - 1;
  Scope* scope = new_scope(macro.scope);
  std::vector<bool> used(args.keywords.size());
  const auto take = [&](std::string_view name) -> const Value* {
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i] || args.keywords[i].name != name) continue;
      used[i] = true;
      return &args.keywords[i].value;
    }
    return nullptr;
  };
  bool has_caller = false;
  std::vector<Value> given(n_params);
  for (std::size_t i = 0; i < n_params; ++i) {
    has_caller |= n.kids[i]->text == "caller";
    if (i < args.values.size()) {
      given[i] = args.values[i];
    } else if (const Value* v = take(n.kids[i]->text)) {
      given[i] = *v;
    }
  }
  if (n.uses.caller && !has_caller) {
    const Value* caller = take("caller");
    scope->variables.push({kNameCaller, caller != nullptr && !caller->is(Type::none)
                                            ? *caller
                                            : undefined({Undefined::hint, "No caller defined"})});
  }
  Growing<Entry> kwargs(*this);
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    if (!n.uses.kwargs) {
      return fail("macro '{}' takes no keyword argument '{}'", n.text.substr(0, 100),
                  args.keywords[i].name.substr(0, 100));
    }
    kwargs.push({text(args.keywords[i].name), args.keywords[i].value});
  }
  if (n.uses.kwargs) scope->variables.push({kNameKwargs, make_dict(*this, kwargs.view())});
  const auto rest = args.values.subspan(std::min(n_params, args.values.size()));
  if (n.uses.varargs) {
    scope->variables.push({kNameVarargs, list(rest, Type::tuple)});
  } else if (!rest.empty()) {
    return fail("macro '{}' takes not more than {} arguments", n.text.substr(0, 100), n_params);
  }
  Scope* const before = std::exchange(scope_, scope);
  for (std::size_t i = 0; i < n_params && !failed(); ++i) {
    const Node& param = *n.kids[i];
    Value v = given[i];
    if (!v.given()) {
      v = param.kids.empty() ? undefined({Undefined::hint, "a parameter was not provided"})
                             : evaluate(*param.kids[0]);
    }
    scope->variables.push({param.name, v});
  }
  scope_ = before;
  return failed() ? undefined() : captured_text(*n.kids.back(), scope);
}

Value Run::call(const Value& callee, const Args& args) {
  if (++depth_ > kJinjaMaxRunDepth) fail("calls are nested too deeply");
  Value result = undefined();
  if (!failed()) {
    switch (callee.type) {
      case Type::macro: result = call_macro(*callee.macro, args); break;
      case Type::function: result = callee.function->call(*this, callee, args); break;
      case Type::method:
        if (callee.bound->method->call == nullptr) {
          fail(ErrorCode::unsupported, "the method '{}' of {}", callee.bound->method->name,
               type_name(callee.bound->self));
        } else {
          result = callee.bound->method->call(*this, callee.bound->self, args);
        }
        break;
      case Type::loop:
        if (args.values.size() != 1 || !args.keywords.empty()) {
          fail("loop() takes one argument");
        } else {
          result = run_recursive(*callee.loop, args.values[0]);
        }
        break;
      case Type::joiner:
        result = std::exchange(callee.joiner->used, true) ? callee.joiner->separator : text("");
        break;
      case Type::undefined: fail_undefined(callee); break;
      default: fail("a {} cannot be called", type_name(callee)); break;
    }
  }
  --depth_;
  return result;
}

// ---- loops

bool Run::loop_peek(Loop& loop) {
  while (!loop.after.given()) {
    if (failed()) return false;
    if (loop.next == loop.size()) {
      if (const Error* error = std::exchange(loop.error, nullptr)) set_error(*error);
      return false;
    }
    const Value item = loop.at(loop.next++);
    if (loop.test != nullptr) {
      Scope* const before = std::exchange(scope_, new_scope(loop.scope));
      assign(*loop.node->kids[0], item);
      const bool passes = !failed() && truth(evaluate(*loop.test));
      scope_ = before;
      if (!passes) continue;
    }
    loop.after = item;
  }
  return !failed();
}

bool Run::loop_next(Loop& loop, Value& item) {
  if (!spend(1) || !loop_peek(loop)) return false;
  item = std::exchange(loop.after, Value());
  loop.before = std::exchange(loop.current, item);
  ++loop.index0;
  return true;
}

// With a condition, the rest of the loop is gone through now.
std::int64_t Run::loop_length(Loop& loop) {
  if (loop.length >= 0) return loop.length;
  if (loop.test == nullptr) {
    loop.length = static_cast<std::int64_t>(loop.size());
    return loop.length;
  }
  Growing<Value> rest(*this);
  while (loop_peek(loop)) rest.push(std::exchange(loop.after, Value()));
  loop.items = make(List{rest.data(), rest.size()});
  loop.range = nullptr;
  loop.next = 0;
  loop.test = nullptr;
  loop.length = static_cast<std::int64_t>(rest.size()) + loop.index0 + 1;
  return loop.length;
}

Value Run::loop_attribute(Loop& loop, std::string_view name) {
  if (name == "index") return Value::of(loop.index0 + 1);
  if (name == "index0") return Value::of(loop.index0);
  if (name == "first") return Value::of(loop.index0 == 0);
  if (name == "last") return Value::of(!loop_peek(loop));
  if (name == "length") return Value::of(loop_length(loop));
  if (name == "revindex") return Value::of(loop_length(loop) - loop.index0);
  if (name == "revindex0") return Value::of(loop_length(loop) - loop.index0 - 1);
  if (name == "depth") return Value::of(loop.depth0 + 1);
  if (name == "depth0") return Value::of(loop.depth0);
  if (name == "previtem") {
    return loop.before.given() ? loop.before
                               : undefined({Undefined::hint, "there is no previous item"});
  }
  if (name == "nextitem") {
    return loop_peek(loop) ? loop.after : undefined({Undefined::hint, "there is no next item"});
  }
  return {};
}

Value Run::run_recursive(Loop& loop, const Value& items) {
  if (!loop.node->flag) return fail("only loops marked 'recursive' can be called");
  Text text(*this);
  Text* const out = std::exchange(out_, &text);
  Scope* const before = std::exchange(scope_, loop.scope);
  execute_for(*loop.node, items, loop.depth0 + 1);
  out_ = out;
  scope_ = before;
  return text.finish();
}

// ---- attributes and items

Value Run::attribute(const Value& of, std::string_view name) {
  switch (of.type) {
    case Type::missing:
    case Type::undefined: return fail_undefined(of);
    case Type::space:
      for (const Entry& e : of.space->entries.view()) {
        if (e.key.is_string() && view(e.key) == name) return e.value;
      }
      break;
    case Type::loop: {
      const Value v = loop_attribute(*of.loop, name);
      if (v.given()) return v;
      break;
    }
    case Type::macro: {
      const Node& n = *of.macro->node;
      if (name == "name") return n.text.empty() ? Value::none() : text(n.text);
      if (name == "catch_kwargs") return Value::of(n.uses.kwargs);
      if (name == "catch_varargs") return Value::of(n.uses.varargs);
      if (name == "caller") return Value::of(n.uses.caller);
      if (name == "arguments") {
        Growing<Value> names(*this);
        for (const Node* kid : n.kids) {
          if (kid->op == Op::param) names.push(text(kid->text));
        }
        return list(names.view(), Type::tuple);
      }
      break;
    }
    case Type::cycler:
      if (name == "current") return of.cycler->items->items[of.cycler->next];
      break;
    case Type::tuple:
      if (of.list->group && name == "grouper") return of.list->items[0];
      if (of.list->group && name == "list") return of.list->items[1];
      break;
    default: break;
  }
  if (const MethodInfo* method = find_method(of.type, name)) {
    if (method->unsafe) return undefined({Undefined::unsafe, name, type_name(of)});
    return Value::make(Type::method, &Value::bound, make(Bound{of, method}));
  }
  if (name.starts_with("__")) return undefined({Undefined::unsafe, name, type_name(of)});
  if (of.is(Type::dict)) {
    if (const Value* v = find(*this, *of.dict, name)) return *v;
  }
  return undefined({Undefined::attribute, name, type_name(of)});
}

Value Run::item(const Value& of, const Value& key) {
  if (of.is_undefined()) return fail_undefined(of);
  if (of.is(Type::dict)) {
    if (const Value* v = find(*this, *of.dict, key)) return *v;
  } else if (key.is_integer()) {
    const Value v = item_at(*this, of, key.as_integer());
    if (v.given()) return v;
  }
  if (key.is_string()) return attribute(of, view(key));
  const Value name = to_string(*this, key);
  if (!name.is_string()) return undefined();
  return undefined({Undefined::attribute, view(name), type_name(of)});
}

}  // namespace decant::detail::jinja
