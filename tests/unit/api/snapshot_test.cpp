// Session::save and restore: a session goes on with the same bits, in memory and through a file;
// what was cut, changed or taken elsewhere is refused and changes nothing.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kv/snapshot.hpp"
#include "support/catch.hpp"
#include "support/temp_folder.hpp"
#include "support/told.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::GenerateOptions;
using decant::KvType;
using decant::Message;
using decant::ModelOptions;
using decant::SaveOptions;

namespace {

TinySpec snapshot_spec(const char* architecture) {
  TinySpec spec;
  spec.architecture = architecture;
  spec.n_layers = 4;
  spec.window = 20;
  return spec;
}

ModelOptions snapshot_options(decant::Backend backend, KvType kv, bool prefix_cache = true) {
  ModelOptions options;
  options.backend = backend;
  options.threads = 2;
  options.chunk = 32;
  options.sessions = 3;
  options.kv_keys = options.kv_values = kv;
  options.prefix_cache = prefix_cache;
  return options;
}

}  // namespace

TEST_CASE("a restored session goes on with the same bits") {
  const TempFolder folder;
  for (const char* architecture : {"llama", "gemma3"})
    for (const auto backend : {decant::Backend::cpu, decant::Backend::reference})
      for (const KvType kv : {KvType::f32, KvType::f16, KvType::bf16, KvType::int8})
        for (const std::size_t n : {1u, 15u, 16u, 17u, 100u}) {
          CAPTURE(architecture, static_cast<int>(backend), static_cast<int>(kv), n);
          const TinyModel tiny = random_model(snapshot_spec(architecture));
          auto model = tiny.load(snapshot_options(backend, kv));
          const auto tokens = TinyRandom(n).tokens(n);
          auto session = session_with(model, tokens);
          (void)session.logits().value();
          const auto bytes = session.save().value(), light = session.save({.pages = false}).value();
          CHECK(light.size() < 1000 + 4 * n);
          const std::string path = folder.file("session.kv");
          session.save(path).value();
          session.save(path).value();  // over the old one
          CHECK(std::filesystem::file_size(path) == bytes.size());
          const Told expected = tell(session, 24);

          // Another model object, whose cache is empty; and one that has no prefix cache.
          for (const bool prefix_cache : {true, false}) {
            auto other = tiny.load(snapshot_options(backend, kv, prefix_cache));
            auto restored = other.session().value();
            restored.restore(std::span(bytes)).value();
            CHECK(copy(restored.tokens()) == TinyRandom(n).tokens(n));
            CHECK(restored.save().value() == bytes);
            const Told told = tell(restored, 24);
            CHECK(told == expected);
            CHECK(told.stats.cached_tokens == n - 1);
            restored.restore(path).value();
            CHECK(tell(restored, 24) == expected);
            restored.restore(std::span(light)).value();
            CHECK(tell(restored, 24) == expected);
            restored.restore(std::span(bytes)).value();
            restored.rewind(n / 2).value();
            restored.append(std::span(tokens).subspan(n / 2)).value();
            CHECK(tell(restored, 24) == expected);
          }
          // The same model: pages are shared where it has them.
          auto here = model.session().value();
          here.restore(std::span(bytes)).value();
          CHECK(tell(here, 24) == expected);
        }
}

TEST_CASE("a conversation is restored with its messages and the tokens of its replies") {
  const TinyModel tiny = random_model(snapshot_spec("gemma3"));
  auto model = tiny.load(snapshot_options(decant::Backend::cpu, KvType::f16));
  auto chat = model.session().value();
  chat.append(Message{"user", "own fox"}).value();
  (void)tell(chat, 24);
  const auto bytes = chat.save().value();
  auto other = tiny.load(snapshot_options(decant::Backend::cpu, KvType::f16));
  auto restored = other.session().value();
  restored.restore(std::span(bytes)).value();
  REQUIRE(restored.messages().size() == 2);
  CHECK(restored.messages()[1].content == chat.messages()[1].content);
  for (decant::Session* s : {&chat, &restored}) s->append(Message{"user", "ser"}).value();
  CHECK(tell(restored, 24) == tell(chat, 24));
  auto other_chat = model.session().value();
  other_chat.append(Message{"user", "own", R"({"mood": "good"})"}).value();
  const auto saved = other_chat.save().value();
  restored.restore(std::span(saved)).value();
  REQUIRE(restored.messages().size() == 1);
  CHECK(restored.messages()[0].json == R"({"mood": "good"})");
  auto empty = model.session().value();
  const auto nothing = empty.save().value();
  restored.restore(std::span(nothing)).value();
  CHECK(restored.tokens().empty());
  CHECK(restored.messages().empty());
  CHECK(restored.append(std::vector<Token>{5}));
}

