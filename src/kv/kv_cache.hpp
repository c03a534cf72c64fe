// The KV cache of a model: one fixed pool of pages per group of layers, the prefix tree over full
// pages, and the block tables that tell where a sequence's positions lie. Memory is reserved once
// and touched when first used. No arithmetic and no device code here.
//
// A page is referenced by the block tables that name it. One that several tables name, or that the
// tree knows, is never written: a sequence that writes into it takes a copy first. A page without
// references that the tree knows keeps its contents until the page is wanted for something else:
// pages of groups that see everything go with their node, least recently used leaves first; pages
// that left a window go one by one.
//
// Beside the pools there may be a swap space in host memory (swap_space.cpp), where a sequence that
// must give its pages up leaves them for a while.
#pragma once

#include <memory>
#include <mutex>

#include "base/platform/platform.hpp"
#include "base/result.hpp"
#include "kv/prefix_tree.hpp"

namespace decant::detail {

struct KvConfig {
  KvType keys = KvType::f32, values = KvType::f32;
  std::vector<std::size_t> pages;       // [n_groups]
  std::vector<std::size_t> swap_pages;  // [n_groups] of the swap space; empty: there is none
  bool prefix_cache = false;
  bool touched = false;  // taken from the system at once, not when first written
  /// Pages that the tree knows at most, at least those of the largest pool: each has a page of its
  /// own in the groups that see everything, but those of windows come and go before it.
  std::size_t nodes = 0;
  Hash128 salt;                          // stands for all that changes keys and values
  std::uint64_t hash_mask = UINT64_MAX;  // for tests of colliding hashes
  std::byte* memory = nullptr;  // where the pools lie, zeroed and never touched here; null: in
                                // memory that the cache takes
};

/// What a cache has done since it was made.
struct KvCounters {
  std::uint64_t copied_pages = 0;   // before a write into a shared one
  std::uint64_t evicted_nodes = 0;  // of the prefix tree
  std::uint64_t reused_pages = 0;   // of windows, which the tree still knew
  std::uint64_t swapped_pages = 0;  // left in the swap space
};

/// A group's pages outside the pool (a snapshot's, or the swap space), and where in the pool those
/// lie that were brought in: sequences that share a page there share it again.
struct StoredPages {
  std::span<const std::byte> bytes;  // [n_pages][page_stride]
  std::vector<std::int32_t> at;      // [n_pages] page of the pool, -1: not yet
};

/// The pools. Thread-safe.
class KvCache {
 public:
  /// Errors: out_of_memory, invalid_argument (more than 2^31 - 1 pages).
  static Result<std::shared_ptr<KvCache>> create(std::span<const KvGroupSpec> groups,
                                                 const KvConfig& config);
  /// The same with room for `n_tokens` positions, rounded up to pages, in every group.
  static Result<std::shared_ptr<KvCache>> create(std::span<const KvGroupSpec> groups, KvType keys,
                                                 KvType values, std::uint64_t n_tokens);

  /// Bytes one position takes, all groups together.
  static std::uint64_t bytes_per_token(std::span<const KvGroupSpec> groups, KvType keys,
                                       KvType values);

  /// What the pools take, rounded up to 64 bytes each. Errors: out_of_memory (no address space has
  /// so much), invalid_argument (more than 2^31 - 1 pages).
  static Result<std::uint64_t> pool_bytes(std::span<const KvGroupSpec> groups,
                                          const KvConfig& config);
  /// What the swap space takes.
  static std::uint64_t swap_bytes(std::span<const KvGroupSpec> groups, const KvConfig& config);
  /// The bookkeeping of the pages of both.
  static std::uint64_t table_bytes(std::span<const KvGroupSpec> groups, const KvConfig& config);

  int n_groups() const { return static_cast<int>(views_.size()); }
  std::span<const KvView> views() const { return views_; }
  std::uint64_t pool_bytes() const { return pool_bytes_; }
  std::size_t n_pages(int group = 0) const {
    return pools_[static_cast<std::size_t>(group)].size();
  }
  /// Pages without references, whether the tree knows them or not.
  std::size_t free_pages(int group) const;
  bool has_tree() const { return tree_.capacity() != 0; }
  std::size_t tree_pages() const;
  std::size_t swapped_pages() const;  // that lie in the swap space now, of all groups
  KvCounters counters() const;
  /// A page's bytes, [page_stride] of the group's view.
  void read_page(std::size_t group, std::int32_t page, std::byte* to) const {
    access_->read_page(views_[group], page, to);
  }
  /// Who moves pages from now on; must outlive all sequences. At first: plain copies.
  void set_access(PageAccess& access) { access_ = &access; }

