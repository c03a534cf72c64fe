#include "kv/kv_cache.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked.hpp"

namespace decant::detail {

// DECANT_PLANTED_FAULT is for tests alone, which must notice: 1 no copy before a write, 2 one
// reference too few, 3 pages of windows let go early.

static constexpr std::size_t kv_page_alignment = 64;

static Error kv_full_error(std::size_t n_free, std::size_t n_pages, std::size_t needed,
                           const char* what_for, std::size_t n_tokens) {
  return make_error(ErrorCode::out_of_memory,
                    "the KV pool has {} of {} pages left and {} more are needed {} {} tokens; "
                    "raise ModelOptions::kv_memory or sessions, or drop a session",
                    n_free, n_pages, needed, what_for, n_tokens);
}

static std::size_t kv_pages_for(std::size_t n_tokens) {
  return n_tokens / kPageTokens + (n_tokens % kPageTokens != 0 ? 1 : 0);
}

static KvView kv_layout(const KvGroupSpec& group, KvType keys, KvType values) {
  const auto elements = [](int width) { return static_cast<std::uint64_t>(width) * kPageTokens; };
  KvView v;
  v.key_type = keys;
  v.value_type = values;
  v.window = group.window;
  v.n_kv_heads = group.n_kv_heads;
  v.key_dim = group.key_dim;
  v.value_dim = group.value_dim;
  v.value_offset = elements(group.key_dim) * kv_element_bytes(keys);
  v.key_scale_offset = v.value_offset + elements(group.value_dim) * kv_element_bytes(values);
  v.value_scale_offset = v.key_scale_offset + kv_scale_bytes(keys, group.key_dim);
  v.head_stride = v.value_scale_offset + kv_scale_bytes(values, group.value_dim);
  v.layer_stride = v.head_stride * static_cast<std::uint64_t>(group.n_kv_heads);
  v.page_stride = v.layer_stride * group.layers.size();
  return v;
}

// ------------------------------------------------------------------------------------------ pools

std::uint64_t KvCache::bytes_per_token(std::span<const KvGroupSpec> groups, KvType keys,
                                       KvType values) {
  std::uint64_t bytes = 0;
  for (const KvGroupSpec& group : groups)
    bytes += kv_layout(group, keys, values).page_stride / kPageTokens;
  return bytes;
}

static std::size_t kv_nodes(const KvConfig& config) {
  std::size_t n = config.nodes;
  for (const std::size_t pages : config.pages) n = std::max(n, pages);
  return config.prefix_cache ? n : 0;
}

/// A pool's bytes up to where the next one begins, or 0: too many.
static std::uint64_t kv_pool_span(const KvView& view, std::size_t n_pages) {
  const auto pool = checked_mul(n_pages, view.page_stride);
  const auto rounded = pool ? checked_round_up(*pool, kv_page_alignment) : std::nullopt;
  return rounded.value_or(0);
}

Result<std::uint64_t> KvCache::pool_bytes(std::span<const KvGroupSpec> groups,
                                          const KvConfig& config) {
  std::uint64_t total = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::size_t n_pages = config.pages[g];
    if (std::max(n_pages, kv_nodes(config)) > INT32_MAX)
      return make_error(ErrorCode::invalid_argument,
                        "a KV pool of {} pages has more than 2^31 - 1; lower context, sessions or "
                        "kv_memory",
                        std::max(n_pages, kv_nodes(config)));
    const std::uint64_t pool =
        kv_pool_span(kv_layout(groups[g], config.keys, config.values), n_pages);
    const auto sum = pool != 0 || n_pages == 0 ? checked_add(total, pool) : std::nullopt;
    if (!sum || *sum > SIZE_MAX)
      return make_error(ErrorCode::out_of_memory,
                        "a KV pool of {} pages does not fit the address space; lower context, "
                        "sessions or kv_memory",
                        n_pages);
    total = *sum;
  }
  return total;
}

std::uint64_t KvCache::table_bytes(std::span<const KvGroupSpec> groups, const KvConfig& config) {
  std::uint64_t bytes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g)
    bytes += config.pages[g] * (groups[g].window == 0 ? 12 : 21);
  for (const std::size_t n : config.swap_pages) bytes += n * 8;
  const std::size_t n_nodes = kv_nodes(config);
  return n_nodes == 0 ? bytes : bytes + PrefixTree::bytes(n_nodes, groups.size());
}

