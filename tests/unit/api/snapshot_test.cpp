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
