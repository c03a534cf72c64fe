#include "base/fp_contract.hpp"

#include <bit>
#include <cstdint>

#include "backend/cpu/kernels.hpp"
#include "backend/cpu/region.hpp"
#include "base/float16.hpp"
#include "base/fma.hpp"

namespace decant::detail::portable {

#include "backend/cpu/vec_portable.inl.hpp"

#include "backend/cpu/vec_whole.inl.hpp"

#include "backend/cpu/kernels.inl.hpp"

}  // namespace decant::detail::portable