Result<std::shared_ptr<KvCache>> KvCache::create(std::span<const KvGroupSpec> groups, KvType keys,
                                                 KvType values, std::uint64_t n_tokens) {
  const std::uint64_t n_pages = n_tokens / kPageTokens + (n_tokens % kPageTokens != 0 ? 1 : 0);
  KvConfig config;
  config.keys = keys;
  config.values = values;
  config.pages.assign(groups.size(), static_cast<std::size_t>(n_pages));
  return create(groups, config);
}

Result<std::shared_ptr<KvCache>> KvCache::create(std::span<const KvGroupSpec> groups,
                                                 const KvConfig& config) {
  std::shared_ptr<KvCache> cache(new KvCache);
  cache->salt_ = config.salt;
  DECANT_ASSIGN(cache->pool_bytes_, pool_bytes(groups, config));
  std::byte* memory = config.memory;
  if (memory == nullptr) {
    DECANT_ASSIGN(cache->memory_,
                  PageMemory::reserve(static_cast<std::size_t>(cache->pool_bytes_)));
    memory = cache->memory_.data();
  }
  std::uint64_t offset = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::size_t n = config.pages[g];
    KvView view = kv_layout(groups[g], config.keys, config.values);
    view.pages = memory + offset;
    offset += kv_pool_span(view, n);
    cache->views_.push_back(view);
    Pool pool;
    pool.window = groups[g].window != 0;
    pool.n_free = n;
    pool.blank.resize(n);
    // Page 0 goes first: neighbours in a sequence are mostly neighbours in memory.
    for (std::size_t i = 0; i < n; ++i) pool.blank[i] = static_cast<std::int32_t>(n - 1 - i);
    pool.references.assign(n, 0);
    pool.node.assign(n, PrefixTree::kNone);
    if (pool.window) {
      pool.older.assign(n, -1);
      pool.newer.assign(n, -1);
      pool.listed.assign(n, 0);
    }
    cache->pools_.push_back(std::move(pool));
  }
  if (config.prefix_cache) cache->tree_.create(kv_nodes(config), groups.size(), config.hash_mask);
  DECANT_TRY(cache->create_swap(groups, config));
  if (config.touched)
    for (const PageMemory* memory : {&cache->memory_, &cache->swap_memory_})
      if (memory->size() != 0) std::memset(memory->data(), 0, memory->size());
  return cache;
}

std::size_t KvCache::free_pages(int group) const {
  const std::lock_guard lock(mutex_);
  return pools_[static_cast<std::size_t>(group)].n_free;
}

std::size_t KvCache::tree_pages() const {
  const std::lock_guard lock(mutex_);
  return tree_.size();
}

KvCounters KvCache::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

/// Makes a use of freed pages certain to be seen: all bits set is a NaN in f32 and in f16.
void KvCache::poison([[maybe_unused]] std::size_t group, [[maybe_unused]] std::int32_t page) const {
#ifdef DECANT_ASSERTS
  if (memory_.data() == nullptr) return;
  const KvView& view = views_[group];
  std::memset(view.keys(page, 0, 0), 0xFF, static_cast<std::size_t>(view.page_stride));
#endif
}

/// A page without references and unknown to the tree is ready for anything.
void KvCache::make_blank(std::size_t group, std::int32_t page) {
  poison(group, page);
  pools_[group].blank.push_back(page);  // never grows past its first size
}

void KvCache::list(std::size_t group, std::int32_t page) {
  Pool& pool = pools_[group];
  const auto i = static_cast<std::size_t>(page);
  const bool kept = tree_.is_kept(pool.node[i], group);
  List& to = kept ? pool.old_kept : pool.old;
  pool.listed[i] = kept ? 2 : 1;
  pool.older[i] = to.last;
  pool.newer[i] = -1;
  (to.last < 0 ? to.first : pool.newer[static_cast<std::size_t>(to.last)]) = page;
  to.last = page;
}

void KvCache::unlist(Pool& pool, std::int32_t page) {
  const auto i = static_cast<std::size_t>(page);
  List& from = pool.listed[i] == 2 ? pool.old_kept : pool.old;
  const std::int32_t older = pool.older[i], newer = pool.newer[i];
  (older < 0 ? from.first : pool.newer[static_cast<std::size_t>(older)]) = newer;
  (newer < 0 ? from.last : pool.older[static_cast<std::size_t>(newer)]) = older;
  pool.listed[i] = 0;
}

