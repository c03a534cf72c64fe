// Python's operators on values, and the global functions.
#include "base/fp_contract.hpp"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/checked.hpp"
#include "text/jinja/run.hpp"
#include "text/jinja/unicode.hpp"

namespace decant::detail::jinja {

// ---- numbers

static Value jinja_too_large(Run& run) {
  return run.fail(ErrorCode::unsupported, "integers beyond 64 bits");
}

static const char* jinja_infix_name(Infix op) {
  static constexpr const char* kNames[] = {"==", "!=", "<", "<=", ">",  ">=", "in", "not in",
                                           "+",  "-",  "*", "/",  "//", "%",  "**"};
  return kNames[static_cast<int>(op)];
}

// The sum, difference or product, or nothing if 64 bits do not hold it.
static std::optional<std::int64_t> jinja_exact(Infix op, std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  if (op == Infix::add) {
    if (b > 0 ? a > kMax - b : a < kMin - b) return std::nullopt;
    return a + b;
  }
  if (op == Infix::sub) {
    if (b < 0 ? a > kMax + b : a < kMin + b) return std::nullopt;
    return a - b;
  }
  const auto magnitude = [](std::int64_t x) {
    return x < 0 ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
  };
  const auto product = checked_mul(magnitude(a), magnitude(b));
  const bool negative = (a < 0) != (b < 0);
  if (!product || *product > static_cast<std::uint64_t>(kMax) + (negative ? 1 : 0)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(negative ? 0 - *product : *product);
}

static Value jinja_integer_power(Run& run, std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return run.fail("division by zero");
    return Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) {
      const auto next = jinja_exact(Infix::mul, result, base);
      if (!next) return jinja_too_large(run);
      result = *next;
    }
    if (exponent > 1) {
      const auto square = jinja_exact(Infix::mul, base, base);
      if (!square) return jinja_too_large(run);
      base = *square;
    }
  }
  return Value::of(result);
}

static Value jinja_integer_arithmetic(Run& run, Infix op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case Infix::add:
    case Infix::sub:
    case Infix::mul: {
      const auto x = jinja_exact(op, a, b);
      return x ? Value::of(*x) : jinja_too_large(run);
    }
    case Infix::div:
      if (b == 0) return run.fail("division by zero");
      return Value::of(static_cast<double>(a) / static_cast<double>(b));
    case Infix::floordiv:
    case Infix::mod: {
      if (b == 0) return run.fail("division by zero");
      if (b == -1) {  // the one division that can overflow
        if (op == Infix::mod) return Value::of(std::int64_t{0});
        return negated(run, Value::of(a));
      }
      const std::int64_t rest = a % b;
      const bool down = rest != 0 && (rest < 0) != (b < 0);
      if (op == Infix::mod) return Value::of(down ? rest + b : rest);
      return Value::of(a / b - (down ? 1 : 0));
    }
    default: return jinja_integer_power(run, a, b);
  }
}

static Value jinja_real_arithmetic(Run& run, Infix op, double a, double b) {
  const bool divides = op == Infix::div || op == Infix::floordiv || op == Infix::mod;
  if (divides && b == 0) return run.fail("division by zero");
  switch (op) {
    case Infix::add: return Value::of(a + b);
    case Infix::sub: return Value::of(a - b);
    case Infix::mul: return Value::of(a * b);
    case Infix::div: return Value::of(a / b);
    case Infix::pow: {
      if (a == 0 && b < 0) return run.fail("division by zero");
      if (a < 0 && b != std::floor(b)) {
        return run.fail(ErrorCode::unsupported, "complex numbers");
      }
      const double x = std::pow(a, b);
      if (std::isinf(x) && std::isfinite(a) && std::isfinite(b)) {
        return run.fail("the result of ** is too large");
      }
      return Value::of(x);
    }
    default: break;
  }
  // The rest has the divisor's sign; the quotient is the floor (Python's float_divmod).
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (op == Infix::mod) return Value::of(rest);
  if (quotient == 0) return Value::of(std::copysign(0.0, a / b));
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1;
  return Value::of(whole);
}

Value negated(Run& run, const Value& v) {
  if (v.is(Type::real)) return Value::of(-v.real);
  if (v.is_integer()) {
    if (v.as_integer() == std::numeric_limits<std::int64_t>::min()) return jinja_too_large(run);
    return Value::of(-v.as_integer());
  }
  if (v.is_undefined()) return run.fail_undefined(v);
  if (v.is(Type::big)) return jinja_too_large(run);
  return run.fail("a {} has no sign", type_name(v));
}

// ---- sequences

