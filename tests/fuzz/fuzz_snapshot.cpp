// Any bytes as a snapshot, past the checksum: parsing gives an error or a snapshot that writes back
// to the same bytes. Its block tables, if it is small, go into a cache of its windows and are used
// there: every page must come back.
#include <cstdint>
#include <cstring>
#include <memory>

#include "kv/snapshot.hpp"

using namespace decant::detail;

static void use_tables(const Snapshot& snapshot) {
  constexpr std::size_t kMostTokens = 400;
  if (snapshot.shape.groups.size() > 4 || snapshot.shape.groups.empty()) return;
  std::vector<KvGroupSpec> groups;
  KvConfig config;
  config.prefix_cache = true;
  for (const SnapshotShape::Group& group : snapshot.shape.groups) {
    if (group.window > kMostTokens) return;
    groups.push_back({{static_cast<int>(groups.size())}, static_cast<int>(group.window), 1, 2, 2});
    config.pages.push_back(40);
  }
  for (const SnapshotSession& s : snapshot.sessions)
    if (s.tokens.size() > kMostTokens) return;
  const auto cache = KvCache::create(groups, config);
  if (!cache) __builtin_trap();
  std::vector<std::vector<std::byte>> bytes;
  std::vector<StoredPages> stored;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto n = static_cast<std::size_t>(snapshot.n_pages[g]);
    bytes.emplace_back(n * static_cast<std::size_t>((*cache)->views()[g].page_stride));
    stored.push_back({bytes.back(), std::vector<std::int32_t>(n, -1)});
  }
  {
    std::vector<std::unique_ptr<KvSequence>> sequences;
    for (const SnapshotSession& s : snapshot.sessions) {
      sequences.push_back(std::make_unique<KvSequence>(*cache, kMostTokens));
      KvSequence& kv = *sequences.back();
      const auto n = static_cast<std::size_t>(s.n_computed);
      kv.seek(s.tokens, n / kPageTokens * kPageTokens);
      kv.truncate(kv.length() / kPageTokens * kPageTokens);
      if (n != 0 && !kv.adopt(n, s.tables, stored)) break;
    }
    for (std::size_t i = 0, n = sequences.size(); i < n; ++i) {
      const std::vector<decant::Token>& tokens = snapshot.sessions[i].tokens;
      KvSequence& kv = *sequences[i];
      sequences.push_back(std::make_unique<KvSequence>(kv));
      sequences.back()->truncate(kv.length() / 2);
      if (kv.reserve(tokens.size())) kv.advance(tokens, tokens.size());
      kv.keep_windows();
      sequences.push_back(std::make_unique<KvSequence>(*cache, kMostTokens));
      sequences.back()->seek(tokens, tokens.size());
    }
  }
  for (int g = 0; g < (*cache)->n_groups(); ++g)
    if ((*cache)->free_pages(g) != (*cache)->n_pages(g)) __builtin_trap();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  (void)check_snapshot(bytes);
  const auto snapshot = parse_snapshot(bytes);
  if (!snapshot) return 0;
  std::vector<std::byte> again = write_snapshot_head(*snapshot);
  for (const auto& pages : snapshot->pages) again.insert(again.end(), pages.begin(), pages.end());
  if (again.size() != size || std::memcmp(again.data(), data, size) != 0) __builtin_trap();
  use_tables(*snapshot);
  return 0;
}