/// Forgets a node without uses and children. Pages of it that a block table still names become that
/// sequence's own.
void KvCache::evict(PrefixTree::Node node) {
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const std::int32_t page = tree_.page(node, g);
    if (page < 0) continue;
    Pool& pool = pools_[g];
    pool.node[static_cast<std::size_t>(page)] = PrefixTree::kNone;
    if (pool.references[static_cast<std::size_t>(page)] != 0) continue;
    if (pool.window) unlist(pool, page);
    make_blank(g, page);
  }
  tree_.remove(node);
  ++counters_.evicted_nodes;
}

/// The tree loses a page of a window group; nodes that have no page left go with it.
void KvCache::forget_window_page(std::size_t group, std::int32_t page) {
  Pool& pool = pools_[group];
  PrefixTree::Node node =
      std::exchange(pool.node[static_cast<std::size_t>(page)], PrefixTree::kNone);
  tree_.set_page(node, group, -1);
  const auto is_empty = [&] {
    for (std::size_t g = 0; g < pools_.size(); ++g)
      if (tree_.page(node, g) >= 0) return false;
    return true;
  };
  while (node != PrefixTree::kNone && !tree_.in_use(node) && !tree_.has_children(node) &&
         is_empty()) {
    const PrefixTree::Node parent = tree_.parent(node);
    evict(node);
    node = parent;
  }
}

/// A page with one reference. There must be one without.
std::int32_t KvCache::take(std::size_t group) {
  Pool& pool = pools_[group];
  if (pool.blank.empty() && pool.window) {
    const std::int32_t page = pool.old.first >= 0 ? pool.old.first : pool.old_kept.first;
    unlist(pool, page);
    forget_window_page(group, page);
    make_blank(group, page);
    ++counters_.reused_pages;
  }
  while (pool.blank.empty()) evict(tree_.oldest());
  const std::int32_t page = pool.blank.back();
  pool.blank.pop_back();
  pool.references[static_cast<std::size_t>(page)] = 1;
  --pool.n_free;
  return page;
}

void KvCache::acquire(std::size_t group, std::int32_t page) {
  Pool& pool = pools_[group];
  if (pool.references[static_cast<std::size_t>(page)]++ != 0) return;
  --pool.n_free;
  if (pool.window) unlist(pool, page);
}

void KvCache::release(std::size_t group, std::int32_t page) {
  Pool& pool = pools_[group];
  const auto i = static_cast<std::size_t>(page);
  if (--pool.references[i] != 0) return;
  ++pool.n_free;
  if (pool.node[i] == PrefixTree::kNone)
    make_blank(group, page);
  else if (pool.window)
    list(group, page);
}

/// Whether a write into the page would be seen by others than the one table that names it.
bool KvCache::is_shared(std::size_t group, std::int32_t page) const {
  const Pool& pool = pools_[group];
  const auto i = static_cast<std::size_t>(page);
  return pool.references[i] > 1 || pool.node[i] != PrefixTree::kNone;
}

// --------------------------------------------------------------------------------------- sequences

KvSequence::KvSequence(std::shared_ptr<KvCache> cache, std::size_t max_tokens, const Hash128& salt)
    : cache_(std::move(cache)), salt_(hash_word(hash_word(cache_->salt_, salt.low), salt.high)) {
  const std::vector<std::int32_t> table(kv_pages_for(max_tokens), -1);
  tables_.assign(static_cast<std::size_t>(cache_->n_groups()), table);
  for (const auto& t : tables_) table_pointers_.push_back(t.data());
  first_held_.assign(tables_.size(), 0);
  path_.reserve(table.size());
  found_.reserve(table.size());
}

