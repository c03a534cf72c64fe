// The prefix tree by itself, and hits, copies, windows and evictions of the cache that uses it.
// What must come out follows from the rules in kv/prefix_tree.hpp and kv/kv_cache.hpp, by hand.
#include "kv/prefix_tree.hpp"

#include <numeric>

#include "kv/kv_cache.hpp"
#include "support/catch.hpp"

using namespace decant::detail;
using decant::KvType;
using decant::Token;

namespace {

using Node = PrefixTree::Node;
constexpr Node kNone = PrefixTree::kNone;

std::vector<Token> page_of(Token first) {
  std::vector<Token> tokens(kPageTokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// One group that sees everything and, with a window, one that does not; a token takes 16 bytes.
std::shared_ptr<KvCache> tree_cache(std::size_t n_pages, int window = 0,
                                    std::size_t window_pages = 0,
                                    std::uint64_t hash_mask = UINT64_MAX,
                                    bool prefix_cache = true) {
  std::vector<KvGroupSpec> groups{{{0}, 0, 1, 2, 2}};
  KvConfig config;
  config.pages = {n_pages};
  config.prefix_cache = prefix_cache;
  config.hash_mask = hash_mask;
  if (window != 0) {
    groups.push_back({{1}, window, 1, 2, 2});
    config.pages.push_back(window_pages == 0 ? n_pages : window_pages);
  }
  return KvCache::create(groups, config).value();
}

std::vector<Token> text(std::size_t n, Token seed = 0) {
  std::vector<Token> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = seed + static_cast<Token>(i * i % 97);
  return tokens;
}

/// Runs tokens [length, n) in chunks, as the engine does.
bool run(KvSequence& s, std::span<const Token> tokens, std::size_t chunk = 64) {
  while (s.length() < tokens.size()) {
    const std::size_t n = std::min(tokens.size(), s.length() + chunk);
    if (!s.reserve(n)) return false;
    s.advance(tokens, n);
  }
  return true;
}

}  // namespace

TEST_CASE("a node is found by its parent, its salt and all its tokens") {
  for (const std::uint64_t mask : {UINT64_MAX, std::uint64_t{0}}) {  // 0: all hashes collide
    CAPTURE(mask);
    PrefixTree tree;
    tree.create(6, 1, mask);
    const Hash128 salt{1, 2}, other{1, 3};
    const auto a = page_of(0), b = page_of(100);
    const Node root = tree.insert(kNone, salt, a.data());
    const Node child = tree.insert(root, salt, b.data());
    const Node apart = tree.insert(kNone, other, a.data());
    CHECK(tree.find(kNone, salt, a.data()) == root);
    CHECK(tree.find(root, salt, b.data()) == child);
    CHECK(tree.find(kNone, other, a.data()) == apart);
    CHECK(tree.find(kNone, salt, b.data()) == kNone);
    CHECK(tree.find(child, salt, b.data()) == kNone);
    CHECK(tree.find(root, salt, a.data()) == kNone);
    CHECK(tree.find(apart, salt, b.data()) == kNone);
    for (std::size_t i = 0; i < a.size(); ++i) {
      auto c = a;
      c[i] += 1000;
      CHECK(tree.find(kNone, salt, c.data()) == kNone);
      std::size_t n = 0;
      CHECK(tree.find_part(kNone, salt, c, n) == (i == 0 ? kNone : root));
      CHECK(n == i);
    }
    std::size_t n = 0;
    CHECK(tree.find_part(root, salt, std::span(b).first(5), n) == child);
    CHECK(n == 5);
    tree.release(child);
    tree.release(root);
    tree.release(apart);
    CHECK(tree.oldest() == child);
    tree.remove(child);
    CHECK(tree.find(root, salt, b.data()) == kNone);
    CHECK(tree.oldest() == root);
    tree.acquire(root);
    CHECK(tree.oldest() == apart);
    tree.remove(apart);
    CHECK(tree.size() == 1);
    CHECK(tree.find(kNone, salt, a.data()) == root);
  }
}

TEST_CASE("a full tree takes no more nodes") {
  PrefixTree tree;
  tree.create(2, 1, UINT64_MAX);
  const auto a = page_of(0);
  const Node first = tree.insert(kNone, {}, a.data());
  CHECK(tree.insert(first, {}, a.data()) != kNone);
  CHECK(tree.insert(first, {7, 7}, a.data()) == kNone);
}

TEST_CASE("what one sequence computed, the next one has; its last page is copied before a write") {
  const auto cache = tree_cache(20);
  const auto tokens = text(100);
  KvSequence a(cache, 200);
  REQUIRE(run(a, tokens));
  CHECK(cache->tree_pages() == 6);  // 100 / 16

  KvSequence b(cache, 200);
  CHECK(b.seek(tokens, 99).length == 96);  // the 4 tokens behind are no full page
  CHECK(cache->free_pages(0) == 13);       // 7 of a, none of b's own
  for (std::size_t i = 0; i < 6; ++i) CHECK(a.block_tables()[0][i] == b.block_tables()[0][i]);
  REQUIRE(run(b, tokens));
  CHECK(cache->free_pages(0) == 12);
  CHECK(cache->counters().copied_pages == 0);

  // 40 of its tokens, then others: two pages are shared, 8 tokens of the third are copied.
  auto fork_text = std::vector<Token>(tokens.begin(), tokens.begin() + 40);
  for (int i = 0; i < 30; ++i) fork_text.push_back(500 + i);
  KvSequence c(cache, 200);
  const auto found = c.seek(fork_text, fork_text.size() - 1);
  CHECK(found.length == 40);
  CHECK(found.matched == 40);
  CHECK(cache->free_pages(0) == 12);
  REQUIRE(run(c, fork_text));
  CHECK(cache->counters().copied_pages == 1);
  CHECK(c.block_tables()[0][1] == a.block_tables()[0][1]);
  CHECK(c.block_tables()[0][2] != a.block_tables()[0][2]);
  CHECK(cache->free_pages(0) == 9);
}

TEST_CASE("lengths around the border of a page; the last token is always left to run") {
  for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 31u, 32u, 33u, 48u}) {
    CAPTURE(n);
    const auto cache = tree_cache(20);
    const auto tokens = text(n);
    KvSequence a(cache, 64);
    REQUIRE(run(a, tokens));
    KvSequence b(cache, 64);
    // All whole pages but for the last token, which may cut one.
    CHECK(b.seek(tokens, n - 1).length == std::min(n / 16 * 16, n - 1));
    REQUIRE(run(b, tokens));
    CHECK(b.length() == n);
  }
}

