// Model::plan: sizes of the KV cache by hand, and the plan of a file equal to what the loaded model
// accounts for.
#include "support/catch.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::KvType;
using decant::MemoryPlan;
using decant::ModelOptions;

namespace {

/// The header of a llama model; its tensors' data is not there.
std::vector<std::byte> header_only(std::uint32_t n_layers, std::uint32_t n_embd,
                                   std::uint32_t n_heads, std::uint32_t n_kv_heads,
                                   std::uint32_t head_dim) {
  GgufWriter w;
  const std::uint64_t n_ff = 256, n_vocab = 320;
  w.add_string("general.architecture", "llama");
  w.add_u32("llama.block_count", n_layers);
  w.add_u32("llama.embedding_length", n_embd);
  w.add_u32("llama.context_length", 8192);
  w.add_u32("llama.feed_forward_length", static_cast<std::uint32_t>(n_ff));
  w.add_u32("llama.attention.head_count", n_heads);
  w.add_u32("llama.attention.head_count_kv", n_kv_heads);
  w.add_u32("llama.attention.key_length", head_dim);
  w.add_u32("llama.attention.value_length", head_dim);
  w.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  std::uint64_t offset = 0;
  const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    std::uint64_t n = 4;
    for (const std::uint64_t d : shape) n *= d;
    w.add_tensor_entry(name, 0, shape, offset);
    offset += (n + 31) / 32 * 32;
  };
  const std::uint64_t e = n_embd, q = n_heads * head_dim, kv = n_kv_heads * head_dim;
  add("token_embd.weight", {e, n_vocab});
  add("output_norm.weight", {e});
  for (std::uint32_t i = 0; i < n_layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    add(b + "attn_norm.weight", {e});
    add(b + "attn_q.weight", {e, q});
    add(b + "attn_k.weight", {e, kv});
    add(b + "attn_v.weight", {e, kv});
    add(b + "attn_output.weight", {q, e});
    add(b + "ffn_norm.weight", {e});
    add(b + "ffn_gate.weight", {e, n_ff});
    add(b + "ffn_up.weight", {e, n_ff});
    add(b + "ffn_down.weight", {n_ff, e});
  }
  return w.header();
}

void check_equal(const MemoryPlan& a, const MemoryPlan& b) {
  CHECK(a.weights_bytes == b.weights_bytes);
  CHECK(a.tokenizer_bytes == b.tokenizer_bytes);
  CHECK(a.kv_bytes_per_token == b.kv_bytes_per_token);
  CHECK(a.kv_bytes == b.kv_bytes);
  CHECK(a.swap_bytes == b.swap_bytes);
  CHECK(a.workspace_bytes == b.workspace_bytes);
  CHECK(a.total_bytes == b.total_bytes);
  CHECK(a.notes == b.notes);
  REQUIRE(a.groups.size() == b.groups.size());
  for (std::size_t i = 0; i < a.groups.size(); ++i) {
    CHECK(a.groups[i].layers == b.groups[i].layers);
    CHECK(a.groups[i].window == b.groups[i].window);
    CHECK(a.groups[i].bytes_per_token == b.groups[i].bytes_per_token);
    CHECK(a.groups[i].pages == b.groups[i].pages);
  }
}

}  // namespace

TEST_CASE("a header of 32 layers with 8 KV heads of 128 is planned by hand") {
  const TempFolder folder;
  const std::string path = folder.write("header.gguf", header_only(32, 4096, 32, 8, 128));
  ModelOptions options;
  options.context = 4096;
  const MemoryPlan f16 = decant::Model::plan(path, options).value();
  CHECK(f16.kv_bytes_per_token == 131072);
  CHECK(f16.kv_bytes == 512u << 20);
  CHECK(f16.page_tokens == 16);
  REQUIRE(f16.groups.size() == 1);
  CHECK(f16.groups[0].layers == 32);
  CHECK(f16.groups[0].window == 0);
  CHECK(f16.groups[0].pages == 256);
  CHECK(f16.total_bytes ==
        f16.weights_bytes + f16.tokenizer_bytes + f16.kv_bytes + f16.workspace_bytes);
  options.kv_keys = options.kv_values = KvType::int8;
  // 2 x 32 x 8 heads of 128 codes and 2 scales of 2 bytes.
  const MemoryPlan int8 = decant::Model::plan(path, options).value();
  CHECK(int8.kv_bytes_per_token == 2 * 32 * 8 * (128 + 4));
  CHECK(int8.kv_bytes == (256u << 20) + 4096 * 2 * 32 * 8 * 4);
  options.sessions = 3;
  CHECK(decant::Model::plan(path, options).value().kv_bytes == 3 * int8.kv_bytes);
  options.kv_memory = 100 << 20;
  CHECK(decant::Model::plan(path, options).value().kv_bytes <= 100u << 20);
  // It can be planned, not loaded.
  const auto loaded = decant::Model::load(path, options);
  REQUIRE_FALSE(loaded);
  CHECK(loaded.error().code() == ErrorCode::invalid_file);
}

TEST_CASE("30 layers with 3 KV heads of 64 take 23,040 bytes a token") {
  const TempFolder folder;
  const std::string path = folder.write("header.gguf", header_only(30, 576, 9, 3, 64));
  CHECK(decant::Model::plan(path).value().kv_bytes_per_token == 23040);
}

