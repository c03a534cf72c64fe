// The page pools and block tables of the KV cache. Sizes are computed by hand from the layout in
// kv/kv_view.hpp.
#include "kv/kv_cache.hpp"

#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "support/catch.hpp"

using namespace decant::detail;
using decant::ErrorCode;
using decant::KvType;

namespace {

KvGroupSpec kv_group(std::vector<int> layers, int window, int heads, int key, int value) {
  return {std::move(layers), window, heads, key, value};
}

std::shared_ptr<KvCache> small_cache(std::uint64_t n_tokens) {
  const KvGroupSpec groups[] = {kv_group({0, 2}, 0, 2, 8, 4), kv_group({1}, 0, 1, 6, 6)};
  return KvCache::create(groups, KvType::f32, KvType::f16, n_tokens).value();
}

/// Reserves and says that all was written. These caches have no prefix tree: tokens do not matter.
bool grow(KvSequence& s, std::size_t n_tokens) {
  static const std::vector<decant::Token> tokens(1000, 0);
  if (!s.reserve(n_tokens)) return false;
  s.advance(tokens, std::max(s.length(), n_tokens));
  return true;
}

}  // namespace

TEST_CASE("a token of a 32-layer model with 8 x 128 in f16 takes 131,072 bytes") {
  std::vector<int> layers(32);
  for (int i = 0; i < 32; ++i) layers[static_cast<std::size_t>(i)] = i;
  const KvGroupSpec groups[] = {kv_group(layers, 0, 8, 128, 128)};
  CHECK(KvCache::bytes_per_token(groups, KvType::f16, KvType::f16) == 131072);
  CHECK(KvCache::bytes_per_token(groups, KvType::f32, KvType::f32) == 262144);
  CHECK(KvCache::bytes_per_token(groups, KvType::f32, KvType::f16) == 196608);
  const auto cache = KvCache::create(groups, KvType::f16, KvType::f16, 40).value();
  CHECK(cache->n_pages() == 3);  // 40 positions, rounded up
  CHECK(cache->pool_bytes() == 48 * 131072);
}

TEST_CASE("heads, layers, groups and pages lie apart and inside the pool") {
  const auto cache = small_cache(64);
  REQUIRE(cache->n_groups() == 2);
  CHECK(cache->n_pages() == 4);
  // Per page: 2 layers x 2 heads x 16 x (8 x 4 + 4 x 2), and 1 x 1 x 16 x (6 x 4 + 6 x 2).
  CHECK(cache->views()[0].page_stride == 2560);
  CHECK(cache->views()[1].page_stride == 576);
  CHECK(cache->pool_bytes() == 4 * 2560 + 4 * 576);

  std::set<const std::byte*> begins;
  std::vector<std::pair<const std::byte*, std::size_t>> ranges;
  for (std::size_t g = 0; g < 2; ++g) {
    const KvView& v = cache->views()[g];
    const int n_layers = g == 0 ? 2 : 1;
    for (int page = 0; page < 4; ++page)
      for (int slot = 0; slot < n_layers; ++slot)
        for (int head = 0; head < v.n_kv_heads; ++head) {
          ranges.emplace_back(v.keys(page, slot, head), static_cast<std::size_t>(v.key_dim) * 64);
          ranges.emplace_back(v.values(page, slot, head),
                              static_cast<std::size_t>(v.value_dim) * 32);
        }
  }
  std::sort(ranges.begin(), ranges.end());
  std::size_t total = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    total += ranges[i].second;
    if (i + 1 < ranges.size()) CHECK(ranges[i].first + ranges[i].second <= ranges[i + 1].first);
  }
  CHECK(ranges.back().first + ranges.back().second == ranges.front().first + cache->pool_bytes());
  CHECK(total == cache->pool_bytes());
}

