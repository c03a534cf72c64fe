// Random operations on sequences against a simple model of what a cache is: position p of a
// sequence holds, in every group, a number made of all tokens up to p. Whatever a token could see
// is read back before it is "computed". Compiled a second time with planted faults
// (tests/CMakeLists), which this test must find.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "kv/kv_cache.hpp"
#include "support/catch.hpp"

using namespace decant::detail;
using decant::Token;

namespace {

struct Simulated {
  KvSequence kv;
  std::vector<Token> tokens;
  std::vector<std::uint64_t> value;  // [tokens] of position p: a hash of tokens[0, p]
  std::size_t swapped = 0;           // the length that it left in the swap space
};

class Simulation {
 public:
  Simulation(std::shared_ptr<KvCache> cache, std::uint64_t seed)
      : cache_(std::move(cache)), random_(seed) {}

  std::size_t below(std::size_t n) { return random_() % n; }

  void step() {
    const std::size_t pick = sequences_.empty() ? 0 : below(sequences_.size());
    const std::size_t what = below(12);
    if (!sequences_.empty() && (what == 11 || sequences_[pick]->swapped != 0) && what > 2)
      return swap(*sequences_[pick]);
    switch (what) {
      case 0:
        if (sequences_.size() < kMost) sequences_.push_back(make());
        break;
      case 1:
        if (sequences_.size() > 2 && below(2) == 0)
          sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(pick));
        break;
      case 2:
        if (!sequences_.empty() && sequences_.size() < kMost) {
          sequences_.push_back(std::make_unique<Simulated>(*sequences_[pick]));
          sequences_.back()->swapped = 0;
        }
        break;
      case 3:
        if (!sequences_.empty())
          rewind(*sequences_[pick], below(sequences_[pick]->tokens.size() + 1));
        break;
      case 5:
        if (!sequences_.empty() && sequences_.size() < kMost) save_and_restore();
        break;
      case 4:
        if (!sequences_.empty()) sequences_[pick]->kv.keep_windows();
        break;
      default:
        if (!sequences_.empty()) {
          append(*sequences_[pick], 1 + below(40));
          compute(*sequences_[pick]);
        }
    }
    if (sequences_.size() == kMost && below(4) == 0) sequences_.erase(sequences_.begin());
  }

  /// Every page is in a table or free, and none is both.
  void check_pages() {
    for (int g = 0; g < cache_->n_groups(); ++g) {
      std::set<std::int32_t> used;
      for (const auto& s : sequences_)
        for (std::size_t i = 0; i < s->kv.n_pages(); ++i)
          if (const std::int32_t page = s->kv.block_tables()[g][i]; page >= 0) used.insert(page);
      if (used.size() + cache_->free_pages(g) != cache_->n_pages(g)) FAIL("pages are lost");
    }
  }
  void end() { sequences_.clear(); }
  std::size_t hits = 0, n_restored = 0, n_swapped = 0, n_stayed = 0, lost = 0, refused = 0;

 private:
  static constexpr std::size_t kMost = 12, kTokens = 200;

  std::unique_ptr<Simulated> make() {
    auto s = std::make_unique<Simulated>(Simulated{KvSequence(cache_, kTokens), {}, {}});
    // Often the beginning of a text that was there before.
    if (!sequences_.empty() && below(3) != 0) {
      const Simulated& other = *sequences_[below(sequences_.size())];
      const std::size_t n = below(other.tokens.size() + 1);
      s->tokens.assign(other.tokens.begin(), other.tokens.begin() + static_cast<std::ptrdiff_t>(n));
      s->value.assign(other.value.begin(), other.value.begin() + static_cast<std::ptrdiff_t>(n));
    }
    return s;
  }

  void append(Simulated& s, std::size_t n) {
    for (; n > 0 && s.tokens.size() < kTokens; --n) {
      s.tokens.push_back(static_cast<Token>(below(2)));
      const std::uint64_t before = s.value.empty() ? 1 : s.value.back();
      s.value.push_back(hash_mix(before * 31 + static_cast<std::uint64_t>(s.tokens.back())));
    }
  }