TEST_CASE("the plan is what the loaded model accounts for") {
  for (const char* architecture : {"llama", "gemma3"})
    for (const TinyText text : {TinyText::bpe, TinyText::spm, TinyText::none})
      for (const auto backend : {decant::Backend::cpu, decant::Backend::reference}) {
        TinySpec spec;
        spec.architecture = architecture;
        spec.text = text;
        spec.n_layers = 4;
        const TempFolder folder;
        const std::string path = folder.write("tiny.gguf", random_model(spec).file());
        for (const bool mapped : {false, true})
          for (const KvType kv : {KvType::f32, KvType::int8}) {
            CAPTURE(architecture, static_cast<int>(text), static_cast<int>(backend), mapped);
            ModelOptions options;
            options.backend = backend;
            options.mapped = mapped;
            options.threads = 3;
            options.sessions = 2;
            options.chunk = 40;
            options.kv_keys = options.kv_values = kv;
            options.swap_memory = mapped ? 0 : 1 << 20;
            const MemoryPlan plan = decant::Model::plan(path, options).value();
            auto model = decant::Model::load(path, options).value();
            check_equal(plan, model.memory());
            CHECK(plan.kv_bytes == model.info().kv_pool_bytes);
            CHECK((plan.swap_bytes > 0) == (options.swap_memory > 0));
            CHECK(plan.weights_bytes > 0);
            CHECK((plan.tokenizer_bytes > 0) == (text != TinyText::none));
          }
      }
}

TEST_CASE("windows take their own, smaller pool") {
  TinySpec spec;
  spec.architecture = "gemma3";
  spec.n_layers = 4;
  spec.window = 16;
  const TempFolder folder;
  const std::string path = folder.write("tiny.gguf", random_model(spec).file());
  ModelOptions options;
  options.context = 512;
  options.chunk = 16;
  const MemoryPlan plan = decant::Model::plan(path, options).value();
  REQUIRE(plan.groups.size() == 2);
  for (const auto& group : plan.groups)
    // Five states of two pages, a chunk, and a page that it ends in.
    CHECK(group.pages == (group.window == 0 ? 32u : 12u));
}

TEST_CASE("the swap space is as large as asked for and divided as the pool") {
  const TempFolder folder;
  const std::string path = folder.write("header.gguf", header_only(30, 576, 9, 3, 64));
  ModelOptions options;
  options.context = 4096;
  const MemoryPlan none = decant::Model::plan(path, options).value();
  CHECK(none.swap_bytes == 0);
  // A page takes 16 x 23,040 bytes.
  options.swap_memory = 100 * 368640 + 368639;
  const MemoryPlan plan = decant::Model::plan(path, options).value();
  CHECK(plan.swap_bytes == 100 * 368640);
  CHECK(plan.workspace_bytes == none.workspace_bytes + 100 * 8);
  CHECK(plan.total_bytes == none.total_bytes + 100 * (368640 + 8));
  for (const std::size_t wrong : {std::size_t{1}, std::size_t{368639}}) {
    options.swap_memory = wrong;
    const auto refused = decant::Model::plan(path, options);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == ErrorCode::invalid_argument);
    CHECK(refused.error().message().find("swap_memory") != std::string_view::npos);
  }

  // Two layers see everything: 32 pages of 2 x 2 x 2 x 8 x 16 half floats; two see a window: 12.
  TinySpec spec;
  spec.architecture = "gemma3";
  spec.n_layers = 4;
  const std::string windows = folder.write("tiny.gguf", random_model(spec).file());
  options.context = 512;
  options.chunk = 16;
  options.swap_memory = 44 * 2048;
  const MemoryPlan same = decant::Model::plan(windows, options).value();
  CHECK(same.kv_bytes == 44 * 2048);
  // Exactly divided by the 32, not by the 12.
  CHECK(same.swap_bytes == (32 + 11) * 2048);
}

TEST_CASE("what cannot be loaded cannot be planned, with the same words") {
  const TempFolder folder;
  CHECK(decant::Model::plan(folder.file("none.gguf")).error().code() == ErrorCode::not_found);
  ModelOptions options;
  options.sessions = 0;
  const std::string path = folder.write("tiny.gguf", random_model().file());
  CHECK(decant::Model::plan(path, options).error().code() == ErrorCode::invalid_argument);
  options.sessions = 65536;
  options.context = std::size_t{1} << 24;
  for (const char* architecture : {"llama", "gemma3"}) {
    TinySpec spec;
    spec.architecture = architecture;
    const std::string huge = folder.write("huge.gguf", random_model(spec).file());
    const auto plan = decant::Model::plan(huge, options);
    REQUIRE_FALSE(plan);
    CHECK(plan.error().code() == ErrorCode::invalid_argument);
    CHECK(plan.error().message() == decant::Model::load(huge, options).error().message());
  }
  TinyModel broken = random_model();
  broken.drop("blk.1.attn_k.weight");
  const std::string bad = folder.write("bad.gguf", broken.file());
  const auto plan = decant::Model::plan(bad), again = decant::Model::plan(bad);
  REQUIRE_FALSE(plan);
  CHECK(plan.error().message() == decant::Model::load(bad).error().message());
}
