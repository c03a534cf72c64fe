// The swap space: what a sequence left there comes back with the same bytes, or stays.
#include <cstring>
#include <memory>

#include "kv/kv_cache.hpp"
#include "support/catch.hpp"

using namespace decant::detail;
using decant::ErrorCode;
using decant::Token;

namespace {

const std::vector<Token>& swap_tokens() {
  static const std::vector<Token> tokens = [] {
    std::vector<Token> out;
    for (Token t = 0; t < 200; ++t) out.push_back(t);
    return out;
  }();
  return tokens;
}

/// Layers 0 and 2 see everything, layer 1 a window of 20: pages of 2 x 2 x 16 x (8 + 4) and
/// 16 x (6 + 6) floats.
std::shared_ptr<KvCache> swap_cache(std::size_t n_pages, std::vector<std::size_t> swap_pages,
                                    bool prefix_cache = false) {
  const KvGroupSpec groups[] = {{{0, 2}, 0, 2, 8, 4}, {{1}, 20, 1, 6, 6}};
  KvConfig config;
  config.pages = {n_pages, n_pages};
  config.swap_pages = std::move(swap_pages);
  config.prefix_cache = prefix_cache;
  CHECK(KvCache::swap_bytes(groups, config) ==
        (config.swap_pages.empty() ? 0 : config.swap_pages[0] * 3072 + config.swap_pages[1] * 768));
  return KvCache::create(groups, config).value();
}

std::byte* page_bytes(const KvSequence& s, std::size_t group, std::size_t i) {
  return s.cache()->views()[group].keys(s.block_tables()[group][i], 0, 0);
}

/// Computes up to n_tokens: a page's bytes say whose it is, of which group, and where it stands.
void fill(KvSequence& s, std::size_t n_tokens, int whose) {
  REQUIRE(s.reserve(n_tokens));
  for (std::size_t g = 0; g < 2; ++g)
    for (std::size_t i = s.length() / kPageTokens; i < s.n_pages(); ++i)
      std::memset(page_bytes(s, g, i), whose * 32 + static_cast<int>(16 * g + i),
                  s.cache()->views()[g].page_stride);
  s.advance(swap_tokens(), n_tokens);
}

bool is_filled(const KvSequence& s, int whose) {
  bool good = true;
  for (std::size_t g = 0; g < 2; ++g)
    for (std::size_t i = s.first_page(g); i < s.n_pages(); ++i)
      for (std::uint64_t b = 0; b < s.cache()->views()[g].page_stride; ++b)
        good = good && page_bytes(s, g, i)[b] ==
                           static_cast<std::byte>(whose * 32 + static_cast<int>(16 * g + i));
  return good;
}

}  // namespace

TEST_CASE("pages come back from the swap space with their bytes") {
  const auto cache = swap_cache(6, {5, 3});
  KvSequence a(cache, 200);
  CHECK(a.swap_in(swap_tokens()));
  CHECK_FALSE(a.swap_out());  // it has no pages
  REQUIRE(a.reserve(10));
  CHECK_FALSE(a.swap_out());  // nothing in them
  a.truncate(0);
  fill(a, 70, 1);  // five pages; the window shows positions from 51 on: pages 3 and 4
  REQUIRE(a.first_page(1) == 3);
  REQUIRE(a.swap_out());
  CHECK(a.length() == 0);
  CHECK(a.n_pages() == 0);
  CHECK(cache->free_pages(0) == 6);
  CHECK(cache->free_pages(1) == 6);
  CHECK(cache->swapped_pages() == 7);
  {
    KvSequence other(cache, 200);
    fill(other, 96, 2);  // all pages of the pool
    CHECK_FALSE(other.swap_out());
    CHECK(is_filled(other, 2));
    // No page is left for a; it stays where it is.
    for (int i = 0; i < 2; ++i) {
      const auto full = a.swap_in(swap_tokens());
      REQUIRE_FALSE(full);
      CHECK(full.error().code() == ErrorCode::out_of_memory);
      CHECK(a.n_pages() == 0);
      CHECK(cache->swapped_pages() == 7);
    }
    const KvSequence fork(a);  // nothing to share
    CHECK(fork.length() == 0);
  }
  CHECK(cache->swapped_pages() == 7);
  REQUIRE(a.swap_in(swap_tokens()));
  CHECK(a.length() == 70);
  CHECK(a.first_page(0) == 0);
  CHECK(a.first_page(1) == 3);
  CHECK(is_filled(a, 1));
  CHECK(cache->swapped_pages() == 0);
  CHECK(cache->free_pages(0) == 1);
  CHECK(cache->free_pages(1) == 4);
  CHECK(cache->counters().swapped_pages == 7);
  REQUIRE(a.swap_in(swap_tokens()));
  CHECK(a.length() == 70);

  REQUIRE(a.swap_out());
  a.forget_swapped();
  CHECK(cache->swapped_pages() == 0);
  REQUIRE(a.swap_in(swap_tokens()));
  CHECK(a.length() == 0);
  fill(a, 20, 3);
  REQUIRE(a.swap_out());
  {
    KvSequence b(cache, 200);
    fill(b, 33, 4);  // three pages in the window's group, too
    CHECK_FALSE(b.swap_out());
    b.truncate(16);
    REQUIRE(b.swap_out());
    CHECK(cache->swapped_pages() == 6);
  }
  CHECK(cache->swapped_pages() == 4);
}

