// Weights times activations on the executor, against sums in double precision of the values that
// `dequantise` gives.
#include "cuda_host/support.hpp"

using namespace decant_test;

namespace {

std::vector<float> multiply(const Schedule& schedule, const std::vector<const DevicePacked*>& w,
                            const std::vector<std::vector<float>>& bias, const Activations& x,
                            float softcap = 0.0f) {
  MultiplyArgs args;
  int groups = 0, stage = 0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    args.weight[i] = w[i]->weight;
    args.bias[i] = bias[i].empty() ? nullptr : bias[i].data();
    groups += w[i]->weight.n_groups;
    stage = std::max(stage, stage_bytes(w[i]->weight.form));
  }
  args.x = x;
  args.softcap = softcap;
  args.out_stride = groups * kRowGroup;
  std::vector<float> out(usize(x.n_rows * args.out_stride), NAN);
  args.out = out.data();
  Launcher launcher(schedule);
  for_token_tiles(x.n_rows, [&](auto n) {
    launch(
        multiply_rows<n()>,
        {static_cast<unsigned>(groups), static_cast<unsigned>((x.n_rows + 8 * n - 1) / (8 * n)), 1},
        kMultiplyThreads, multiply_shared_bytes(stage, n()), launcher.stream, args);
  });
  return out;
}

/// Row `row` of a weight times row `token`, and the sum of the terms' magnitudes.
struct Exact {
  double value = 0, magnitude = 0;
};
Exact exact(const std::vector<float>& values, int cols, int row, const Bf16Rows& x, int token) {
  Exact e;
  for (int c = 0; c < cols; ++c) {
    const double term = static_cast<double>(values[usize(row * cols + c)]) * x.at(token, c);
    e.value += term;
    e.magnitude += std::abs(term);
  }
  return e;
}

}  // namespace

TEST_CASE("cuda multiply: all types, odd shapes, against double precision") {
  for (const TensorType type : kTypes)
    for (const int scale : {1, 3}) {
      const std::size_t block = tensor_type_info(type)->block_elements;
      const int cols = static_cast<int>(block) * (block == 256  ? scale
                                                  : block == 32 ? 3 * scale
                                                                : 37 * scale);
      const FileRows rows(type, 16 * scale + 5, cols, 7);
      const std::vector<float> values = rows.values();
      const DevicePacked packed(rows);
      const Bf16Rows x(11 * scale, cols, 8);
      std::vector<float> bias(usize(packed.weight.n_groups * kRowGroup));
      for (int r = 0; r < rows.rows; ++r) bias[usize(r)] = static_cast<float>(r) / 8;
      const auto out = multiply({}, {&packed}, {bias}, x.first(x.n_rows));
      const int stride = packed.weight.n_groups * kRowGroup;
      double worst = 0;
      for (int t = 0; t < x.n_rows; ++t)
        for (int r = 0; r < stride; ++r) {
          Exact e;
          if (r < rows.rows) e = exact(values, cols, r, x, t);
          e.value += static_cast<double>(bias[usize(r)]);
          e.magnitude += static_cast<double>(bias[usize(r)]) + 1e-30;
          worst =
              std::max(worst, std::abs(static_cast<double>(out[usize(t * stride + r)]) - e.value) /
                                  e.magnitude);
        }
      CAPTURE(tensor_type_info(type)->name, cols);
      // Each sum rounds at most `cols` times; a minimum's term and its scale's partly cancel.
      CHECK(worst <= (cols + 8) * 0x1p-24 * 4);
    }
}

TEST_CASE("cuda multiply: a row's bits do not depend on its neighbours or on the schedule") {
  for (const TensorType type : {TensorType::Q4_0, TensorType::Q4_K, TensorType::Q6_K,
                                TensorType::Q8_0, TensorType::F16, TensorType::BF16}) {
    const FileRows rows(type, 40, 512, 3), other(TensorType::Q5_1, 16, 512, 4);
    const DevicePacked packed(rows), second(other);
    const Bf16Rows x(70, 512, 5);
    const auto alone = multiply({}, {&packed, &second}, {{}, {}}, x.first(1));
    for (const int n : {2, 8, 9, 16, 17, 33, 64, 70}) {
      const auto many = multiply({}, {&packed, &second}, {{}, {}}, x.first(n));
      CHECK(std::equal(alone.begin(), alone.end(), many.begin()));
    }
    const auto nine = multiply({}, {&packed, &second}, {{}, {}}, x.first(9));
    for (const Schedule& s : kSchedules)
      CHECK(same_bits(multiply(s, {&packed, &second}, {{}, {}}, x.first(9)), nine));
    // The last row alone is the last row of many.
    const Activations last = {x.data.data() + 69 * x.stride, 1, x.stride};
    const auto row = multiply({}, {&packed, &second}, {{}, {}}, last);
    const auto all = multiply({}, {&packed, &second}, {{}, {}}, x.first(70));
    CHECK(std::equal(row.begin(), row.end(), all.end() - static_cast<std::ptrdiff_t>(row.size())));
  }
}

