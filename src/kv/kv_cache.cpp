#include "kv/kv_cache.hpp"

#include <cstring>

#include "base/checked.hpp"

namespace decant::detail {

static constexpr std::size_t kv_page_alignment = 64;

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
  v.head_stride = v.value_offset + elements(group.value_dim) * kv_element_bytes(values);
  v.layer_stride = v.head_stride * static_cast<std::uint64_t>(group.n_kv_heads);
  v.page_stride = v.layer_stride * group.layers.size();
  return v;
}

std::uint64_t KvCache::bytes_per_token(std::span<const KvGroupSpec> groups, KvType keys,
                                       KvType values) {
  std::uint64_t bytes = 0;
  for (const KvGroupSpec& group : groups)
    bytes += kv_layout(group, keys, values).page_stride / kPageTokens;
  return bytes;
}

Result<std::shared_ptr<KvCache>> KvCache::create(std::span<const KvGroupSpec> groups, KvType keys,
                                                 KvType values, std::uint64_t n_tokens) {
  const std::uint64_t n_pages = n_tokens / kPageTokens + (n_tokens % kPageTokens != 0 ? 1 : 0);
  if (n_pages > INT32_MAX)
    return make_error(
        ErrorCode::invalid_argument,
        "a KV pool of {} tokens has more than 2^31 - 1 pages; lower context, sessions "
        "or kv_memory",
        n_tokens);
  std::shared_ptr<KvCache> cache(new KvCache);
  cache->n_pages_ = static_cast<std::size_t>(n_pages);
  std::uint64_t total = 0;
  std::vector<std::uint64_t> offsets;
  for (const KvGroupSpec& group : groups) {
    cache->views_.push_back(kv_layout(group, keys, values));
    offsets.push_back(total);
    const auto pool = checked_mul(n_pages, cache->views_.back().page_stride);
    const auto rounded = pool ? checked_round_up(*pool, kv_page_alignment) : std::nullopt;
    const auto sum = rounded ? checked_add(total, *rounded) : std::nullopt;
    if (!sum || *sum > SIZE_MAX)
      return make_error(ErrorCode::out_of_memory,
                        "a KV pool of {} tokens does not fit the address space; lower context, "
                        "sessions or kv_memory",
                        n_tokens);
    total = *sum;
  }
  DECANT_ASSIGN(cache->memory_, PageMemory::reserve(static_cast<std::size_t>(total)));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    cache->views_[g].pages = cache->memory_.data() + offsets[g];
    std::vector<std::int32_t> free(cache->n_pages_);
    // Page 0 goes first: neighbours in a sequence are mostly neighbours in memory.
    for (std::size_t i = 0; i < free.size(); ++i)
      free[i] = static_cast<std::int32_t>(free.size() - 1 - i);
    cache->free_.push_back(std::move(free));
  }
  return cache;
}

std::size_t KvCache::free_pages(int group) const {
  const std::lock_guard lock(mutex_);
  return free_[static_cast<std::size_t>(group)].size();
}

/// Makes a use of freed pages certain to be seen: all bits set is a NaN in f32 and in f16.
void KvCache::poison([[maybe_unused]] int group, [[maybe_unused]] std::int32_t page) const {
#ifdef DECANT_ASSERTS
  const KvView& view = views_[static_cast<std::size_t>(group)];
  std::memset(view.keys(page, 0, 0), 0xFF, static_cast<std::size_t>(view.page_stride));
#endif
}

KvSequence::KvSequence(std::shared_ptr<KvCache> cache, std::size_t max_tokens)
    : cache_(std::move(cache)) {
  const std::vector<std::int32_t> table(kv_pages_for(max_tokens), -1);
  tables_.assign(static_cast<std::size_t>(cache_->n_groups()), table);
  for (const auto& t : tables_) table_pointers_.push_back(t.data());
}

KvSequence::~KvSequence() { truncate(0); }

Status KvSequence::reserve(std::size_t n_tokens) {
  const std::size_t wanted = kv_pages_for(n_tokens);
  if (wanted <= n_pages_) return {};
  const std::lock_guard lock(cache_->mutex_);
  for (const auto& free : cache_->free_) {
    if (free.size() < wanted - n_pages_)
      return make_error(ErrorCode::out_of_memory,
                        "the KV pool has {} of {} pages left and {} more are needed for {} tokens; "
                        "raise ModelOptions::kv_memory or sessions, or drop a session",
                        free.size(), cache_->n_pages_, wanted - n_pages_, n_tokens);
  }
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    auto& free = cache_->free_[g];
    for (std::size_t i = n_pages_; i < wanted; ++i) {
      tables_[g][i] = free.back();
      free.pop_back();
    }
  }
  n_pages_ = wanted;
  return {};
}

void KvSequence::truncate(std::size_t n_tokens) {
  const std::size_t kept = kv_pages_for(n_tokens);
  if (kept >= n_pages_) return;
  const std::lock_guard lock(cache_->mutex_);
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    for (std::size_t i = n_pages_; i-- > kept;) {
      cache_->poison(static_cast<int>(g), tables_[g][i]);
      cache_->free_[g].push_back(tables_[g][i]);  // never grows past its first size
      tables_[g][i] = -1;
    }
  }
  n_pages_ = kept;
}

}  // namespace decant::detail
