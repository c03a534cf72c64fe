// What a model file must say and hold: metadata keys, tensor names and shapes. Every error names
// the key or the tensor.
#include "model/architecture.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant::detail;
using namespace decant_test;
using decant::ErrorCode;
using decant::ModelOptions;

namespace {

ModelOptions one_thread() {
  ModelOptions options;
  options.threads = 1;
  return options;
}

/// Loading fails with this code and a text that holds this name.
void check_refused(const TinyModel& tiny, ErrorCode code, const std::string& name) {
  const auto model = tiny.try_load(one_thread());
  CAPTURE(name);
  REQUIRE_FALSE(model);
  CAPTURE(model.error().message());
  CHECK(model.error().code() == code);
  CHECK(model.error().message().find(name) != std::string_view::npos);
}

TinySpec gemma_spec(const std::string& architecture = "gemma3") {
  TinySpec spec;
  spec.architecture = architecture;
  spec.n_layers = 4;
  return spec;
}

decant::Result<ModelSpec> spec_of(const TinyModel& tiny) {
  const std::vector<std::byte> bytes = tiny.file();
  const auto file = Gguf::open(std::span(bytes));
  if (!file) return file.error();
  return read_model_spec(*file);
}

}  // namespace

TEST_CASE("a llama file becomes its spec") {
  TinySpec shape;
  shape.n_heads = 6;
  shape.n_kv_heads = 2;
  shape.head_dim = 10;
  const ModelSpec spec = spec_of(random_model(shape)).value();
  CHECK(spec.architecture == "llama");
  CHECK(spec.n_embd == 32);
  CHECK(spec.n_vocab == kTinyTokens);
  CHECK(spec.trained_context == 512);
  CHECK(spec.norm_eps == static_cast<double>(1e-6f));
  CHECK(spec.embedding_scale == 1.0);
  REQUIRE(spec.layers.size() == 2);
  REQUIRE(spec.ropes.size() == 1);
  CHECK(spec.ropes[0].pairs == RopePairs::neighbours);
  CHECK(spec.ropes[0].dims == 10);
  CHECK(spec.ropes[0].base == 10000.0);
  CHECK(spec.ropes[0].position_scale == 1.0);
  for (const LayerSpec& layer : spec.layers) {
    CHECK(layer.group() == 3);
    CHECK(layer.key_dim == 10);
    CHECK(layer.value_dim == 10);
    CHECK(layer.n_ff == 48);
    CHECK(layer.window == 0);
    CHECK(layer.activation == Activation::silu);
    CHECK(layer.attention_scale == 1.0 / std::sqrt(10.0));
  }
  REQUIRE(spec.kv_groups.size() == 1);
  CHECK(spec.kv_groups[0].layers == std::vector<int>{0, 1});
}

