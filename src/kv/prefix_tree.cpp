#include "kv/prefix_tree.hpp"

#include <algorithm>
#include <bit>

namespace decant::detail {

void PrefixTree::create(std::size_t n_nodes, std::size_t n_groups, std::uint64_t hash_mask) {
  n_groups_ = n_groups;
  hash_mask_ = hash_mask;
  nodes_.resize(n_nodes);
  pages_.assign(n_nodes * n_groups, -1);
  kept_.assign(n_nodes * n_groups, 0);
  buckets_.assign(std::bit_ceil(std::max<std::size_t>(n_nodes, 1)), kNone);
  for (std::size_t i = n_nodes; i-- > 0;) {
    nodes_[i].next_in_bucket = first_free_;
    first_free_ = static_cast<Node>(i);
  }
}

std::uint64_t PrefixTree::bytes(std::size_t n_nodes, std::size_t n_groups) {
  return n_nodes * (sizeof(Entry) + 2 * n_groups * sizeof(std::int32_t)) +
         std::bit_ceil(std::max<std::size_t>(n_nodes, 1)) * sizeof(Node);
}

Hash128 PrefixTree::chain(Node parent, const Hash128& salt, const Token* tokens) const {
  Hash128 hash = parent == kNone ? salt : at(parent).hash;
  for (int i = 0; i < kPageTokens; i += 2)
    hash = hash_word(hash, static_cast<std::uint64_t>(static_cast<std::uint32_t>(tokens[i])) |
                               static_cast<std::uint64_t>(static_cast<std::uint32_t>(tokens[i + 1]))
                                   << 32);
  hash.low &= hash_mask_;
  hash.high &= hash_mask_;
  return hash;
}

PrefixTree::Node PrefixTree::find(Node parent, const Hash128& salt, const Token* tokens) const {
  if (nodes_.empty()) return kNone;
  const Hash128 hash = chain(parent, salt, tokens);
  for (Node n = buckets_[static_cast<std::size_t>(hash.low) & (buckets_.size() - 1)]; n != kNone;
       n = at(n).next_in_bucket) {
    const Entry& e = at(n);
    if (e.hash == hash && e.parent == parent && e.salt == salt &&
        std::equal(e.tokens, e.tokens + kPageTokens, tokens))
      return n;
  }
  return kNone;
}

PrefixTree::Node PrefixTree::find_part(Node parent, const Hash128& salt,
                                       std::span<const Token> tokens, std::size_t& n) const {
  Node best = kNone;
  n = 0;
  const std::size_t most = std::min<std::size_t>(tokens.size(), kPageTokens);
  for (Node child = parent == kNone ? first_root_ : at(parent).first_child;
       child != kNone && n < most; child = at(child).next_sibling) {
    const Entry& e = at(child);
    if (!(e.salt == salt)) continue;
    std::size_t same = 0;
    while (same < most && e.tokens[same] == tokens[same]) ++same;
    if (same <= n) continue;
    n = same;
    best = child;
  }
  return best;
}

PrefixTree::Node PrefixTree::insert(Node parent, const Hash128& salt, const Token* tokens) {
  const Node node = first_free_;
  if (node == kNone) return kNone;
  Entry& e = at(node);
  first_free_ = e.next_in_bucket;
  e.hash = chain(parent, salt, tokens);
  e.salt = salt;
  std::copy(tokens, tokens + kPageTokens, e.tokens);
  e.parent = parent;
  e.first_child = e.previous_sibling = e.older = e.newer = kNone;
  e.uses = 1;
  e.next_sibling = first_child(parent);
  if (e.next_sibling != kNone) at(e.next_sibling).previous_sibling = node;
  first_child(parent) = node;
  e.next_in_bucket = bucket(e.hash);
  bucket(e.hash) = node;
  for (std::size_t g = 0; g < n_groups_; ++g) set_page(node, g, -1);
  ++size_;
  return node;
}

void PrefixTree::acquire(Node node) {
  Entry& e = at(node);
  if (e.uses++ != 0) return;
  (e.older == kNone ? oldest_ : at(e.older).newer) = e.newer;
  (e.newer == kNone ? newest_ : at(e.newer).older) = e.older;
  e.older = e.newer = kNone;
}

void PrefixTree::release(Node node) {
  Entry& e = at(node);
  if (--e.uses != 0) return;
  e.older = newest_;
  e.newer = kNone;
  (newest_ == kNone ? oldest_ : at(newest_).newer) = node;
  newest_ = node;
}

void PrefixTree::remove(Node node) {
  acquire(node);  // out of the list
  Entry& e = at(node);
  (e.previous_sibling == kNone ? first_child(e.parent) : at(e.previous_sibling).next_sibling) =
      e.next_sibling;
  if (e.next_sibling != kNone) at(e.next_sibling).previous_sibling = e.previous_sibling;
  Node* link = &bucket(e.hash);
  while (*link != node) link = &at(*link).next_in_bucket;
  *link = e.next_in_bucket;
  e.next_in_bucket = first_free_;
  first_free_ = node;
  --size_;
}

}  // namespace decant::detail
