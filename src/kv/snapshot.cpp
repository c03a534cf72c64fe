#include "kv/snapshot.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked.hpp"

namespace decant::detail {

static constexpr char kSnapshotMagic[] = {'d', 'e', 'c', 'a', 'n', 't', 'K', 'V'};
static constexpr std::uint32_t kSnapshotVersion = 2;
static constexpr std::uint64_t kSnapshotMostTokens = std::uint64_t{1} << 24,
                               kSnapshotMostGroups = 1 << 16;

/// The first page that the token at position `length` sees.
static std::uint64_t snapshot_first_needed(const SnapshotShape::Group& group,
                                           std::uint64_t length) {
  return group.window == 0 || length < group.window ? 0 : (length + 1 - group.window) / kPageTokens;
}

// ---------------------------------------------------------------------------------------- writing

struct SnapshotWriter {
  std::vector<std::byte> bytes;

  void u64(std::uint64_t v) {
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(v >> (8 * i)));
  }
  void u32(std::uint32_t v) {
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(v >> (8 * i)));
  }
  void hash(const Hash128& h) {
    u64(h.low);
    u64(h.high);
  }
  void text(std::string_view t) {
    u64(t.size());
    const auto* from = reinterpret_cast<const std::byte*>(t.data());
    bytes.insert(bytes.end(), from, from + t.size());
  }
  void tokens(std::span<const Token> t) {
    u64(t.size());
    for (const Token token : t) u32(static_cast<std::uint32_t>(token));
  }
};

std::vector<std::byte> write_snapshot_head(const Snapshot& snapshot) {
  SnapshotWriter w;
  const SnapshotShape& shape = snapshot.shape;
  for (const char c : kSnapshotMagic) w.bytes.push_back(static_cast<std::byte>(c));
  w.u32(kSnapshotVersion);
  w.hash(shape.fingerprint);
  w.u32(static_cast<std::uint32_t>(shape.keys));
  w.u32(static_cast<std::uint32_t>(shape.values));
  w.u64(shape.groups.size());
  for (std::size_t g = 0; g < shape.groups.size(); ++g) {
    w.u64(shape.groups[g].window);
    w.u64(shape.groups[g].page_bytes);
    w.u64(snapshot.n_pages[g]);
  }
  w.u64(snapshot.sessions.size());
  for (const SnapshotSession& s : snapshot.sessions) {
    w.u32(s.kind);
    w.tokens(s.tokens);
    w.u64(s.messages.size());
    for (const Message& message : s.messages) {
      w.text(message.role);
      w.text(message.content);
      w.text(message.json);
    }
    w.u64(s.generated.size());
    for (const auto& reply : s.generated) w.tokens(reply);
    w.u64(s.n_computed);
    for (const KvSequence::StoredTable& table : s.tables) {
      w.u64(table.first);
      for (const std::uint32_t page : table.pages) w.u32(page);
    }
  }
  return std::move(w.bytes);
}

void finish_snapshot(std::vector<std::byte>& bytes) {
  const Hash128 sum = hash_bytes({1, 2}, bytes);
  SnapshotWriter w{std::move(bytes)};
  w.hash(sum);
  bytes = std::move(w.bytes);
}

// ---------------------------------------------------------------------------------------- reading

static Error snapshot_error(std::string_view what) {
  return make_error(ErrorCode::invalid_file, "the snapshot {}; it cannot be restored", what);
}

static std::uint64_t snapshot_number(const std::byte* from, int n_bytes) {
  std::uint64_t v = 0;
  for (int i = 0; i < n_bytes; ++i) v |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return v;
}

Status check_snapshot(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof kSnapshotMagic + kSnapshotChecksumBytes ||
      std::memcmp(bytes.data(), kSnapshotMagic, sizeof kSnapshotMagic) != 0)
    return snapshot_error("is none: it does not begin with 'decantKV'");
  const std::span body = bytes.first(bytes.size() - kSnapshotChecksumBytes);
  const std::byte* const end = body.data() + body.size();
  const Hash128 wanted{snapshot_number(end, 8), snapshot_number(end + 8, 8)};
  if (!(hash_bytes({1, 2}, body) == wanted))
    return snapshot_error("was cut or changed: its checksum is wrong");
  return {};
}

struct SnapshotReader {
  std::span<const std::byte> left;