TEST_CASE("pages are reserved for all groups or for none") {
  const auto cache = small_cache(5 * 16);
  auto a = std::make_unique<KvSequence>(cache, 80);
  REQUIRE(grow(*a, 1));
  CHECK(a->n_pages() == 1);
  REQUIRE(grow(*a, 16));
  CHECK(a->n_pages() == 1);
  REQUIRE(grow(*a, 17));
  CHECK(a->n_pages() == 2);
  KvSequence b(cache, 80);
  REQUIRE(grow(b, 33));
  CHECK(cache->free_pages(0) == 0);
  CHECK(cache->free_pages(1) == 0);

  std::vector<std::int32_t> before(b.block_tables()[0], b.block_tables()[0] + 5);
  const auto full = b.reserve(49);
  REQUIRE_FALSE(full);
  CHECK(full.error().code() == ErrorCode::out_of_memory);
  CHECK(full.error().message().find("0 of 5 pages") != std::string_view::npos);
  CHECK(b.n_pages() == 3);
  CHECK(std::equal(before.begin(), before.end(), b.block_tables()[0]));

  a->truncate(16);
  CHECK(a->n_pages() == 1);
  CHECK(cache->free_pages(0) == 1);
  CHECK(grow(b, 49));
  b.truncate(49);  // nothing to give back
  CHECK(b.n_pages() == 4);
  a.reset();
  CHECK(cache->free_pages(0) == 1);
  CHECK(cache->free_pages(1) == 1);
}

TEST_CASE("random use of many sequences never shares a page and gives all of them back") {
  const unsigned seed = 20240611;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto cache = small_cache(40 * 16);
  std::vector<std::unique_ptr<KvSequence>> sequences;
  std::size_t refused = 0;
  for (int step = 0; step < 4000; ++step) {
    const std::size_t pick = random() % 8;
    if (pick >= sequences.size()) {
      sequences.push_back(std::make_unique<KvSequence>(cache, 200));
    } else if (random() % 10 == 0) {
      sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(pick));
    } else if (random() % 2 == 0) {
      sequences[pick]->truncate(random() % 201);
    } else {
      const std::size_t pages = sequences[pick]->n_pages();
      if (!grow(*sequences[pick], random() % 201)) {
        ++refused;
        CHECK(sequences[pick]->n_pages() == pages);
      }
    }
    for (int g = 0; g < 2; ++g) {
      std::set<std::int32_t> used;
      std::size_t n = 0;
      for (const auto& s : sequences)
        for (std::size_t i = 0; i < s->n_pages(); ++i, ++n) {
          const std::int32_t page = s->block_tables()[g][i];
          used.insert(page);
          if (page < 0 || page >= 40) FAIL("page " << page);
        }
      if (used.size() != n || cache->free_pages(g) != 40 - n) FAIL("step " << step);
    }
  }
  CHECK(refused > 10);
  sequences.clear();
  CHECK(cache->free_pages(0) == 40);
  CHECK(cache->free_pages(1) == 40);
}

TEST_CASE("threads may take and return pages at the same time") {
  const auto cache = small_cache(64 * 16);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&cache, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 500; ++i) {
        KvSequence s(cache, 320);
        (void)grow(s, random() % 321);
        s.truncate(random() % 100);
        (void)grow(s, random() % 321);
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(cache->free_pages(0) == 64);
  CHECK(cache->free_pages(1) == 64);
}

TEST_CASE("pools that cannot be are refused with advice") {
  const KvGroupSpec groups[] = {kv_group({0}, 0, 1024, 65536, 65536)};
  const auto pages = KvCache::create(groups, KvType::f32, KvType::f32, std::uint64_t{1} << 36);
  REQUIRE_FALSE(pages);
  CHECK(pages.error().code() == ErrorCode::invalid_argument);
  // 2^30 pages of 2^33 bytes
  const auto space = KvCache::create(groups, KvType::f32, KvType::f32, std::uint64_t{1} << 34);
  REQUIRE_FALSE(space);
  CHECK(space.error().code() == ErrorCode::out_of_memory);
}

#ifdef DECANT_ASSERTS
TEST_CASE("freed pages read as NaN") {
  const auto cache = small_cache(16);
  KvSequence s(cache, 16);
  REQUIRE(grow(s, 16));
  const std::byte* keys = cache->views()[0].keys(s.block_tables()[0][0], 0, 0);
  s.truncate(0);
  float x;
  std::memcpy(&x, keys, sizeof x);
  CHECK(x != x);
}
#endif
