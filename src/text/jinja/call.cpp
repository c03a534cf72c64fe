// What filters, tests and methods share: their arguments, their tables, attributes by path.
#include "text/jinja/run.hpp"
#include "text/jinja/unicode.hpp"

namespace decant::detail::jinja {

bool Run::bind(const Args& args, std::string_view function, std::string_view names,
               std::span<Value> to, std::size_t required) {
  const std::size_t n = names.empty() ? 0 : to.size();
  if (args.values.size() > n) {
    fail("{} takes {} arguments at most, not {}", function, n, args.values.size());
    return false;
  }
  std::copy(args.values.begin(), args.values.end(), to.begin());
  for (const Keyword& keyword : args.keywords) {
    std::string_view rest = names;
    std::size_t i = 0;
    for (; i < n; ++i) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      if (rest.substr(0, end) == keyword.name) break;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (i == n || to[i].given()) {
      fail("{} cannot take the argument '{}'", function, keyword.name.substr(0, 100));
      return false;
    }
    to[i] = keyword.value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (to[i].given()) continue;
    fail("{} needs {} arguments", function, required);
    return false;
  }
  return !failed();
}

std::int64_t Run::integer(const Value& v, std::int64_t otherwise) {
  if (!v.given() || v.is(Type::none)) return otherwise;
  if (v.is_integer()) return v.as_integer();
  if (v.is_undefined()) {
    fail_undefined(v);
  } else {
    fail("an integer is needed, not a {}", type_name(v));
  }
  return otherwise;
}

std::string_view Run::string_argument(const Value& v, std::string_view function) {
  if (v.is_string()) return view(v);
  if (v.is_undefined()) {
    fail_undefined(v);
  } else if (v.given()) {
    fail("{} needs a text, not a {}", function, type_name(v));
  }
  return {};
}

Value Run::attribute_path(const Value& of, const Value& path) {
  if (!path.given() || path.is(Type::none)) return of;
  if (!path.is_string()) return item(of, path);
  Value v = of;
  std::string_view rest = view(path);
  for (bool more = true; more && !failed();) {
    const std::size_t end = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, end);
    more = end < rest.size();
    rest.remove_prefix(more ? end + 1 : end);
    std::int64_t index = 0;
    bool digits = !part.empty() && part.size() < 18;
    for (const char c : part) {
      digits = digits && c >= '0' && c <= '9';
      index = digits ? index * 10 + (c - '0') : 0;
    }
    v = item(v, digits ? Value::of(index) : text(part));
  }
  return v;
}

Value Run::filter(std::string_view name, const Value& input, const Args& args) {
  const FilterInfo* f = find_filter(name);
  if (f != nullptr) return f->call(*this, input, args);
  return fail(ErrorCode::unsupported, "there is no filter named '{}'", name.substr(0, 100));
}

Value Run::test(std::string_view name, const Value& input, const Args& args) {
  const TestInfo* t = find_test(name);
  if (t != nullptr) return t->call(*this, input, args);
  return fail(ErrorCode::unsupported, "there is no test named '{}'", name.substr(0, 100));
}

// ---- tests

template <bool (*test)(const Value&)>
static Value jinja_test_is(Run& run, const Value& v, const Args& args) {
  return run.bind(args, "this test", "", {}) ? Value::of(test(v)) : Heap::undefined();
}

static bool jinja_is_defined(const Value& v) { return !v.is_undefined(); }
static bool jinja_is_undefined(const Value& v) { return v.is_undefined(); }
static bool jinja_is_none(const Value& v) { return v.is(Type::none); }
static bool jinja_is_boolean(const Value& v) { return v.is(Type::boolean); }
static bool jinja_is_true(const Value& v) { return v.is(Type::boolean) && v.boolean; }
static bool jinja_is_false(const Value& v) { return v.is(Type::boolean) && !v.boolean; }
static bool jinja_is_integer(const Value& v) { return v.is(Type::integer) || v.is(Type::big); }
static bool jinja_is_float(const Value& v) { return v.is(Type::real); }
static bool jinja_is_number(const Value& v) { return v.is_number(); }
static bool jinja_is_string(const Value& v) { return v.is_string(); }
static bool jinja_is_mapping(const Value& v) { return v.is(Type::dict); }
static bool jinja_is_iterable(const Value& v) { return iterable(v); }
static bool jinja_is_escaped(const Value& v) { return v.is_string() && v.string->markup; }
static bool jinja_is_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Type::dict) ||
         v.is(Type::range);
}
static bool jinja_is_callable(const Value& v) {
  return v.is_undefined() || v.is(Type::macro) || v.is(Type::function) || v.is(Type::method) ||
         v.is(Type::loop) || v.is(Type::joiner);
}

template <Infix op>
static Value jinja_test_compare(Run& run, const Value& v, const Args& args) {
  Value other;
  if (!run.bind(args, "this test", "b", {&other, 1}, 1)) return Heap::undefined();
  return Value::of(compare(run, op, v, other));
}

