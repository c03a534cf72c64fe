// Well-formed GGUF files from every kind of source: metadata, tensors, parts.
#include "format/gguf.hpp"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/gguf_writer.hpp"
#include "support/temp_folder.hpp"

namespace decant::test {

using namespace decant_test;
using detail::Gguf;
using detail::GgufTensor;
using detail::TensorType;

static std::vector<float> gguf_test_floats(std::size_t n, float first) {
  std::vector<float> x(n);
  std::iota(x.begin(), x.end(), first);
  return x;
}

// One value of every kind and three tensors of 6 floats, 64 Q8_0 codes and 5 floats.
static GgufWriter gguf_test_writer(std::uint32_t version = 3, std::uint64_t alignment = 32) {
  GgufWriter w(version, alignment);
  w.add_string("general.architecture", "llama");
  w.add_u8("n.u8", 200);
  w.add_i8("n.i8", -100);
  w.add_u16("n.u16", 60000);
  w.add_i16("n.i16", -30000);
  w.add_u32("n.u32", 4000000000u);
  w.add_i32("n.i32", -2000000000);
  w.add_u64("n.u64", UINT64_MAX);
  w.add_i64("n.i64", INT64_MIN);
  w.add_f32("n.f32", 0.1f);
  w.add_f64("n.f64", 1e300);
  w.add_bool("b.true", true);
  w.add_bool("b.false", false);
  w.add_string("s.empty", "");
  w.add_strings("a.strings", std::vector<std::string>{"", "one", std::string("a\0b", 3)});
  w.add_f32s("a.f32", std::vector<float>{0.5f, -1.0f});
  w.add_f64s("a.f64", std::vector<double>{0.25, 3.0});
  w.add_i32s("a.i32", std::vector<std::int32_t>{-1, 2});
  w.add_bools("a.bool", std::vector<std::uint8_t>{1, 0, 1});
  w.add_array<std::uint64_t>("a.u64", 10, std::vector<std::uint64_t>{UINT64_MAX});
  w.add_strings("a.none", {});
  w.add_f32_tensor("first", {3, 2}, gguf_test_floats(6, 1));
  std::vector<std::byte> q8(2 * 34);
  for (std::size_t i = 0; i < q8.size(); ++i) q8[i] = static_cast<std::byte>(i);
  w.add_tensor("second", 8, {32, 2}, q8);
  w.add_f32_tensor("third", {5}, gguf_test_floats(5, 100));
  return w;
}

static std::vector<float> gguf_test_read(const Gguf& gguf, std::string_view name) {
  const GgufTensor* tensor = gguf.find_tensor(name);
  REQUIRE(tensor != nullptr);
  std::vector<std::byte> bytes(tensor->bytes);
  REQUIRE(gguf.read(*tensor, bytes));
  std::vector<float> values(tensor->elements());
  detail::dequantise(tensor->type, bytes.data(), values.size(), values.data());
  return values;
}

static void check_whole_file(const Gguf& gguf) {
  CHECK(gguf.string("general.architecture", "")->compare("llama") == 0);
  CHECK(gguf.string("s.empty", "fallback")->empty());
  CHECK(*gguf.string("absent", "fallback") == "fallback");
  CHECK(*gguf.uint("n.u8", 0) == 200);
  CHECK(*gguf.uint("n.u16", 0) == 60000);
  CHECK(*gguf.uint("n.u32", 0) == 4000000000u);
  CHECK(*gguf.uint("n.u64", 0) == UINT64_MAX);
  CHECK(*gguf.uint("absent", 7) == 7);
  CHECK(*gguf.number("n.f32", 0) == static_cast<double>(0.1f));
  CHECK(*gguf.number("n.f64", 0) == 1e300);
  CHECK(*gguf.number("n.i8", 0) == -100);
  CHECK(*gguf.number("n.i64", 0) == -9223372036854775808.0);
  CHECK(*gguf.number("absent", 1.5) == 1.5);
  CHECK(*gguf.boolean("b.true", false));
  CHECK_FALSE(*gguf.boolean("b.false", true));
  CHECK(*gguf.boolean("absent", true));
  CHECK(*gguf.strings("a.strings") ==
        std::vector<std::string_view>{"", "one", std::string_view("a\0b", 3)});
  CHECK(gguf.strings("a.none")->empty());
  CHECK(gguf.strings("absent")->empty());
  CHECK(*gguf.floats("a.f32") == std::vector<float>{0.5f, -1.0f});
  CHECK(*gguf.floats("a.f64") == std::vector<float>{0.25f, 3.0f});
  CHECK(*gguf.floats("a.i32") == std::vector<float>{-1.0f, 2.0f});
  CHECK(*gguf.integers("a.i32") == std::vector<std::int64_t>{-1, 2});
  CHECK(*gguf.integers("a.bool") == std::vector<std::int64_t>{1, 0, 1});
  CHECK(*gguf.integers("n.i16") == std::vector<std::int64_t>{-30000});
  CHECK(gguf.has("b.false"));
  CHECK_FALSE(gguf.has("b.fals"));

  REQUIRE(gguf.tensors().size() == 3);
  CHECK(gguf.tensors()[0].name == "first");
  CHECK(gguf.tensors()[1].type == TensorType::Q8_0);
  CHECK(gguf.tensors()[1].bytes == 68);
  CHECK(gguf.tensors()[0].n_dims == 2);
  CHECK(gguf.tensors()[0].shape == std::array<std::uint64_t, 4>{3, 2, 1, 1});
  CHECK(gguf.find_tensor("fourth") == nullptr);
  CHECK(gguf_test_read(gguf, "first") == gguf_test_floats(6, 1));
  CHECK(gguf_test_read(gguf, "third") == gguf_test_floats(5, 100));
  // Block 0 begins with bytes 0, 1: the half 0x0100 = 2^-16, then codes 2, 3, ...
  const auto second = gguf_test_read(gguf, "second");
  CHECK(second[0] == 2 * 0x1p-16f);
  CHECK(second[31] == 33 * 0x1p-16f);

  const GgufTensor& third = *gguf.find_tensor("third");
  std::vector<std::byte> piece(8);
  REQUIRE(gguf.read(third, 4, piece));
  float values[2];
  std::memcpy(values, piece.data(), sizeof values);
  CHECK(values[0] == 101);
  CHECK(values[1] == 102);
  CHECK(gguf.read(third, 16, piece).error().code() == ErrorCode::invalid_argument);
  CHECK(gguf.read(third, piece).error().code() == ErrorCode::invalid_argument);
}

TEST_CASE("a GGUF file reads the same from a path, a mapping, memory and a reader") {
  for (const std::uint32_t version : {2u, 3u})
    for (const std::uint64_t alignment : {32u, 8u, 4096u}) {
      INFO("version " << version << " alignment " << alignment);
      const auto bytes = gguf_test_writer(version, alignment).finish();
      const TempFolder folder;
      const std::string path = folder.write("model.gguf", bytes);
      auto by_path = Gguf::open(path, false);
      REQUIRE(by_path);
      CHECK(by_path->version() == version);
      CHECK(by_path->name() == path);
      CHECK_FALSE(by_path->mapped());
      CHECK(by_path->mapped_data(by_path->tensors()[0]) == nullptr);
      const Gguf moved(std::move(*by_path));
      check_whole_file(moved);
      auto by_mapping = Gguf::open(path, true);
      REQUIRE(by_mapping);
      CHECK(by_mapping->mapped());
      check_whole_file(*by_mapping);
      const auto* data = by_mapping->mapped_data(*by_mapping->find_tensor("third"));
      REQUIRE(data != nullptr);
      CHECK(reinterpret_cast<const float*>(data)[4] == 104);
      auto by_memory = Gguf::open(bytes);
      REQUIRE(by_memory);
      check_whole_file(*by_memory);
      detail::MemoryReader reader(bytes, "an archive");
      Reader* readers[] = {&reader};
      auto by_reader = Gguf::open(readers);
      REQUIRE(by_reader);
      CHECK(by_reader->name() == "an archive");
      check_whole_file(*by_reader);
    }
}

TEST_CASE("memory at an odd address is read, but not handed out in place") {
  const auto bytes = gguf_test_writer().finish();
  std::vector<std::uint64_t> room(bytes.size() / 8 + 2);
  auto* odd = reinterpret_cast<std::byte*>(room.data()) + 1;
  std::memcpy(odd, bytes.data(), bytes.size());
  auto gguf = Gguf::open(std::span<const std::byte>(odd, bytes.size()));
  REQUIRE(gguf);
  check_whole_file(*gguf);
  CHECK(gguf->mapped_data(gguf->tensors()[0]) == nullptr);
}

TEST_CASE("metadata of another type is an error that names the key") {
  const auto bytes = gguf_test_writer().finish();
  auto gguf = Gguf::open(bytes);
  REQUIRE(gguf);
  const auto names = [](const auto& result, std::string_view key) {
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == ErrorCode::invalid_file);
    INFO(result.error().message());
    CHECK(result.error().message().find(key) != std::string_view::npos);
  };
  names(gguf->string("n.u8", ""), "n.u8");
  names(gguf->string("a.strings", ""), "a.strings");
  names(gguf->uint("n.f32", 0), "n.f32");
  names(gguf->uint("n.i8", 0), "n.i8");  // negative
  names(gguf->uint("b.true", 0), "b.true");
  names(gguf->uint("a.i32", 0), "a.i32");
  names(gguf->number("general.architecture", 0), "general.architecture");
  names(gguf->number("b.true", 0), "b.true");
  names(gguf->boolean("n.u8", false), "n.u8");
  names(gguf->strings("general.architecture"), "general.architecture");
  names(gguf->strings("a.i32"), "a.i32");
  names(gguf->floats("a.strings"), "a.strings");
  names(gguf->floats("a.bool"), "a.bool");
  names(gguf->floats("n.f32"), "n.f32");
  names(gguf->integers("a.f32"), "a.f32");
  names(gguf->integers("a.u64"), "a.u64");  // above INT64_MAX
  names(gguf->integers("general.architecture"), "general.architecture");
}

