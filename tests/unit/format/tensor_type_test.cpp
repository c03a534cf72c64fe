// Values of quantised blocks against gguf-py's, bit for bit (see tests/data/gguf_blocks).
#include "format/tensor_type.hpp"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/host_mode.hpp"
#include "support/npz.hpp"

namespace decant::test {

using namespace decant_test;
using detail::TensorType;

static const TensorType kDequantisable[] = {
    TensorType::F32,  TensorType::F16,  TensorType::BF16, TensorType::Q4_0, TensorType::Q4_1,
    TensorType::Q5_0, TensorType::Q5_1, TensorType::Q8_0, TensorType::Q2_K, TensorType::Q3_K,
    TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K};

// Elements of `blocks` whose bits differ from `wanted`.
static std::size_t differing(TensorType type, const std::vector<std::byte>& blocks,
                             const std::vector<float>& wanted) {
  const auto* info = detail::tensor_type_info(type);
  REQUIRE(blocks.size() == wanted.size() / info->block_elements * info->block_bytes);
  std::vector<float> values(wanted.size() + 1, 12345.0f);
  detail::dequantise(type, blocks.data(), wanted.size(), values.data());
  std::size_t n = values.back() == 12345.0f ? 0 : 1;  // wrote past the end
  for (std::size_t i = 0; i < wanted.size(); ++i)
    n += std::memcmp(&values[i], &wanted[i], sizeof(float)) != 0;
  return n;
}

TEST_CASE("every tensor type dequantises to gguf-py's bits") {
  for (const TensorType type : kDequantisable) {
    const std::string name(detail::tensor_type_info(type)->name);
    INFO(name);
    CHECK(detail::tensor_type_info(type)->dequantises);
    const std::string stem = std::string(DECANT_TEST_DATA) + "/gguf_blocks/" + name;
    auto blocks = read_file_bytes(stem + ".raw");
    const auto bytes = read_file_bytes(stem + ".f32");
    std::vector<float> wanted(bytes.size() / sizeof(float));
    std::memcpy(wanted.data(), bytes.data(), bytes.size());
    REQUIRE(wanted.size() == 1024);
    CHECK(differing(type, blocks, wanted) == 0);
    std::size_t flushed = 0;
    {
      const HostMode mode(HostMode::flush_to_zero);
      flushed = differing(type, blocks, wanted);
    }
    CHECK(flushed == 0);
    // Blocks may begin at any address.
    std::vector<std::byte> shifted(blocks.size() + 1);
    std::memcpy(shifted.data() + 1, blocks.data(), blocks.size());
    std::vector<float> values(wanted.size());
    detail::dequantise(type, shifted.data() + 1, wanted.size(), values.data());
    CHECK(std::memcmp(values.data(), wanted.data(), bytes.size()) == 0);
  }
}

TEST_CASE("every golden block of every seed dequantises to its bits") {
  const char* folder = std::getenv("DECANT_GOLDEN_DIR");
  if (folder == nullptr) DECANT_SKIP("DECANT_GOLDEN_DIR is not set");
#ifndef DECANT_TEST_ZLIB
  DECANT_SKIP("a cross build has no zlib");
#endif
  const auto arrays = read_npz(std::string(folder) + "/quantised/gguf_blocks.npz");
  int compared = 0;
  for (const TensorType type : kDequantisable) {
    const std::string name(detail::tensor_type_info(type)->name);
    for (const auto& [key, array] : arrays) {
      if (key.rfind(name + ".s", 0) != 0 || !key.ends_with(".raw")) continue;
      INFO(key);
      const auto& wanted = arrays.at(key.substr(0, key.size() - 4) + ".f32");
      CHECK(differing(type, array.data, wanted.as<float>()) == 0);
      ++compared;
    }
  }
  CHECK(compared == 26);
}

TEST_CASE("sizes of tensor types agree with the golden blocks") {
  // From gguf-py's GGML_QUANT_SIZES; Q8_K stands for types that cannot be dequantised.
  const struct {
    TensorType type;
    const char* name;
    std::size_t elements, bytes;
  } wanted[] = {{TensorType::F32, "F32", 1, 4},        {TensorType::BF16, "BF16", 1, 2},
                {TensorType::Q4_1, "Q4_1", 32, 20},    {TensorType::Q6_K, "Q6_K", 256, 210},
                {TensorType::IQ1_M, "IQ1_M", 256, 56}, {TensorType::Q8_K, "Q8_K", 256, 292},
                {TensorType::MXFP4, "MXFP4", 32, 17},  {TensorType::I64, "I64", 1, 8}};
  for (const auto& w : wanted) {
    const auto* info = detail::tensor_type_info(w.type);
    REQUIRE(info != nullptr);
    CHECK(info->name == w.name);
    CHECK(info->block_elements == w.elements);
    CHECK(info->block_bytes == w.bytes);
  }
  CHECK_FALSE(detail::tensor_type_info(TensorType::IQ2_XS)->dequantises);
  for (const std::uint32_t number : {4u, 5u, 31u, 36u, 38u, 1000u, 0xffffffffu})
    CHECK(detail::tensor_type_info(static_cast<TensorType>(number)) == nullptr);
}

}  // namespace decant::test