  Result<std::uint64_t> number(int n_bytes) {
    if (left.size() < static_cast<std::size_t>(n_bytes)) return snapshot_error("ends too early");
    const std::uint64_t v = snapshot_number(left.data(), n_bytes);
    left = left.subspan(static_cast<std::size_t>(n_bytes));
    return v;
  }
  Result<std::uint32_t> u32() {
    DECANT_ASSIGN(const std::uint64_t v, number(4));
    return static_cast<std::uint32_t>(v);
  }
  /// A count of things that take at least `bytes_each`.
  Result<std::size_t> count(std::uint64_t most, std::uint64_t bytes_each) {
    DECANT_ASSIGN(const std::uint64_t n, number(8));
    if (n > most || n > left.size() / bytes_each)
      return snapshot_error("holds a count that its size does not allow");
    return static_cast<std::size_t>(n);
  }
  Result<std::string> text() {
    DECANT_ASSIGN(const std::size_t n, count(UINT64_MAX, 1));
    std::string out(reinterpret_cast<const char*>(left.data()), n);
    left = left.subspan(n);
    return out;
  }
  Result<std::vector<Token>> tokens() {
    DECANT_ASSIGN(const std::size_t n, count(kSnapshotMostTokens, 4));
    std::vector<Token> out(n);
    for (std::size_t i = 0; i < n; ++i)
      out[i] = static_cast<Token>(static_cast<std::uint32_t>(snapshot_number(&left[4 * i], 4)));
    left = left.subspan(4 * n);
    return out;
  }
};

/// What is known while tables are read: pages are numbered as they are first named, and a page
/// stands for the same positions in all tables.
using SnapshotNamed = std::vector<std::uint64_t>;  // [pages named] index in their tables

static Status parse_table(SnapshotReader& r, const SnapshotShape::Group& group,
                          std::uint64_t n_computed, SnapshotNamed& named,
                          KvSequence::StoredTable& table) {
  const std::uint64_t n_pages = (n_computed + kPageTokens - 1) / kPageTokens;
  DECANT_ASSIGN(const std::uint64_t first, r.number(8));
  if (first > snapshot_first_needed(group, n_computed) || first > n_pages)
    return snapshot_error("lacks pages that its next token sees");
  table.first = static_cast<std::size_t>(first);
  for (std::uint64_t i = first; i < n_pages; ++i) {
    DECANT_ASSIGN(const std::uint32_t page, r.u32());
    if (page == named.size()) named.push_back(i);
    if (page >= named.size() || named[page] != i)
      return snapshot_error("names a page that cannot be there");
    table.pages.push_back(page);
  }
  return {};
}

static Result<SnapshotSession> parse_session(SnapshotReader& r, const SnapshotShape& shape,
                                             std::vector<SnapshotNamed>& named) {
  SnapshotSession s;
  DECANT_ASSIGN(s.kind, r.u32());
  DECANT_ASSIGN(s.tokens, r.tokens());
  DECANT_ASSIGN(const std::size_t n_messages, r.count(UINT64_MAX, 24));
  for (std::size_t i = 0; i < n_messages; ++i) {
    Message message;
    DECANT_ASSIGN(message.role, r.text());
    DECANT_ASSIGN(message.content, r.text());
    DECANT_ASSIGN(message.json, r.text());
    s.messages.push_back(std::move(message));
  }
  DECANT_ASSIGN(const std::size_t n_generated, r.count(n_messages, 8));
  for (std::size_t i = 0; i < n_generated; ++i) {
    DECANT_ASSIGN(std::vector<Token> reply, r.tokens());
    s.generated.push_back(std::move(reply));
  }
  DECANT_ASSIGN(s.n_computed, r.number(8));
  if (s.n_computed > s.tokens.size()) return snapshot_error("has more pages than tokens");
  if (s.n_computed == 0) return s;
  s.tables.resize(shape.groups.size());
  for (std::size_t g = 0; g < shape.groups.size(); ++g)
    DECANT_TRY(parse_table(r, shape.groups[g], s.n_computed, named[g], s.tables[g]));
  return s;
}

