// Sessions as bytes: tokens, messages, and the pages of what was run, each page once however many
// of the sessions share it. Little-endian:
//
//   "decantKV", version, fingerprint of the model, KV types,
//   of each group its shape and the number of its pages,
//   of each session kind, tokens, messages, tokens of replies and block tables,
//   pages group by group, checksum
//
// Bytes may come from anywhere: every length is checked against what is left before it is believed,
// and the size of the pages follows from the header. Slots of a page that no session's token is in
// are written as zeros: they may hold what others left there.
#pragma once

#include <string>

#include "base/hash.hpp"
#include "kv/kv_cache.hpp"

namespace decant::detail {

/// What pages of two caches must agree in to be exchanged.
struct SnapshotShape {
  Hash128 fingerprint;
  KvType keys = KvType::f32, values = KvType::f32;
  struct Group {
    std::uint64_t window, page_bytes;
    bool operator==(const Group&) const = default;
  };
  std::vector<Group> groups;
};

struct SnapshotSession {
  std::uint32_t kind = 0;  // as its owner numbers it
  std::vector<Token> tokens;
  std::vector<Message> messages;
  std::vector<std::vector<Token>> generated;    // at most one for each message
  std::uint64_t n_computed = 0;                 // tokens whose pages are there
  std::vector<KvSequence::StoredTable> tables;  // [n_groups] if there are any
};

struct Snapshot {
  SnapshotShape shape;
  std::vector<std::uint64_t> n_pages;  // [n_groups], numbered as tables name them first
  std::vector<SnapshotSession> sessions;
  /// Of a parsed snapshot: views into its bytes, [n_groups].
  std::vector<std::span<const std::byte>> pages;
};

/// Each restored session takes memory for its block tables, whatever it holds.
inline constexpr std::size_t kSnapshotMostSessions = 4096;

/// Everything before the pages.
std::vector<std::byte> write_snapshot_head(const Snapshot& snapshot);
/// Closes what was written with its checksum.
void finish_snapshot(std::vector<std::byte>& bytes);
/// Errors: invalid_file.
Status check_snapshot(std::span<const std::byte> bytes);
/// The contents of a snapshot without its checksum. Views live as long as `bytes`. Errors:
/// invalid_file.
Result<Snapshot> parse_snapshot(std::span<const std::byte> bytes);
inline constexpr std::size_t kSnapshotChecksumBytes = 16;

/// Zeros in the slots [first, 16) of a page's bytes.
void clear_slots(const KvView& view, int first, std::byte* page);

}  // namespace decant::detail
