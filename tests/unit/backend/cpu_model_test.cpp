// Promise 2 on the CPU backend: one set of bits, of logits and of pages, for all instruction sets
// of this machine, threads, chunks, neighbours and places of pages; and its distance from the
// reference backend on models with float weights, where both only round differently.
#include "base/float16.hpp"
#include "support/catch.hpp"
#include "support/host_mode.hpp"
#include "support/told.hpp"

using namespace decant_test;

namespace {

Left left_by(decant::Model& model, std::span<const Token> prompt) {
  auto session = session_with(model, prompt);
  auto logits = last_logits(session, model, 6);
  return {std::move(logits), session.save().value()};
}

/// The same while seven others are in flight, in pages that others have used and mixed up.
Left left_among_others(decant::Model& model, std::span<const Token> prompt) {
  std::vector<decant::Session> others;
  for (std::size_t i = 0; i < 7; ++i) others.push_back(session_with(model, prompt.first(2 + i)));
  std::vector<decant::Reply> replies;
  for (auto& other : others)
    replies.push_back(
        other.generate({.max_tokens = 5, .sampler = decant::Sampler::greedy()}).value());
  Left left = left_by(model, prompt);
  for (auto& reply : replies) reply.wait().value();
  return left;
}

/// Matrices of the layers and the head in Q4_1, rounded somehow: blocks of 32 columns as f16 scale,
/// f16 minimum, 16 bytes of codes.
void to_q4_1(TinyModel& model) {
  for (TinyModel::Tensor& t : model.tensors) {
    if (t.shape.size() != 2 || t.name == "token_embd.weight") continue;
    std::vector<float> blocks;
    for (std::size_t at = 0; at < t.data.size(); at += 32) {
      const auto [min, max] =
          std::minmax_element(t.data.begin() + static_cast<std::ptrdiff_t>(at),
                              t.data.begin() + static_cast<std::ptrdiff_t>(at + 32));
      const float low = *min, d = (*max - low) / 15.0f;
      const std::uint16_t head[2] = {decant::detail::f32_to_f16(d),
                                     decant::detail::f32_to_f16(low)};
      std::uint8_t bytes[20];
      std::memcpy(bytes, head, 4);
      const auto code = [&](std::size_t i) {
        return static_cast<int>(std::lround((t.data[at + i] - low) / d));
      };
      for (std::size_t i = 0; i < 16; ++i)
        bytes[4 + i] = static_cast<std::uint8_t>(code(i) | code(16 + i) << 4);
      blocks.resize(blocks.size() + 5);
      std::memcpy(&blocks[blocks.size() - 5], bytes, 20);
    }
    t.data = std::move(blocks);
    t.type = 3;  // Q4_1
  }
}

}  // namespace

TEST_CASE("tiny models on the CPU backend: the same bits in every way") {
  struct Case {
    TinySpec spec;
    bool quantised;
  };
  // Groups of 5, 3, 1 and 8 heads; odd sizes; windows.
  const auto which = GENERATE(0, 1, 2, 3, 4);
  const Case c = std::vector<Case>{
      {{.n_embd = 45, .n_heads = 5, .n_kv_heads = 1, .head_dim = 18, .n_ff = 52}, false},
      {{.n_embd = 96, .n_heads = 6, .n_kv_heads = 2, .head_dim = 16, .n_ff = 160}, true},
      {{.architecture = "gemma3", .n_heads = 2, .n_kv_heads = 2, .head_dim = 20}, false},
      {{.architecture = "gemma3", .n_embd = 64, .n_heads = 8, .n_kv_heads = 1, .n_ff = 96}, true},
      {{.architecture = "gemma2", .n_heads = 6, .n_kv_heads = 2, .head_dim = 24}, false},
  }[static_cast<std::size_t>(which)];
  TinyModel tiny = random_model(c.spec);
  if (c.quantised) to_q4_1(tiny);
  const std::vector<std::byte> file = tiny.file();
  const std::vector<Token> prompt = TinyRandom(5).tokens(70);
  decant::ModelOptions options;
  options.sessions = 8;
  options.context = 96;
  options.prefix_cache = false;

  options.isa = "portable";
  options.threads = 1;
  auto plain = decant::Model::load(std::span(file), options).value();
  const Left first = left_by(plain, prompt);
  std::size_t n_isas = 0;
  for (const char* isa : {"portable", "avx2", "avx512", "neon"}) {
    options.isa = isa;
    const auto loads = decant::Model::load(std::span(file), options);
    if (!loads) {
      CHECK(loads.error().code() == decant::ErrorCode::unsupported);
      continue;
    }
    ++n_isas;
    for (const int threads : {1, 2, 3, 5})
      for (const std::size_t chunk : {1, 7, 64, 512}) {
        CAPTURE(which, isa, threads, chunk);
        options.threads = threads;
        options.chunk = chunk;
        auto model = decant::Model::load(std::span(file), options).value();
        CHECK(left_by(model, prompt) == first);
        CHECK(left_among_others(model, prompt) == first);
      }
  }
  CHECK(n_isas >= 1);

  // A host's floating-point mode, at the load and at each call.
  options.isa = {};
  options.threads = 2;
  options.chunk = 7;
  for (const auto kind : {HostMode::flush_to_zero, HostMode::toward_zero, HostMode::both}) {
    Left left;
    {
      const HostMode mode(kind);
      auto model = decant::Model::load(std::span(file), options).value();
      left = left_by(model, prompt);
    }
    CAPTURE(which, static_cast<int>(kind));
    CHECK(left == first);
  }
}

TEST_CASE(
    "tiny models on the CPU backend: float weights are as near as rounding to the reference") {
  for (const char* architecture : {"llama", "gemma2", "gemma3"}) {
    CAPTURE(architecture);
    const TinyModel tiny = random_model({.architecture = architecture, .n_layers = 4});
    const std::vector<Token> prompt = TinyRandom(6).tokens(70);
    decant::ModelOptions options;
    options.kv_keys = options.kv_values = decant::KvType::f32;
    auto model = tiny.load(options);
    const auto logits = left_by(model, prompt).logits;
    options.backend = decant::Backend::reference;
    auto reference = tiny.load(options);
    const auto wanted = left_by(reference, prompt).logits;
    double worst = 0;
    for (std::size_t i = 0; i < logits.size(); ++i)
      worst = std::max(worst,
                       std::abs(static_cast<double>(logits[i]) - static_cast<double>(wanted[i])));
    CHECK(worst <= 1e-4);  // f32 sums of some hundred terms of size 1
  }
}