Result<Snapshot> parse_snapshot(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof kSnapshotMagic ||
      std::memcmp(bytes.data(), kSnapshotMagic, sizeof kSnapshotMagic) != 0)
    return snapshot_error("is none: it does not begin with 'decantKV'");
  SnapshotReader r{bytes.subspan(sizeof kSnapshotMagic)};
  Snapshot s;
  DECANT_ASSIGN(const std::uint32_t version, r.u32());
  if (version != kSnapshotVersion)
    return make_error(ErrorCode::invalid_file,
                      "the snapshot has version {}; this build reads version {}", version,
                      kSnapshotVersion);
  DECANT_ASSIGN(s.shape.fingerprint.low, r.number(8));
  DECANT_ASSIGN(s.shape.fingerprint.high, r.number(8));
  DECANT_ASSIGN(const std::uint32_t keys, r.u32());
  DECANT_ASSIGN(const std::uint32_t values, r.u32());
  if (std::max(keys, values) > static_cast<std::uint32_t>(KvType::int8))
    return snapshot_error("names a KV type that there is not");
  s.shape.keys = static_cast<KvType>(keys);
  s.shape.values = static_cast<KvType>(values);
  DECANT_ASSIGN(const std::size_t n_groups, r.count(kSnapshotMostGroups, 24));
  for (std::size_t g = 0; g < n_groups; ++g) {
    SnapshotShape::Group group{};
    DECANT_ASSIGN(group.window, r.number(8));
    DECANT_ASSIGN(group.page_bytes, r.number(8));
    DECANT_ASSIGN(const std::uint64_t n_pages, r.number(8));
    s.shape.groups.push_back(group);
    s.n_pages.push_back(n_pages);
  }
  DECANT_ASSIGN(const std::size_t n_sessions, r.count(kSnapshotMostSessions, 36));
  if (n_sessions == 0) return snapshot_error("holds no session");
  std::vector<SnapshotNamed> named(n_groups);
  for (std::size_t i = 0; i < n_sessions; ++i) {
    DECANT_ASSIGN(SnapshotSession session, parse_session(r, s.shape, named));
    s.sessions.push_back(std::move(session));
  }
  for (std::size_t g = 0; g < n_groups; ++g) {
    if (s.n_pages[g] != named[g].size()) return snapshot_error("holds pages that nothing names");
    const auto size = checked_mul(s.n_pages[g], s.shape.groups[g].page_bytes);
    if (!size || *size > r.left.size()) return snapshot_error("ends too early");
    s.pages.push_back(r.left.first(static_cast<std::size_t>(*size)));
    r.left = r.left.subspan(static_cast<std::size_t>(*size));
  }
  if (!r.left.empty()) return snapshot_error("has bytes behind its end");
  return s;
}

// ------------------------------------------------------------------------------------------ pages

/// Elements [16][dim] (values) or [dim / inner][16][inner] (keys): zeros from slot `first` on.
static void snapshot_clear(std::byte* at, std::size_t n_outer, std::size_t inner_bytes, int first) {
  const auto from = static_cast<std::size_t>(first) * inner_bytes;
  const std::size_t all = static_cast<std::size_t>(kPageTokens) * inner_bytes;
  for (std::size_t i = 0; i < n_outer; ++i) std::memset(at + i * all + from, 0, all - from);
}

void clear_slots(const KvView& view, int first, std::byte* page) {
  const auto key_dim = static_cast<std::size_t>(view.key_dim);
  const std::size_t inner = view.key_type == KvType::int8 ? 4 : 1;
  const std::size_t key_bytes = inner * kv_element_bytes(view.key_type);
  const std::size_t value_bytes =
      static_cast<std::size_t>(view.value_dim) * kv_element_bytes(view.value_type);
  const auto heads = static_cast<std::size_t>(view.n_kv_heads);
  const auto n_layers = static_cast<std::size_t>(view.page_stride / view.layer_stride);
  for (std::size_t i = 0; i < n_layers * heads; ++i) {
    std::byte* const at = page + i / heads * view.layer_stride + i % heads * view.head_stride;
    snapshot_clear(at, key_dim / inner, key_bytes, first);
    snapshot_clear(at + view.value_offset, 1, value_bytes, first);
    snapshot_clear(at + view.key_scale_offset,
                   kv_scale_bytes(view.key_type, view.key_dim) / (2 * kPageTokens), 2, first);
    snapshot_clear(at + view.value_scale_offset,
                   kv_scale_bytes(view.value_type, view.value_dim) / (2 * kPageTokens), 2, first);
  }
}

}  // namespace decant::detail