TEST_CASE("a gemma3 file becomes its spec: windows, two RoPEs, two KV groups") {
  TinyModel tiny = random_model(gemma_spec());
  tiny.set_string("gemma3.rope.scaling.type", "linear");
  tiny.set_f32("gemma3.rope.scaling.factor", 8.0f);
  const ModelSpec spec = spec_of(tiny).value();
  CHECK(spec.embedding_scale == std::sqrt(32.0));
  REQUIRE(spec.ropes.size() == 2);
  CHECK(spec.ropes[0].base == 1e6);
  CHECK(spec.ropes[0].position_scale == 0.125);
  CHECK(spec.ropes[1].base == 1e4);
  CHECK(spec.ropes[1].position_scale == 1.0);  // layers with a window are not scaled
  CHECK(spec.ropes[0].pairs == RopePairs::halves);
  for (std::size_t i = 0; i < 4; ++i) {
    const bool full = i % 2 == 1;
    CHECK(spec.layers[i].window == (full ? 0 : 16));
    CHECK(spec.layers[i].rope == (full ? 0 : 1));
    CHECK(spec.layers[i].activation == Activation::gelu_tanh);
    CHECK(spec.layers[i].kv_group == (full ? 1 : 0));
    CHECK(spec.layers[i].kv_slot == static_cast<int>(i / 2));
  }
  REQUIRE(spec.kv_groups.size() == 2);
  CHECK(spec.kv_groups[0].layers == std::vector<int>{0, 2});
  CHECK(spec.kv_groups[0].window == 16);
  CHECK(spec.kv_groups[1].layers == std::vector<int>{1, 3});

  // The real files carry no pattern: every sixth layer sees everything.
  TinyModel real = random_model(gemma_spec());
  real.drop_key("gemma3.attention.sliding_window_pattern");
  real.set_u32("gemma3.block_count", 13);
  const ModelSpec thirteen = spec_of(real).value();
  for (std::size_t i = 0; i < 13; ++i)
    CHECK((thirteen.layers[i].window == 0) == (i == 5 || i == 11));
  // Gemma 3 27B: sqrt(5376 / 32) = sqrt(168) in place of sqrt(128).
  real.set_u32("gemma3.block_count", 62);
  real.set_u32("gemma3.embedding_length", 5376);
  real.set_u32("gemma3.attention.head_count", 32);
  real.set_u32("gemma3.attention.head_count_kv", 16);
  real.set_u32("gemma3.attention.key_length", 128);
  CHECK(spec_of(real).value().layers[7].attention_scale == 1.0 / std::sqrt(168.0));
}

TEST_CASE("a gemma2 file becomes its spec: windows on even layers, one RoPE, soft caps") {
  TinyModel tiny = random_model(gemma_spec("gemma2"));
  const ModelSpec spec = spec_of(tiny).value();
  CHECK(spec.embedding_scale == std::sqrt(32.0));
  CHECK(spec.logit_softcap == 3.0);
  REQUIRE(spec.ropes.size() == 1);
  CHECK(spec.ropes[0].pairs == RopePairs::halves);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(spec.layers[i].window == (i % 2 == 0 ? 16 : 0));
    CHECK(spec.layers[i].attention_softcap == 2.0);
    CHECK(spec.layers[i].attention_scale == 1.0 / std::sqrt(8.0));
    CHECK(spec.layers[i].activation == Activation::gelu_tanh);
    CHECK(spec.layers[i].kv_group == static_cast<int>(i % 2));
  }
  tiny.set_f32("gemma2.attention.scale", 0.25f);
  CHECK(spec_of(tiny).value().layers[1].attention_scale == 0.25);

  // Gemma 2 as published: a window of 4096, caps of 50 and 30; of 27B 4608 / 32 = 144.
  TinyModel real = random_model(gemma_spec("gemma2"));
  for (const char* key :
       {"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"})
    real.drop_key(std::string("gemma2.") + key);
  real.set_u32("gemma2.block_count", 46);
  real.set_u32("gemma2.embedding_length", 4608);
  real.set_u32("gemma2.attention.head_count", 32);
  real.set_u32("gemma2.attention.head_count_kv", 16);
  real.set_u32("gemma2.attention.key_length", 128);
  const ModelSpec published = spec_of(real).value();
  CHECK(published.layers[0].window == 4096);
  CHECK(published.layers[0].attention_softcap == 50.0);
  CHECK(published.logit_softcap == 30.0);
  CHECK(published.layers[0].attention_scale == 1.0 / 12.0);
}

TEST_CASE("what may be left out has its published default") {
  TinySpec shape;
  shape.n_kv_heads = 4;
  TinyModel tiny = random_model(shape);
  for (const char* key : {"attention.head_count_kv", "attention.key_length",
                          "attention.value_length", "rope.freq_base"})
    tiny.drop_key(std::string("llama.") + key);
  const ModelSpec spec = spec_of(tiny).value();
  CHECK(spec.layers[0].n_kv_heads == 4);
  CHECK(spec.layers[0].key_dim == 8);
  CHECK(spec.ropes[0].base == 10000.0);
  CHECK(tiny.try_load(one_thread()));
  // A factor without a type is linear scaling.
  tiny.set_f32("llama.rope.scaling.factor", 4.0f);
  CHECK(spec_of(tiny).value().ropes[0].position_scale == 0.25);
  tiny.set_string("llama.rope.scaling.type", "none");
  CHECK(spec_of(tiny).value().ropes[0].position_scale == 1.0);
}

