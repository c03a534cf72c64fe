#include "base/fp_contract.hpp"

#if defined(__x86_64__) || defined(_M_X64)

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "backend/cpu/kernels.hpp"
#include "backend/cpu/region.hpp"
#include "base/float16.hpp"
#include "base/fma.hpp"

DECANT_TARGET_BEGIN("avx2,fma,f16c")

namespace decant::detail::avx2 {

#include "backend/cpu/vec_avx2.inl.hpp"

#include "backend/cpu/kernels.inl.hpp"

#include "backend/cpu/matmul_avx2.inl.hpp"

}  // namespace decant::detail::avx2

DECANT_TARGET_END

#endif
