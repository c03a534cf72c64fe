// Whole models on the CUDA kernels: tiny llama, gemma2 and gemma3 against transformers' float32
// logits and against a forward pass written here in double precision, which rounds where the
// kernels do; the same bits in every way; and the errors of the backend.
#include <functional>

#include <nlohmann/json.hpp>

#include <fstream>

#include "backend/cuda/cuda.hpp"
#include "backend/kv_int8.hpp"
#include "cuda_host/support.hpp"
#include "model/architecture.hpp"
#include "model/weights.hpp"
#include "support/npz.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::KvType;

namespace {

double to_bf16(double x) {
  return static_cast<double>(bf16_to_f32(f32_to_bf16(static_cast<float>(x))));
}
double to_f16(double x) {
  return static_cast<double>(f16_to_f32(f32_to_f16(static_cast<float>(x))));
}

/// All logits of a prompt of at most 256 tokens (one split) by the definition of the model, with
/// keys and values as f16, or as int8 in the way of kv_int8.hpp. Rounded, as the kernels do: what
/// weights are multiplied with, to bf16; queries and the exponentials of attention, to f16, or to
/// bf16 where the pages are int8, these after the scale of the values.
class RoundedModel {
 public:
  RoundedModel(const std::string& path, KvType kv)
      : kv_(kv), file_(Gguf::open(path, false).value()), spec_(read_model_spec(file_).value()) {
    weights_.emplace(LoadedWeights::load(file_, spec_, {}).value());
  }

  std::vector<double> logits(std::span<const Token> tokens) {
    const ModelWeights& w = weights_->weights();
    const std::size_t n = tokens.size();
    std::vector<Row> stream(n);
    const Matrix embedding = read(w.embedding);
    for (std::size_t t = 0; t < n; ++t)
      for (const double x : embedding[static_cast<std::size_t>(tokens[t])])
        stream[t].push_back(x * spec_.embedding_scale);
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerSpec& s = spec_.layers[i];
      const LayerWeights& l = w.layers[i];
      std::vector<Row> q(n);
      std::vector<Placed> k(n), v(n);
      for (std::size_t t = 0; t < n; ++t) {
        const Row x = rounded(norm(stream[t], l.attention_norm));
        q[t] = head_rows(times(read(l.q), x, l.q_bias), s.key_dim, l.q_norm, s, t);
        for (double& y : q[t]) y = rounded_for_pages(y);
        k[t] =
            placed(head_rows(times(read(l.k), x, l.k_bias), s.key_dim, l.k_norm, s, t), s.key_dim);
        v[t] = placed(times(read(l.v), x, l.v_bias), s.value_dim);
      }
      const Matrix output = read(l.attention_output), gate = read(l.gate), up = read(l.up),
                   down = read(l.down);
      for (std::size_t t = 0; t < n; ++t) {
        const Row attended = rounded(attend(s, q[t], k, v, t));
        add(stream[t], times(output, attended, l.attention_output_bias), l.post_attention_norm);
        const Row x = rounded(norm(stream[t], l.ffn_norm));
        Row g = times(gate, x, l.gate_bias);
        const Row u = times(up, x, l.up_bias);
        for (std::size_t c = 0; c < g.size(); ++c) g[c] = to_bf16(activate(s, g[c]) * u[c]);
        add(stream[t], times(down, g, l.down_bias), l.post_ffn_norm);
      }
    }
    const Matrix head = read(w.head);
    std::vector<double> out;
    for (std::size_t t = 0; t < n; ++t)
      for (const double y : times(head, rounded(norm(stream[t], w.final_norm)), {}))
        out.push_back(soft_cap(y, spec_.logit_softcap));
    return out;
  }

 private:
  using Row = std::vector<double>;
  using Matrix = std::vector<Row>;
  /// A row of keys or values: the numbers are code times scale.
  struct Placed {
    Row code, scale;
  };

