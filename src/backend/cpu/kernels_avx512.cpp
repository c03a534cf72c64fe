#include "base/fp_contract.hpp"

#if defined(__x86_64__) || defined(_M_X64)

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "backend/cpu/kernels.hpp"
#include "backend/cpu/region.hpp"
#include "base/float16.hpp"
#include "base/fma.hpp"

#if defined(__clang__)
#pragma clang attribute push(                                                               \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))), \
    apply_to = function)
#elif defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // the intrinsics' own
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#endif

namespace decant::detail::avx512 {

#include "backend/cpu/vec_avx512.inl.hpp"

#include "backend/cpu/kernels.inl.hpp"

extern const CpuKernels kKernels;
const CpuKernels kKernels = {"avx512", matmul, norm,     quantise,  quantise_wide, attend,
                             merge,    divide, activate, head_norm, rotate,        store_kv};

}  // namespace decant::detail::avx512

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif

#endif