KvSequence::KvSequence(const KvSequence& other)
    : cache_(other.cache_),
      salt_(other.salt_),
      length_(other.length_),
      n_pages_(kv_pages_for(other.length_)),
      adopted_(other.adopted_),
      tables_(other.tables_),
      first_held_(other.first_held_) {
  for (const auto& t : tables_) table_pointers_.push_back(t.data());
  path_.reserve(max_pages());
  found_.reserve(max_pages());
  path_ = other.path_;
  n_kept_ = other.n_kept_;
  std::copy(other.kept_, other.kept_ + n_kept_, kept_);
  const std::lock_guard lock(cache_->mutex_);
  for (const Node node : path_) cache_->tree_.acquire(node);
  for (std::size_t k = 0; k < n_kept_; ++k) count_kept(kept_[k], 1, false);
  for (std::size_t g = 0; g < tables_.size(); ++g) {
#if defined(DECANT_PLANTED_FAULT) && DECANT_PLANTED_FAULT == 2
    const std::size_t n = n_pages_ - std::min<std::size_t>(n_pages_, 1);
#else
    const std::size_t n = n_pages_;
#endif
    for (std::size_t i = first_held_[g]; i < n; ++i) cache_->acquire(g, tables_[g][i]);
    std::fill(tables_[g].begin() + static_cast<std::ptrdiff_t>(n_pages_), tables_[g].end(), -1);
  }
}

KvSequence::~KvSequence() {
  truncate(0);
  forget_promise();
  forget_swapped();
}

/// The first page that a token at position `length` sees.
std::size_t KvSequence::first_needed(std::size_t group, std::size_t length) const {
  const auto window = static_cast<std::size_t>(cache_->views_[group].window);
  return window == 0 || length < window ? 0 : (length + 1 - window) / kPageTokens;
}

/// The same for the token before it: the last token may be run again.
std::size_t KvSequence::first_kept(std::size_t group, std::size_t length) const {
  return length == 0 ? 0 : first_needed(group, length - 1);
}

Status KvSequence::reserve(std::size_t n_tokens) {
  const std::size_t wanted = kv_pages_for(n_tokens);
  const bool writes_into_last = length_ % kPageTokens != 0 && n_tokens > length_;
  const std::size_t last = length_ / kPageTokens;
  if (wanted <= n_pages_ && !writes_into_last) return {};
  KvCache& cache = *cache_;
  const std::lock_guard lock(cache.mutex_);
  const std::size_t n_new = wanted > n_pages_ ? wanted - n_pages_ : 0;
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    const KvCache::Pool& pool = cache.pools_[g];
    const std::size_t left = left_for_me(g);
    std::size_t need = n_new;
    if (writes_into_last) {
      const auto page = static_cast<std::size_t>(tables_[g][last]);
      // One that only the tree shares needs no copy where not a page is left; see below.
      const bool copied = left < pool.n_free && pool.node[page] != PrefixTree::kNone;
      if (pool.references[page] > 1 || copied) ++need;
    }
    if (left < need) return kv_full_error(left, pool.size(), need, "for", n_tokens);
  }
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    [[maybe_unused]] KvCache::Pool& pool = cache.pools_[g];
    for (std::size_t i = n_pages_; i < wanted; ++i) tables_[g][i] = cache.take(g);
#if !defined(DECANT_PLANTED_FAULT) || DECANT_PLANTED_FAULT != 1
    if (!writes_into_last || !cache.is_shared(g, tables_[g][last])) continue;
    const std::int32_t page = tables_[g][last];
    if (pool.n_free == 0) {
      // Only the tree shares it: with no page left, its node has no children to lose.
      const Node node = pool.node[static_cast<std::size_t>(page)];
      if (pool.window)
        cache.forget_window_page(g, page);
      else
        cache.evict(node);
      continue;
    }
    const std::int32_t copy = cache.take(g);
    cache.access_->copy_page(cache.views_[g], page, copy);
    ++cache.counters_.copied_pages;
    tables_[g][last] = copy;
    cache.release(g, page);
#endif
  }
  n_pages_ = std::max(n_pages_, wanted);
  renew_promise();
  return {};
}

/// What a sequence of `n_tokens` holds at most, `n_rows` of them in work.
std::size_t KvSequence::most_held(std::size_t group, std::size_t n_tokens,
                                  std::size_t n_rows) const {
  const auto window = static_cast<std::size_t>(cache_->views_[group].window);
  const std::size_t all = kv_pages_for(n_tokens);
  return window == 0 ? all : std::min(all, (window + n_rows) / kPageTokens + 2);
}

/// Free pages that are not set aside for others. The mutex is held.
std::size_t KvSequence::left_for_me(std::size_t group) const {
  const KvCache::Pool& pool = cache_->pools_[group];
  const std::size_t own = set_aside_.empty() ? 0 : set_aside_[group];
  const std::size_t others = pool.n_promised - own;
  return pool.n_free > others ? pool.n_free - others : 0;
}

