// Small models written in memory as GGUF files, for tests that need a model but no sense in it.
//
//   TinyModel tiny = random_model({.architecture = "gemma3", .n_layers = 4});
//   tiny.tensor("blk.0.attn_q.weight").shape[0] += 1;      // tests of bad files break them by name
//   decant::Model model = tiny.load();
//
// A table model chooses: the logits of the next token are a given function of the last one. With
// Script, a reply is any sequence of tokens.
#pragma once

#include <decant/decant.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/gguf_writer.hpp"

namespace decant_test {

using decant::Token;

/// Tests that ask for the CPU backend run on the CUDA kernels in the program that tests these
/// (cuda_host/executor.hpp), which know heads of whole sixteens.
#ifdef DECANT_TEST_CUDA
inline constexpr bool kOnCuda = true;
inline constexpr int kTinyHeadDim = 16;
#else
inline constexpr bool kOnCuda = false;
inline constexpr int kTinyHeadDim = 8;
#endif
/// DECANT_TEST_GPU: on the GPU itself (cuda_device/run.sh).
#ifdef DECANT_TEST_GPU
inline constexpr decant::Backend kCudaBackend = decant::Backend::cuda;
#else
inline constexpr decant::Backend kCudaBackend = decant::Backend::cuda_host;
#endif
inline decant::ModelOptions on_fast_backend(decant::ModelOptions options) {
  if (kOnCuda && options.backend == decant::Backend::cpu) options.backend = kCudaBackend;
  return options;
}

/// A GGUF file in the making.
class TinyModel {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> shape;  // the row length first
    std::vector<float> data;
    std::uint32_t type = 0;
  };

  using Write = std::function<void(GgufWriter&, const std::string& key)>;
  void set(const std::string& key, Write write) {
    for (auto& value : values_)
      if (value.first == key) return void(value.second = std::move(write));
    values_.emplace_back(key, std::move(write));
  }
  void set_u32(const std::string& key, std::uint32_t v) {
    set(key, [v](GgufWriter& w, const std::string& k) { w.add_u32(k, v); });
  }
  void set_f32(const std::string& key, float v) {
    set(key, [v](GgufWriter& w, const std::string& k) { w.add_f32(k, v); });
  }
  void set_bool(const std::string& key, bool v) {
    set(key, [v](GgufWriter& w, const std::string& k) { w.add_bool(k, v); });
  }
  void set_string(const std::string& key, const std::string& v) {
    set(key, [v](GgufWriter& w, const std::string& k) { w.add_string(k, v); });
  }
  void set_strings(const std::string& key, const std::vector<std::string>& v) {
    set(key, [v](GgufWriter& w, const std::string& k) { w.add_strings(k, v); });
  }
  void drop_key(const std::string& key) {
    std::erase_if(values_, [&](const auto& value) { return value.first == key; });
  }

  void add(std::string name, std::vector<std::uint64_t> shape, std::vector<float> data) {
    tensors.push_back({std::move(name), std::move(shape), std::move(data)});
  }
  Tensor& tensor(std::string_view name) {
    for (Tensor& t : tensors)
      if (t.name == name) return t;
    throw std::runtime_error("no tensor " + std::string(name));
  }
  void drop(std::string_view name) {
    std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; });
  }

  std::vector<std::byte> file() const {
    GgufWriter w;
    for (const auto& [key, write] : values_) write(w, key);
    for (const Tensor& t : tensors) w.add_tensor(t.name, t.type, t.shape, std::span(t.data));
    return w.finish();
  }
  decant::Result<decant::Model> try_load(const decant::ModelOptions& options) const {
    const std::vector<std::byte> bytes = file();
    return decant::Model::load(std::span(bytes), on_fast_backend(options));
  }
  decant::Model load(const decant::ModelOptions& options) const {
    return try_load(options).value();
  }
  decant::Model load() const {
    decant::ModelOptions options;
    options.threads = 2;
    return load(options);
  }

  std::vector<Tensor> tensors;

 private:
  std::vector<std::pair<std::string, Write>> values_;
};

// -------------------------------------------------------------------------------- vocabularies
// Ids that all tiny vocabularies share: 0 to 2 are special, then one token for each byte, then
// pieces of more bytes.
inline constexpr Token kTinyBos = 0, kTinyTurn = 1, kTinyEnd = 2, kTinyBytes = 3;

inline Token byte_token(char c) { return kTinyBytes + static_cast<std::uint8_t>(c); }
inline std::vector<Token> byte_tokens(std::string_view text) {
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(byte_token(c));
  return tokens;
}

