// Texts are published while the next pass runs: in which order, what a callback ends meanwhile, and
// a device that fails. Manual mode does one after the other and says what is wanted.
#include <functional>
#include <mutex>
#include <optional>

#include "cuda_host/executor.hpp"
#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::RunMode;

namespace {

/// Says letters only, so that each token is a text of its own.
const TinyModel& letters() {
  static const TinyModel tiny = [] {
    TinyModel model = random_model();
    std::vector<float>& head = model.tensor("output.weight").data;
    const std::size_t width = head.size() / kTinyTokens;
    for (Token t = 0; t < kTinyTokens; ++t)
      if (t < byte_token('a') || t > byte_token('z'))
        std::fill_n(head.begin() + static_cast<std::ptrdiff_t>(width) * t, width, 0.0f);
    return model;
  }();
  return tiny;
}

decant::Model load(RunMode mode, int device = 0) {
  decant::ModelOptions options;
  options.backend = kCudaBackend;
  options.device = device;
  options.mode = mode;
  options.threads = 1;
  options.context = 64;
  options.sessions = 4;
  options.prefix_cache = false;
  return letters().load(options);
}

GenerateOptions greedy(std::size_t n) {
  GenerateOptions options = exactly(n, 1);
  options.sampler = decant::Sampler::greedy();
  return options;
}

/// A host that notes what on_text tells it, and does something after each call.
struct Host {
  std::string text;
  std::size_t n_texts = 0, n_ends = 0;
  FinishReason reason = FinishReason::none;
  ErrorCode error = ErrorCode::none;
  std::function<bool()> act = [] { return true; };

  static bool on_text(void* self, const decant::ReplyText& piece) {
    Host& h = *static_cast<Host*>(self);
    h.text += piece.text;
    if (piece.finished) {
      h.reason = piece.reason;
      h.error = piece.error.code();
    }
    ++(piece.finished ? h.n_ends : h.n_texts);
    return h.act();
  }
  GenerateOptions hears(GenerateOptions options) {
    options.on_text = on_text;
    options.on_text_user = this;
    return options;
  }
};

}  // namespace

#ifndef DECANT_TEST_GPU
TEST_CASE("cuda overlap: the next pass is queued before a text is told, but for the last one") {
  constexpr std::size_t kTokens = 7;
  const std::vector<Token> prompt = byte_tokens("a fox");
  // Passes that were queued at each call: each of them copies a token, or the logits, to the host.
  const auto passes = [&](RunMode mode, bool on_host) {
    auto model = load(mode);
    auto session = session_with(model, prompt);
    const std::uint64_t pass_bytes = on_host ? model.info().n_vocab * sizeof(float) : sizeof(Token);
    const std::uint64_t before = decant::detail::cuda_host::n_copied_out;
    std::vector<std::uint64_t> seen;
    Host host;
    host.act = [&] {
      seen.push_back((decant::detail::cuda_host::n_copied_out - before) / pass_bytes);
      return true;
    };
    GenerateOptions options = host.hears(greedy(kTokens));
    if (on_host)
      options.process_logits = [](void*, std::span<const Token>, std::span<float>) { return true; };
    session.generate(options).value().wait().value();
    return seen;
  };
  const std::vector<std::uint64_t> one_by_one = {1, 2, 3, 4, 5, 6, 7, 7};  // and the end
  CHECK(passes(RunMode::manual, false) == one_by_one);
  CHECK(passes(RunMode::background, true) == one_by_one);
  CHECK(passes(RunMode::background, false) == std::vector<std::uint64_t>{2, 3, 4, 5, 6, 7, 7, 7});
}

TEST_CASE("cuda overlap: a device that fails does so after the texts that came before") {
  constexpr int kLaunches = 9 * 2 + 4;  // of a pass through two layers
  constexpr int kFails = 1 << 20;       // Device::kFails
  Host whole;
  auto fine = load(RunMode::manual);
  auto session = session_with(fine, byte_tokens("a fox"));
  session.generate(whole.hears(greedy(9))).value().wait().value();
  REQUIRE(whole.text.size() == 9);
  for (const RunMode mode : {RunMode::manual, RunMode::background})
    for (const int n_passes : {0, 1, 2, 5})
      for (const int n_more : {0, 1, kLaunches - 1}) {
        CAPTURE(n_passes, n_more);
        auto model = load(mode, kFails + n_passes * kLaunches + n_more);
        auto failing = session_with(model, byte_tokens("a fox"));
        Host host;
        auto reply = failing.generate(host.hears(greedy(9))).value();
        CHECK_FALSE(reply.wait());
        CHECK(host.text == whole.text.substr(0, static_cast<std::size_t>(n_passes)));
        CHECK(host.n_ends == 1);
        CHECK(host.error == ErrorCode::device_lost);
        CHECK(failing.tokens().size() == 5);
      }
}
#endif

TEST_CASE("cuda overlap: what a callback ends, ends with the token that it was told of") {
  struct Left {
    std::string text, other_text;
    FinishReason reason;
    ErrorCode error;
    std::vector<Token> tokens, session;
    std::vector<float> logits;
    bool operator==(const Left&) const = default;
  };
  for (const char* way : {"false", "throw", "stop", "cancel", "drop"}) {
    const auto left = [&](RunMode mode) {
      auto model = load(mode);
      auto session = session_with(model, byte_tokens("a fox"));
      auto other = session_with(model, byte_tokens("the owl"));
      std::mutex mutex;  // until the reply is there
      std::optional<decant::Reply> reply;
      Host host, neighbour;
      host.act = [&] {
        const std::lock_guard lock(mutex);
        if (host.n_texts != 4 || host.n_ends != 0) return true;
        const std::string what = way;
        if (what == "throw") throw 1;
        if (what == "stop") reply->stop();
        if (what == "cancel") reply->cancel();
        if (what == "drop") reply.reset();
        return what != "false";
      };
      decant::Reply beside = other.generate(neighbour.hears(greedy(20))).value();
      {
        const std::lock_guard lock(mutex);
        reply.emplace(session.generate(host.hears(greedy(20))).value());
      }
      beside.wait().value();
      CHECK(host.n_ends == 1);
      CHECK(neighbour.n_ends == 1);
      const std::vector<Token> tokens = reply ? reply->tokens() : std::vector<Token>();
      const std::span<const Token> all = session.tokens();
      const std::span<const float> logits = session.logits().value();
      return Left{host.text,
                  neighbour.text,
                  host.reason,
                  host.error,
                  tokens,
                  {all.begin(), all.end()},
                  {logits.begin(), logits.end()}};
    };
    CAPTURE(way);
    const Left wanted = left(RunMode::manual);
    CHECK(wanted.text.size() == 4);
    CHECK(wanted.other_text.size() == 20);
    CHECK((left(RunMode::background) == wanted));
  }
}