/// After the pages that it holds have changed. The mutex is held.
void KvSequence::renew_promise() {
  for (std::size_t g = 0; g < promised_.size(); ++g) {
    const std::size_t aside = promised_[g] > held(g) ? promised_[g] - held(g) : 0;
    cache_->pools_[g].n_promised += aside - set_aside_[g];
    set_aside_[g] = aside;
  }
}

std::size_t KvSequence::available(std::size_t group) const {
  const std::lock_guard lock(cache_->mutex_);
  return left_for_me(group);
}

std::size_t KvSequence::missing(std::size_t group, std::size_t n_tokens, std::size_t n_rows) const {
  const std::size_t most = most_held(group, n_tokens, n_rows);
  return most > held(group) ? most - held(group) : 0;
}

Status KvSequence::promise(std::size_t n_tokens, std::size_t n_rows) {
  std::vector<std::size_t> promised(tables_.size(), 0), aside(tables_.size(), 0);
  const std::lock_guard lock(cache_->mutex_);
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    promised[g] = most_held(g, n_tokens, n_rows);
    const std::int32_t last = length_ % kPageTokens == 0 ? -1 : tables_[g][length_ / kPageTokens];
    // A last, partial page of others too: the copy is one more.
    if (last >= 0 && cache_->pools_[g].references[static_cast<std::size_t>(last)] > 1)
      ++promised[g];
    const std::size_t need = promised[g] > held(g) ? promised[g] - held(g) : 0;
    if (left_for_me(g) < need)
      return kv_full_error(left_for_me(g), cache_->pools_[g].size(), need, "for", n_tokens);
  }
  if (set_aside_.empty()) set_aside_ = std::move(aside);
  promised_ = std::move(promised);
  renew_promise();
  return {};
}

void KvSequence::forget_promise() noexcept {
  const std::lock_guard lock(cache_->mutex_);
  for (std::size_t g = 0; g < promised_.size(); ++g) cache_->pools_[g].n_promised -= set_aside_[g];
  promised_.clear();
  set_aside_.clear();
}

void KvSequence::advance(std::span<const Token> tokens, std::size_t n_tokens) noexcept {
  length_ = n_tokens;
  KvCache& cache = *cache_;
  const std::lock_guard lock(cache.mutex_);
  if (cache.has_tree() && !adopted_) publish(tokens);
  for (std::size_t g = 0; g < tables_.size(); ++g) {
#if defined(DECANT_PLANTED_FAULT) && DECANT_PLANTED_FAULT == 3
    const std::size_t first = first_kept(g, length_ + 2 * kPageTokens);
#else
    const std::size_t first = first_kept(g, length_);
#endif
    for (; first_held_[g] < std::min(first, n_pages_); ++first_held_[g])
      cache.release(g, std::exchange(tables_[g][first_held_[g]], -1));
  }
  renew_promise();
}

void KvSequence::publish(std::span<const Token> tokens) {
  while (path_.size() < length_ / kPageTokens) {
    const Node node = publish_page(tokens, path_.size());
    if (node == PrefixTree::kNone) return;
    path_.push_back(node);
  }
}

/// The node that holds page i of the sequence, in use; kNone when all nodes are. A page that the
/// tree has already takes the place of the sequence's own, which holds the same bits.
KvSequence::Node KvSequence::publish_page(std::span<const Token> tokens, std::size_t i) {
  KvCache& cache = *cache_;
  PrefixTree& tree = cache.tree_;
  const Node parent = i == 0 ? PrefixTree::kNone : path_[i - 1];
  const Token* const at = tokens.data() + i * kPageTokens;
  Node node = tree.find(parent, salt_, at);
  if (node != PrefixTree::kNone) {
    tree.acquire(node);
  } else {
    node = tree.insert(parent, salt_, at);
    if (node == PrefixTree::kNone && tree.oldest() != PrefixTree::kNone) {
      cache.evict(tree.oldest());
      node = tree.insert(parent, salt_, at);
    }
    if (node == PrefixTree::kNone) return node;
  }
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    std::int32_t& own = tables_[g][i];
    const std::int32_t known = tree.page(node, g);
    if (own < 0 || own == known) continue;
    if (known < 0) {
      tree.set_page(node, g, own);
      cache.pools_[g].node[static_cast<std::size_t>(own)] = node;
      continue;
    }
    cache.acquire(g, known);
    cache.release(g, std::exchange(own, known));
  }
  return node;
}