template <int rest>
static Value jinja_test_parity(Run& run, const Value& v, const Args&) {
  const Value x = arithmetic(run, Infix::mod, v, Value::of(std::int64_t{2}));
  return Value::of(equal(run, x, Value::of(std::int64_t{rest})));
}

static Value jinja_test_divisible(Run& run, const Value& v, const Args& args) {
  Value by;
  if (!run.bind(args, "divisibleby", "num", {&by, 1}, 1)) return Heap::undefined();
  const Value x = arithmetic(run, Infix::mod, v, by);
  return Value::of(equal(run, x, Value::of(std::int64_t{0})));
}

// Python keeps one object for each small integer and each literal text; equality is as near.
static Value jinja_test_same(Run& run, const Value& v, const Args& args) {
  Value other;
  if (!run.bind(args, "sameas", "other", {&other, 1}, 1)) return Heap::undefined();
  if (v.type != other.type) return Value::of(false);
  if (v.is_sequence() || v.is(Type::dict)) return Value::of(v.list == other.list);
  return Value::of(equal(run, v, other));
}

template <bool upper>
static Value jinja_test_case(Run& run, const Value& v, const Args& args) {
  const Value s = to_string(run, v);
  if (!s.is_string()) return s;
  return find_method(Type::string, upper ? "isupper" : "islower")->call(run, s, args);
}

static Value jinja_test_exists(Run& run, const Value& name, bool exists) {
  if (!hashable(run, name)) return run.fail("a {} cannot be a key", type_name(name));
  return Value::of(exists);
}

static Value jinja_test_filter(Run& run, const Value& v, const Args&) {
  return jinja_test_exists(run, v, v.is_string() && find_filter(run.view(v)) != nullptr);
}

static Value jinja_test_test(Run& run, const Value& v, const Args&) {
  return jinja_test_exists(run, v, v.is_string() && find_test(run.view(v)) != nullptr);
}