  double rounded_for_pages(double x) const { return kv_ == KvType::int8 ? to_bf16(x) : to_f16(x); }
  Placed placed(const Row& x, int dim) const {
    Placed to{x, Row(x.size(), 1.0)};
    if (kv_ != KvType::int8) {
      for (double& y : to.code) y = to_f16(y);
      return to;
    }
    std::vector<std::byte> codes(usize(dim * kPageTokens)), scales(codes.size());
    for (std::size_t at = 0; at < x.size(); at += usize(dim)) {
      const std::vector<float> head(x.begin() + static_cast<std::ptrdiff_t>(at),
                                    x.begin() + static_cast<std::ptrdiff_t>(at) + dim);
      store_int8(head.data(), dim, 0, false, codes.data(), scales.data());
      for (int d = 0; d < dim; ++d) {
        std::uint16_t half;
        std::memcpy(&half, &scales[2 * int8_scale_index(d, 0)], sizeof half);
        to.code[at + usize(d)] = static_cast<std::int8_t>(codes[int8_value_index(d, 0, dim)]);
        to.scale[at + usize(d)] = static_cast<double>(f16_to_f32(half));
      }
    }
    return to;
  }

  static Matrix read(const Weight& w) {
    Matrix out;
    std::vector<float> row(usize(w.cols));
    for (int r = 0; r < w.rows; ++r) {
      dequantise(w.type, w.data + static_cast<std::uint64_t>(r) * w.row_bytes, row.size(),
                 row.data());
      out.emplace_back(row.begin(), row.end());
    }
    return out;
  }
  static Row times(const Matrix& matrix, const Row& x, const Vector& bias) {
    Row out;
    for (std::size_t r = 0; r < matrix.size(); ++r) {
      double sum = bias.empty() ? 0.0 : static_cast<double>(bias[r]);
      for (std::size_t c = 0; c < x.size(); ++c) sum += matrix[r][c] * x[c];
      out.push_back(sum);
    }
    return out;
  }
  Row norm(const Row& x, const Vector& weight) const {
    double squares = 0;
    for (const double y : x) squares += y * y;
    Row out;
    for (std::size_t c = 0; c < x.size(); ++c)
      out.push_back(x[c] / std::sqrt(squares / static_cast<double>(x.size()) + spec_.norm_eps) *
                    static_cast<double>(weight[c]));
    return out;
  }
  static Row rounded(Row x) {
    for (double& y : x) y = to_bf16(y);
    return x;
  }
  void add(Row& stream, Row left, const Vector& post_norm) const {
    if (!post_norm.empty()) left = norm(left, post_norm);
    for (std::size_t c = 0; c < stream.size(); ++c) stream[c] += left[c];
  }
  static double soft_cap(double x, double cap) { return cap == 0.0 ? x : cap * std::tanh(x / cap); }
  static double activate(const LayerSpec& s, double x) {
    if (s.activation == Activation::silu) return x / (1 + std::exp(-x));
    return 0.5 * x *
           (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  }
  /// Norm and RoPE of each head.
  Row head_rows(const Row& x, int dim, const Vector& weight, const LayerSpec& s, std::size_t t) {
    const RopeSpec& rope = spec_.ropes[usize(s.rope)];
    Row out;
    for (std::size_t at = 0; at < x.size(); at += usize(dim)) {
      Row head(x.begin() + static_cast<std::ptrdiff_t>(at),
               x.begin() + static_cast<std::ptrdiff_t>(at) + dim);
      if (!weight.empty()) head = norm(head, weight);
      for (int i = 0; i < rope.dims / 2; ++i) {
        double angle = static_cast<double>(t) * rope.position_scale *
                       std::pow(rope.base, -2.0 * i / rope.dims);
        if (!rope.factors.empty()) angle /= static_cast<double>(rope.factors[usize(i)]);
        const bool neighbours = rope.pairs == RopePairs::neighbours;
        double& u = head[usize(neighbours ? 2 * i : i)];
        double& v = head[usize(neighbours ? 2 * i + 1 : i + rope.dims / 2)];
        const double a = u * std::cos(angle) - v * std::sin(angle);
        v = u * std::sin(angle) + v * std::cos(angle);
        u = a;
      }
      if (kv_ == KvType::int8) {
        std::vector<float> turned(head.begin(), head.end());
        hadamard(turned.data(), dim);
        head.assign(turned.begin(), turned.end());
      }
      out.insert(out.end(), head.begin(), head.end());
    }
    return out;
  }
  Row attend(const LayerSpec& s, const Row& q, const std::vector<Placed>& k,
             const std::vector<Placed>& v, std::size_t t) const {
    const std::size_t first = s.window == 0 || t < usize(s.window) ? 0 : t - usize(s.window) + 1;
    Row out(usize(s.n_heads * s.value_dim));
    for (int h = 0; h < s.n_heads; ++h) {
      const int kv_head = h / s.group();
      Row score;
      for (std::size_t p = first; p <= t; ++p) {
        double dot = 0;
        for (int i = 0; i < s.key_dim; ++i) {
          const std::size_t at = usize(kv_head * s.key_dim + i);
          dot += q[usize(h * s.key_dim + i)] * k[p].code[at] * k[p].scale[at];
        }
        score.push_back(soft_cap(dot * s.attention_scale, s.attention_softcap));
      }
      const double max = *std::max_element(score.begin(), score.end());
      double sum = 0;
      for (double& x : score) sum += x = std::exp(x - max);
      for (std::size_t p = first; p <= t; ++p)
        for (int i = 0; i < s.value_dim; ++i) {
          const std::size_t at = usize(kv_head * s.value_dim + i);
          out[usize(h * s.value_dim + i)] +=
              rounded_for_pages(score[p - first] * v[p].scale[at]) * v[p].code[at] / sum;
        }
    }
    return out;
  }

  KvType kv_;
  Gguf file_;
  ModelSpec spec_;
  std::optional<LoadedWeights> weights_;
};

const char* const kGoldenModels[] = {"llama-tied", "gemma2", "gemma3"};
std::string golden_path(const std::string& model, const std::string& file) {
  return std::string(DECANT_TEST_DATA) + "/models/" + model + "/" + file;
}

std::string golden_model(const std::string& model) {
  return golden_path(model, model == "gemma2" ? "model-f32.gguf" : "model-f16.gguf");
}

nlohmann::json golden_json(const std::string& model) {
  std::ifstream in(golden_path(model, "golden.json"));
  return nlohmann::json::parse(in);
}
/// What transformers' own bfloat16 run is away from its float32 run, in logits.
double bfloat16_noise(const nlohmann::json& json) {
  return json.at("noise").at("bfloat16_run_vs_float32_max_abs").get<double>();
}

decant::ModelOptions on_cuda(int schedule = 0, std::size_t chunk = 512) {
  decant::ModelOptions options;
  options.backend = kCudaBackend;
  // A GPU has a mind of its own about the order of threads.
  options.device = kCudaBackend == decant::Backend::cuda_host ? schedule : 0;
  options.threads = 1;
  options.chunk = chunk;
  return options;
}

struct Difference {
  double worst = 0, deviation = 0;  // the latter of the second operand
};
template <class A, class B>
Difference difference(const A& a, const B& b) {
  Difference d;
  double sum = 0, squares = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    d.worst = std::max(d.worst, std::abs(x - y));
    sum += y;
    squares += y * y;
  }
  const auto n = static_cast<double>(a.size());
  d.deviation = std::sqrt(squares / n - sum / n * (sum / n));
  return d;
}