TEST_CASE("missing metadata is named") {
  for (const char* key :
       {"block_count", "embedding_length", "context_length", "feed_forward_length",
        "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    TinyModel tiny = random_model();
    tiny.drop_key(std::string("llama.") + key);
    check_refused(tiny, ErrorCode::invalid_file, std::string("llama.") + key);
  }
  TinyModel gemma = random_model(gemma_spec());
  gemma.drop_key("gemma3.attention.sliding_window");
  check_refused(gemma, ErrorCode::invalid_file, "gemma3.attention.sliding_window");
  TinyModel width = random_model();
  width.drop_key("llama.attention.key_length");
  width.set_u32("llama.attention.head_count", 6);  // 32 is no multiple
  width.set_u32("llama.attention.head_count_kv", 2);
  check_refused(width, ErrorCode::invalid_file, "attention.key_length");
}

TEST_CASE("metadata that contradicts itself or is out of range is refused") {
  const auto refuse = [](const std::string& key, std::uint32_t value, const std::string& name) {
    TinyModel tiny = random_model();
    tiny.set_u32("llama." + key, value);
    CAPTURE(key, value);
    check_refused(tiny, ErrorCode::invalid_file, name);
  };
  refuse("attention.head_count_kv", 3, "4 query heads");
  refuse("attention.head_count_kv", 8, "8 KV heads");
  refuse("attention.head_count_kv", 0, "attention.head_count_kv");
  refuse("attention.head_count", 0, "attention.head_count");
  refuse("attention.head_count", 0xFFFFFFFFu, "attention.head_count");
  refuse("block_count", 0, "block_count");
  refuse("block_count", 0x80000000u, "block_count");
  refuse("embedding_length", 0, "embedding_length");
  refuse("embedding_length", 0xFFFFFFFFu, "embedding_length");
  refuse("context_length", 0, "context_length");
  refuse("feed_forward_length", 0, "feed_forward_length");
  refuse("attention.key_length", 7, "odd");
  refuse("attention.key_length", 0xFFFFFFFEu, "key_length");
  refuse("rope.dimension_count", 10, "rope.dimension_count");  // more than a head has
  refuse("rope.dimension_count", 5, "odd");
  refuse("rope.dimension_count", 0, "rope.dimension_count");
  // The tensors are those of two layers and of width 32.
  refuse("block_count", 3, "blk.2.");
  refuse("embedding_length", 64, "token_embd.weight");
  refuse("feed_forward_length", 40, "blk.0.ffn_");
  refuse("attention.head_count", 8, "blk.0.attn_q.weight");
  refuse("attention.value_length", 4, "blk.0.attn_v.weight");

  const float inf = std::numeric_limits<float>::infinity();
  for (const char* key :
       {"attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"})
    for (const float value : {0.0f, -1.0f, inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
      TinyModel tiny = random_model();
      tiny.set_f32(std::string("llama.") + key, value);
      check_refused(tiny, ErrorCode::invalid_file, key);
    }
  // Of a type that is no number.
  TinyModel text = random_model();
  text.set_string("llama.block_count", "two");
  check_refused(text, ErrorCode::invalid_file, "llama.block_count");
}

TEST_CASE("what would change results and is not built is unsupported, not ignored") {
  for (const char* name : {"mamba", "llama4", "LLAMA", ""}) {
    TinyModel tiny = random_model();
    tiny.set_string("general.architecture", name);
    check_refused(tiny, ErrorCode::unsupported, std::string("'") + name + "'");
  }
  TinyModel none = random_model();
  none.drop_key("general.architecture");
  check_refused(none, ErrorCode::unsupported, "architecture");
  for (const char* type : {"yarn", "longrope", "dynamic", ""}) {
    TinyModel tiny = random_model();
    tiny.set_string("llama.rope.scaling.type", type);
    check_refused(tiny, ErrorCode::unsupported, "llama.rope.scaling.type");
  }
  TinyModel experts = random_model();
  experts.set_u32("llama.expert_count", 8);
  check_refused(experts, ErrorCode::unsupported, "llama.expert_count");
  experts.set_u32("llama.expert_count", 0);
  CHECK(experts.try_load(one_thread()));
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
                          "residual_scale", "rope.scale_linear"}) {
    TinyModel tiny = random_model();
    tiny.set_f32(std::string("llama.") + key, 0.5f);
    check_refused(tiny, ErrorCode::unsupported, key);
  }
  for (const float value : {0.0f, -1.0f, NAN})
    for (const char* key :
         {"attn_logit_softcapping", "final_logit_softcapping", "attention.scale"}) {
      TinyModel tiny = random_model(gemma_spec("gemma2"));
      tiny.set_f32(std::string("gemma2.") + key, value);
      check_refused(tiny, ErrorCode::invalid_file, key);
    }
  for (const float value : {1e-39f, 1e-7f, 1e7f})  // floats cannot divide by the first
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      TinyModel tiny = random_model(gemma_spec("gemma2"));
      tiny.set_f32(std::string("gemma2.") + key, value);
      check_refused(tiny, ErrorCode::invalid_file, key);
    }
}