static Value jinja_repeat(Run& run, const Value& v, std::int64_t times) {
  const std::size_t n = times > 0 ? static_cast<std::size_t>(times) : 0;
  if (v.is_string()) {
    Text text(run);
    if (v.string->size == 0) return v;
    // Short texts in one piece, so that a line of dashes is one span.
    const std::string_view part = run.view(v);
    if (v.string->n_spans == 1 && n > 1) {
      const auto size = checked_mul(part.size(), n);
      if (!size || *size > run.limits().output_bytes || !run.reserve(*size)) {
        return run.fail("a repeated text is too long");
      }
      std::string all;
      all.reserve(*size);
      for (std::size_t i = 0; i < n; ++i) all += part;
      return run.copy(all, v.string->spans->origin);
    }
    for (std::size_t i = 0; i < n && run.spend(1) && !run.failed(); ++i) text.add(*v.string);
    return text.finish(v.string->markup);
  }
  const auto size = checked_mul(v.list->size, n);
  if (!size || !run.reserve(*size, sizeof(Value))) {
    return run.fail("a repeated list is too long");
  }
  Value* items = run.array<Value>(*size);
  for (std::size_t i = 0; i < n && v.list->size > 0; ++i) {
    std::copy_n(v.list->items, v.list->size, items + i * v.list->size);
  }
  return run.list({items, *size}, v.type);
}

Value arithmetic(Run& run, Infix op, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    return jinja_integer_arithmetic(run, op, a.as_integer(), b.as_integer());
  }
  if (a.is_number() && b.is_number()) {
    if ((a.is(Type::big) || b.is(Type::big)) && !a.is(Type::real) && !b.is(Type::real)) {
      return jinja_too_large(run);
    }
    return jinja_real_arithmetic(run, op, a.as_real(), b.as_real());
  }
  if (op == Infix::add) {
    if (a.is_string() && b.is_string()) {
      const bool markup = a.string->markup || b.string->markup;
      const Value left = markup ? escaped(run, a) : a, right = markup ? escaped(run, b) : b;
      Text text(run);
      text.add(*left.string);
      text.add(*right.string);
      return text.finish(markup);
    }
    if (a.is_sequence() && a.type == b.type) return add_lists(run, a, b);
  }
  if (op == Infix::mul) {
    if ((a.is_string() || a.is_sequence()) && b.is_integer()) {
      return jinja_repeat(run, a, b.as_integer());
    }
    if ((b.is_string() || b.is_sequence()) && a.is_integer()) {
      return jinja_repeat(run, b, a.as_integer());
    }
  }
  if (op == Infix::mod && a.is_string()) return format_percent(run, a, b);
  if (a.is_undefined() || b.is_undefined()) return run.fail_undefined(a.is_undefined() ? a : b);
  return run.fail("{} does not work on {} and {}", jinja_infix_name(op), type_name(a),
                  type_name(b));
}

bool contains(Run& run, const Value& container, const Value& item) {
  switch (container.type) {
    case Type::string:
      if (!item.is_string()) {
        if (item.is_undefined()) {
          run.fail("an undefined value cannot be in a text");
        } else {
          run.fail("a {} cannot be in a text", type_name(item));
        }
        return false;
      }
      if (!run.spend(search_steps(run.view(container), run.view(item)))) return false;
      return run.view(container).find(run.view(item)) != std::string_view::npos;
    case Type::dict:
      if (!hashable(run, item)) {
        run.fail("a {} cannot be a key", type_name(item));
        return false;
      }
      return find(run, *container.dict, item) != nullptr;
    default: {
      const List* items = iterate(run, container);
      if (items == nullptr) return false;
      for (const Value& v : items->view()) {
        if (equal(run, v, item)) return true;
      }
      return false;
    }
  }
}

bool compare(Run& run, Infix op, const Value& a, const Value& b) {
  const auto unordered = [&] {  // NaN
    return (a.is(Type::real) && std::isnan(a.real)) || (b.is(Type::real) && std::isnan(b.real));
  };
  switch (op) {
    case Infix::eq: return equal(run, a, b);
    case Infix::ne: return !equal(run, a, b);
    case Infix::lt: return less(run, a, b);
    case Infix::gt: return less(run, b, a);
    case Infix::lteq: return !less(run, b, a) && !unordered();
    case Infix::gteq: return !less(run, a, b) && !unordered();
    case Infix::in: return contains(run, b, a);
    default: return !contains(run, b, a);
  }
}