TEST_CASE("describe lists every key with a short text") {
  const auto bytes = gguf_test_writer().finish();
  auto gguf = Gguf::open(bytes);
  REQUIRE(gguf);
  const auto all = gguf->describe();
  const auto text = [&](std::string_view key) {
    for (const auto& [k, v] : all)
      if (k == key) return v;
    return std::string("?");
  };
  CHECK(all.size() == 21);
  CHECK(all[0].first == "general.architecture");
  CHECK(text("general.architecture") == "llama");
  CHECK(text("n.u64") == "18446744073709551615");
  CHECK(text("n.i64") == "-9223372036854775808");
  CHECK(text("n.f32") == "0.1");
  CHECK(text("n.f64") == "1e+300");
  CHECK(text("b.true") == "true");
  CHECK(text("a.strings") == "[string x 3]");
  CHECK(text("a.f32") == "[f32 x 2]");
}

TEST_CASE("a file without tensors, as vocabularies have it, may end with its metadata") {
  GgufWriter w;
  w.add_string("general.architecture", "llama");
  const auto bytes = w.finish();
  auto gguf = Gguf::open(bytes);
  REQUIRE(gguf);
  CHECK(gguf->tensors().empty());
}

TEST_CASE("a scalar tensor has no dimensions, a tensor may have four") {
  GgufWriter w;
  w.add_f32_tensor("scalar", {}, gguf_test_floats(1, 5));
  w.add_f32_tensor("four", {2, 3, 2, 2}, gguf_test_floats(24, 0));
  const auto bytes = w.finish();
  auto gguf = Gguf::open(bytes);
  REQUIRE(gguf);
  CHECK(gguf_test_read(*gguf, "scalar") == std::vector<float>{5});
  CHECK(gguf->find_tensor("four")->elements() == 24);
}

