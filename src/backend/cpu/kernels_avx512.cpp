#include "base/fp_contract.hpp"

#if defined(__x86_64__) || defined(_M_X64)

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "backend/cpu/kernels.hpp"
#include "backend/cpu/region.hpp"
#include "base/float16.hpp"
#include "base/fma.hpp"

DECANT_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")

namespace decant::detail::avx512 {

#include "backend/cpu/vec_avx512.inl.hpp"

#include "backend/cpu/vec_whole.inl.hpp"

#include "backend/cpu/kernels.inl.hpp"

}  // namespace decant::detail::avx512

DECANT_TARGET_END

#endif
