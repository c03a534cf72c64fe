// The swap space of the KV cache: host memory where a sequence that must give its pages up leaves
// them, and from where it brings them back, instead of running its tokens again. For each group of
// layers it has so many places of a page's size; the sequence remembers which are its own.
#include "kv/kv_cache.hpp"

namespace decant::detail {

std::uint64_t KvCache::swap_bytes(std::span<const KvGroupSpec> groups, const KvConfig& config) {
  std::uint64_t bytes = 0;
  for (std::size_t g = 0; g < config.swap_pages.size(); ++g)
    bytes += config.swap_pages[g] * kPageTokens *
             bytes_per_token(groups.subspan(g, 1), config.keys, config.values);
  return bytes;
}

Status KvCache::create_swap(std::span<const KvGroupSpec> groups, const KvConfig& config) {
  DECANT_ASSIGN(swap_memory_,
                PageMemory::reserve(static_cast<std::size_t>(swap_bytes(groups, config))));
  swap_.resize(groups.size());
  places_.resize(groups.size());
  std::size_t offset = 0;
  for (std::size_t g = 0; g < config.swap_pages.size(); ++g) {
    const std::size_t n = config.swap_pages[g],
                      bytes = n * static_cast<std::size_t>(views_[g].page_stride);
    swap_[g].bytes = {swap_memory_.data() + offset, bytes};
    offset += bytes;
    swap_[g].at.assign(n, -1);
    places_[g].reserve(n);
    for (std::size_t i = n; i-- > 0;) places_[g].push_back(static_cast<std::uint32_t>(i));
  }
  return {};
}

std::size_t KvCache::swapped_pages() const {
  const std::lock_guard lock(mutex_);
  std::size_t n = 0;
  for (std::size_t g = 0; g < swap_.size(); ++g) n += swap_[g].at.size() - places_[g].size();
  return n;
}

bool KvSequence::swap_out() noexcept {
  KvCache& cache = *cache_;
  const std::size_t n_pages = (length_ + kPageTokens - 1) / kPageTokens;  // others hold nothing yet
  if (n_pages == 0) return false;
  std::vector<StoredTable> tables;
  {
    const std::lock_guard lock(cache.mutex_);
    for (std::size_t g = 0; g < tables_.size(); ++g)
      if (cache.places_[g].size() < n_pages - first_held_[g]) return false;
    try {
      for (const std::size_t first : first_held_) {
        tables.push_back({first, {}});
        tables.back().pages.reserve(n_pages - first);
      }
    } catch (...) {
      return false;
    }
    for (std::size_t g = 0; g < tables_.size(); ++g)
      for (std::size_t i = first_held_[g]; i < n_pages; ++i, ++cache.counters_.swapped_pages) {
        tables[g].pages.push_back(cache.places_[g].back());
        cache.places_[g].pop_back();
      }
  }
  // Nobody else writes into pages and places that it holds.
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    const KvView& view = cache.views_[g];
    std::byte* const to =
        cache.swap_memory_.data() + (cache.swap_[g].bytes.data() - cache.swap_memory_.data());
    for (std::size_t i = first_held_[g]; i < n_pages; ++i)
      cache.access_->read_page(
          view, tables_[g][i],
          to + tables[g].pages[i - first_held_[g]] * static_cast<std::size_t>(view.page_stride));
  }
  swapped_ = {length_, std::move(tables), adopted_};
  truncate(0);
  return true;
}

Status KvSequence::swap_in(std::span<const Token> tokens) noexcept {
  const std::size_t length = swapped_.length;
  if (length == 0) return {};
  seek(tokens, length / kPageTokens * kPageTokens);
  truncate(length_ / kPageTokens * kPageTokens);  // a part of a page comes back with the others
  if (Status adopted = adopt(length, swapped_.tables, cache_->swap_); !adopted) {
    truncate(0);
    return adopted;
  }
  adopted_ = swapped_.adopted;
  forget_swapped();
  advance(tokens, length);  // the tree learns what it has lost meanwhile
  return {};
}

void KvSequence::forget_swapped() noexcept {
  if (swapped_.length == 0) return;
  KvCache& cache = *cache_;
  const std::lock_guard lock(cache.mutex_);
  for (std::size_t g = 0; g < tables_.size(); ++g)
    for (const std::uint32_t place : swapped_.tables[g].pages) {
      cache.swap_[g].at[place] = -1;
      cache.places_[g].push_back(place);  // never grows past its first size
    }
  swapped_ = {};
}

}  // namespace decant::detail
