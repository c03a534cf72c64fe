// Session::save and restore.
#include "api/state.hpp"
#include "base/file.hpp"

namespace decant {

namespace detail {

static Snapshot session_snapshot(const SessionState& s, bool pages) {
  Snapshot snapshot;
  snapshot.shape = s.model->snapshot_shape;
  snapshot.kind = static_cast<std::uint32_t>(s.kind);
  snapshot.tokens = s.sequence->tokens;
  snapshot.messages = s.messages;
  snapshot.generated = s.generated;
  snapshot.n_computed = pages ? s.sequence->computed() : 0;
  if (snapshot.n_computed != 0)
    for (std::size_t g = 0; g < snapshot.shape.groups.size(); ++g)
      snapshot.first_page.push_back(s.sequence->kv.first_page(g));
  return snapshot;
}

static std::vector<std::byte> session_bytes(const SessionState& s, bool pages) {
  const Snapshot snapshot = session_snapshot(s, pages);
  std::vector<std::byte> bytes = write_snapshot_head(snapshot);
  if (snapshot.n_computed != 0) {
    std::uint64_t more = kSnapshotChecksumBytes;
    for (std::size_t g = 0; g < snapshot.shape.groups.size(); ++g)
      more += ((snapshot.n_computed + kPageTokens - 1) / kPageTokens - snapshot.first_page[g]) *
              snapshot.shape.groups[g].page_bytes;
    bytes.reserve(bytes.size() + static_cast<std::size_t>(more));
    const std::span<const KvView> views = s.model->engine->kv()->views();
    const auto in_last = static_cast<int>(snapshot.n_computed % kPageTokens);
    for (std::size_t g = 0; g < views.size(); ++g) {
      s.sequence->kv.read_pages(g, bytes);
      if (in_last != 0)
        clear_slots(views[g], in_last,
                    bytes.data() + (bytes.size() - static_cast<std::size_t>(views[g].page_stride)));
    }
  }
  finish_snapshot(bytes);
  return bytes;
}

/// What a snapshot must be for this model, beyond being well formed.
static Status check_session(const ModelState& model, const Snapshot& s) {
  const SnapshotShape& shape = model.snapshot_shape;
  if (!(s.shape.fingerprint == shape.fingerprint))
    return Error(ErrorCode::invalid_argument,
                 "the snapshot was taken with another model or backend; load that one");
  if (s.shape.keys != shape.keys || s.shape.values != shape.values)
    return Error(ErrorCode::invalid_argument,
                 "the snapshot was taken with other KV types; set ModelOptions::kv_keys and "
                 "kv_values as they were");
  bool sound = s.shape.groups == shape.groups;
  const auto in_vocabulary = [&](std::span<const Token> tokens) {
    for (const Token t : tokens)
      if (t < 0 || static_cast<std::size_t>(t) >= model.info.n_vocab) return false;
    return true;
  };
  sound = sound && in_vocabulary(s.tokens);
  for (const auto& reply : s.generated) sound = sound && in_vocabulary(reply);
  for (const Message& message : s.messages) sound = sound && !message.role.empty();
  switch (static_cast<SessionState::Kind>(s.kind)) {
    case SessionState::Kind::empty: sound = sound && s.tokens.empty() && s.messages.empty(); break;
    case SessionState::Kind::text: sound = sound && s.messages.empty(); break;
    case SessionState::Kind::chat: sound = sound && !s.messages.empty(); break;
    default: sound = false;
  }
  if (!sound)
    return Error(ErrorCode::invalid_file, "the snapshot contradicts itself; it cannot be restored");
  if (s.tokens.size() > model.info.context)
    return make_error(ErrorCode::context_full,
                      "the snapshot holds {} tokens, a session of this model {}; raise "
                      "ModelOptions::context",
                      s.tokens.size(), model.info.context);
  return {};
}

static Status restore_session(SessionState& s, std::span<const std::byte> bytes) {
  DECANT_TRY(s.settle());
  DECANT_TRY(check_snapshot(bytes));
  DECANT_ASSIGN(Snapshot snapshot,
                parse_snapshot(bytes.first(bytes.size() - kSnapshotChecksumBytes)));
  DECANT_TRY(check_session(*s.model, snapshot));
  auto sequence = std::make_shared<Sequence>(s.model->engine->kv(), s.sequence->capacity);
  sequence->tokens.assign(snapshot.tokens.begin(), snapshot.tokens.end());
  if (snapshot.n_computed != 0) {
    // Pages that the cache has are shared; the others come from the snapshot.
    KvSequence& kv = sequence->kv;
    const auto n = static_cast<std::size_t>(snapshot.n_computed);
    kv.seek(sequence->tokens, n / kPageTokens * kPageTokens);
    kv.truncate(kv.length() / kPageTokens * kPageTokens);
    DECANT_TRY(kv.adopt(n, snapshot.first_page, snapshot.pages));
    sequence->known = n;
  }
  s.sequence = std::move(sequence);
  s.kind = static_cast<SessionState::Kind>(snapshot.kind);
  s.messages = std::move(snapshot.messages);
  s.generated = std::move(snapshot.generated);
  return {};
}

/// No snapshot of this model is larger, but for texts.
static std::uint64_t largest_snapshot(const ModelState& model) {
  constexpr std::uint64_t kTexts = std::uint64_t{256} << 20;
  return model.info.kv_pool_bytes + 8 * static_cast<std::uint64_t>(model.info.context) + kTexts;
}

}  // namespace detail

using namespace detail;

Result<std::vector<std::byte>> Session::save(const SaveOptions& options) const {
  return guarded([&]() -> Result<std::vector<std::byte>> {
    DECANT_TRY(state_->settle());
    return session_bytes(*state_, options.pages);
  });
}

Status Session::save(std::string_view path, const SaveOptions& options) const {
  return guarded([&]() -> Status {
    DECANT_TRY(state_->settle());
    return file_replace(path, session_bytes(*state_, options.pages));
  });
}

Status Session::restore(std::span<const std::byte> snapshot) {
  return guarded([&] { return restore_session(*state_, snapshot); });
}

Status Session::restore(std::string_view path) {
  return guarded([&]() -> Status {
    DECANT_TRY(state_->settle());
    DECANT_ASSIGN(File file, File::open(path));
    if (file.size() > largest_snapshot(*state_->model))
      return make_error(ErrorCode::invalid_file,
                        "'{}' has {} bytes, more than a snapshot of this model can have",
                        shown_path(path), file.size());
    std::vector<std::byte> bytes(static_cast<std::size_t>(file.size()));
    DECANT_TRY(file.read(0, bytes));
    return restore_session(*state_, bytes);
  });
}

}  // namespace decant
