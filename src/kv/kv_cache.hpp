// The KV cache of a model: one fixed pool of pages per group of layers, and the block tables that
// tell where a sequence's positions lie. Memory is reserved once and touched when first used.
// No arithmetic and no device code here.
#pragma once

#include <memory>
#include <mutex>

#include "base/platform/platform.hpp"
#include "base/result.hpp"
#include "kv/kv_view.hpp"

namespace decant::detail {

/// The pools. Thread-safe.
class KvCache {
 public:
  /// Room for `n_tokens` positions, rounded up to pages, in every group.
  /// Errors: out_of_memory, invalid_argument (more than 2^31 - 1 pages).
  static Result<std::shared_ptr<KvCache>> create(std::span<const KvGroupSpec> groups, KvType keys,
                                                 KvType values, std::uint64_t n_tokens);

  /// Bytes one position takes, all groups together.
  static std::uint64_t bytes_per_token(std::span<const KvGroupSpec> groups, KvType keys,
                                       KvType values);

  int n_groups() const { return static_cast<int>(views_.size()); }
  std::span<const KvView> views() const { return views_; }
  std::uint64_t pool_bytes() const { return memory_.size(); }
  std::size_t free_pages(int group) const;
  std::size_t n_pages() const { return n_pages_; }

 private:
  friend class KvSequence;
  KvCache() = default;
  void poison(int group, std::int32_t page) const;

  PageMemory memory_;
  std::vector<KvView> views_;  // [n_groups]
  std::size_t n_pages_ = 0;    // of each group
  mutable std::mutex mutex_;
  std::vector<std::vector<std::int32_t>> free_;  // [n_groups], the last one is handed out next
};

/// The block tables of one sequence. Returns its pages when destroyed. Not thread-safe.
class KvSequence {
 public:
  /// A sequence of at most `max_tokens` positions; nothing is allocated for it afterwards.
  KvSequence(std::shared_ptr<KvCache> cache, std::size_t max_tokens);
  ~KvSequence();
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  /// Pages for positions [0, n_tokens) in all groups, or an out_of_memory Error and no change.
  Status reserve(std::size_t n_tokens);
  /// Gives back the pages that hold no position below `n_tokens`.
  void truncate(std::size_t n_tokens);

  /// [n_groups] pointers to page numbers.
  const std::int32_t* const* block_tables() const { return table_pointers_.data(); }
  std::size_t n_pages() const { return n_pages_; }  ///< in each group

 private:
  std::shared_ptr<KvCache> cache_;
  std::size_t n_pages_ = 0;
  std::vector<std::vector<std::int32_t>> tables_;    // [n_groups][max_pages]
  std::vector<const std::int32_t*> table_pointers_;  // [n_groups]
};

}  // namespace decant::detail
