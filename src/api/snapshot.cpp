// Session::save and restore: one session, or several of a model together.
#include "api/chat.hpp"
#include "base/file.hpp"

namespace decant {

namespace detail {

/// The pages of a group that a snapshot holds, in the order in which tables name them first.
struct SnapshotPages {
  struct Page {
    std::int32_t at;  // in the pool
    int n_slots;      // that hold a token of a session
  };
  std::vector<Page> pages;
  std::vector<std::uint32_t> index;  // [pages of the pool] + 1; 0: not there

  std::uint32_t add(std::int32_t at, int n_slots) {
    std::uint32_t& i = index[static_cast<std::size_t>(at)];
    if (i == 0) {
      pages.push_back({at, n_slots});
      i = static_cast<std::uint32_t>(pages.size());
    }
    pages[i - 1].n_slots = std::max(pages[i - 1].n_slots, n_slots);
    return i - 1;
  }
};

static SnapshotSession session_snapshot(const SessionState& s, bool pages,
                                        std::vector<SnapshotPages>& stored) {
  const KvSequence& kv = s.sequence->kv;
  SnapshotSession out;
  out.kind = static_cast<std::uint32_t>(s.kind);
  out.tokens = s.sequence->tokens;
  out.messages = s.messages;
  out.generated = s.generated;
  if (!pages || kv.length() == 0) return out;
  out.n_computed = kv.length();
  for (std::size_t g = 0; g < stored.size(); ++g) {
    KvSequence::StoredTable table{kv.first_page(g), {}};
    for (std::size_t i = table.first; i * kPageTokens < kv.length(); ++i) {
      const std::size_t n = std::min<std::size_t>(kv.length() - i * kPageTokens, kPageTokens);
      table.pages.push_back(stored[g].add(kv.block_tables()[g][i], static_cast<int>(n)));
    }
    out.tables.push_back(std::move(table));
  }
  return out;
}

static Result<std::vector<std::byte>> save_sessions(std::span<SessionState* const> sessions,
                                                    bool pages) {
  if (sessions.empty() || sessions.size() > kSnapshotMostSessions)
    return make_error(ErrorCode::invalid_argument,
                      "{} sessions cannot be saved together, only 1 to {}", sessions.size(),
                      kSnapshotMostSessions);
  const ModelState* model = nullptr;
  for (SessionState* const s : sessions) {
    if (s == nullptr) return Error(ErrorCode::invalid_argument, "a session to save is null");
    DECANT_TRY(s->settle());
    if (model != nullptr && s->model.get() != model)
      return Error(ErrorCode::invalid_argument,
                   "sessions of different models cannot be saved together");
    model = s->model.get();
  }
  KvCache& kv = *model->engine->kv();
  std::vector<SnapshotPages> stored(static_cast<std::size_t>(kv.n_groups()));
  for (std::size_t g = 0; g < stored.size(); ++g)
    stored[g].index.assign(kv.n_pages(static_cast<int>(g)), 0);
  Snapshot snapshot;
  snapshot.shape = model->snapshot_shape;
  for (const SessionState* const s : sessions)
    snapshot.sessions.push_back(session_snapshot(*s, pages, stored));
  std::uint64_t page_bytes = kSnapshotChecksumBytes;
  for (std::size_t g = 0; g < stored.size(); ++g) {
    snapshot.n_pages.push_back(stored[g].pages.size());
    page_bytes += stored[g].pages.size() * kv.views()[g].page_stride;
  }
  std::vector<std::byte> bytes = write_snapshot_head(snapshot);
  bytes.reserve(bytes.size() + static_cast<std::size_t>(page_bytes));
  for (std::size_t g = 0; g < stored.size(); ++g) {
    const KvView& view = kv.views()[g];
    for (const SnapshotPages::Page& page : stored[g].pages) {
      bytes.resize(bytes.size() + static_cast<std::size_t>(view.page_stride));
      std::byte* const to = &bytes[bytes.size() - static_cast<std::size_t>(view.page_stride)];
      kv.read_page(g, page.at, to);
      if (page.n_slots < kPageTokens) clear_slots(view, page.n_slots, to);
    }
  }
  finish_snapshot(bytes);
  return bytes;
}

/// What a snapshot must be for this model, beyond being well formed.
static Status check_shape(const ModelState& model, const SnapshotShape& found) {
  const SnapshotShape& shape = model.snapshot_shape;
  if (!(found.fingerprint == shape.fingerprint))
    return Error(ErrorCode::invalid_argument,
                 "the snapshot was taken with another model or backend; load that one");
  if (found.keys != shape.keys || found.values != shape.values)
    return Error(ErrorCode::invalid_argument,
                 "the snapshot was taken with other KV types; set ModelOptions::kv_keys and "
                 "kv_values as they were");
  if (found.groups != shape.groups)
    return Error(ErrorCode::invalid_file, "the snapshot contradicts its fingerprint");
  return {};
}

static Status check_session(const ModelState& model, const SnapshotSession& s) {
  const auto in_vocabulary = [&](std::span<const Token> tokens) {
    for (const Token t : tokens)
      if (t < 0 || static_cast<std::size_t>(t) >= model.info.n_vocab) return false;
    return true;
  };
  bool sound = in_vocabulary(s.tokens);
  for (const auto& reply : s.generated) sound = sound && in_vocabulary(reply);
  for (const Message& message : s.messages) sound = sound && check_message(message);
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

/// The sessions of a snapshot, at most `most`, as new ones.
static Result<std::vector<std::shared_ptr<SessionState>>> restored_sessions(
    const std::shared_ptr<ModelState>& model, std::span<const std::byte> bytes, std::size_t most) {
  DECANT_TRY(check_snapshot(bytes));
  DECANT_ASSIGN(Snapshot snapshot,
                parse_snapshot(bytes.first(bytes.size() - kSnapshotChecksumBytes)));
  DECANT_TRY(check_shape(*model, snapshot.shape));
  if (snapshot.sessions.size() > most)
    return make_error(ErrorCode::invalid_argument,
                      "the snapshot holds {} sessions; Session::restore takes one, "
                      "Session::restore_all any number",
                      snapshot.sessions.size());
  for (const SnapshotSession& s : snapshot.sessions) DECANT_TRY(check_session(*model, s));
  std::vector<StoredPages> stored;
  for (std::size_t g = 0; g < snapshot.pages.size(); ++g)
    stored.push_back({snapshot.pages[g], std::vector<std::int32_t>(
                                             static_cast<std::size_t>(snapshot.n_pages[g]), -1)});
  std::vector<std::shared_ptr<SessionState>> out;
  for (SnapshotSession& s : snapshot.sessions) {
    auto state = std::make_shared<SessionState>();
    state->model = model;
    state->sequence = std::make_shared<Sequence>(model->engine->kv(), model->info.context);
    Sequence& sequence = *state->sequence;
    sequence.tokens.assign(s.tokens.begin(), s.tokens.end());
    if (s.n_computed != 0) {
      // Pages that the cache has are shared; the others come from the snapshot.
      const auto n = static_cast<std::size_t>(s.n_computed);
      sequence.kv.seek(sequence.tokens, n / kPageTokens * kPageTokens);
      sequence.kv.truncate(sequence.kv.length() / kPageTokens * kPageTokens);
      DECANT_TRY(sequence.kv.adopt(n, s.tables, stored));
      sequence.known = n;
    }
    state->kind = static_cast<SessionState::Kind>(s.kind);
    state->messages = std::move(s.messages);
    state->generated = std::move(s.generated);
    out.push_back(std::move(state));
  }
  return out;
}

static Status restore_session(SessionState& s, std::span<const std::byte> bytes) {
  DECANT_TRY(s.settle());
  DECANT_ASSIGN(auto restored, restored_sessions(s.model, bytes, 1));
  s.sequence = std::move(restored[0]->sequence);
  s.kind = restored[0]->kind;
  s.messages = std::move(restored[0]->messages);
  s.generated = std::move(restored[0]->generated);
  return {};
}

/// What a file of this model's sessions may have, so that a huge file is no danger.
static std::uint64_t largest_snapshot(const ModelState& model) {
  constexpr std::uint64_t kTexts = std::uint64_t{256} << 20;
  return model.info.kv_pool_bytes + 8 * static_cast<std::uint64_t>(model.info.context) + kTexts;
}

static Error snapshot_size_error(ErrorCode code, std::string_view path, std::uint64_t size,
                                 std::uint64_t most) {
  return make_error(code, "'{}': a snapshot of {} bytes; files of this model's have at most {}",
                    shown_path(path), size, most);
}

static Result<std::vector<std::byte>> read_snapshot(const ModelState& model,
                                                    std::string_view path) {
  DECANT_ASSIGN(File file, File::open(path));
  if (file.size() > largest_snapshot(model))
    return snapshot_size_error(ErrorCode::invalid_file, path, file.size(), largest_snapshot(model));
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size()));
  DECANT_TRY(file.read(0, bytes));
  return bytes;
}

static Status write_snapshot(const ModelState& model, std::string_view path,
                             const std::vector<std::byte>& bytes) {
  if (bytes.size() > largest_snapshot(model))
    return snapshot_size_error(ErrorCode::invalid_argument, path, bytes.size(),
                               largest_snapshot(model));
  return file_replace(path, bytes);
}

}  // namespace detail

