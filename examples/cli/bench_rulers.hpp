// What the machine can do, measured here and now: the yardsticks that `decant bench` holds a
// model's rates against. A data sheet would flatter both.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace cli {

/// Yardsticks for one instruction set: "portable", "avx2", "avx512" or "neon".
class Rulers {
 public:
  /// Empty: the best this processor has. Throws decant::Exception (unsupported) when it lacks it.
  explicit Rulers(std::string_view isa);
  ~Rulers();

  const std::string& isa() const { return isa_; }
  /// GB/s (10^9 bytes) of linear reading from 1 GiB, four streams in each thread; best of 8.
  double read_bandwidth(int threads);
  /// 10^9 multiply-adds of 8-bit integers into 32-bit sums in a second, without memory.
  double int8_peak(int threads) const;
  /// The same for floats with one rounding (without, where the instruction set has no FMA).
  double f32_peak(int threads) const;

 private:
  struct Buffer;
  std::string isa_;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace cli