/// The page that holds page i of a sequence of `length` tokens: the table's own as far as its
/// `own` tokens go, else what the seek found in the tree. -1: lost.
std::int32_t KvSequence::page_for(std::size_t group, std::size_t i, std::size_t length,
                                  std::size_t own) const {
  const bool owned = length <= own || (i + 1) * kPageTokens <= own;
  if (owned && i < n_pages_ && tables_[group][i] >= 0) return tables_[group][i];
  const Node node = i < found_.size() ? found_[i] : i == found_.size() ? part_ : PrefixTree::kNone;
  return node == PrefixTree::kNone ? -1 : cache_->tree_.page(node, group);
}

/// The longest length up to `most` whose windows are whole in every group.
std::size_t KvSequence::usable(std::size_t most, std::size_t own) const {
  std::size_t length = most;
  while (length > 0) {
    std::size_t next = length;
    for (std::size_t g = 0; g < tables_.size() && next == length; ++g) {
      if (cache_->views_[g].window == 0) continue;
      const std::size_t first = first_needed(g, length);
      for (std::size_t i = (length - 1) / kPageTokens + 1; i-- > first;) {
        if (page_for(g, i, length, own) >= 0) continue;
        // Whatever sees page i sees the gap: on with what ends before it.
        next = i * kPageTokens;
        if (own < length && own > next) next = own;
        break;
      }
    }
    if (next == length) break;
    length = next;
  }
  return length;
}

/// Makes the table and the path those of `length` tokens.
void KvSequence::apply(std::size_t length, std::size_t own) {
  KvCache& cache = *cache_;
  const std::size_t n_pages = kv_pages_for(length),
                    n_nodes = std::min(length / kPageTokens, found_.size());
  const std::size_t same = std::min({path_.size(), own / kPageTokens, n_nodes});
  for (std::size_t i = same; i < n_nodes; ++i) cache.tree_.acquire(found_[i]);
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    const std::size_t needed = std::min(first_needed(g, length), n_pages);
    std::size_t first = std::min(first_kept(g, length), n_pages);
    // Nothing needs the page before the needed ones so far; it may be lost.
    if (first < needed && page_for(g, first, length, own) < 0) first = needed;
    std::vector<std::int32_t>& table = tables_[g];
    for (std::size_t i = std::max(n_pages, n_pages_); i-- > 0;) {
      const std::int32_t wanted = i < first || i >= n_pages ? -1 : page_for(g, i, length, own);
      if (wanted == table[i]) continue;
      if (wanted >= 0) cache.acquire(g, wanted);
      if (table[i] >= 0) cache.release(g, table[i]);
      table[i] = wanted;
    }
    first_held_[g] = first;
  }
  // The pages of states that are left behind stay where they were listed.
  while (n_kept_ > 0 && kept_[n_kept_ - 1] > same) count_kept(kept_[--n_kept_], -1, false);
  for (std::size_t i = path_.size(); i-- > same;) cache.tree_.release(path_[i]);
  const Node part = n_nodes < found_.size() ? found_[n_nodes] : part_;
  if (length % kPageTokens != 0 && part != PrefixTree::kNone) {  // used as well, if only now
    cache.tree_.acquire(part);
    cache.tree_.release(part);
  }
  path_.assign(found_.begin(), found_.begin() + static_cast<std::ptrdiff_t>(n_nodes));
  length_ = length;
  n_pages_ = n_pages;
  renew_promise();
  if (path_.size() == length / kPageTokens) adopted_ = adopted_ && length % kPageTokens != 0;
}

