// Any bytes as a GGUF file: opened from memory and through a reader, which must agree; then every
// key and tensor is looked at, as a host that trusts nothing would.
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "format/gguf.hpp"

using namespace decant;
using namespace decant::detail;

// A disagreement is a crash for the fuzzer.
static void fuzz_require(bool condition) {
  if (!condition) __builtin_trap();
}

static void fuzz_walk(const Gguf& gguf) {
  for (const auto& [key, text] : gguf.describe()) {
    fuzz_require(gguf.has(key));
    (void)gguf.string(key, text);
    (void)gguf.uint(key, 0);
    (void)gguf.number(key, 0);
    (void)gguf.boolean(key, false);
    (void)gguf.strings(key);
    (void)gguf.floats(key);
    (void)gguf.integers(key);
  }
  std::vector<float> values;
  for (const GgufTensor& tensor : gguf.tensors()) {
    fuzz_require(gguf.find_tensor(tensor.name) == &tensor);
    const TensorTypeInfo& info = *tensor_type_info(tensor.type);
    fuzz_require(tensor.elements() / info.block_elements * info.block_bytes == tensor.bytes);
    std::vector<std::byte> bytes(tensor.bytes);  // at most as long as the input
    fuzz_require(static_cast<bool>(gguf.read(tensor, bytes)));
    if (!info.dequantises) continue;
    values.resize(tensor.elements());
    dequantise(tensor.type, bytes.data(), values.size(), values.data());
  }
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto by_memory = Gguf::open(file);
  MemoryReader reader(file);
  Reader* readers[] = {&reader};
  const auto by_reader = Gguf::open(readers);
  fuzz_require(by_memory.error().code() == by_reader.error().code());
  if (by_memory) fuzz_walk(*by_memory);
  if (by_reader) fuzz_walk(*by_reader);
  return 0;
}