  /// A few sequences' pages as bytes, each once, and new sequences from them, as
  /// Session::restore_all does it. They use no more pages than the old ones.
  void save_and_restore() {
    std::vector<const Simulated*> saved;
    for (std::size_t n = 1 + below(3); n > 0; --n)
      saved.push_back(sequences_[below(sequences_.size())].get());
    const auto n_groups = static_cast<std::size_t>(cache_->n_groups());
    std::vector<std::vector<std::byte>> bytes(n_groups);
    std::vector<std::map<std::int32_t, std::uint32_t>> index(n_groups);
    std::vector<std::vector<KvSequence::StoredTable>> tables(saved.size());
    for (std::size_t k = 0; k < saved.size(); ++k)
      for (std::size_t g = 0; g < n_groups; ++g) {
        KvSequence::StoredTable table{saved[k]->kv.first_page(g), {}};
        for (std::size_t i = table.first; i * kPageTokens < saved[k]->kv.length(); ++i) {
          const std::int32_t page = saved[k]->kv.block_tables()[g][i];
          const auto at = index[g].emplace(page, index[g].size());
          table.pages.push_back(at.first->second);
          if (!at.second) continue;
          const auto stride = static_cast<std::size_t>(cache_->views()[g].page_stride);
          bytes[g].resize(bytes[g].size() + stride);
          cache_->read_page(g, page, bytes[g].data() + (bytes[g].size() - stride));
        }
        tables[k].push_back(std::move(table));
      }
    std::vector<StoredPages> stored;
    for (std::size_t g = 0; g < n_groups; ++g)
      stored.push_back({bytes[g], std::vector<std::int32_t>(index[g].size(), -1)});
    std::vector<std::size_t> free_before;
    for (int g = 0; g < cache_->n_groups(); ++g) free_before.push_back(cache_->free_pages(g));
    std::vector<std::unique_ptr<Simulated>> all;
    for (std::size_t k = 0; k < saved.size(); ++k) {
      const Simulated& s = *saved[k];
      const std::size_t n = s.kv.length();
      all.push_back(
          std::make_unique<Simulated>(Simulated{KvSequence(cache_, kTokens), s.tokens, s.value}));
      KvSequence& kv = all.back()->kv;
      kv.seek(s.tokens, n / kPageTokens * kPageTokens);
      kv.truncate(kv.length() / kPageTokens * kPageTokens);
      if (n != 0 && !kv.adopt(n, tables[k], stored)) return;
      check_seen(*all.back(), n);
    }
    for (std::size_t g = 0; g < n_groups; ++g)
      if (free_before[g] - cache_->free_pages(static_cast<int>(g)) > index[g].size())
        FAIL("a shared page was restored twice");
    for (auto& s : all) {
      if (sequences_.size() == kMost) return;
      ++n_restored;
      if (below(2) == 0) rewind(*s, below(s->tokens.size() + 1));
      sequences_.push_back(std::move(s));
    }
  }

  /// Out, or in again with all that it held; or nothing.
  void swap(Simulated& s) {
    const std::size_t before = s.kv.length();
    if (s.swapped == 0) {
      if (s.kv.swap_out()) s.swapped = before;
      if (s.kv.length() != (s.swapped == 0 ? before : 0)) FAIL("swapped out in part");
    } else if (s.kv.swap_in(s.tokens)) {
      if (s.kv.length() != s.swapped) FAIL("swapped in in part");
      check_seen(s, s.swapped);
      s.swapped = 0;
      ++n_swapped;
    } else {
      if (s.kv.n_pages() != 0) FAIL("not swapped in, but with pages");
      ++n_stayed;
    }
  }

  void rewind(Simulated& s, std::size_t n) {
    s.tokens.resize(n);
    s.value.resize(n);
    s.kv.truncate(n);
    if (s.kv.length() > n) FAIL("length");
  }