KvSequence::Found KvSequence::seek(std::span<const Token> tokens, std::size_t limit) noexcept {
  const std::size_t own = std::min(length_, limit), own_pages = own / kPageTokens;
  const std::lock_guard lock(cache_->mutex_);
  const PrefixTree& tree = cache_->tree_;
  const std::size_t n_path = std::min(path_.size(), own_pages);
  found_.assign(path_.begin(), path_.begin() + static_cast<std::ptrdiff_t>(n_path));
  part_ = PrefixTree::kNone;
  std::size_t matched = 0;
  if (cache_->has_tree() && !tokens.empty() && limit > own && n_path == own_pages) {
    const auto parent = [&] { return found_.empty() ? PrefixTree::kNone : found_.back(); };
    while ((found_.size() + 1) * kPageTokens <= limit) {
      const Node next = tree.find(parent(), salt_, tokens.data() + found_.size() * kPageTokens);
      if (next == PrefixTree::kNone) break;
      found_.push_back(next);
    }
    matched = found_.size() * kPageTokens;
    std::size_t n = 0;
    part_ = tree.find_part(parent(), salt_, tokens.subspan(matched, limit - matched), n);
    matched += n;
  }
  if (matched <= own) {  // nothing new; but what windows lost of a last, partial page may be there
    found_.resize(n_path);
    part_ = path_.size() > n_path && n_path == own_pages ? path_[n_path] : PrefixTree::kNone;
    matched = own;
  }
  const std::size_t length = usable(matched, own);
  if (length != length_ || n_pages_ != kv_pages_for(length)) apply(length, own);
  return {length, matched};
}

Status KvSequence::adopt(std::size_t n_tokens, std::span<const StoredTable> tables,
                         std::span<StoredPages> stored) {
  KvCache& cache = *cache_;
  const std::size_t wanted = kv_pages_for(n_tokens);
  const std::lock_guard lock(cache.mutex_);
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    const KvCache::Pool& pool = cache.pools_[g];
    std::size_t need = 0;
    for (std::size_t i = std::max(tables[g].first, n_pages_); i < wanted; ++i)
      if (stored[g].at[tables[g].pages[i - tables[g].first]] < 0) ++need;
    if (left_for_me(g) < need)
      return kv_full_error(left_for_me(g), pool.size(), need, "to restore", n_tokens);
  }
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    const std::size_t first = tables[g].first;
    const KvView& view = cache.views_[g];
    for (; first_held_[g] < std::min(first, n_pages_); ++first_held_[g])
      cache.release(g, std::exchange(tables_[g][first_held_[g]], -1));
    first_held_[g] = std::max(first_held_[g], first);  // a window may have lost more than is stored
    for (std::size_t i = std::max(first, n_pages_); i < wanted; ++i) {
      const std::size_t index = tables[g].pages[i - first];
      std::int32_t& at = stored[g].at[index];
      if (at >= 0) {
        cache.acquire(g, at);
      } else {
        at = cache.take(g);
        cache.access_->write_page(
            view, at, stored[g].bytes.data() + index * static_cast<std::size_t>(view.page_stride));
      }
      tables_[g][i] = at;
    }
  }
  adopted_ = adopted_ || n_tokens > length_;
  length_ = n_tokens;
  n_pages_ = wanted;
  renew_promise();
  return {};
}

bool KvSequence::same_path(const KvSequence& other) const {
  const std::size_t n = length_ / kPageTokens;
  return other.length_ / kPageTokens == n && path_.size() == n && other.path_.size() == n &&
         other.salt_ == salt_ && (n == 0 || path_.back() == other.path_.back());
}

/// Counts a state among those that are kept, or (by -1) no longer; of the pages that no table names
/// those are listed anew whose place depends on it.
void KvSequence::count_kept(std::size_t n_full, int by, bool relist) {
  KvCache& cache = *cache_;
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    KvCache::Pool& pool = cache.pools_[g];
    if (!pool.window) continue;
    for (std::size_t i = first_kept(g, n_full * kPageTokens); i < n_full; ++i) {
      const bool was_kept = cache.tree_.is_kept(path_[i], g);
      cache.tree_.count_kept(path_[i], g, by);
      const std::int32_t page = cache.tree_.page(path_[i], g);
      if (!relist || cache.tree_.is_kept(path_[i], g) == was_kept || page < 0 ||
          pool.listed[static_cast<std::size_t>(page)] == 0)
        continue;
      cache.unlist(pool, page);
      cache.list(g, page);
    }
  }
}

void KvSequence::keep_windows() noexcept {
  const std::lock_guard lock(cache_->mutex_);
  const std::size_t n_full = length_ / kPageTokens;
  if (n_full == 0 || path_.size() < n_full || (n_kept_ > 0 && kept_[n_kept_ - 1] == n_full)) return;
  if (n_kept_ == kKeptStates) {
    count_kept(kept_[0], -1, true);
    std::copy(kept_ + 1, kept_ + n_kept_--, kept_);
  }
  kept_[n_kept_++] = n_full;
  count_kept(n_full, 1, true);
}

}  // namespace decant::detail