TEST_CASE("without a swap space nothing goes there") {
  const auto cache = swap_cache(6, {});
  KvSequence a(cache, 200);
  fill(a, 20, 1);
  CHECK_FALSE(a.swap_out());
  CHECK(a.length() == 20);
  CHECK(is_filled(a, 1));
}

TEST_CASE("what the prefix tree still has comes from there, and it learns what it has lost") {
  const auto cache = swap_cache(6, {6, 6}, true);
  KvSequence a(cache, 200);
  fill(a, 40, 1);
  const std::int32_t first = a.block_tables()[0][0], second = a.block_tables()[0][1];
  REQUIRE(a.swap_out());
  CHECK(cache->tree_pages() == 2);
  {
    KvSequence other(cache, 200);
    REQUIRE(other.reserve(80));  // five pages: the second node goes, as the newer leaf
    CHECK(cache->tree_pages() == 1);
  }
  // The bytes there tell where each page comes from.
  std::memset(cache->views()[0].keys(first, 0, 0), 77, 3072);
  REQUIRE(a.swap_in(swap_tokens()));
  CHECK(a.block_tables()[0][0] == first);
  CHECK(*page_bytes(a, 0, 0) == std::byte{77});
  CHECK(*page_bytes(a, 0, 1) == std::byte{33});
  CHECK(*page_bytes(a, 0, 2) == std::byte{34});
  CHECK(a.published() == 32);
  CHECK(cache->tree_pages() == 2);
  KvSequence b(cache, 200);
  CHECK(b.seek(swap_tokens(), 40).length >= 32);
  CHECK(b.block_tables()[0][1] == a.block_tables()[0][1]);
  CHECK(second >= 0);
}

TEST_CASE("what came out of a snapshot is not shown to the tree after a swap either") {
  const auto cache = swap_cache(8, {6, 6}, true);
  std::vector<std::byte> bytes[] = {std::vector<std::byte>(2 * 3072, std::byte{9}),
                                    std::vector<std::byte>(2 * 768, std::byte{9})};
  std::vector<StoredPages> stored;
  for (const auto& b : bytes) stored.push_back({b, {-1, -1}});
  const KvSequence::StoredTable tables[] = {{0, {0, 1}}, {0, {0, 1}}};
  KvSequence a(cache, 200);
  REQUIRE(a.adopt(32, tables, stored));
  REQUIRE(a.swap_out());
  REQUIRE(a.swap_in(swap_tokens()));
  CHECK(*page_bytes(a, 1, 1) == std::byte{9});
  REQUIRE(a.reserve(64));
  a.advance(swap_tokens(), 64);
  CHECK(cache->tree_pages() == 0);
}

TEST_CASE("pages that were promised are taken when a sequence comes back") {
  const auto cache = swap_cache(5, {5, 5});
  KvSequence a(cache, 200), b(cache, 200);
  fill(a, 48, 1);
  REQUIRE(a.swap_out());
  REQUIRE(a.promise(64, 16));
  CHECK(b.available(0) == 1);
  CHECK_FALSE(b.reserve(32));
  REQUIRE(a.swap_in(swap_tokens()));
  CHECK(is_filled(a, 1));
  CHECK(b.available(0) == 1);
  REQUIRE(b.reserve(16));
  CHECK(b.available(0) == 0);
  CHECK(a.reserve(64));
}