  std::byte* at(const Simulated& s, int group, std::size_t position) const {
    const std::int32_t page = s.kv.block_tables()[group][position / kPageTokens];
    if (page < 0) FAIL("position " << position << " is in no page of group " << group);
    return cache_->views()[static_cast<std::size_t>(group)].keys(page, 0, 0) +
           8 * (position % kPageTokens);
  }

  void check_seen(const Simulated& s, std::size_t position) const {
    for (int g = 0; g < cache_->n_groups(); ++g) {
      const auto window =
          static_cast<std::size_t>(cache_->views()[static_cast<std::size_t>(g)].window);
      const std::size_t first = window == 0 || position < window ? 0 : position - window + 1;
      for (std::size_t p = first; p < position; ++p) {
        std::uint64_t stored;
        std::memcpy(&stored, at(s, g, p), sizeof stored);
        if (stored != s.value[p]) FAIL("group " << g << " lost position " << p);
      }
    }
  }

  void compute(Simulated& s) {
    const std::size_t limit = s.tokens.size() - std::min<std::size_t>(s.tokens.size(), 1);
    const std::size_t before = s.kv.length();
    const KvSequence::Found found = s.kv.seek(s.tokens, limit);
    if (found.length < std::min(before, limit)) FAIL("a seek went back");
    hits += found.length > before ? 1 : 0;
    lost += found.length < found.matched ? 1 : 0;
    while (s.kv.length() < s.tokens.size()) {
      const std::size_t n = std::min(s.tokens.size(), s.kv.length() + 1 + below(24));
      if (!s.kv.reserve(n)) {
        ++refused;
        return;
      }
      for (std::size_t p = s.kv.length(); p < n; ++p) {
        check_seen(s, p);
        for (int g = 0; g < cache_->n_groups(); ++g)
          std::memcpy(at(s, g, p), &s.value[p], sizeof s.value[p]);
      }
      s.kv.advance(s.tokens, n);
    }
  }

  std::shared_ptr<KvCache> cache_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Simulated>> sequences_;
};

}  // namespace

TEST_CASE("random operations agree with a simple model of the cache") {
  // Pages of 16 tokens with keys of 8 bytes. Pools from scarce to plenty.
  const std::vector<std::vector<KvGroupSpec>> shapes = {
      {{{0}, 0, 1, 2, 2}},
      {{{0}, 0, 1, 2, 2}, {{1}, 20, 1, 2, 2}},
      {{{0}, 20, 1, 2, 2}, {{1}, 48, 1, 2, 2}},
      {{{0}, 0, 1, 2, 2}, {{1}, 0, 1, 2, 2}, {{2}, 33, 1, 2, 2}}};
  std::size_t n_stayed = 0;
  for (std::uint64_t seed = 1; seed <= 16; ++seed)
    for (const auto& groups : shapes) {
      CAPTURE(seed, groups.size());
      KvConfig config;
      config.prefix_cache = seed % 5 != 0;
      config.hash_mask = seed % 7 == 3 ? 0 : UINT64_MAX;
      for (const KvGroupSpec& group : groups)
        config.pages.push_back((group.window == 0 ? 30 : 20) + seed * 5);
      config.swap_pages.assign(groups.size(), seed % 4 * 10);
      const auto cache = KvCache::create(groups, config).value();
      Simulation simulation(cache, seed);
      for (int i = 0; i < 1600; ++i) {
        simulation.step();
        if (i % 16 == 0) simulation.check_pages();
      }
      if (config.prefix_cache) CHECK(simulation.hits > 20);
      CHECK(cache->counters().copied_pages > 10);
      CHECK(simulation.n_restored > 10);
      CHECK((simulation.n_swapped > 10) == (seed % 4 != 0));
      n_stayed += simulation.n_stayed;
      simulation.end();
      CHECK(cache->swapped_pages() == 0);
      for (int g = 0; g < cache->n_groups(); ++g) CHECK(cache->free_pages(g) == cache->n_pages(g));
    }
  CHECK(n_stayed > 0);
}
