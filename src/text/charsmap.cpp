// Walks the trie with every index checked: the file may hold anything.
#include "text/charsmap.hpp"

#include <algorithm>

namespace decant::detail {

static std::uint32_t charsmap_word(const std::uint8_t* b) {
  return b[0] | static_cast<std::uint32_t>(b[1]) << 8 | static_cast<std::uint32_t>(b[2]) << 16 |
         static_cast<std::uint32_t>(b[3]) << 24;
}

Result<Charsmap> Charsmap::create(std::vector<std::uint8_t> bytes) {
  Charsmap map;
  if (bytes.empty()) return map;
  const std::uint64_t trie_bytes = bytes.size() < 4 ? 0 : charsmap_word(bytes.data());
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes + 4 > bytes.size()) {
    return make_error(
        ErrorCode::invalid_file,
        "tokenizer.ggml.precompiled_charsmap has {} bytes, which do not hold the trie "
        "of {} bytes that it begins with",
        bytes.size(), trie_bytes);
  }
  map.trie_.reserve(trie_bytes / 4);
  for (std::size_t i = 4; i < trie_bytes + 4; i += 4) {
    map.trie_.push_back(charsmap_word(&bytes[i]));
  }
  map.texts_.assign(bytes.begin() + static_cast<std::ptrdiff_t>(trie_bytes + 4), bytes.end());
  return map;
}

Charsmap::Match Charsmap::find(std::string_view text) const {
  // A node: bits 0-7 label, 8 has a value, 9 the offset is in units of 256, 10-30 offset; a node
  // with bit 31 is a value. Its child for a byte is at (node + offset) ^ byte, its value at 0.
  const auto offset = [&](std::size_t node) {
    return static_cast<std::size_t>(trie_[node] >> 10) << ((trie_[node] & 1u << 9) >> 6);
  };
  Match best = {0, {}};
  if (trie_.empty()) return best;
  std::size_t node = offset(0);
  for (std::size_t i = 0; i < std::min(text.size(), kMaxBytes); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= trie_.size()) break;
    const std::uint32_t word = trie_[node];
    if ((word & (1u << 31 | 0xff)) != byte) break;
    node ^= offset(node);
    if ((word >> 8 & 1) == 0) continue;
    if (node >= trie_.size()) break;
    const std::size_t at = trie_[node] & 0x7fffffff;
    const std::size_t end = at < texts_.size() ? texts_.find('\0', at) : std::string::npos;
    if (end == std::string::npos || end - at > kMaxBytes) continue;
    best = {i + 1, std::string_view(texts_).substr(at, end - at)};
  }
  return best;
}

}  // namespace decant::detail
