#include "base/fp_contract.hpp"

#if defined(__aarch64__) && !defined(_MSC_VER)

#include <arm_neon.h>

#include <bit>
#include <cstdint>

#include "backend/cpu/kernels.hpp"
#include "backend/cpu/region.hpp"
#include "base/float16.hpp"
#include "base/fma.hpp"

#if defined(__clang__)
DECANT_TARGET_BEGIN("dotprod")
#else
DECANT_TARGET_BEGIN("arch=armv8.2-a+dotprod")
#endif

namespace decant::detail::neon {

#include "backend/cpu/vec_neon.inl.hpp"

#include "backend/cpu/vec_whole.inl.hpp"

#include "backend/cpu/kernels.inl.hpp"

}  // namespace decant::detail::neon

DECANT_TARGET_END

#endif
