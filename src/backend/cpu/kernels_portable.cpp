#include "base/fp_contract.hpp"

#include <bit>
#include <cstdint>

#include "backend/cpu/kernels.hpp"
#include "backend/cpu/region.hpp"
#include "base/float16.hpp"
#include "base/fma.hpp"

namespace decant::detail::portable {

#include "backend/cpu/vec_portable.inl.hpp"

#include "backend/cpu/kernels.inl.hpp"

extern const CpuKernels kKernels;
const CpuKernels kKernels = {"portable", matmul, norm,     quantise,  quantise_wide, attend,
                             merge,      divide, activate, head_norm, rotate,        store_kv};

}  // namespace decant::detail::portable
