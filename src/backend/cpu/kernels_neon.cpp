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
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // the intrinsics' own
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

namespace decant::detail::neon {

#include "backend/cpu/vec_neon.inl.hpp"

#include "backend/cpu/kernels.inl.hpp"

extern const CpuKernels kKernels;
const CpuKernels kKernels = {"neon", matmul, norm,     quantise,  quantise_wide, attend,
                             merge,  divide, activate, head_norm, rotate,        store_kv};

}  // namespace decant::detail::neon

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif

#endif