TEST_CASE("types that cannot be dequantised are still listed") {
  GgufWriter w;
  w.add_tensor("exotic", 16, {256}, std::vector<std::byte>(66));
  const auto bytes = w.finish();
  auto gguf = Gguf::open(bytes);
  REQUIRE(gguf);
  CHECK(gguf->tensors()[0].bytes == 66);
  CHECK(detail::tensor_type_info(gguf->tensors()[0].type)->name == "IQ2_XXS");
}

// ------------------------------------------------------------------------------------ parts

// Part `no` (from 0) of `count` with one tensor of four floats that begin at 10 no.
static std::vector<std::byte> gguf_test_part(std::uint16_t no, std::uint16_t count,
                                             std::int32_t n_tensors) {
  GgufWriter w;
  if (no == 0) w.add_string("general.architecture", "llama");
  w.add_u16("split.no", no);
  w.add_u16("split.count", count);
  w.add_i32("split.tensors.count", n_tensors);
  w.add_f32_tensor("t" + std::to_string(no), {4}, gguf_test_floats(4, static_cast<float>(10 * no)));
  return w.finish();
}

TEST_CASE("the parts of a split file are found beside the first") {
  const TempFolder folder;
  const std::string first = folder.write("m-00001-of-00003.gguf", gguf_test_part(0, 3, 3));
  folder.write("m-00002-of-00003.gguf", gguf_test_part(1, 3, 3));
  const std::string third = folder.write("m-00003-of-00003.gguf", gguf_test_part(2, 3, 3));
  for (const bool mapped : {false, true}) {
    auto gguf = Gguf::open(first, mapped);
    REQUIRE(gguf);
    CHECK(gguf->tensors().size() == 3);
    CHECK(gguf_test_read(*gguf, "t0")[0] == 0);
    CHECK(gguf_test_read(*gguf, "t2")[3] == 23);
    CHECK(gguf->find_tensor("t2")->part == 2);
    CHECK(gguf->name(2) == third);
    CHECK(*gguf->string("general.architecture", "") == "llama");
  }
  const auto other = Gguf::open(third, false);
  REQUIRE_FALSE(other);
  CHECK(other.error().code() == ErrorCode::invalid_argument);
  CHECK(other.error().message().find("'" + first + "'") != std::string_view::npos);

  std::filesystem::remove(folder.file("m-00002-of-00003.gguf"));
  const auto missing = Gguf::open(first, false);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code() == ErrorCode::not_found);
  CHECK(missing.error().message().find("m-00002-of-00003.gguf") != std::string_view::npos);

  // A part of another set in its place.
  folder.write("m-00002-of-00003.gguf", gguf_test_part(1, 4, 4));
  CHECK(Gguf::open(first, false).error().code() == ErrorCode::invalid_file);
  folder.write("m-00002-of-00003.gguf", gguf_test_part(2, 3, 3));
  CHECK(Gguf::open(first, false).error().code() == ErrorCode::invalid_file);
}