 private:
  friend class KvSequence;
  struct List {
    std::int32_t first = -1, last = -1;
  };
  /// One group's pages.
  struct Pool {
    bool window = false;
    std::size_t n_free = 0;                // without references
    std::size_t n_promised = 0;            // of these, set aside for certain sequences
    std::vector<std::int32_t> blank;       // without references, unknown to the tree; a stack
    std::vector<std::int32_t> references;  // [pages]
    std::vector<PrefixTree::Node> node;    // [pages] that holds it in the tree, or none
    // Window groups: pages without references that the tree knows, in the order of their release.
    // Those of states that sequences keep go after all others.
    List old, old_kept;
    std::vector<std::int32_t> older, newer;  // [pages]
    std::vector<std::uint8_t> listed;        // [pages] 1 in old, 2 in old_kept, 0 in none
    std::size_t size() const { return references.size(); }
  };

  KvCache() = default;
  Status create_swap(std::span<const KvGroupSpec> groups, const KvConfig& config);
  void poison(std::size_t group, std::int32_t page) const;
  std::int32_t take(std::size_t group);
  void acquire(std::size_t group, std::int32_t page);
  void release(std::size_t group, std::int32_t page);
  bool is_shared(std::size_t group, std::int32_t page) const;
  void make_blank(std::size_t group, std::int32_t page);
  void list(std::size_t group, std::int32_t page);
  void unlist(Pool& pool, std::int32_t page);
  void evict(PrefixTree::Node node);
  void forget_window_page(std::size_t group, std::int32_t page);

  PageMemory memory_;  // none: the pools lie elsewhere
  std::uint64_t pool_bytes_ = 0;
  PageAccess host_access_;
  PageAccess* access_ = &host_access_;
  std::vector<KvView> views_;  // [n_groups]
  Hash128 salt_;
  mutable std::mutex mutex_;
  std::vector<Pool> pools_;  // [n_groups]
  PrefixTree tree_;
  KvCounters counters_;
  PageMemory swap_memory_;
  std::vector<StoredPages> swap_;                   // [n_groups]
  std::vector<std::vector<std::uint32_t>> places_;  // [n_groups] of swap_ that are free; stacks
};

/// Of the states that a sequence had at the ends of prompts and replies, the last so many are kept:
/// what their next token sees is reused after all other pages that left a window.
inline constexpr std::size_t kKeptStates = 4;

/// The block tables of one sequence. Returns its pages and places when destroyed. Not thread-safe
/// by itself; sequences of one cache may be used from different threads.
class KvSequence {
 public:
  /// A sequence of at most `max_tokens` positions; only `promise` and `swap_out` allocate later.
  KvSequence(std::shared_ptr<KvCache> cache, std::size_t max_tokens, const Hash128& salt = {});
  /// A fork: shares all pages of `other` until one of the two writes.
  KvSequence(const KvSequence& other);
  ~KvSequence();
  KvSequence& operator=(const KvSequence&) = delete;

  /// Keys and values of positions [0, length) lie in pages, as far as layers still see them.
  std::size_t length() const { return length_; }

  /// Pages to write positions [length, n_tokens) into, in all groups, or an out_of_memory Error
  /// and no change.
  Status reserve(std::size_t n_tokens);
  /// Sets pages aside: from now on `reserve` succeeds up to n_tokens, at most `n_rows` more than
  /// the length at a time, whatever other sequences take. Errors: out_of_memory; then nothing
  /// changes.
  Status promise(std::size_t n_tokens, std::size_t n_rows);
  void forget_promise() noexcept;
  /// Pages of a group that this sequence can still take, and how many it would need in order to
  /// hold `n_tokens` tokens, at most `n_rows` of them in a pass.
  std::size_t available(std::size_t group) const;
  std::size_t missing(std::size_t group, std::size_t n_tokens, std::size_t n_rows) const;
  std::size_t held(std::size_t group) const { return n_pages_ - first_held_[group]; }
  /// Positions [length, n_tokens) were written: full pages become known to the tree, those that
  /// left a window are let go. `tokens`: all of the sequence, at least n_tokens.
  void advance(std::span<const Token> tokens, std::size_t n_tokens) noexcept;

