// The filters on sequences. Where jinja2 gives a generator, so do these: it can be iterated once,
// has no length and is always true.
#include "text/jinja/run.hpp"

namespace decant::detail::jinja {

// Runs `fill(items)`; an error in it waits in the generator for whoever iterates that far.
template <class Fill>
static Value jinja_generate(Run& run, Fill fill) {
  Growing<Value> items(run);
  fill(items);
  const Error* error = run.failed() ? run.keep(run.take_error()) : nullptr;
  return run.generator(items.data(), items.size(), error);
}

// The key that sorting and its like compare: an attribute, in lower case unless case counts.
static Value jinja_key(Run& run, const Value& item, const Value& attribute, bool case_sensitive) {
  const Value key = run.attribute_path(item, attribute);
  return key.is_string() && !case_sensitive ? lower_case(run, key) : key;
}

static Value jinja_filter_list(Run& run, const Value& v, const Args& args) {
  if (!run.bind(args, "list", "", {})) return Heap::undefined();
  const List* items = iterate(run, v);
  return items != nullptr ? run.list(items->view()) : Heap::undefined();
}

static Value jinja_filter_first(Run& run, const Value& v, const Args& args) {
  if (!run.bind(args, "first", "", {})) return Heap::undefined();
  if (v.is(Type::generator) && v.generator->next < v.generator->size) {
    return v.generator->items[v.generator->next++];  // the rest stays
  }
  if (v.is_string() && v.string->size > 0) return item_at(run, v, 0);
  const List* items = iterate(run, v);
  if (items == nullptr) return Heap::undefined();
  if (items->size > 0) return items->items[0];
  return run.undefined({Undefined::hint, "No first item, sequence was empty."});
}

static Value jinja_filter_last(Run& run, const Value& v, const Args& args) {
  if (!run.bind(args, "last", "", {})) return Heap::undefined();
  if (v.is(Type::generator)) return run.fail("a generator has no last item");
  if (v.is_string() && v.string->size > 0) return item_at(run, v, -1);
  const List* items = iterate(run, v);
  if (items == nullptr) return Heap::undefined();
  if (items->size > 0) return items->items[items->size - 1];
  return run.undefined({Undefined::hint, "No last item, sequence was empty."});
}

static Value jinja_filter_join(Run& run, const Value& v, const Args& args) {
  Value a[2];
  if (!run.bind(args, "join", "d attribute", a)) return Heap::undefined();
  const List* items = iterate(run, v);
  if (items == nullptr) return Heap::undefined();
  const Value separator = a[0].given() ? to_string(run, a[0]) : run.text("");
  if (!separator.is_string()) return separator;
  if (!a[1].given() || a[1].is(Type::none)) return joined(run, separator, *items);
  Growing<Value> parts(run);
  for (const Value& item : items->view()) {
    if (run.failed()) break;
    parts.push(run.attribute_path(item, a[1]));
  }
  return joined(run, separator, {parts.data(), parts.size()});
}

static Value jinja_filter_reverse(Run& run, const Value& v, const Args& args) {
  if (!run.bind(args, "reverse", "", {})) return Heap::undefined();
  const List* items = iterate(run, v);
  if (items == nullptr) return Heap::undefined();
  Growing<Value> reversed(run);
  for (std::size_t i = items->size; i > 0; --i) reversed.push(items->items[i - 1]);
  if (v.is_string()) return joined(run, run.text(""), {reversed.data(), reversed.size()});
  if (v.is(Type::generator)) return run.list(reversed.view());
  return run.generator(reversed.data(), reversed.size());
}

static Value jinja_filter_sort(Run& run, const Value& v, const Args& args) {
  Value a[3];
  if (!run.bind(args, "sort", "reverse case_sensitive attribute", a)) return Heap::undefined();
  const List* items = iterate(run, v);
  if (items == nullptr) return Heap::undefined();
  // Several attributes, with commas between them, make a list of keys.
  Growing<Value> paths(run);
  if (a[2].is_string()) {
    std::string_view rest = run.view(a[2]);
    for (bool more = true; more;) {
      const std::size_t end = std::min(rest.find(','), rest.size());
      paths.push(run.text(rest.substr(0, end)));
      more = end < rest.size();
      rest.remove_prefix(more ? end + 1 : end);
    }
  } else {
    paths.push(a[2]);
  }
  std::vector<Entry> keyed;
  for (const Value& item : items->view()) {
    Growing<Value> keys(run);
    for (const Value& path : paths.view()) keys.push(jinja_key(run, item, path, truth(a[1])));
    if (run.failed()) return Heap::undefined();
    keyed.push_back({run.list(keys.view()), item});
  }
  const bool reverse = truth(a[0]);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Entry& x, const Entry& y) {
    return !run.failed() && (reverse ? less(run, y.key, x.key) : less(run, x.key, y.key));
  });
  Growing<Value> sorted(run);
  for (const Entry& e : keyed) sorted.push(e.value);
  return run.list(sorted.view());
}

