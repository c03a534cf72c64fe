// Forbids fusing a multiply with an add, which would change the last bit from one compiler or
// processor to the next. The twin of -ffp-contract=off, for hosts that compile the sources with
// their own flags. Include it first in every .cpp that computes with floating point: it holds from
// here to the end of the translation unit.
#pragma once

#ifdef __FAST_MATH__
#error "Decant's results are bit-exact; build it without -ffast-math"
#endif

// 1 and 2: the x87 unit evaluates in a wider format.
#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "Decant needs plain IEEE arithmetic; on 32-bit x86 build with -msse2 -mfpmath=sse"
#endif

#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC optimize("fp-contract=off")
#elif defined(_MSC_VER)
#pragma fp_contract(off)
#endif
