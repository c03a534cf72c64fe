// Which pages hold which tokens: a tree whose nodes are full pages of 16 tokens, so that a prefix
// that was computed once is found again. A node's hash is chained through its parent's and rooted
// in a salt that stands for everything that changes keys and values; a hit is believed only when
// parent and tokens are equal. All memory is taken once.
//
// A node that no sequence uses stays until its pages are wanted. Those nodes stand in one list, the
// least recently used first. Paths are released from their deepest node up, so that a parent always
// stands behind its children and the first of the list has none.
#pragma once

#include <span>
#include <vector>

#include "base/hash.hpp"
#include "kv/kv_view.hpp"

namespace decant::detail {

/// Not thread-safe.
class PrefixTree {
 public:
  using Node = std::int32_t;
  static constexpr Node kNone = -1;

  /// Room for `n_nodes`; `hash_mask` is for tests of colliding hashes.
  void create(std::size_t n_nodes, std::size_t n_groups, std::uint64_t hash_mask);
  std::size_t capacity() const { return nodes_.size(); }
  std::size_t size() const { return size_; }
  /// Bytes of `n_nodes` nodes.
  static std::uint64_t bytes(std::size_t n_nodes, std::size_t n_groups);

  /// The child of `parent` (kNone: the root of `salt`) that holds these tokens, or kNone.
  Node find(Node parent, const Hash128& salt, const Token* tokens) const;  // [16]
  /// The child that begins with most of `tokens` and with how many, or kNone and 0.
  Node find_part(Node parent, const Hash128& salt, std::span<const Token> tokens,
                 std::size_t& n) const;
  /// A new child without pages, used once; its parent must be in use. kNone when all nodes are.
  Node insert(Node parent, const Hash128& salt, const Token* tokens);

  /// A parent is acquired before its children and released after them.
  void acquire(Node node);
  void release(Node node);
  bool in_use(Node node) const { return at(node).uses != 0; }
  bool has_children(Node node) const { return at(node).first_child != kNone; }
  Node parent(Node node) const { return at(node).parent; }
  /// The node without uses and children that was released first, or kNone.
  Node oldest() const { return oldest_; }
  /// Forgets a node without uses and children.
  void remove(Node node);

  /// The page that holds the node's tokens in a group, or -1.
  std::int32_t page(Node node, std::size_t group) const { return pages_[slot(node, group)]; }
  void set_page(Node node, std::size_t group, std::int32_t page) {
    pages_[slot(node, group)] = page;
  }

  /// How many window states that sequences keep need the node's page in a group.
  bool is_kept(Node node, std::size_t group) const { return kept_[slot(node, group)] != 0; }
  void count_kept(Node node, std::size_t group, int by) { kept_[slot(node, group)] += by; }

 private:
  struct Entry {
    Hash128 hash, salt;
    Token tokens[kPageTokens];
    Node parent, first_child, previous_sibling, next_sibling;
    Node next_in_bucket;  // of free nodes: the next free one
    Node older, newer;    // among the nodes without uses
    std::int32_t uses;
  };

  Entry& at(Node node) { return nodes_[static_cast<std::size_t>(node)]; }
  const Entry& at(Node node) const { return nodes_[static_cast<std::size_t>(node)]; }
  std::size_t slot(Node node, std::size_t group) const {
    return static_cast<std::size_t>(node) * n_groups_ + group;
  }
  Node& first_child(Node parent) { return parent == kNone ? first_root_ : at(parent).first_child; }
  Hash128 chain(Node parent, const Hash128& salt, const Token* tokens) const;
  Node& bucket(const Hash128& hash) {
    return buckets_[static_cast<std::size_t>(hash.low) & (buckets_.size() - 1)];
  }

  std::vector<Entry> nodes_;
  std::vector<std::int32_t> pages_, kept_;  // [nodes][groups]
  std::vector<Node> buckets_;               // a power of two
  std::size_t n_groups_ = 0, size_ = 0;
  std::uint64_t hash_mask_ = 0;
  Node first_free_ = kNone, first_root_ = kNone;
  Node oldest_ = kNone, newest_ = kNone;  // of the nodes without uses
};

}  // namespace decant::detail