/// Pieces of more than one byte, each made of two before it.
inline const std::vector<std::pair<std::string, std::string>>& tiny_merges() {
  static const std::vector<std::pair<std::string, std::string>> merges = {
      {"o", "w"}, {"ow", "n"}, {" ", "f"},  {" f", "o"}, {" fo", "x"}, {"a", "b"},
      {"a", "a"}, {"aa", "b"}, {"\n", "U"}, {"s", "e"},  {"se", "r"},  {"\xC3", "\xA9"}};
  return merges;
}
/// The token of a piece made by tiny_merges.
inline Token piece_token(std::string_view piece) {
  Token token = kTinyBytes + 256;
  for (const auto& [left, right] : tiny_merges()) {
    if (left + right == piece) return token;
    ++token;
  }
  throw std::runtime_error("no piece " + std::string(piece));
}
inline constexpr int kTinyTokens = kTinyBytes + 256 + 12;

/// Byte-level BPE's characters for bytes (GPT-2's table, from its published definition).
inline std::string byte_level(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const int byte = static_cast<std::uint8_t>(c);
    const auto plain = [](int b) {
      return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
    };
    int code = byte;
    if (!plain(byte)) {
      code = 256;
      for (int b = 0; b < byte; ++b) code += plain(b) ? 0 : 1;
    }
    if (code < 0x80) {
      out.push_back(static_cast<char>(code));
    } else {
      out.push_back(static_cast<char>(0xC0 | code >> 6));
      out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
    }
  }
  return out;
}

inline void add_bpe(TinyModel& model, const std::string& turn, const std::string& end) {
  std::vector<std::string> tokens = {"<|bos|>", turn, end}, merges;
  std::vector<std::int32_t> types = {3, 3, 3};
  for (int b = 0; b < 256; ++b) tokens.push_back(byte_level(std::string(1, static_cast<char>(b))));
  for (const auto& [left, right] : tiny_merges()) {
    tokens.push_back(byte_level(left + right));
    merges.push_back(byte_level(left) + " " + byte_level(right));
  }
  types.resize(tokens.size(), 1);
  model.set_string("tokenizer.ggml.model", "gpt2");
  model.set_string("tokenizer.ggml.pre", "gpt-2");
  model.set_strings("tokenizer.ggml.tokens", tokens);
  model.set_strings("tokenizer.ggml.merges", merges);
  model.set("tokenizer.ggml.token_type",
            [types](GgufWriter& w, const std::string& k) { w.add_i32s(k, types); });
  model.set_u32("tokenizer.ggml.bos_token_id", kTinyBos);
  model.set_u32("tokenizer.ggml.eos_token_id", kTinyEnd);
}

/// SentencePiece with byte pieces; a space stands before every text.
inline void add_spm(TinyModel& model) {
  std::vector<std::string> tokens = {"<s>", "<unk>", "</s>"};
  std::vector<std::int32_t> types = {3, 2, 3};
  std::vector<float> scores(3, 0.0f);
  const char* digits = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) {
    tokens.push_back(std::string("<0x") + digits[b >> 4] + digits[b & 15] + ">");
    types.push_back(6);
    scores.push_back(0.0f);
  }
  for (const auto& [left, right] : tiny_merges()) {
    std::string piece = left + right;
    for (std::size_t at; (at = piece.find(' ')) != piece.npos;)
      piece.replace(at, 1, "\xE2\x96\x81");
    if (left == "\xC3") piece = "\xC3\xA9";
    tokens.push_back(piece);
    types.push_back(1);
    scores.push_back(-static_cast<float>(tokens.size()));
  }
  model.set_string("tokenizer.ggml.model", "llama");
  model.set_strings("tokenizer.ggml.tokens", tokens);
  model.set("tokenizer.ggml.token_type",
            [types](GgufWriter& w, const std::string& k) { w.add_i32s(k, types); });
  model.set("tokenizer.ggml.scores",
            [scores](GgufWriter& w, const std::string& k) { w.add_f32s(k, scores); });
  model.set_u32("tokenizer.ggml.bos_token_id", kTinyBos);
  model.set_u32("tokenizer.ggml.eos_token_id", kTinyEnd);
}

// -------------------------------------------------------------------------------- random models
enum class TinyText { bpe, spm, none };

struct TinySpec {
  std::string architecture = "llama";  // or gemma2, gemma3: then every second layer sees everything
  int n_layers = 2, n_embd = 32, n_heads = 4, n_kv_heads = 2;
  int head_dim = kTinyHeadDim, n_ff = 48;
  int context = 512, window = 16;
  int n_padding = 0;  // rows of the embedding behind the last token
  bool tied = false;
  TinyText text = TinyText::bpe;
  std::uint64_t seed = 1;
};