TEST_CASE("salts keep sequences apart, also when all hashes are equal") {
  const auto cache = tree_cache(40, 0, 0, 0);
  const auto tokens = text(64);
  KvSequence a(cache, 64, {1, 0}), b(cache, 64, {2, 0});
  REQUIRE(run(a, tokens));
  CHECK(b.seek(tokens, 63).length == 0);
  KvSequence c(cache, 64, {1, 0});
  CHECK(c.seek(tokens, 63).length == 63);
  auto wrong = tokens;
  wrong[20] = 999;
  CHECK(c.seek(wrong, 63).length == 63);  // its own pages are not asked again
  KvSequence d(cache, 64, {1, 0});
  CHECK(d.seek(wrong, 63).length == 20);
}

TEST_CASE("two sequences that compute the same page end up with one") {
  const auto cache = tree_cache(20);
  const auto tokens = text(40);
  KvSequence a(cache, 64), b(cache, 64);
  REQUIRE(a.reserve(40));
  REQUIRE(b.reserve(40));
  CHECK(cache->free_pages(0) == 14);
  a.advance(tokens, 40);
  b.advance(tokens, 40);
  CHECK(cache->free_pages(0) == 16);  // 2 shared pages, and a partial one each
  CHECK(a.block_tables()[0][1] == b.block_tables()[0][1]);
  CHECK(a.block_tables()[0][2] != b.block_tables()[0][2]);
}

