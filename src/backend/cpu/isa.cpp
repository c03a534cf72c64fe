// Which kernels this processor runs.
#include <string>

#include "backend/cpu/kernels.hpp"
#include "base/platform/platform.hpp"

#if defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86)) && !defined(__clang__)
#include <intrin.h>
#endif

namespace decant::detail {

namespace portable {
extern const CpuKernels kKernels;
}
#if defined(__aarch64__) && !defined(_MSC_VER)
namespace neon {
extern const CpuKernels kKernels;
}
#endif
#if defined(__x86_64__) || defined(_M_X64)
namespace avx2 {
extern const CpuKernels kKernels;
}
namespace avx512 {
extern const CpuKernels kKernels;
}

static bool isa_has_avx2() {
#if defined(__GNUC__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");  // all such have f16c
#else
  int leaf1[4], leaf7[4];
  __cpuid(leaf1, 1);
  __cpuidex(leaf7, 7, 0);
  const bool os_saves_ymm = (leaf1[2] & 1 << 27) != 0 && (_xgetbv(0) & 6) == 6;
  return os_saves_ymm && (leaf7[1] & 1 << 5) != 0 && (leaf1[2] & 1 << 12) != 0 &&
         (leaf1[2] & 1 << 29) != 0;
#endif
}

static bool isa_has_avx512() {
#if defined(__GNUC__)
  return isa_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#else
  int leaf7[4];
  __cpuidex(leaf7, 7, 0);
  constexpr int wanted = 1 << 16 | 1 << 17 | 1 << 30 | static_cast<int>(1u << 31);  // F, DQ, BW, VL
  return isa_has_avx2() && (_xgetbv(0) & 0xE6) == 0xE6 && (leaf7[1] & wanted) == wanted &&
         (leaf7[2] & 1 << 11) != 0;
#endif
}
#endif

Result<const CpuKernels*> cpu_kernels(std::string_view isa) {
  struct Entry {
    const CpuKernels* kernels;
    bool runs;
  };
  const Entry entries[] = {  // the best first
#if defined(__x86_64__) || defined(_M_X64)
    {&avx512::kKernels, isa_has_avx512()},
    {&avx2::kKernels, isa_has_avx2()},
#endif
#if defined(__aarch64__) && !defined(_MSC_VER)
    {&neon::kKernels, cpu_has_dot_product()},
#endif
    {&portable::kKernels, true},
  };
  std::string usable;
  bool known = false;
  for (const Entry& entry : entries) {
    if (entry.runs && (isa.empty() || isa == entry.kernels->name)) return entry.kernels;
    if (isa == entry.kernels->name) known = true;
    if (entry.runs) usable += (usable.empty() ? "" : ", ") + std::string(entry.kernels->name);
  }
  return make_error(ErrorCode::unsupported,
                    "{} the instruction set '{}'; this build and processor have {}",
                    known ? "this processor lacks" : "there are no kernels for", isa.substr(0, 64),
                    usable);
}

}  // namespace decant::detail