TEST_CASE("a first part with a name of its own says how it should be called") {
  const TempFolder folder;
  const auto gguf = Gguf::open(folder.write("model.gguf", gguf_test_part(0, 2, 2)), false);
  REQUIRE_FALSE(gguf);
  CHECK(gguf.error().message().find("-00001-of-00002.gguf") != std::string_view::npos);
}

TEST_CASE("parts come from readers in order and in full number") {
  const auto p0 = gguf_test_part(0, 2, 2);
  const auto p1 = gguf_test_part(1, 2, 2);
  detail::MemoryReader r0(p0, "p0");
  detail::MemoryReader r1(p1, "p1");
  Reader* right[] = {&r0, &r1};
  auto gguf = Gguf::open(right);
  REQUIRE(gguf);
  CHECK(gguf_test_read(*gguf, "t1")[0] == 10);
  Reader* swapped[] = {&r1, &r0};
  CHECK(Gguf::open(swapped).error().code() == ErrorCode::invalid_argument);
  Reader* few[] = {&r0};
  CHECK(Gguf::open(few).error().code() == ErrorCode::invalid_argument);
  Reader* twice[] = {&r0, &r0};
  CHECK(Gguf::open(twice).error().code() == ErrorCode::invalid_file);
  Reader* none[] = {nullptr};
  CHECK(Gguf::open(none).error().code() == ErrorCode::invalid_argument);
  CHECK(Gguf::open(std::span<Reader* const>()).error().code() == ErrorCode::invalid_argument);
  CHECK(Gguf::open(p0).error().code() == ErrorCode::invalid_argument);  // memory holds one part

  const auto lying = gguf_test_part(0, 2, 3);  // promises three tensors
  detail::MemoryReader liar(lying);
  Reader* short_set[] = {&liar, &r1};
  CHECK(Gguf::open(short_set).error().code() == ErrorCode::invalid_file);
}

TEST_CASE("a tensor that two parts hold is an error") {
  GgufWriter w[2];
  std::vector<std::byte> bytes[2];
  for (std::uint16_t i = 0; i < 2; ++i) {
    w[i].add_u16("split.no", i);
    w[i].add_u16("split.count", 2);
    w[i].add_f32_tensor("same", {1}, gguf_test_floats(1, 0));
    bytes[i] = w[i].finish();
  }
  detail::MemoryReader r0(bytes[0]);
  detail::MemoryReader r1(bytes[1]);
  Reader* readers[] = {&r0, &r1};
  const auto gguf = Gguf::open(readers);
  REQUIRE_FALSE(gguf);
  CHECK(gguf.error().message().find("'same' occurs twice") != std::string_view::npos);
}

// ------------------------------------------------------------------------------------ real files

TEST_CASE("opening a real model reads its header fast", "[real]") {
  const struct {
    const char* variable;
    std::size_t tensors, tokens;
    const char* architecture;
  } models[] = {{"DECANT_SMOLLM2", 272, 49152, "llama"}, {"DECANT_GEMMA3", 236, 262144, "gemma3"}};
  int opened = 0;
  for (const auto& model : models) {
    const char* path = std::getenv(model.variable);
    if (path == nullptr) continue;
    ++opened;
    const auto begin = std::chrono::steady_clock::now();
    auto gguf = Gguf::open(path, false);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    REQUIRE(gguf);
    WARN(path << " opened in " << seconds.count() * 1000 << " ms");
    CHECK(gguf->tensors().size() == model.tensors);
    CHECK(gguf->strings("tokenizer.ggml.tokens")->size() == model.tokens);
    CHECK(*gguf->string("general.architecture", "") == model.architecture);
  }
  if (opened == 0) DECANT_SKIP("DECANT_SMOLLM2 and DECANT_GEMMA3 are not set");
}

}  // namespace decant::test