TEST_CASE("pages of ended sequences stay until they are wanted, the oldest leaves go first") {
  const auto cache = tree_cache(8);
  const auto a = text(64), b = text(64, 1000);
  {
    KvSequence s(cache, 200);
    REQUIRE(run(s, a));
  }
  {
    KvSequence s(cache, 200);
    REQUIRE(run(s, b));
  }
  CHECK(cache->free_pages(0) == 8);
  CHECK(cache->tree_pages() == 8);
  {
    KvSequence s(cache, 200);  // a is used again: b is the older one now
    CHECK(s.seek(a, 63).length == 63);
  }
  KvSequence c(cache, 200);
  REQUIRE(run(c, text(40, 5000)));  // three pages
  {
    KvSequence s(cache, 200);
    CHECK(s.seek(a, 63).length == 63);
  }
  KvSequence d(cache, 200);
  CHECK(d.seek(b, 63).length == 16);  // its first page is what is left
  CHECK(cache->counters().evicted_nodes == 3);
}

TEST_CASE("a page that only the tree shares is taken back when the pool is empty") {
  const auto cache = tree_cache(4);
  const auto tokens = text(64);
  KvSequence s(cache, 64);
  REQUIRE(run(s, tokens));
  s.truncate(60);
  auto other = tokens;
  other[62] = 7777;
  REQUIRE(run(s, other));  // no page is free for a copy
  CHECK(cache->tree_pages() == 4);
  s.truncate(20);
  other[30] = 8888;
  REQUIRE(run(s, other));
  CHECK(s.length() == 64);
}

TEST_CASE("forks share pages; who writes first into the partial one copies it") {
  for (const bool tree : {true, false}) {
    const auto cache = tree_cache(20, 0, 0, UINT64_MAX, tree);
    const auto tokens = text(40);
    auto a = std::make_unique<KvSequence>(cache, 64);
    REQUIRE(run(*a, tokens));
    KvSequence b(*a), c(b);
    CHECK(cache->free_pages(0) == 17);
    auto longer = text(50);
    REQUIRE(run(b, longer));
    CHECK(cache->free_pages(0) == 15);  // a copy of the third page, and a fourth
    a.reset();
    CHECK(cache->free_pages(0) == 15);
    const std::int32_t last = c.block_tables()[0][2];
    REQUIRE(run(c, text(41)));  // nobody else has it any more
    CHECK(c.block_tables()[0][2] == last);
    CHECK(cache->counters().copied_pages == 1);
  }
}

TEST_CASE("pages that left a window stay in the tree until they are reused") {
  // A window of 32 tokens; what a sequence of 160 tokens holds of it are its last 2 pages.
  const auto cache = tree_cache(40, 32, 20);
  const auto tokens = text(160);
  KvSequence a(cache, 400);
  REQUIRE(run(a, tokens, 16));
  CHECK(cache->free_pages(0) == 30);
  CHECK(cache->free_pages(1) == 18);
  for (std::size_t i = 0; i < 10; ++i) CHECK((a.block_tables()[1][i] >= 0) == (i >= 8));

  // Nothing was reused yet: a hit and a rewind at any length.
  KvSequence b(cache, 400);
  CHECK(b.seek(tokens, 90).length == 90);
  for (std::size_t i = 0; i < 6; ++i) CHECK((b.block_tables()[1][i] >= 0) == (i >= 3));
  b.truncate(50);
  CHECK(b.length() == 50);
  CHECK(b.block_tables()[1][1] >= 0);
}

TEST_CASE("a hit and a rewind end where every window is whole") {
  const auto cache = tree_cache(40, 32, 20);
  const auto tokens = text(160);
  KvSequence a(cache, 400);
  REQUIRE(run(a, tokens, 16));
  // 18 more pages: the 10 blank ones, and the first 8 of a's, all but those its table names.
  KvSequence c(cache, 400);
  REQUIRE(run(c, text(288, 3000), 16));
  CHECK(cache->counters().reused_pages == 8);
  KvSequence d(cache, 400);
  const auto found = d.seek(tokens, 100);
  CHECK(found.matched == 100);  // all of it is in the group that sees everything
  CHECK(found.length == 0);
  CHECK(d.seek(tokens, 158).length == 0);  // the token at 158 sees 127, on page 7
  CHECK(d.seek(tokens, 159).length == 159);
  d.truncate(0);
  a.truncate(158);
  CHECK(a.length() == 0);
  // What is run again takes its place in the nodes that lost it.
  REQUIRE(run(a, std::span(tokens).first(100), 16));
  KvSequence e(cache, 400);
  CHECK(e.seek(tokens, 100).length == 96);  // page 6 was not run to its end
}

