#include "model/fingerprint.hpp"

#include <algorithm>

namespace decant::detail {

static constexpr std::uint64_t kFingerprintPiece = 4096, kFingerprintPieces = 16;

static Hash128 fingerprint_text(Hash128 h, std::string_view text) {
  return hash_bytes(h, std::as_bytes(std::span(text.data(), text.size())));
}

Result<Hash128> model_fingerprint(const Gguf& file) {
  Hash128 h{0x646563616E74, 1};
  for (const auto& [key, value] : file.describe())
    h = fingerprint_text(fingerprint_text(h, key), value);
  std::vector<std::byte> piece(kFingerprintPiece);
  for (const GgufTensor& tensor : file.tensors()) {
    h = fingerprint_text(h, tensor.name);
    h = hash_word(h, static_cast<std::uint64_t>(tensor.type));
    for (const std::uint64_t n : tensor.shape) h = hash_word(h, n);
    const std::uint64_t size = std::min(tensor.bytes, kFingerprintPiece);
    const std::uint64_t n =
        std::min((tensor.bytes + kFingerprintPiece - 1) / kFingerprintPiece, kFingerprintPieces);
    for (std::uint64_t i = 0; i < n; ++i) {
      // Evenly spaced, from the first bytes to the last.
      const std::uint64_t from = n == 1 ? 0 : (tensor.bytes - size) / (n - 1) * i;
      const auto bytes = std::span(piece).first(static_cast<std::size_t>(size));
      DECANT_TRY(file.read(tensor, i + 1 == n ? tensor.bytes - size : from, bytes));
      h = hash_bytes(h, bytes);
    }
  }
  return h;
}

}  // namespace decant::detail