Value slice_of(Run& run, const Value& v, const Value& from, const Value& to, const Value& by) {
  std::size_t n = 0;
  if (v.is_undefined()) return run.fail_undefined(v);
  const bool sliceable = v.is_string() || v.is_sequence() || v.is(Type::range);
  if (!sliceable || !length(run, v, n)) return run.fail("a {} has no slices", type_name(v));
  for (const Value* part : {&from, &to, &by}) {
    if (!part->is(Type::none) && !part->is_integer()) {
      return run.fail("slices need integers, not {}", type_name(*part));
    }
  }
  const std::int64_t size = static_cast<std::int64_t>(n);
  const std::int64_t step = by.is(Type::none) ? 1 : by.as_integer();
  if (step == 0) return run.fail("a slice cannot have the step 0");
  const std::int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
  const auto bound = [&](const Value& part, std::int64_t otherwise) {
    if (part.is(Type::none)) return otherwise;
    std::int64_t i = part.as_integer();
    if (i < 0) i = i < -size ? low : i + size;
    return std::clamp(i, low, std::max(low, high));
  };
  const std::int64_t start = bound(from, step < 0 ? high : low);
  const std::int64_t stop = bound(to, step < 0 ? low : high);
  if (v.is_string() && step == 1) {
    if (start >= stop) return run.text("");
    const std::string_view text = run.view(v);
    const std::size_t begin = utf8_offset(text, static_cast<std::size_t>(start));
    const auto count = static_cast<std::size_t>(stop - start);
    return run.slice(*v.string, begin, begin + utf8_offset(text.substr(begin), count));
  }
  if (v.is(Type::range)) {
    const bool none = step > 0 ? start >= stop : start <= stop;
    const std::int64_t distance = step > 0 ? stop - start : start - stop;
    const auto stride =
        step > 0 ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
    const std::uint64_t count = none ? 0 : (static_cast<std::uint64_t>(distance) - 1) / stride + 1;
    const auto by_step = jinja_exact(Infix::mul, v.range->step, step);
    if (!by_step) return jinja_too_large(run);
    const Range& r = *v.range;
    const auto at = [&](std::int64_t i) { return r.start + i * r.step; };
    return Value::make(
        Type::range, &Value::range,
        run.make(Range{at(start), at(stop), *by_step, static_cast<std::size_t>(count)}));
  }
  const List* items = iterate(run, v);
  if (items == nullptr) return Heap::undefined();
  Growing<Value> picked(run);
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    picked.push(items->items[i]);
    const auto next = jinja_exact(Infix::add, i, step);
    if (!next) break;
    i = *next;
  }
  if (!v.is_string()) return run.list(picked.view(), v.type);
  Text text(run);
  for (const Value& item : picked.view()) text.add(*item.string);
  return text.finish(v.string->markup);
}

Value escaped(Run& run, const Value& v) {
  const Value s = to_string(run, v);
  if (!s.is_string() || s.string->markup) return s;
  Text text(run);
  for (std::size_t i = 0; i < s.string->n_spans; ++i) {
    const Span& span = s.string->spans[i];
    std::string_view rest(span.data, span.size);
    run.spend(rest.size() / 16);
    while (!rest.empty()) {
      const std::size_t n = std::min(rest.find_first_of("&<>'\""), rest.size());
      text.add(rest.substr(0, n), span.origin);
      if (n == rest.size()) break;
      const char c = rest[n];
      text.add(c == '&'    ? "&amp;"
               : c == '<'  ? "&lt;"
               : c == '>'  ? "&gt;"
               : c == '\'' ? "&#39;"
                           : "&#34;",
               span.origin);
      rest.remove_prefix(n + 1);
    }
  }
  return text.finish(true);
}

// to_chars rounds the exact value half to even, as Python does.
double rounded(double x, std::int64_t decimals) {
  if (!std::isfinite(x) || decimals > 300) return x;
  if (decimals < -308) return std::copysign(0.0, x);
  if (decimals >= 0) {
    char buffer[700];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, x, std::chars_format::fixed,
                                   static_cast<int>(decimals));
    double result = x;
    std::from_chars(buffer, end.ptr, result);
    return result;
  }
  const double unit = std::pow(10.0, static_cast<double>(-decimals));
  const double quotient = x / unit, whole = std::round(quotient);
  const bool half = std::fabs(quotient - whole) == 0.5;
  return (half ? 2.0 * std::round(quotient / 2.0) : whole) * unit;
}

// ---- functions