static Value jinja_filter_dictsort(Run& run, const Value& v, const Args& args) {
  Value a[3];
  if (!run.bind(args, "dictsort", "case_sensitive by reverse", a)) return Heap::undefined();
  const std::string_view by = a[1].given() ? run.string_argument(a[1], "dictsort") : "key";
  if (by != "key" && by != "value") return run.fail("dictsort sorts by key or by value");
  if (!v.is(Type::dict)) {
    return v.is_undefined() ? run.fail_undefined(v)
                            : run.fail("dictsort needs a dict, not a {}", type_name(v));
  }
  std::vector<Entry> keyed;
  for (const Entry& e : v.dict->view()) {
    const Value& key = by == "key" ? e.key : e.value;
    keyed.push_back({jinja_key(run, key, {}, truth(a[0])), run.pair(e.key, e.value)});
  }
  const bool reverse = truth(a[2]);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Entry& x, const Entry& y) {
    return !run.failed() && (reverse ? less(run, y.key, x.key) : less(run, x.key, y.key));
  });
  Growing<Value> sorted(run);
  for (const Entry& e : keyed) sorted.push(e.value);
  return run.list(sorted.view());
}

static Value jinja_filter_unique(Run& run, const Value& v, const Args& args) {
  Value a[2];
  if (!run.bind(args, "unique", "case_sensitive attribute", a)) return Heap::undefined();
  return jinja_generate(run, [&](Growing<Value>& out) {
    const List* items = iterate(run, v);
    if (items == nullptr) return;
    Growing<Value> seen(run);
    for (const Value& item : items->view()) {
      const Value key = jinja_key(run, item, a[1], truth(a[0]));
      if (run.failed()) return;
      if (!hashable(run, key)) {
        run.fail("a {} cannot be a key", type_name(key));
        return;
      }
      const auto known = seen.view();
      if (std::any_of(known.begin(), known.end(),
                      [&](const Value& other) { return equal(run, key, other); })) {
        continue;
      }
      seen.push(key);
      out.push(item);
    }
  });
}

template <bool largest>
static Value jinja_filter_extreme(Run& run, const Value& v, const Args& args) {
  Value a[2];
  if (!run.bind(args, "min and max", "case_sensitive attribute", a)) return Heap::undefined();
  const List* items = iterate(run, v);
  if (items == nullptr) return Heap::undefined();
  if (items->size == 0) {
    return run.undefined({Undefined::hint, "No aggregated item, sequence was empty."});
  }
  Value best = items->items[0], best_key = jinja_key(run, best, a[1], truth(a[0]));
  for (std::size_t i = 1; i < items->size && !run.failed(); ++i) {
    const Value key = jinja_key(run, items->items[i], a[1], truth(a[0]));
    if (run.failed()) break;
    if (largest ? less(run, best_key, key) : less(run, key, best_key)) {
      best = items->items[i];
      best_key = key;
    }
  }
  return best;
}

static Value jinja_filter_sum(Run& run, const Value& v, const Args& args) {
  Value a[2];
  if (!run.bind(args, "sum", "attribute start", a)) return Heap::undefined();
  const List* items = iterate(run, v);
  if (items == nullptr) return Heap::undefined();
  Value total = a[1].given() ? a[1] : Value::of(std::int64_t{0});
  if (total.is_string()) return run.fail("sum does not add texts");
  for (const Value& item : items->view()) {
    if (run.failed()) break;
    total = arithmetic(run, Infix::add, total, run.attribute_path(item, a[0]));
  }
  return total;
}

static Value jinja_filter_batch(Run& run, const Value& v, const Args& args) {
  Value a[2];
  if (!run.bind(args, "batch", "linecount fill_with", a, 1)) return Heap::undefined();
  return jinja_generate(run, [&](Growing<Value>& out) {
    const std::int64_t n = run.integer(a[0], 0);
    const List* items = iterate(run, v);
    if (items == nullptr || run.failed()) return;
    std::size_t size = n > 0 ? static_cast<std::size_t>(n) : items->size;
    if (n == 0 && items->size > 0) out.push(run.list({}));  // what a batch of 0 gives
    for (std::size_t at = 0; at < items->size; at += size) {
      const std::size_t end = std::min(items->size - at, size);
      Growing<Value> row(run);
      for (std::size_t i = 0; i < end; ++i) row.push(items->items[at + i]);
      if (n > 0 && a[1].given() && !a[1].is(Type::none)) {
        while (row.size() < size && run.spend(1) && !run.failed()) row.push(a[1]);
      }
      out.push(run.list(row.view()));
      if (size > items->size - at) break;
    }
  });
}

static Value jinja_filter_slice(Run& run, const Value& v, const Args& args) {
  Value a[2];
  if (!run.bind(args, "slice", "slices fill_with", a, 1)) return Heap::undefined();
  return jinja_generate(run, [&](Growing<Value>& out) {
    const std::int64_t n = run.integer(a[0], 0);
    const List* items = iterate(run, v);
    if (items == nullptr || run.failed()) return;
    if (n == 0) {
      run.fail("slice cannot make 0 slices");
      return;
    }
    const std::size_t slices = n > 0 ? static_cast<std::size_t>(n) : 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < slices && run.spend(1) && !run.failed(); ++i) {
      const std::size_t extra = items->size % slices;
      const std::size_t size = items->size / slices + (i < extra ? 1 : 0);
      Growing<Value> column(run);
      for (std::size_t k = 0; k < size; ++k) column.push(items->items[at + k]);
      at += size;
      if (a[1].given() && !a[1].is(Type::none) && i >= extra) column.push(a[1]);
      out.push(run.list(column.view()));
    }
  });
}