TEST_CASE("a saved session holds nothing of others") {
  auto model = random_model(snapshot_spec("gemma3"))
                   .load(snapshot_options(decant::Backend::cpu, KvType::f16, false));
  const auto tokens = TinyRandom(3).tokens(20);
  std::vector<std::byte> first;
  {
    auto a = session_with(model, tokens);
    (void)a.logits().value();
    first = a.save().value();
  }
  for (std::uint64_t i = 0; i < 5; ++i) {
    auto other = session_with(model, TinyRandom(50 + i).tokens(200));
    (void)other.logits().value();
  }
  auto again = session_with(model, tokens);
  (void)again.logits().value();
  CHECK(again.save().value() == first);
}

TEST_CASE("what is no snapshot of this model is refused, and the session stays") {
  const TinyModel tiny = random_model(snapshot_spec("gemma3"));
  auto model = tiny.load(snapshot_options(decant::Backend::cpu, KvType::f16));
  auto source = session_with(model, TinyRandom(1).tokens(40));
  (void)source.logits().value();
  const auto bytes = source.save().value();
  auto session = session_with(model, std::vector<Token>{7, 8, 9});
  const auto refused = [&](std::span<const std::byte> from, ErrorCode code) {
    const auto status = session.restore(from);
    if (status || status.error().code() != code) return false;
    return copy(session.tokens()) == std::vector<Token>{7, 8, 9};
  };
  // Cut anywhere in the head and at some places of the pages; changed in one byte.
  bool all = true;
  for (std::size_t n = 0; n < bytes.size(); n += n < 600 ? 1 : 997)
    all = all && refused(std::span(bytes).first(n), ErrorCode::invalid_file);
  CHECK(all);
  for (std::size_t i = 0; i < bytes.size(); i += i < 600 ? 1 : 997) {
    auto changed = bytes;
    changed[i] ^= std::byte{0x40};
    all = all && refused(changed, ErrorCode::invalid_file);
  }
  CHECK(all);
  // The same with a right checksum: an error or a session, never harm.
  const std::size_t body = bytes.size() - decant::detail::kSnapshotChecksumBytes;
  for (std::size_t i = 8; i < 600; ++i)
    for (const std::byte flip : {std::byte{1}, std::byte{0x80}, std::byte{0xFF}}) {
      std::vector<std::byte> changed(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(body));
      changed[i] ^= flip;
      decant::detail::finish_snapshot(changed);
      auto target = model.session().value();
      if (target.restore(std::span(changed))) (void)target.rewind(0);
    }

  TinySpec other_spec = snapshot_spec("gemma3");
  other_spec.seed = 2;
  const auto from = [&](const TinyModel& t, const ModelOptions& options) {
    auto m = t.load(options);
    auto s = session_with(m, TinyRandom(1).tokens(40));
    (void)s.logits().value();
    return s.save().value();
  };
  const auto same = snapshot_options(decant::Backend::cpu, KvType::f16);
  CHECK(refused(from(random_model(other_spec), same), ErrorCode::invalid_argument));
  CHECK(refused(from(tiny, snapshot_options(decant::Backend::cpu, KvType::int8)),
                ErrorCode::invalid_argument));
  CHECK(refused(from(tiny, snapshot_options(decant::Backend::reference, KvType::f16)),
                ErrorCode::invalid_argument));
  ModelOptions small = same;
  small.context = 32;
  auto small_model = tiny.load(small);
  auto small_session = small_model.session().value();
  CHECK(small_session.restore(std::span(bytes)).error().code() == ErrorCode::context_full);
  const TempFolder folder;
  CHECK(session.restore(folder.file("none.kv")).error().code() == ErrorCode::not_found);
  CHECK(session.save(folder.file("no/folder.kv")).error().code() == ErrorCode::io);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("snapshots do not fit a pool that others fill, and not a session that is answering") {
  const TinyModel tiny = random_model(snapshot_spec("llama"));
  ModelOptions options = snapshot_options(decant::Backend::cpu, KvType::f16);
  options.sessions = 1;
  options.context = 64;
  auto model = tiny.load(options);
  auto a = session_with(model, TinyRandom(1).tokens(60));
  (void)a.logits().value();
  const auto bytes = a.save().value();
  a.rewind(0).value();
  auto b = session_with(model, TinyRandom(2).tokens(60));
  (void)b.logits().value();
  CHECK(a.restore(std::span(bytes)).error().code() == ErrorCode::out_of_memory);
  CHECK(a.tokens().empty());
  b.rewind(0).value();
  CHECK(a.restore(std::span(bytes)));
  GenerateOptions endless;
  endless.ignore_end = true;
  auto reply = a.generate(endless).value();
  if (const auto busy = a.save(); !busy) CHECK(busy.error().code() == ErrorCode::busy);
  reply.cancel();
  reply.wait().value();
}

TEST_CASE("sessions saved together hold what they share once, before and after") {
  const TempFolder folder;
  for (const char* architecture : {"llama", "gemma3"})
    for (const KvType kv : {KvType::f16, KvType::int8})
      for (const bool prefix_cache : {true, false}) {
        CAPTURE(architecture, static_cast<int>(kv), prefix_cache);
        const TinyModel tiny = random_model(snapshot_spec(architecture));
        const ModelOptions options = snapshot_options(decant::Backend::cpu, kv, prefix_cache);
        auto model = tiny.load(options);
        std::vector<decant::Session> sessions;
        sessions.push_back(session_with(model, TinyRandom(1).tokens(200)));
        (void)sessions[0].logits().value();
        sessions.push_back(sessions[0].fork().value());
        sessions.push_back(sessions[0].fork(150).value());
        sessions[2].append(TinyRandom(2).tokens(30)).value();
        (void)sessions[2].logits().value();
        sessions.push_back(sessions[2].fork().value());
        sessions.push_back(session_with(model, TinyRandom(3).tokens(20)));  // not run
        sessions.push_back(model.session().value());
        std::vector<const decant::Session*> all;
        for (const auto& s : sessions) all.push_back(&s);
        const auto bytes = decant::Session::save_all(all).value();
        const std::size_t used = model.metrics().kv_pages_used;
        // 13 pages, and of the third session what begins in page 9; but all of it where a window
        // had let go what is seen at 150.
        const bool lost = !prefix_cache && std::string(architecture) == "gemma3";
        CHECK(used == 13 + (lost ? 12 : 3));
        std::size_t apart = 0;
        for (const auto& s : sessions) apart += s.save().value().size();
        CHECK(bytes.size() * 10 < apart * (lost ? 6 : 4));
        std::vector<Told> expected;
        const std::string path = folder.file("all.kv");
        decant::Session::save_all(all, path).value();
        CHECK(std::filesystem::file_size(path) == bytes.size());
        for (std::size_t i = 0; i < 5; ++i) expected.push_back(tell(sessions[i], 24));

        for (const bool other_cache : {true, false}) {
          auto other = tiny.load(snapshot_options(decant::Backend::cpu, kv, other_cache));
          auto restored = decant::Session::restore_all(other, std::span(bytes)).value();
          REQUIRE(restored.size() == 6);
          CHECK(other.metrics().kv_pages_used == used);
          std::vector<const decant::Session*> again;
          for (const auto& s : restored) again.push_back(&s);
          CHECK(decant::Session::save_all(again).value() == bytes);
          for (std::size_t i = 0; i < 5; ++i) CHECK(tell(restored[i], 24) == expected[i]);
          CHECK(restored[5].tokens().empty());
          CHECK(other.metrics().kv_copied_pages > 0);  // shared to the end
          restored.clear();
          CHECK(pages_settle_at(0, other));
          // The same from a file, into a model that knows other sessions.
          auto from_file = decant::Session::restore_all(other, path).value();
          REQUIRE(from_file.size() == 6);
          for (std::size_t i = 5; i-- > 0;) CHECK(tell(from_file[i], 24) == expected[i]);
        }
        // One alone is a snapshot of one.
        const auto one = sessions[0].save().value();
        CHECK(decant::Session::restore_all(model, std::span(one)).value().size() == 1);
        CHECK(sessions[4].restore(std::span(bytes)).error().code() == ErrorCode::invalid_argument);
        CHECK(sessions[4].tokens().size() == 44);
      }
}

TEST_CASE("sessions that cannot be saved or restored together") {
  const TinyModel tiny = random_model(snapshot_spec("gemma3"));
  const ModelOptions options = snapshot_options(decant::Backend::cpu, KvType::f16, false);
  auto model = tiny.load(options), other = tiny.load(options);
  auto a = session_with(model, TinyRandom(1).tokens(40));
  auto b = session_with(model, TinyRandom(2).tokens(40));
  auto foreign = session_with(other, TinyRandom(1).tokens(40));
  (void)a.logits().value();
  (void)b.logits().value();
  const auto refused = [](std::vector<const decant::Session*> sessions, ErrorCode code) {
    const auto saved = decant::Session::save_all(sessions);
    return !saved && saved.error().code() == code;
  };
  CHECK(refused({}, ErrorCode::invalid_argument));
  CHECK(refused({&a, nullptr}, ErrorCode::invalid_argument));
  CHECK(refused({&a, &foreign}, ErrorCode::invalid_argument));
  CHECK(refused(std::vector<const decant::Session*>(4097, &a), ErrorCode::invalid_argument));
  GenerateOptions endless;
  endless.ignore_end = true;
  {
    auto reply = b.generate(endless).value();
    if (!reply.finished()) CHECK(refused({&a, &b}, ErrorCode::busy));
    reply.cancel();
    reply.wait().value();
  }
  (void)b.logits().value();  // its window may have moved on before the reply was cancelled
  const std::vector<const decant::Session*> both{&a, &b};
  const auto bytes = decant::Session::save_all(both).value();

  ModelOptions scarce = options;
  scarce.sessions = 1;
  scarce.context = 64;
  auto small = tiny.load(scarce);  // room for one of the two
  const auto full = decant::Session::restore_all(small, std::span(bytes));
  REQUIRE_FALSE(full);
  CHECK(full.error().code() == ErrorCode::out_of_memory);
  CHECK(small.metrics().kv_pages_used == 0);
  ModelOptions words;
  words.vocabulary_only = true;
  auto vocabulary = tiny.load(words);
  CHECK(decant::Session::restore_all(vocabulary, std::span(bytes)).error().code() ==
        ErrorCode::invalid_state);

  // A right checksum over wrong bytes: an error or sessions that can be used, never harm.
  const std::size_t body = bytes.size() - decant::detail::kSnapshotChecksumBytes;
  std::size_t n_restored = 0;
  for (std::size_t i = 8; i < 900; ++i)
    for (const std::byte flip : {std::byte{1}, std::byte{2}, std::byte{0x80}}) {
      std::vector<std::byte> changed(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(body));
      changed[i] ^= flip;
      decant::detail::finish_snapshot(changed);
      auto sessions = decant::Session::restore_all(other, std::span(changed));
      if (!sessions) continue;
      ++n_restored;
      for (auto& s : *sessions) {
        auto fork = s.fork();
        if (fork && fork->tokens().size() > 3) fork->rewind(3).value();
        (void)s.save();
      }
    }
  CHECK(n_restored > 0);
  CHECK(other.metrics().kv_pages_used == 0);
}

TEST_CASE("a window that lost a page of a restored beginning") {
  // The cache has the snapshot's beginning in the pages that see everything, but not all that the
  // window's layers showed there.
  const TinyModel tiny = random_model(snapshot_spec("gemma3"));
  ModelOptions options = snapshot_options(decant::Backend::cpu, KvType::f16);
  options.sessions = 1;
  auto model = tiny.load(options);
  for (const std::size_t n : {96u, 100u, 112u, 120u, 128u}) {
    CAPTURE(n);
    const auto tokens = TinyRandom(n).tokens(n);
    std::vector<std::byte> bytes;
    Told expected;
    {
      auto session = session_with(model, tokens);
      (void)session.logits().value();
      bytes = session.save().value();
      expected = tell(session, 24);
      session.rewind(n).value();
      session.append(TinyRandom(7).tokens(300)).value();
      (void)session.logits().value();  // goes on until the window's pages are reused
    }
    auto restored = model.session().value();
    restored.restore(std::span(bytes)).value();
    auto fork = restored.fork().value();
    (void)fork.save().value();
    CHECK(tell(restored, 24) == expected);
    CHECK(tell(fork, 24) == expected);
  }
}