/// Prompts of all replies are there when a pass begins.
decant::Model manual_model(const TinyModel& tiny, int schedule, std::size_t chunk) {
  decant::ModelOptions options = on_cuda(schedule, chunk);
  options.mode = decant::RunMode::manual;
  options.sessions = 5;
  options.context = kSplit + 16;
  options.prefix_cache = false;
  return tiny.load(options);
}
using Logits = std::vector<std::vector<float>>;
/// Of replies to the prompts, all at once.
Logits logits_of(decant::Model& model, std::span<const std::vector<Token>> prompts,
                 decant::GenerateOptions options = exactly(8, 1)) {
  std::vector<decant::Session> sessions;
  std::vector<decant::Reply> replies;
  Logits logits(prompts.size());
  for (const auto& prompt : prompts) sessions.push_back(session_with(model, prompt));
  options.process_logits = [](void* to, std::span<const Token>, std::span<float> row) {
    auto& all = *static_cast<std::vector<float>*>(to);
    all.insert(all.end(), row.begin(), row.end());
    return true;
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    options.process_logits_user = &logits[i];
    replies.push_back(sessions[i].generate(options).value());
  }
  for (auto& reply : replies) reply.wait().value();
  return logits;
}

}  // namespace

TEST_CASE("cuda model: golden logits within bfloat16's own noise, tokens where margins exceed it") {
  for (const char* name : kGoldenModels) {
    CAPTURE(name);
    const auto npz = read_npz(golden_path(name, "golden.npz"));
    const auto json = golden_json(name);
    const double noise = bfloat16_noise(json);
    const auto ids = npz.at("input_ids").as<Token>(), greedy = npz.at("greedy_ids").as<Token>();
    auto model = decant::Model::load(golden_model(name), on_cuda()).value();
    auto session = session_with(model, ids);
    CHECK(difference(last_logits(session, model, ids.size()), npz.at("logits").as<float>()).worst <=
          noise);

    // The reference's tokens, one after another: every logit near, and the same choice unless two
    // logits are nearer to each other than the two runs may be.
    const std::size_t width = model.info().n_vocab;
    const auto wanted = npz.at("greedy_logits").as<float>();
    std::size_t n_compared = 0;
    for (std::size_t i = 0; i < greedy.size(); ++i) {
      const auto row = session.logits().value();
      const std::span reference(wanted.data() + i * width, width);
      CAPTURE(i);
      CHECK(difference(row, reference).worst <= noise);
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      if (json.at("runs")[0].at("greedy_margin")[i].get<double>() > 2 * noise) {
        CHECK(best == greedy[i]);
        ++n_compared;
      }
      session.append(std::span(&greedy[i], 1)).value();
    }
    CHECK(n_compared >= 5);  // as the margins of gemma2 are
  }
}