static Value jinja_filter_groupby(Run& run, const Value& v, const Args& args) {
  Value a[3];
  if (!run.bind(args, "groupby", "attribute default case_sensitive", a, 1)) {
    return Heap::undefined();
  }
  const List* items = iterate(run, v);
  if (items == nullptr) return Heap::undefined();
  const auto key_of = [&](const Value& item) {
    const Value key = run.attribute_path(item, a[0]);
    return key.is_undefined() && a[1].given() && !a[1].is(Type::none) ? a[1] : key;
  };
  struct Keyed {
    Value key, shown, item;
  };
  std::vector<Keyed> keyed;
  for (const Value& item : items->view()) {
    const Value shown = key_of(item);
    if (run.failed()) return Heap::undefined();
    keyed.push_back({jinja_key(run, shown, {}, truth(a[2])), shown, item});
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& x, const Keyed& y) {
    return !run.failed() && less(run, x.key, y.key);
  });
  Growing<Value> groups(run);
  for (std::size_t i = 0; i < keyed.size() && !run.failed();) {
    Growing<Value> members(run);
    const std::size_t first = i;
    for (; i < keyed.size() && equal(run, keyed[first].key, keyed[i].key); ++i) {
      members.push(keyed[i].item);
    }
    if (i == first) break;  // NaN, which equals nothing
    const Value group = run.pair(keyed[first].shown, run.list(members.view()));
    if (group.is(Type::tuple)) group.list->group = true;
    groups.push(group);
  }
  return run.list(groups.view());
}

static Value jinja_filter_map(Run& run, const Value& v, const Args& args) {
  return jinja_generate(run, [&](Growing<Value>& out) {
    if (!truth(v)) return;
    Value attribute, otherwise;
    std::string_view name;
    if (args.values.empty()) {
      Value a[2];
      if (!run.bind(args, "map", "attribute default", a)) return;
      if (!a[0].given()) {
        run.fail("map requires a filter argument");
        return;
      }
      attribute = a[0];
      otherwise = a[1];
    } else {
      name = run.string_argument(args.values[0], "map");
    }
    const List* items = iterate(run, v);
    if (items == nullptr) return;
    for (const Value& item : items->view()) {
      Value mapped;
      if (attribute.given()) {
        mapped = run.attribute_path(item, attribute);
        if (mapped.is_undefined() && otherwise.given() && !otherwise.is(Type::none)) {
          mapped = otherwise;
        }
      } else {
        mapped = run.filter(name, item, {args.values.subspan(1), args.keywords});
      }
      if (run.failed()) return;
      out.push(mapped);
    }
  });
}

template <bool keep, bool by_attribute>
static Value jinja_filter_select(Run& run, const Value& v, const Args& args) {
  return jinja_generate(run, [&](Growing<Value>& out) {
    if (!truth(v)) return;
    std::span<const Value> rest = args.values;
    Value attribute;
    if (by_attribute) {
      if (rest.empty()) {
        run.fail("selectattr and rejectattr need the name of an attribute");
        return;
      }
      attribute = rest[0];
      rest = rest.subspan(1);
    }
    const std::string_view name =
        rest.empty() ? std::string_view() : run.string_argument(rest[0], "select");
    const List* items = iterate(run, v);
    if (items == nullptr) return;
    for (const Value& item : items->view()) {
      const Value looked_at = by_attribute ? run.attribute_path(item, attribute) : item;
      if (run.failed()) return;
      const bool passes = truth(
          rest.empty() ? looked_at : run.test(name, looked_at, {rest.subspan(1), args.keywords}));
      if (run.failed()) return;
      if (passes == keep) out.push(item);
    }
  });
}

std::span<const FilterInfo> sequence_filters() {
  static constexpr FilterInfo kFilters[] = {
      {"batch", jinja_filter_batch},
      {"dictsort", jinja_filter_dictsort},
      {"first", jinja_filter_first},
      {"groupby", jinja_filter_groupby},
      {"join", jinja_filter_join},
      {"last", jinja_filter_last},
      {"list", jinja_filter_list},
      {"map", jinja_filter_map},
      {"max", jinja_filter_extreme<true>},
      {"min", jinja_filter_extreme<false>},
      {"reject", jinja_filter_select<false, false>},
      {"rejectattr", jinja_filter_select<false, true>},
      {"reverse", jinja_filter_reverse},
      {"select", jinja_filter_select<true, false>},
      {"selectattr", jinja_filter_select<true, true>},
      {"slice", jinja_filter_slice},
      {"sort", jinja_filter_sort},
      {"sum", jinja_filter_sum},
      {"unique", jinja_filter_unique},
  };
  return kFilters;
}

}  // namespace decant::detail::jinja