TEST_CASE("cuda multiply: soft-capped outputs are the function of those without a cap") {
  const FileRows rows(TensorType::Q8_0, 24, 96, 11);
  const DevicePacked packed(rows);
  const Bf16Rows x(9, 96, 12);
  const std::vector<float> bias(32, 0.5f);
  const auto plain = multiply({}, {&packed}, {bias}, x.first(9));
  const auto capped = multiply({}, {&packed}, {bias}, x.first(9), 3.0f);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wanted = 3.0 * std::tanh(static_cast<double>(plain[i]) / 3.0);
    CAPTURE(plain[i]);
    CHECK(std::abs(static_cast<double>(capped[i]) - wanted) <= 0x1p-21 * std::abs(wanted));
  }
}

TEST_CASE("cuda multiply: gate and up, with activation, bias and filling") {
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh})
    for (const Schedule& s : kSchedules) {
      const bool biases = s.seed == 1;
      const int cols = 96, n_ff = 20;
      const FileRows gate_rows(TensorType::Q5_0, n_ff, cols, 1),
          up_rows(TensorType::BF16, n_ff, cols, 2);
      const DevicePacked gate(gate_rows), up(up_rows);
      const auto gate_values = gate_rows.values(), up_values = up_rows.values();
      const Bf16Rows x(3, cols, 9);
      GateUpArgs a;
      a.gate = gate.weight;
      a.up = up.weight;
      std::vector<float> gate_bias(32, 0.0f), up_bias(32, 0.0f);
      for (std::size_t i = 0; i < usize(n_ff); ++i) {
        gate_bias[i] = 0.25f;
        up_bias[i] = -0.5f;
      }
      a.gate_bias = biases ? gate_bias.data() : nullptr;
      a.up_bias = biases ? up_bias.data() : nullptr;
      a.activation = activation;
      a.x = x.first(3);
      a.out_stride = 64;
      std::vector<std::uint16_t> out(3 * 64, 0xFFFF);
      a.out = out.data();
      Launcher launcher(s);
      launch(multiply_gate_up<1>, {2, 1, 1}, kMultiplyThreads,
             multiply_shared_bytes(std::max(stage_bytes(a.gate.form), stage_bytes(a.up.form)), 1),
             launcher.stream, a);
      for (int t = 0; t < 3; ++t)
        for (int r = 0; r < 64; ++r) {
          double wanted = 0;
          if (r < n_ff) {
            const double g = exact(gate_values, cols, r, x, t).value + (biases ? 0.25 : 0);
            const double u = exact(up_values, cols, r, x, t).value - (biases ? 0.5 : 0);
            const double inner = 0.79788456080286535588 * (g + 0.044715 * g * g * g);
            wanted = u * (activation == Activation::silu ? g / (1 + std::exp(-g))
                                                         : 0.5 * g * (1 + std::tanh(inner)));
          }
          const double got = static_cast<double>(bf16_to_f32(out[usize(t * 64 + r)]));
          CHECK(std::abs(got - wanted) <= std::abs(wanted) * 0x1p-8 + 1e-3);
        }
    }
}

TEST_CASE("cuda multiply: packed elements are those of the file") {
  for (const TensorType type : kTypes) {
    const int cols = tensor_type_info(type)->block_elements == 256 ? 512 : 96;
    const FileRows rows(type, 21, cols, 5);
    const auto values = rows.values();
    const DevicePacked packed(rows);
    std::size_t n_wrong = 0;
    for (int r = 0; r < rows.rows; ++r)
      for (int c = 0; c < cols; ++c)
        n_wrong += weight_element(packed.weight, r, c) != values[usize(r * cols + c)];
    CAPTURE(tensor_type_info(type)->name);
    CHECK(n_wrong == 0);
  }
}