TEST_CASE("cuda model: int8 pages against the reference backend's") {
  for (const char* name : kGoldenModels) {
    const auto npz = read_npz(golden_path(name, "golden.npz"));
    const auto ids = npz.at("input_ids").as<Token>();
    const auto logits = [&](decant::ModelOptions options) {
      options.kv_keys = options.kv_values = KvType::int8;
      auto model = decant::Model::load(golden_model(name), options).value();
      auto session = session_with(model, ids);
      return last_logits(session, model, ids.size());
    };
    decant::ModelOptions options;
    options.backend = decant::Backend::reference;
    const auto reference = logits(options);
    const double of_int8 = difference(reference, npz.at("logits").as<float>()).worst;
    const double noise = bfloat16_noise(golden_json(name));
    const double worst = difference(logits(on_cuda()), reference).worst;
    CAPTURE(name, worst, noise, of_int8);
    // Where bfloat16 takes a number to the next code, int8's own error is another one.
    CHECK(worst <= noise + of_int8);
  }
}

TEST_CASE("cuda model: logits of a double-precision pass that rounds at the same places") {
  for (const char* name : kGoldenModels)
    for (const KvType kv : {KvType::f16, KvType::int8}) {
      CAPTURE(name, static_cast<int>(kv));
      const auto ids = read_npz(golden_path(name, "golden.npz")).at("input_ids").as<Token>();
      const auto wanted = RoundedModel(golden_model(name), kv).logits(ids);
      decant::ModelOptions options = on_cuda();
      options.kv_keys = options.kv_values = kv;
      auto model = decant::Model::load(golden_model(name), options).value();
      auto session = session_with(model, ids);
      const auto got = last_logits(session, model, ids.size());
      const double deviation = difference(got, wanted).deviation;
      // Where single and double precision lie on two sides of the middle between two bf16 (or f16),
      // they round apart, and all rows after it see that. The first row sees none in these models;
      // the matrix units of a GPU round in their own way.
      const std::size_t width = got.size() / ids.size();
      for (std::size_t row = 0; row < ids.size(); ++row) {
        double squares = 0;
        for (std::size_t i = row * width; i < (row + 1) * width; ++i)
          squares += std::pow(static_cast<double>(got[i]) - wanted[i], 2);
        const double apart = std::sqrt(squares / static_cast<double>(width));
        CAPTURE(row, deviation);
        CHECK(apart <=
              (row == 0 && kCudaBackend == decant::Backend::cuda_host ? 1e-5 : 0.02) * deviation);
      }
    }
}