using namespace detail;

Result<std::vector<std::byte>> Session::save_all(std::span<const Session* const> sessions,
                                                 const SaveOptions& options) {
  const auto save = [&]() -> Result<std::vector<std::byte>> {
    std::vector<SessionState*> states;
    for (const Session* const session : sessions)
      states.push_back(session == nullptr ? nullptr : session->state_.get());
    return save_sessions(states, options.pages);
  };
  for (const Session* const session : sessions)
    if (session != nullptr) return guarded(*session->state_->model, save);
  return guarded(save);
}

Status Session::save_all(std::span<const Session* const> sessions, std::string_view path,
                         const SaveOptions& options) {
  return guarded([&]() -> Status {
    DECANT_ASSIGN(const std::vector<std::byte> bytes, save_all(sessions, options));
    return write_snapshot(*sessions[0]->state_->model, path, bytes);
  });
}

Result<std::vector<Session>> Session::restore_all(Model& model,
                                                  std::span<const std::byte> snapshot) {
  return guarded(*model.state_, [&]() -> Result<std::vector<Session>> {
    DECANT_TRY(model.state_->need_engine());
    DECANT_ASSIGN(auto states, restored_sessions(model.state_, snapshot, SIZE_MAX));
    std::vector<Session> sessions;
    for (auto& state : states) sessions.push_back(Session(std::move(state)));
    return sessions;
  });
}

Result<std::vector<Session>> Session::restore_all(Model& model, std::string_view path) {
  return guarded(*model.state_, [&]() -> Result<std::vector<Session>> {
    DECANT_TRY(model.state_->need_engine());
    DECANT_ASSIGN(const std::vector<std::byte> bytes, read_snapshot(*model.state_, path));
    return restore_all(model, std::span(bytes));
  });
}

Result<std::vector<std::byte>> Session::save(const SaveOptions& options) const {
  const Session* const self = this;
  return save_all({&self, 1}, options);
}

Status Session::save(std::string_view path, const SaveOptions& options) const {
  const Session* const self = this;
  return save_all({&self, 1}, path, options);
}

Status Session::restore(std::span<const std::byte> snapshot) {
  return guarded(*state_->model, [&] { return restore_session(*state_, snapshot); });
}

Status Session::restore(std::string_view path) {
  return guarded(*state_->model, [&]() -> Status {
    DECANT_TRY(state_->settle());
    DECANT_ASSIGN(const std::vector<std::byte> bytes, read_snapshot(*state_->model, path));
    return restore_session(*state_, bytes);
  });
}

}  // namespace decant