  struct Found {
    std::size_t length = 0;   // that is there now
    std::size_t matched = 0;  // that would be, had no window lost a page
  };
  /// Makes the length the longest one up to `limit` that needs no computing: of what the sequence
  /// holds, or of what the tree has for these tokens. Windows limit both. Never reads more than
  /// tokens[0, limit); empty: the tree is not asked.
  Found seek(std::span<const Token> tokens, std::size_t limit) noexcept;
  /// Forgets positions from `n_tokens` on, and more when a window lost what comes before them.
  void truncate(std::size_t n_tokens) noexcept { seek({}, n_tokens); }
  /// What a snapshot holds of a sequence in one group: its pages from `first` on.
  struct StoredTable {
    std::size_t first = 0;
    std::vector<std::uint32_t> pages;  // indices into StoredPages, no two equal
  };
  /// Positions [length, n_tokens) from a snapshot; tables and pages are [n_groups], and what a
  /// window shows at n_tokens is among them. The length is a multiple of a page. Sequences that
  /// took pages of `stored` before must still have them. The tree does not learn these pages:
  /// nobody knows whether they hold what the tokens would give. Errors: out_of_memory; then nothing
  /// changes.
  Status adopt(std::size_t n_tokens, std::span<const StoredTable> tables,
               std::span<StoredPages> stored);
  /// Leaves the pages in the swap space, with the same length and contents to come back. False if
  /// they do not fit there or there are none; then nothing changes. A fork does not take them over.
  bool swap_out() noexcept;
  /// Takes pages of the tree for the same tokens and brings in the others. Does nothing if none
  /// were left in the swap space. Errors: out_of_memory; then they stay there.
  Status swap_in(std::span<const Token> tokens) noexcept;
  void forget_swapped() noexcept;
  /// Where the pages begin that the sequence holds.
  std::size_t first_page(std::size_t group) const { return first_held_[group]; }
  /// Of the full pages, the tokens of those that the tree has.
  std::size_t published() const { return path_.size() * kPageTokens; }
  /// Whether both hold the same full pages of the tree and only a part of a page behind them.
  bool same_path(const KvSequence& other) const;
  /// What the next token sees is kept, and of the states kept before the last kKeptStates - 1.
  void keep_windows() noexcept;

  /// [n_groups] pointers to page numbers; -1 before a window.
  const std::int32_t* const* block_tables() const { return table_pointers_.data(); }
  std::size_t n_pages() const { return n_pages_; }  ///< in the tables, also those before a window
  std::size_t max_pages() const { return tables_.empty() ? 0 : tables_[0].size(); }
  const std::shared_ptr<KvCache>& cache() const { return cache_; }

 private:
  using Node = PrefixTree::Node;
  std::size_t most_held(std::size_t group, std::size_t n_tokens, std::size_t n_rows) const;
  std::size_t left_for_me(std::size_t group) const;
  void renew_promise();
  std::size_t first_needed(std::size_t group, std::size_t length) const;
  std::size_t first_kept(std::size_t group, std::size_t length) const;
  std::int32_t page_for(std::size_t group, std::size_t i, std::size_t length,
                        std::size_t own) const;
  std::size_t usable(std::size_t most, std::size_t own) const;
  void apply(std::size_t length, std::size_t own);
  void publish(std::span<const Token> tokens);
  Node publish_page(std::span<const Token> tokens, std::size_t i);
  void count_kept(std::size_t n_full, int by, bool relist);

  std::shared_ptr<KvCache> cache_;
  Hash128 salt_;
  std::size_t length_ = 0, n_pages_ = 0;
  bool adopted_ = false;  // holds pages that the tree must not learn
  // What lies in the swap space.
  struct {
    std::size_t length = 0;           // 0: nothing
    std::vector<StoredTable> tables;  // [n_groups]
    bool adopted = false;
  } swapped_;
  std::vector<std::vector<std::int32_t>> tables_;    // [n_groups][max_pages]
  std::vector<const std::int32_t*> table_pointers_;  // [n_groups]
  std::vector<std::size_t> first_held_;              // [n_groups]: of the table
  std::vector<std::size_t> promised_;   // [n_groups]: pages it may hold in any case; empty: none
  std::vector<std::size_t> set_aside_;  // [n_groups]: of these, not held now
  std::vector<Node> path_;              // nodes of the first full pages, in use
  std::size_t kept_[kKeptStates] = {};  // states: full pages before them, ascending
  std::size_t n_kept_ = 0;
  // Of a seek: the nodes that hold the tokens, and one that begins like what comes after them.
  std::vector<Node> found_;
  Node part_ = PrefixTree::kNone;
};

}  // namespace decant::detail