TEST_CASE("a missing tensor is named; optional ones may be missing") {
  for (const TinySpec& shape : {TinySpec{}, gemma_spec("gemma2"), gemma_spec()}) {
    const TinyModel whole = random_model(shape);
    for (const auto& tensor : whole.tensors) {
      TinyModel tiny = whole;
      tiny.drop(tensor.name);
      const bool optional = tensor.name.ends_with(".bias") || tensor.name == "output.weight";
      CAPTURE(tensor.name);
      if (optional)
        CHECK(tiny.try_load(one_thread()));
      else
        check_refused(tiny, ErrorCode::invalid_file, tensor.name);
    }
  }
}

TEST_CASE("a tensor of a wrong shape or type is named") {
  for (const TinySpec& shape : {TinySpec{}, gemma_spec("gemma2"), gemma_spec()}) {
    const TinyModel whole = random_model(shape);
    for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
      const std::string& name = whole.tensors[i].name;
      const auto with_shape = [&](std::vector<std::uint64_t> wrong) {
        TinyModel tiny = whole;
        std::size_t n = 1;
        for (const std::uint64_t d : wrong) n *= static_cast<std::size_t>(d);
        tiny.tensors[i].shape = std::move(wrong);
        tiny.tensors[i].data.resize(n);
        return tiny;
      };
      const auto right = whole.tensors[i].shape;
      if (right.size() == 1) {
        check_refused(with_shape({right[0] + 1}), ErrorCode::invalid_file, name);
        check_refused(with_shape({right[0] - 1}), ErrorCode::invalid_file, name);
        check_refused(with_shape({right[0], 2}), ErrorCode::invalid_file, name);
        continue;
      }
      if (name != "token_embd.weight") {  // its rows make the vocabulary
        check_refused(with_shape({right[0], right[1] + 1}), ErrorCode::invalid_file, name);
        check_refused(with_shape({right[1] * right[0]}), ErrorCode::invalid_file, name);
      }
      check_refused(with_shape({right[0] + 1, right[1]}), ErrorCode::invalid_file, name);
      check_refused(with_shape({right[0], right[1], 2}), ErrorCode::invalid_file, name);
      if (right[0] != right[1] && name != "token_embd.weight")
        check_refused(with_shape({right[1], right[0]}), ErrorCode::invalid_file, name);
    }
  }
  // I32 (26) is a known type of the format, but no weights are made of it.
  for (const char* name : {"blk.1.ffn_up.weight", "output_norm.weight", "token_embd.weight"}) {
    TinyModel tiny = random_model();
    tiny.tensor(name).type = 26;
    check_refused(tiny, ErrorCode::unsupported, name);
  }
}

