// All CPU kernels, written once over the vector layer and included once for each instruction set,
// inside a namespace and a target region of its own. Nothing in these files may include a library,
// use a template of the standard library or write a lambda.
//
// Vector layer: F sixteen floats, I sixteen int32, B sixteen lanes of four unsigned bytes; what
// each function means is said, lane by lane, in vec_portable.inl.hpp. Every result is an IEEE
// operation on lanes in a stated order, so all instruction sets agree.
#include "backend/cpu/rows.inl.hpp"

#include "backend/cpu/matmul.inl.hpp"

#include "backend/cpu/attention.inl.hpp"

extern const CpuKernels kKernels;
const CpuKernels kKernels = {kIsaName, matmul,   norm,     quantise,  quantise_wide, attend,  merge,
                             divide,   soft_cap, activate, head_norm, rotate,        store_kv};