TEST_CASE("cuda model: the same bits for every schedule of threads, chunk and neighbour") {
  struct Case {
    TinySpec spec;
    KvType kv;
  };
  // Groups of 5, 3, 8, 1 and 2 heads; odd sizes; windows; soft caps.
  const std::vector<Case> cases = {
      {{.n_embd = 45, .n_heads = 5, .n_kv_heads = 1, .head_dim = 48, .n_ff = 52}, KvType::f16},
      {{.n_embd = 96, .n_heads = 6, .n_kv_heads = 2, .n_ff = 160}, KvType::int8},
      {{.architecture = "gemma3", .n_embd = 64, .n_heads = 8, .n_kv_heads = 1, .n_ff = 96},
       KvType::bf16},
      {{.architecture = "gemma3", .n_heads = 2, .n_kv_heads = 2, .head_dim = 80}, KvType::f32},
      {{.architecture = "gemma2"}, KvType::f16}};
  for (const Case& c : cases) {
    const TinyModel tiny = random_model(c.spec);
    const std::vector<Token> prompt = TinyRandom(5).tokens(70);
    struct Left {
      std::vector<float> logits;
      std::vector<std::byte> snapshot;  // with the pages
      bool operator==(const Left& o) const {
        return decant_test::same_bits(std::span<const float>(logits),
                                      std::span<const float>(o.logits)) &&
               snapshot == o.snapshot;
      }
    };
    const auto left = [&](int schedule, std::size_t chunk, std::size_t n_others) {
      decant::ModelOptions options = on_cuda(schedule, chunk);
      options.sessions = 12;
      options.context = 96;
      options.prefix_cache = false;
      options.kv_keys = options.kv_values = c.kv;
      auto model = tiny.load(options);
      std::vector<decant::Session> others;
      std::vector<decant::Reply> replies;
      for (std::size_t i = 0; i < n_others; ++i) {
        others.push_back(session_with(model, std::span(prompt).first(2 + i)));
        replies.push_back(others.back().generate({.max_tokens = 5}).value());
      }
      auto session = session_with(model, prompt);
      Left out{last_logits(session, model, 6), session.save().value()};
      for (auto& reply : replies) reply.wait().value();
      return out;
    };
    const Left measure = left(0, 512, 0);
    for (const float x : measure.logits) REQUIRE(std::isfinite(x));
    for (const int schedule : {0, 1, 2, 3})
      for (const std::size_t chunk : {7, 64}) {
        CAPTURE(c.spec.architecture, c.spec.n_heads, schedule, chunk);
        CHECK(left(schedule, chunk, 0) == measure);
        CHECK(left(schedule, chunk, 9) == measure);
      }
    CHECK(left(0, 1, 0) == measure);
  }
}

TEST_CASE("cuda model: a token's logits alone and among 64") {
  const TinyModel tiny = random_model({.n_heads = 6, .n_kv_heads = 2});
  decant::ModelOptions options = on_cuda();
  options.sessions = 64;
  options.context = 32;
  options.prefix_cache = false;
  std::vector<std::vector<Token>> prompts;
  for (std::size_t i = 0; i < 64; ++i) prompts.push_back(TinyRandom(i).tokens(1 + i % 3));
  decant::GenerateOptions greedy = exactly(3, 0);
  greedy.sampler = decant::Sampler::greedy();
  const auto all_logits = [&](std::size_t n) {
    options.max_batch = n;
    auto model = tiny.load(options);
    return logits_of(model, prompts, greedy);
  };
  const auto alone = all_logits(1);
  for (const std::size_t n : {2, 3, 5, 8, 9, 24, 33, 64}) {  // some of which fill up a graph
    CAPTURE(n);
    CHECK((all_logits(n) == alone));
  }
}

TEST_CASE("cuda model: a graph's rows without a token touch no other row, and may get one") {
  const TinyModel tiny = random_model();
  const std::vector<std::vector<Token>> prompts = {{5}, {6}, {7}, {8}};
  Logits alone;
  for (const auto& prompt : prompts) {
    auto model = manual_model(tiny, 0, 512);
    alone.push_back(logits_of(model, std::span(&prompt, 1))[0]);
  }
  for (const int schedule : {0, 1, 2, 3}) {  // of blocks, too
    auto model = manual_model(tiny, schedule, 512);
    auto session = session_with(model, prompts[0]);  // four rows of one sequence
    session.append(std::vector<Token>{9, 10, 11}).value();
    CHECK(last_logits(session, model, 4).size() > 0);
    for (const std::size_t n : {3, 4, 2}) {  // 3 and 4 have the same graph
      CAPTURE(schedule, n);
      CHECK((logits_of(model, std::span(prompts).first(n)) ==
             Logits(alone.begin(), alone.begin() + static_cast<std::ptrdiff_t>(n))));
    }
  }
}