const TestInfo* find_test(std::string_view name) {
  static constexpr TestInfo kTests[] = {
      {"defined", jinja_test_is<jinja_is_defined>},
      {"undefined", jinja_test_is<jinja_is_undefined>},
      {"none", jinja_test_is<jinja_is_none>},
      {"boolean", jinja_test_is<jinja_is_boolean>},
      {"true", jinja_test_is<jinja_is_true>},
      {"false", jinja_test_is<jinja_is_false>},
      {"integer", jinja_test_is<jinja_is_integer>},
      {"float", jinja_test_is<jinja_is_float>},
      {"number", jinja_test_is<jinja_is_number>},
      {"string", jinja_test_is<jinja_is_string>},
      {"mapping", jinja_test_is<jinja_is_mapping>},
      {"iterable", jinja_test_is<jinja_is_iterable>},
      {"sequence", jinja_test_is<jinja_is_sequence>},
      {"callable", jinja_test_is<jinja_is_callable>},
      {"escaped", jinja_test_is<jinja_is_escaped>},
      {"in", jinja_test_compare<Infix::in>},
      {"eq", jinja_test_compare<Infix::eq>},
      {"equalto", jinja_test_compare<Infix::eq>},
      {"==", jinja_test_compare<Infix::eq>},
      {"ne", jinja_test_compare<Infix::ne>},
      {"!=", jinja_test_compare<Infix::ne>},
      {"lt", jinja_test_compare<Infix::lt>},
      {"lessthan", jinja_test_compare<Infix::lt>},
      {"<", jinja_test_compare<Infix::lt>},
      {"le", jinja_test_compare<Infix::lteq>},
      {"<=", jinja_test_compare<Infix::lteq>},
      {"gt", jinja_test_compare<Infix::gt>},
      {"greaterthan", jinja_test_compare<Infix::gt>},
      {">", jinja_test_compare<Infix::gt>},
      {"ge", jinja_test_compare<Infix::gteq>},
      {">=", jinja_test_compare<Infix::gteq>},
      {"odd", jinja_test_parity<1>},
      {"even", jinja_test_parity<0>},
      {"divisibleby", jinja_test_divisible},
      {"sameas", jinja_test_same},
      {"lower", jinja_test_case<false>},
      {"upper", jinja_test_case<true>},
      {"filter", jinja_test_filter},
      {"test", jinja_test_test},
  };
  for (const TestInfo& t : kTests) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

// ---- methods of everything but strings

static Value jinja_dict_get(Run& run, const Value& dict, const Args& args) {
  Value a[2];
  if (!run.bind(args, "get", "- -", a, 1)) return Heap::undefined();
  if (!hashable(run, a[0])) return run.fail("a {} cannot be a key", type_name(a[0]));
  if (const Value* v = find(run, *dict.dict, a[0])) return *v;
  return a[1].given() ? a[1] : Value::none();
}

template <ViewKind kind>
static Value jinja_dict_view(Run& run, const Value& dict, const Args& args) {
  if (!run.bind(args, "this method", "", {})) return Heap::undefined();
  return Value::make(Type::view, &Value::view, run.make(View{dict.dict, kind}));
}

static Value jinja_dict_copy(Run& run, const Value& v, const Args&) {
  return Value::make(Type::dict, &Value::dict, run.make(*v.dict));
}

static Value jinja_list_copy(Run& run, const Value& v, const Args&) {
  return run.list(v.list->view());
}

static Value jinja_list_index(Run& run, const Value& v, const Args& args) {
  Value a[3];
  if (!run.bind(args, "index", "- - -", a, 1)) return Heap::undefined();
  const auto n = static_cast<std::int64_t>(v.list->size);
  const auto bound = [&](const Value& part, std::int64_t otherwise) {
    const std::int64_t i = run.integer(part, otherwise);
    return std::min(i < 0 ? std::max<std::int64_t>(i + n, 0) : i, n);
  };
  const std::int64_t start = bound(a[1], 0), stop = bound(a[2], n);
  for (std::int64_t i = start; i < stop; ++i) {
    if (equal(run, v.list->items[i], a[0])) return Value::of(i);
  }
  return run.fail("index: the list has no such item");
}

static Value jinja_list_count(Run& run, const Value& v, const Args& args) {
  Value wanted;
  if (!run.bind(args, "count", "-", {&wanted, 1}, 1)) return Heap::undefined();
  std::int64_t n = 0;
  for (const Value& item : v.list->view()) n += equal(run, item, wanted) ? 1 : 0;
  return Value::of(n);
}

static Value jinja_loop_cycle(Run& run, const Value& v, const Args& args) {
  if (args.values.empty()) return run.fail("cycle needs at least one item");
  return args.values[static_cast<std::size_t>(v.loop->index0) % args.values.size()];
}

static Value jinja_loop_changed(Run& run, const Value& v, const Args& args) {
  const Value now = run.list(args.values, Type::tuple);
  if (run.failed()) return now;
  Value before = now;
  before.list = const_cast<List*>(v.loop->changed);
  if (before.list != nullptr && equal(run, before, now)) return Value::of(false);
  v.loop->changed = now.list;
  return Value::of(true);
}

static Value jinja_cycler_next(Run&, const Value& v, const Args&) {
  Cycler& c = *v.cycler;
  const Value item = c.items->items[c.next];
  c.next = (c.next + 1) % c.items->size;
  return item;
}

static Value jinja_cycler_reset(Run&, const Value& v, const Args&) {
  v.cycler->next = 0;
  return Value::none();
}

static Value jinja_is_whole(Run&, const Value& v, const Args&) {
  return Value::of(v.real - v.real == 0 && rounded(v.real, 0) == v.real);
}

const MethodInfo* find_method(Type type, std::string_view name) {
  static constexpr MethodInfo kMethods[] = {
      {Type::dict, "clear", nullptr, true},
      {Type::dict, "copy", jinja_dict_copy},
      {Type::dict, "fromkeys", nullptr},
      {Type::dict, "get", jinja_dict_get},
      {Type::dict, "items", jinja_dict_view<ViewKind::items>},
      {Type::dict, "keys", jinja_dict_view<ViewKind::keys>},
      {Type::dict, "pop", nullptr, true},
      {Type::dict, "popitem", nullptr, true},
      {Type::dict, "setdefault", nullptr, true},
      {Type::dict, "update", nullptr, true},
      {Type::dict, "values", jinja_dict_view<ViewKind::values>},
      {Type::list, "append", nullptr, true},
      {Type::list, "clear", nullptr, true},
      {Type::list, "copy", jinja_list_copy},
      {Type::list, "count", jinja_list_count},
      {Type::list, "extend", nullptr, true},
      {Type::list, "index", jinja_list_index},
      {Type::list, "insert", nullptr, true},
      {Type::list, "pop", nullptr, true},
      {Type::list, "remove", nullptr, true},
      {Type::list, "reverse", nullptr, true},
      {Type::list, "sort", nullptr, true},
      {Type::tuple, "count", jinja_list_count},
      {Type::tuple, "index", jinja_list_index},
      {Type::real, "is_integer", jinja_is_whole},
      {Type::loop, "changed", jinja_loop_changed},
      {Type::loop, "cycle", jinja_loop_cycle},
      {Type::cycler, "next", jinja_cycler_next},
      {Type::cycler, "reset", jinja_cycler_reset},
  };
  if (type == Type::string) {
    const auto methods = string_methods();
    const auto found =
        std::lower_bound(methods.begin(), methods.end(), name,
                         [](const MethodInfo& m, std::string_view n) { return m.name < n; });
    return found != methods.end() && found->name == name ? &*found : nullptr;
  }
  for (const MethodInfo& m : kMethods) {
    if (m.type == type && m.name == name) return &m;
  }
  return nullptr;
}

}  // namespace decant::detail::jinja
