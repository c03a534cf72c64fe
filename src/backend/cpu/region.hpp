// Macros of the kernel sources.
#pragma once

#if defined(_MSC_VER) && !defined(__clang__)
#define DECANT_VEC static __forceinline
#define DECANT_VEC_MEMBER __forceinline
#define DECANT_KERNEL static
#define DECANT_UNROLL(n)
#elif defined(__clang__)
#define DECANT_VEC inline __attribute__((always_inline))
#define DECANT_VEC_MEMBER DECANT_VEC
#define DECANT_KERNEL inline
#define DECANT_PRAGMA_(x) _Pragma(#x)
#define DECANT_UNROLL(n) DECANT_PRAGMA_(clang loop unroll(full))
#else
#define DECANT_VEC inline __attribute__((always_inline))
#define DECANT_VEC_MEMBER DECANT_VEC
#define DECANT_KERNEL inline
#define DECANT_PRAGMA_(x) _Pragma(#x)
#define DECANT_UNROLL(n) DECANT_PRAGMA_(GCC unroll n)
#endif