TEST_CASE("cuda model: rows of two splits and of one share a graph") {
  const TinyModel tiny = random_model();
  const std::vector<std::vector<Token>> prompts = {{5}, TinyRandom(8).tokens(kSplit + 2), {6}};
  Logits alone;
  for (const auto& prompt : prompts) {
    auto model = manual_model(tiny, 0, 512);
    alone.push_back(logits_of(model, std::span(&prompt, 1))[0]);
  }
  auto model = manual_model(tiny, 0, 512);
  CHECK((logits_of(model, prompts) == alone));
}

TEST_CASE("cuda model: passes in which only some rows ask for logits") {
  const TinyModel tiny = random_model();
  const std::vector<std::vector<Token>> prompts = {{5}, {6, 9, 11, 12, 13}, {7}, {8, 10, 14, 15}};
  Logits alone;
  for (const auto& prompt : prompts) {
    auto model = manual_model(tiny, 0, 512);
    alone.push_back(logits_of(model, std::span(&prompt, 1))[0]);
  }
  for (const int schedule : {0, 1, 2, 3})
    for (const std::size_t chunk : {1, 2, 3, 4}) {  // parts of prompts, while others speak
      auto model = manual_model(tiny, schedule, chunk);
      CAPTURE(schedule, chunk);
      CHECK((logits_of(model, prompts) == alone));
    }
}