/// Numbers that are the same with every standard library.
class TinyRandom {
 public:
  explicit TinyRandom(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t n) { return engine_() % n; }
  /// In [-1, 1).
  float symmetric() {
    return static_cast<float>(static_cast<double>(engine_() >> 40) * 0x1p-23 - 1.0);
  }
  std::vector<float> floats(std::size_t n, float scale, float offset = 0.0f) {
    std::vector<float> out(n);
    for (float& x : out) x = offset + scale * symmetric();
    return out;
  }
  std::vector<Token> tokens(std::size_t n, int n_vocab = kTinyTokens) {
    std::vector<Token> out(n);
    for (Token& t : out) t = static_cast<Token>(below(static_cast<std::uint64_t>(n_vocab)));
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

inline void add_shape(TinyModel& m, const TinySpec& s) {
  const std::string a = s.architecture + ".";
  const auto u = [&](const char* key, int v) { m.set_u32(a + key, static_cast<std::uint32_t>(v)); };
  m.set_string("general.architecture", s.architecture);
  m.set_string("general.name", "tiny " + s.architecture);
  u("block_count", s.n_layers);
  u("embedding_length", s.n_embd);
  u("context_length", s.context);
  u("feed_forward_length", s.n_ff);
  u("attention.head_count", s.n_heads);
  u("attention.head_count_kv", s.n_kv_heads);
  u("attention.key_length", s.head_dim);
  u("attention.value_length", s.head_dim);
  m.set_f32(a + "attention.layer_norm_rms_epsilon", 1e-6f);
  m.set_f32(a + "rope.freq_base", 10000.0f);
  if (s.architecture == "gemma3") {
    m.set_f32(a + "rope.freq_base", 1e6f);
    u("attention.sliding_window", s.window);
    u("attention.sliding_window_pattern", 2);
  }
  if (s.architecture == "gemma2") {  // caps that scores and logits of a few units feel
    u("attention.sliding_window", s.window);
    m.set_f32(a + "attn_logit_softcapping", 2.0f);
    m.set_f32(a + "final_logit_softcapping", 3.0f);
  }
  if (s.text == TinyText::spm) add_spm(m);
  if (s.text == TinyText::bpe && s.architecture == "gemma3")
    add_bpe(m, "<start_of_turn>", "<end_of_turn>");
  else if (s.text == TinyText::bpe)
    add_bpe(m, "<|im_start|>", "<|im_end|>");
}

/// Random weights, all kinds of tensors that the architecture knows, logits of a few units.
inline TinyModel random_model(const TinySpec& s = {}) {
  TinyModel m;
  add_shape(m, s);
  TinyRandom random(s.seed);
  const auto matrix = [&](const std::string& name, int rows, int cols, float scale = 1.0f) {
    const auto r = static_cast<std::size_t>(rows), c = static_cast<std::size_t>(cols);
    m.add(name, {c, r}, random.floats(r * c, scale * std::sqrt(3.0f / static_cast<float>(cols))));
  };
  const auto vector = [&](const std::string& name, int n, float offset) {
    const auto size = static_cast<std::size_t>(n);
    m.add(name, {size}, random.floats(size, 0.2f, offset));
  };
  const int n_vocab = kTinyTokens + s.n_padding;
  matrix("token_embd.weight", n_vocab, s.n_embd);
  if (!s.tied) matrix("output.weight", n_vocab, s.n_embd, 3.0f);
  vector("output_norm.weight", s.n_embd, 1.0f);
  for (int i = 0; i < s.n_layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    const int q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
    vector(b + "attn_norm.weight", s.n_embd, 1.0f);
    matrix(b + "attn_q.weight", q, s.n_embd);
    matrix(b + "attn_k.weight", kv, s.n_embd);
    matrix(b + "attn_v.weight", kv, s.n_embd);
    matrix(b + "attn_output.weight", s.n_embd, q);
    vector(b + "ffn_norm.weight", s.n_embd, 1.0f);
    matrix(b + "ffn_gate.weight", s.n_ff, s.n_embd);
    matrix(b + "ffn_up.weight", s.n_ff, s.n_embd);
    matrix(b + "ffn_down.weight", s.n_embd, s.n_ff);
    if (s.architecture == "llama") {
      vector(b + "attn_q.bias", q, 0.0f);
      vector(b + "attn_k.bias", kv, 0.0f);
      vector(b + "attn_v.bias", kv, 0.0f);
      vector(b + "attn_output.bias", s.n_embd, 0.0f);
      vector(b + "ffn_gate.bias", s.n_ff, 0.0f);
      vector(b + "ffn_up.bias", s.n_ff, 0.0f);
      vector(b + "ffn_down.bias", s.n_embd, 0.0f);
    }
    if (s.architecture == "gemma3") {
      vector(b + "attn_q_norm.weight", s.head_dim, 1.0f);
      vector(b + "attn_k_norm.weight", s.head_dim, 1.0f);
    }
    if (s.architecture != "llama") {
      vector(b + "post_attention_norm.weight", s.n_embd, 1.0f);
      vector(b + "post_ffw_norm.weight", s.n_embd, 1.0f);
    }
  }
  return m;
}

/// logit(last, next) for all tokens, to one rounding. The embedding is one-hot, attention and
/// feed-forward write zeros, so the head is the table.
inline TinyModel table_model(const std::function<float(Token last, Token next)>& logit,
                             TinySpec s = {}) {
  const int n = kTinyTokens + s.n_padding;
  const auto size = static_cast<std::size_t>(n);
  s.n_layers = s.n_heads = s.n_kv_heads = s.n_ff = 1;
  s.n_embd = n;
  s.head_dim = 2;
  TinyModel m;
  add_shape(m, s);
  m.set_f32(s.architecture + ".attention.layer_norm_rms_epsilon", 1e-12f);
  std::vector<float> one_hot(size * size, 0.0f), table(size * size);
  for (std::size_t i = 0; i < size; ++i) one_hot[i * size + i] = 1.0f;
  // The norm of a one-hot row is sqrt(n) at its place.
  for (std::size_t next = 0; next < size; ++next)
    for (std::size_t last = 0; last < size; ++last)
      table[next * size + last] = logit(static_cast<Token>(last), static_cast<Token>(next)) /
                                  std::sqrt(static_cast<float>(n));
  m.add("token_embd.weight", {size, size}, one_hot);
  m.add("output.weight", {size, size}, table);
  const std::vector<float> ones(size, 1.0f), zeros(2 * size, 0.0f), one(size, 0.0f);
  m.add("output_norm.weight", {size}, ones);
  m.add("blk.0.attn_norm.weight", {size}, ones);
  m.add("blk.0.ffn_norm.weight", {size}, ones);
  for (const char* name : {"q", "k", "v"})
    m.add(std::string("blk.0.attn_") + name + ".weight", {size, 2}, zeros);
  m.add("blk.0.attn_output.weight", {2, size}, zeros);
  m.add("blk.0.ffn_gate.weight", {size, 1}, one);
  m.add("blk.0.ffn_up.weight", {size, 1}, one);
  m.add("blk.0.ffn_down.weight", {1, size}, one);
  return m;
}

/// The next token is always the one `next` says: its logit is 60, the others' 0.
inline TinyModel chain_model(const std::function<Token(Token)>& next, const TinySpec& s = {}) {
  return table_model([&](Token last, Token t) { return t == next(last) ? 60.0f : 0.0f; }, s);
}

// ------------------------------------------------------------------------------------- helpers
/// Forces the tokens of a reply through GenerateOptions::process_logits; then the end token.
struct Script {
  std::vector<Token> tokens;
  std::size_t used = 0;

  static bool process(void* self, std::span<const Token>, std::span<float> logits) {
    Script& s = *static_cast<Script*>(self);
    const Token token = s.used < s.tokens.size() ? s.tokens[s.used] : kTinyEnd;
    ++s.used;
    for (float& x : logits) x = -std::numeric_limits<float>::infinity();
    logits[static_cast<std::size_t>(token)] = 0.0f;
    return true;
  }
  void put_into(decant::GenerateOptions& options) {
    options.process_logits = process;
    options.process_logits_user = this;
  }
};

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
}

/// A reply of n tokens, if the session has room for them: the same each time.
inline decant::GenerateOptions exactly(std::size_t n, std::uint64_t seed) {
  decant::GenerateOptions options;
  options.max_tokens = n;
  options.ignore_end = true;
  options.sampler.seed = seed;
  return options;
}

inline decant::Session session_with(decant::Model& model, std::span<const Token> tokens) {
  decant::Session session = model.session().value();
  session.append(tokens).value();
  return session;
}

/// Logits after each of the last n tokens, [n][n_vocab].
inline std::vector<float> last_logits(decant::Session& session, const decant::Model& model,
                                      std::size_t n) {
  std::vector<float> rows(n * model.info().n_vocab);
  session.logits(std::span(rows)).value();
  return rows;
}

inline std::vector<Token> copy(std::span<const Token> tokens) {
  return {tokens.begin(), tokens.end()};
}

/// Whether sessions and pins hold so many pages. A worker lets go of its a moment after the end.
inline bool pages_settle_at(std::size_t n, const decant::Model& model) {
  for (int i = 0; i < 2000 && model.metrics().kv_pages_used != n; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return model.metrics().kv_pages_used == n;
}

/// Everything that a reply still has to say.
inline std::string read_all(decant::Reply& reply) {
  std::string text;
  while (const auto piece = reply.next()) text += *piece;
  return text;
}

}  // namespace decant_test