TEST_CASE("window states at the ends of turns are reused last") {
  for (const bool keeps : {true, false}) {
    CAPTURE(keeps);
    const auto cache = tree_cache(60, 32, 20);
    const auto first = text(96), second = text(390, 3000);
    {
      KvSequence a(cache, 400);
      REQUIRE(run(a, first, 16));
      if (keeps) a.keep_windows();
    }
    KvSequence b(cache, 400);
    REQUIRE(run(b, second, 16));
    REQUIRE(cache->counters().reused_pages > 0);
    KvSequence c(cache, 400);
    CHECK((c.seek(first, 96).length == 96) == keeps);
  }
}

TEST_CASE("a sequence keeps its last four window states, others keep theirs") {
  // A window of 32: at the end of a turn, the token before sees two pages more than its own.
  const auto cache = tree_cache(80, 32, 26);
  const auto tokens = text(320), second = text(96, 5000), filler = text(320, 9000);
  KvSequence other(cache, 400);
  REQUIRE(run(other, second, 16));
  other.keep_windows();
  REQUIRE(run(other, text(160, 5000), 16));  // 10 pages; those of 64 to 95 have left the window
  KvSequence a(cache, 400);
  for (std::size_t n = 32; n <= 320; n += 48) {  // states at 32, 80, 128, 176, 224, 272, 320
    REQUIRE(run(a, std::span(tokens).first(n), 16));
    a.keep_windows();
    a.keep_windows();  // no new state
  }
  {
    KvSequence b(cache, 400);
    REQUIRE(run(b, filler, 16));
    REQUIRE(cache->counters().reused_pages > 0);
  }
  const auto holds = [&](std::span<const Token> all, std::size_t n) {
    KvSequence c(cache, 400);
    return c.seek(all, n).length == n;
  };
  for (const std::size_t n : {176u, 224u, 272u, 320u}) CHECK(holds(tokens, n));
  for (const std::size_t n : {32u, 80u, 128u}) CHECK_FALSE(holds(tokens, n));
  CHECK(holds(text(160, 5000), 96));

  // Going back makes room: the states behind are no longer this sequence's.
  a.truncate(176);
  for (std::size_t n = 192; n <= 224; n += 16) {
    REQUIRE(run(a, std::span(tokens).first(n), 16));
    a.keep_windows();
  }
  {
    KvSequence b(cache, 400);
    REQUIRE(run(b, text(320, 20000), 16));
  }
  for (const std::size_t n : {176u, 192u, 208u, 224u}) CHECK(holds(tokens, n));
}

TEST_CASE("a model of windows alone") {
  KvConfig config;
  config.pages = {16};
  config.nodes = 64;
  config.prefix_cache = true;
  const KvGroupSpec groups[] = {{{0}, 32, 1, 2, 2}};
  const auto cache = KvCache::create(groups, config).value();
  const auto tokens = text(300);
  for (int round = 0; round < 3; ++round) {
    KvSequence a(cache, 400);
    const auto found = a.seek(tokens, 299);
    CHECK(found.length == (round == 0 ? 0 : 288));  // the last page was never full
    REQUIRE(run(a, tokens, 16));
    KvSequence b(cache, 400);
    REQUIRE(run(b, text(300, 1000 + round), 16));
    CHECK(cache->tree_pages() <= 64);
    REQUIRE(run(b, text(301, 1000 + round), 16));
    KvSequence c(cache, 400);
    c.seek(tokens, 299);
    REQUIRE(run(c, tokens, 16));
  }
  CHECK(cache->free_pages(0) == 16);
}

TEST_CASE("without the prefix cache nothing is known to the next sequence") {
  const auto cache = tree_cache(20, 32, 0, UINT64_MAX, false);
  const auto tokens = text(100);
  KvSequence a(cache, 200);
  REQUIRE(run(a, tokens));
  CHECK(cache->free_pages(1) == 17);  // pages 4 to 6: positions 68 to 99
  KvSequence b(cache, 200);
  CHECK(b.seek(tokens, 99).length == 0);
  a.truncate(99);
  CHECK(a.length() == 99);
  a.truncate(90);
  CHECK(a.length() == 0);  // what its window would need was let go
}