TEST_CASE("cuda model: graphs of decoding give the bits of launches, also where splits begin") {
  for (const char* architecture : {"llama", "gemma2", "gemma3"}) {
    const TinyModel tiny = random_model({.architecture = architecture, .n_layers = 3});
    decant::ModelOptions options = on_cuda(0, 520);
    options.context = 520;
    options.sessions = 2;
    options.prefix_cache = false;
    auto model = tiny.load(options);
    const std::vector<Token> tokens = TinyRandom(3).tokens(515);
    const std::size_t width = model.info().n_vocab;
    for (const std::size_t border : {16, 256, 512}) {  // of a page, of splits
      const std::size_t first = border - 3, n = 6;
      auto together = session_with(model, std::span(tokens).first(first + n));
      const auto wanted = last_logits(together, model, n);
      auto session = session_with(model, std::span(tokens).first(first));
      for (std::size_t i = 0; i < n; ++i) {
        CAPTURE(architecture, first + i);
        session.append(std::span(&tokens[first + i], 1)).value();
        const auto row = last_logits(session, model, 1);
        CHECK(std::memcmp(row.data(), wanted.data() + i * width, width * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("cuda model: a device without enough memory says so, wherever that shows") {
  const TinyModel tiny = random_model();
  std::size_t n_refused = 0;
  for (int n = 0;; ++n) {
    CAPTURE(n);
    const auto model = tiny.try_load(on_cuda(Device::kLacks + n));
    if (model) break;
    CHECK(model.error().code() == ErrorCode::out_of_memory);
    ++n_refused;
  }
  CHECK(n_refused >= 2 + 16 + 19 + 15);  // pieces, matrices, vectors, rows; and pages
  auto model = tiny.load(on_cuda());
  CHECK(session_with(model, TinyRandom(1).tokens(5)).logits());
}

TEST_CASE("cuda model: a load tells how it goes on, until it is cancelled") {
  const TinyModel tiny = random_model();
  struct Progress {
    std::size_t cancel_at = SIZE_MAX;
    std::vector<float> seen = {};
    static bool report(void* self, float fraction) {
      auto& p = *static_cast<Progress*>(self);
      p.seen.push_back(fraction);
      return p.seen.size() - 1 != p.cancel_at;
    }
  } progress;
  decant::ModelOptions options = on_cuda();
  options.progress = Progress::report;
  options.progress_user = &progress;
  REQUIRE(tiny.try_load(options));
  const std::vector<float> all = progress.seen;
  CHECK(std::is_sorted(all.begin(), all.end()));
  CHECK(all.front() == 0.0f);
  CHECK(std::count(all.begin(), all.end(), 1.0f) == 1);
  CHECK(all.back() == 1.0f);
  // At both ends, once in each of the 16 matrices, after each of all 35 tensors.
  CHECK(all.size() == 2 + 16 + 35);
  for (std::size_t k = 0; k < all.size(); ++k) {
    CAPTURE(k);
    progress = {k};
    const auto model = tiny.try_load(options);
    REQUIRE_FALSE(model);
    CHECK(model.error().code() == ErrorCode::callback_failed);
    CHECK(progress.seen.size() == k + 1);  // not called again
  }
}

TEST_CASE("cuda model: a device that fails ends its replies, and the program goes on") {
  const TinyModel tiny = random_model();
  for (const int n : {1, 5, 30, 200}) {  // launches that succeed
    CAPTURE(n);
    auto model = tiny.load(on_cuda(Device::kFails + n));
    auto session = session_with(model, TinyRandom(1).tokens(5));
    auto reply = session.generate({.max_tokens = 100, .ignore_end = true}).value();
    const auto status = reply.wait();
    REQUIRE_FALSE(status);
    CHECK(status.error().code() == ErrorCode::device_lost);
    CHECK(std::string(status.error().message()).find("executor") != std::string::npos);
    // So does every later one; another model works.
    CHECK(session.logits().error().code() == ErrorCode::device_lost);
    auto other = tiny.load(on_cuda());
    auto fine = session_with(other, TinyRandom(1).tokens(5));
    CHECK(fine.logits());
  }
}

TEST_CASE("cuda model: what the kernels do not know is refused before weights are read") {
  bool read = false;
  decant::ModelOptions options = on_cuda();
  options.progress_user = &read;
  options.progress = [](void* to, float) { return *static_cast<bool*>(to) = true; };
  const auto refused = [&](const TinySpec& spec) {
    read = false;
    const auto loaded = random_model(spec).try_load(options);
    CHECK(read == static_cast<bool>(loaded));
    return loaded ? ErrorCode::none : loaded.error().code();
  };
  CHECK(refused({.head_dim = 24}) == ErrorCode::unsupported);
  CHECK(refused({.head_dim = 272}) == ErrorCode::unsupported);
  CHECK(refused({.n_heads = 17, .n_kv_heads = 1}) == ErrorCode::unsupported);
  CHECK(refused({.n_heads = 16, .n_kv_heads = 1}) == ErrorCode::none);
  options = on_cuda();
  options.mapped = true;
  CHECK(random_model().try_load(options).error().code() == ErrorCode::invalid_argument);
  options = on_cuda(0, 4096);
  options.context = std::size_t{1} << 24;
  options.max_batch = 1024;
  options.kv_memory = 1 << 20;
  const TinyModel two_groups = random_model({.architecture = "gemma3"});
  CHECK(two_groups.try_load(options).error().code() == ErrorCode::unsupported);
  options = {};
  options.device = -1;
  CHECK(random_model().try_load(options).error().code() == ErrorCode::invalid_argument);
  // Without a GPU, or in a build without CUDA, in words that say so.
  read = false;
  options = {};
  options.backend = decant::Backend::cuda;
  options.progress_user = &read;
  options.progress = [](void* to, float) { return *static_cast<bool*>(to) = true; };
  const auto loaded = random_model().try_load(options);
  CHECK(read == static_cast<bool>(loaded));
  if (!loaded)
    CHECK((loaded.error().code() == ErrorCode::unsupported ||
           loaded.error().code() == ErrorCode::device_unavailable));
}

TEST_CASE("cuda model: the plan is what the model takes") {
  const TempFolder folder;
  for (const char* architecture : {"llama", "gemma3"}) {
    const TinyModel tiny = random_model({.architecture = architecture, .n_layers = 4});
    const std::string path = folder.write("tiny.gguf", tiny.file());
    const decant::MemoryPlan plan = decant::Model::plan(path, on_cuda()).value();
    auto model = decant::Model::load(path, on_cuda()).value();
    CHECK(plan.weights_bytes == model.memory().weights_bytes);
    CHECK(plan.kv_bytes == model.memory().kv_bytes);
    CHECK(plan.workspace_bytes == model.memory().workspace_bytes);
    CHECK(plan.workspace_bytes > 0);
  }
}