TEST_CASE("the embedding and the vocabulary must fit together") {
  TinyModel tiny = random_model();
  auto& table = tiny.tensor("token_embd.weight");
  table.shape[1] -= 1;
  table.data.resize(table.shape[0] * table.shape[1]);
  tiny.drop("output.weight");
  check_refused(tiny, ErrorCode::invalid_file, "token_embd.weight");
  TinyModel flat = random_model();
  flat.tensor("token_embd.weight").shape = {32 * kTinyTokens};
  check_refused(flat, ErrorCode::invalid_file, "token_embd.weight");
}

TEST_CASE("rope_freqs.weight: one positive factor for each pair") {
  TinyModel tiny = random_model();
  tiny.add("rope_freqs.weight", {4}, {1.0f, 2.0f, 4.0f, 8.0f});
  CHECK(spec_of(tiny).value().ropes[0].factors == std::vector<float>{1.0f, 2.0f, 4.0f, 8.0f});
  for (const float wrong : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    tiny.tensor("rope_freqs.weight").data[2] = wrong;
    check_refused(tiny, ErrorCode::invalid_file, "rope_freqs.weight");
  }
  tiny.drop("rope_freqs.weight");
  tiny.add("rope_freqs.weight", {8}, std::vector<float>(8, 1.0f));
  check_refused(tiny, ErrorCode::invalid_file, "rope_freqs.weight");
}

TEST_CASE("a tied head is the embedding") {
  TinySpec shape;
  shape.tied = true;
  const TinyModel tied = random_model(shape);
  TinyModel copied = tied;
  copied.add("output.weight", tied.tensors[0].shape, tied.tensors[0].data);
  auto a = tied.load(), b = copied.load();
  const std::vector<Token> prompt = TinyRandom(1).tokens(9);
  auto sa = session_with(a, prompt), sb = session_with(b, prompt);
  CHECK(same_bits(last_logits(sa, a, 9), last_logits(sb, b, 9)));
  auto untied = random_model().load();
  auto sc = session_with(untied, prompt);
  CHECK_FALSE(same_bits(last_logits(sa, a, 9), last_logits(sc, untied, 9)));
}

TEST_CASE("info tells the model's shape and what a token of context takes") {
  TinySpec shape;
  shape.n_heads = 6;
  shape.n_kv_heads = 3;
  shape.head_dim = 16;
  shape.n_layers = 3;
  shape.n_padding = 5;
  shape.context = 100;
  const TinyModel tiny = random_model(shape);
  for (const bool f32 : {false, true}) {
    ModelOptions options = one_thread();
    options.kv_keys = options.kv_values = f32 ? decant::KvType::f32 : decant::KvType::f16;
    options.sessions = 2;
    const auto model = tiny.load(options);
    const decant::ModelInfo& info = model.info();
    CHECK(info.architecture == "llama");
    CHECK(info.name == "tiny llama");
    CHECK(info.n_layers == 3);
    CHECK(info.n_embd == 32);
    CHECK(info.n_heads == 6);
    CHECK(info.n_kv_heads == 3);
    CHECK(info.head_dim == 16);
    CHECK(info.n_vocab == kTinyTokens + 5);
    CHECK(info.trained_context == 100);
    CHECK(info.context == 100);
    CHECK(info.kv_bytes_per_token == 2u * 3 * 3 * 16 * (f32 ? 4 : 2));
    CHECK(info.kv_pool_bytes == info.kv_bytes_per_token * 2 * 112);  // whole pages
    std::uint64_t parameters = 0;
    for (const auto& t : tiny.tensors) parameters += t.data.size();
    CHECK(info.parameters == parameters);
  }
}
