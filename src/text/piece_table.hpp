// A flat hash table from the bytes of a piece to its token. The bytes stay where they are, in the
// tokenizer's arena; a slot is 8 bytes and a third to two thirds of them are used. Its hash has a
// seed that no file can know, so that no vocabulary fills one place alone.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.hpp"
#include "base/platform/platform.hpp"

namespace decant::detail {

/// Eight bytes at a time; `seed` only decides where things lie, never what is found.
inline std::uint64_t piece_hash(std::string_view bytes, std::uint64_t seed) {
  std::uint64_t h = seed ^ bytes.size();
  while (!bytes.empty()) {
    std::uint64_t word = 0;
    const std::size_t n = bytes.size() < 8 ? bytes.size() : 8;
    std::memcpy(&word, bytes.data(), n);
    bytes.remove_prefix(n);
    h = hash_mix(h ^ word);
  }
  return h;
}

/// The pieces of a vocabulary, one after another in one arena.
class Pieces {
 public:
  void add(std::string_view bytes) {
    bytes_.append(bytes);
    ends_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  }
  /// Room for all pieces at once. Their bytes must number less than 2^32.
  void reserve(std::size_t n_pieces, std::size_t n_bytes) {
    bytes_.reserve(n_bytes);
    ends_.reserve(n_pieces);
  }
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }
  std::size_t memory_bytes() const {
    return bytes_.capacity() + ends_.capacity() * sizeof(std::uint32_t);
  }

 private:
  std::string bytes_;
  std::vector<std::uint32_t> ends_;
};

class PieceTable {
 public:
  PieceTable() = default;
  explicit PieceTable(std::size_t capacity)
      : slots_(std::bit_ceil(capacity + capacity / 2 + 1)), seed_(random_seed()) {}

  /// The first of equal pieces stays. At most `capacity` of them.
  void insert(const Pieces& pieces, Token token) {
    const std::string_view bytes = pieces[static_cast<std::size_t>(token)];
    const std::uint32_t h = hash(bytes);
    std::size_t i = h & (slots_.size() - 1);
    for (; slots_[i].token >= 0; i = (i + 1) & (slots_.size() - 1)) {
      if (is(slots_[i], h, pieces, bytes)) return;
    }
    slots_[i] = {h, token};
  }
  /// -1: no such piece.
  Token find(const Pieces& pieces, std::string_view bytes) const {
    if (slots_.empty()) return -1;
    const std::uint32_t h = hash(bytes);
    std::size_t i = h & (slots_.size() - 1);
    while (slots_[i].token >= 0 && !is(slots_[i], h, pieces, bytes)) {
      i = (i + 1) & (slots_.size() - 1);
    }
    return slots_[i].token;
  }
  std::size_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    Token token = -1;
  };

  static bool is(const Slot& slot, std::uint32_t h, const Pieces& pieces, std::string_view bytes) {
    return slot.hash == h && pieces[static_cast<std::size_t>(slot.token)] == bytes;
  }
  std::uint32_t hash(std::string_view bytes) const {
    return static_cast<std::uint32_t>(piece_hash(bytes, seed_));
  }

  std::vector<Slot> slots_;  // a power of two
  std::uint64_t seed_ = 0;
};

}  // namespace decant::detail
