// SmolLM2-135M-Instruct (Q4_1, Q8_0 head) and Gemma 3 270M (Q4_K, Q6_K, Q8_0) on the CUDA kernels,
// against transformers 5.24 in float32 on the dequantised weights (golden data "real/").
#include <decant/decant.hpp>

#include <cmath>

#include "support/npz.hpp"
#include "support/real_models.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;

namespace {

void check_real_model(const char* variable, const std::string& name) {
  const auto path = real_model(variable);
  if (!path) DECANT_SKIP(std::string(variable) + " is not set");
  const auto golden = read_npz(std::string(DECANT_TEST_DATA) + "/real/real-" + name + ".npz");
  const auto columns = golden.at("columns").as<std::size_t>();
  decant::ModelOptions options;
  options.backend = decant::Backend::cuda_host;
  options.context = 64;
  auto model = decant::Model::load(*path, options).value();
  const std::size_t n_vocab = model.info().n_vocab;
  auto ids = golden.at("ids1").as<Token>();
  const auto wanted = golden.at("cols1").as<double>();
  ids.resize(8);

  auto session = session_with(model, ids);
  const auto rows = last_logits(session, model, ids.size());
  double squares = 0, apart = 0, sum = 0;
  const std::size_t n = ids.size() * columns.size();
  for (std::size_t t = 0; t < ids.size(); ++t)
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const double reference = wanted[t * columns.size() + c];
      apart += std::pow(static_cast<double>(rows[t * n_vocab + columns[c]]) - reference, 2);
      squares += reference * reference;
      sum += reference;
    }
  const double mean = sum / static_cast<double>(n);
  const double deviation = std::sqrt(squares / static_cast<double>(n) - mean * mean);
  CAPTURE(name, deviation);
  CHECK(std::sqrt(apart / static_cast<double>(n)) <= 0.02 * deviation);

  // In two chunks, the second of which is decoded token by token.
  auto pieces = session_with(model, std::span(ids).first(ids.size() - 2));
  (void)pieces.logits().value();
  for (std::size_t t = ids.size() - 2; t < ids.size(); ++t) {
    pieces.append(std::span(ids).subspan(t, 1)).value();
    const auto row = pieces.logits().value();
    CHECK(same_bits(row, std::span(rows).subspan(t * n_vocab, n_vocab)));
  }
}

}  // namespace

TEST_CASE("SmolLM2 on the CUDA kernels: golden logits, the same bits in chunks", "[real]") {
  check_real_model("DECANT_SMOLLM2", "smollm2");
}
TEST_CASE("Gemma 3 on the CUDA kernels: golden logits, the same bits in chunks", "[real]") {
  check_real_model("DECANT_GEMMA3", "gemma3");
}