static Value jinja_range(Run& run, const Value&, const Args& args) {
  const auto n = args.values.size();
  if (n < 1 || n > 3 || !args.keywords.empty()) return run.fail("range takes 1 to 3 arguments");
  for (const Value& v : args.values) {
    if (!v.is_integer()) return run.fail("range needs integers, not {}", type_name(v));
  }
  Range range{0, args.values[n > 1 ? 1 : 0].as_integer(), 1, 0};
  if (n > 1) range.start = args.values[0].as_integer();
  if (n > 2) range.step = args.values[2].as_integer();
  if (range.step == 0) return run.fail("a range cannot have the step 0");
  const bool up = range.step > 0;
  if (up ? range.start < range.stop : range.start > range.stop) {
    // As unsigned numbers the distance always fits.
    const auto a = static_cast<std::uint64_t>(range.start);
    const auto b = static_cast<std::uint64_t>(range.stop);
    const auto step = static_cast<std::uint64_t>(range.step);
    const std::uint64_t size = up ? (b - a - 1) / step + 1 : (a - b - 1) / (0 - step) + 1;
    constexpr std::uint64_t kMax = 100'000;  // of jinja2's sandbox
    if (size > kMax) return run.fail("a range cannot have more than {} items", kMax);
    range.size = static_cast<std::size_t>(size);
  }
  return Value::make(Type::range, &Value::range, run.make(range));
}

// What dict(...) and namespace(...) are made from: a dict or pairs, then keywords.
static bool jinja_entries(Run& run, const Args& args, Growing<Entry>& entries) {
  if (args.values.size() > 1) {
    run.fail("dict and namespace take one positional argument at most");
    return false;
  }
  if (!args.values.empty()) {
    const Value& from = args.values[0];
    if (from.is(Type::dict)) {
      for (const Entry& e : from.dict->view()) entries.push(e);
    } else {
      const List* pairs = iterate(run, from);
      if (pairs == nullptr) return false;
      for (const Value& item : pairs->view()) {
        const List* pair = iterate(run, item);
        if (pair == nullptr) return false;
        if (pair->size != 2) return run.fail("a dict is made from pairs"), false;
        entries.push({pair->items[0], pair->items[1]});
      }
    }
  }
  for (const Keyword& k : args.keywords) entries.push({run.text(k.name), k.value});
  return !run.failed();
}

static Value jinja_dict(Run& run, const Value&, const Args& args) {
  Growing<Entry> entries(run);
  if (!jinja_entries(run, args, entries)) return Heap::undefined();
  return make_dict(run, entries.view());
}

static Value jinja_namespace(Run& run, const Value&, const Args& args) {
  const Value dict = jinja_dict(run, {}, args);
  if (!dict.is(Type::dict)) return dict;
  Space space{Growing<Entry>(run)};
  for (const Entry& e : dict.dict->view()) {
    if (e.key.is_string() && run.view(e.key).starts_with('_')) {
      return run.fail("members of namespaces cannot begin with an underscore");
    }
    space.entries.push(e);
  }
  return Value::make(Type::space, &Value::space, run.make(space));
}

static Value jinja_cycler(Run& run, const Value&, const Args& args) {
  if (args.values.empty()) return run.fail("cycler needs at least one item");
  const Value items = run.list(args.values);
  if (run.failed()) return items;
  return Value::make(Type::cycler, &Value::cycler, run.make(Cycler{items.list}));
}

static Value jinja_joiner(Run& run, const Value&, const Args& args) {
  Value separator;
  if (!run.bind(args, "joiner", "sep", {&separator, 1})) return Heap::undefined();
  if (!separator.given()) separator = run.text(", ");
  return Value::make(Type::joiner, &Value::joiner, run.make(Joiner{separator}));
}

static Value jinja_raise_exception(Run& run, const Value&, const Args& args) {
  Value message;
  if (!run.bind(args, "raise_exception", "message", {&message, 1}, 1)) return Heap::undefined();
  const Value text = to_string(run, message);
  if (text.is_string()) run.set_error(Error(ErrorCode::invalid_argument, run.view(text)));
  return Heap::undefined();
}

static Value jinja_strftime_now(Run& run, const Value&, const Args& args) {
  Value format;
  if (!run.bind(args, "strftime_now", "format", {&format, 1}, 1)) return Heap::undefined();
  if (!format.is_string()) return run.fail("strftime_now needs a text");
  return format_time(run, run.view(format), run.now(), common_origin(run, format));
}

static Value jinja_lipsum(Run& run, const Value&, const Args&) {
  return run.fail(ErrorCode::unsupported, "the function lipsum");
}

const Function* find_function(std::string_view name) {
  static constexpr Function kFunctions[] = {
      {"range", jinja_range},
      {"dict", jinja_dict},
      {"namespace", jinja_namespace},
      {"cycler", jinja_cycler},
      {"joiner", jinja_joiner},
      {"lipsum", jinja_lipsum},
      {"raise_exception", jinja_raise_exception},
      {"strftime_now", jinja_strftime_now},
  };
  for (const Function& f : kFunctions) {
    if (f.name == name) return &f;
  }
  return nullptr;
}

}  // namespace decant::detail::jinja
