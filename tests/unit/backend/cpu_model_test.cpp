// Promise 2 on the CPU backend: one set of bits for all instruction sets of this machine, threads
// and chunks; and its distance from the reference backend on models with float weights, where both
// only round differently.
#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;

TEST_CASE("tiny models on the CPU backend: same bits for any instruction set, threads and chunk") {
  for (const char* architecture : {"llama", "gemma3"}) {
    TinySpec spec;
    spec.architecture = architecture;
    spec.n_layers = 4;
    TinyModel tiny = random_model(spec);
    std::vector<Token> prompt;
    for (int i = 0; i < 70; ++i) prompt.push_back(static_cast<Token>(3 + (i * 7) % 20));

    const auto logits_with = [&](decant::Backend backend, std::string_view isa, int threads,
                                 std::size_t chunk) {
      decant::ModelOptions options;
      options.backend = backend;
      options.isa = isa;
      options.threads = threads;
      options.chunk = chunk;
      options.kv_keys = options.kv_values = decant::KvType::f32;
      decant::Model model = tiny.load(options);
      auto session = session_with(model, prompt);
      return last_logits(session, model, prompt.size());
    };
    const auto first = logits_with(decant::Backend::cpu, "portable", 1, 512);
    std::size_t n_isas = 0;
    for (const char* isa : {"portable", "avx2", "avx512", "neon"}) {
      decant::ModelOptions options;
      options.isa = isa;
      const auto file = tiny.file();
      const auto loads = decant::Model::load(std::span(file), options);
      if (!loads) {
        CHECK(loads.error().code() == decant::ErrorCode::unsupported);
        continue;
      }
      ++n_isas;
      for (const int threads : {1, 3})
        for (const std::size_t chunk : {1, 7, 64}) {
          CAPTURE(architecture, isa, threads, chunk);
          CHECK(same_bits(first, logits_with(decant::Backend::cpu, isa, threads, chunk)));
        }
    }
    CHECK(n_isas >= 1);

    const auto reference = logits_with(decant::Backend::reference, "", 1, 512);
    double worst = 0;
    for (std::size_t i = 0; i < first.size(); ++i)
      worst = std::max(worst,
                       std::abs(static_cast<double>(first[i]) - static_cast<double>(reference[i])));
    CHECK(worst <= 1e-4);  // f32 sums of some hundred terms of size 1
  }
}
