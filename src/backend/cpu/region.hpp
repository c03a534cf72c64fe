// Macros of the kernel sources.
#pragma once

#if defined(_MSC_VER) && !defined(__clang__)
#define DECANT_VEC static __forceinline
#define DECANT_VEC_MEMBER __forceinline
#define DECANT_KERNEL static
#define DECANT_UNROLL(n)
#define DECANT_TARGET_BEGIN(target)
#define DECANT_TARGET_END
#else
#define DECANT_PRAGMA_(x) _Pragma(#x)
#define DECANT_VEC inline __attribute__((always_inline))
#define DECANT_VEC_MEMBER DECANT_VEC
#define DECANT_KERNEL inline
#if defined(__clang__)
#define DECANT_UNROLL(n) DECANT_PRAGMA_(clang loop unroll(full))
#define DECANT_TARGET_BEGIN(features) \
  DECANT_PRAGMA_(clang attribute push(__attribute__((target(features))), apply_to = function))
#define DECANT_TARGET_END DECANT_PRAGMA_(clang attribute pop)
#else
#define DECANT_UNROLL(n) DECANT_PRAGMA_(GCC unroll n)
// The warnings are the intrinsics' own.
#define DECANT_TARGET_BEGIN(features)                            \
  DECANT_PRAGMA_(GCC diagnostic push)                            \
  DECANT_PRAGMA_(GCC diagnostic ignored "-Wmaybe-uninitialized") \
  DECANT_PRAGMA_(GCC diagnostic ignored "-Wuninitialized")       \
  DECANT_PRAGMA_(GCC push_options)                               \
  DECANT_PRAGMA_(GCC target(features))
#define DECANT_TARGET_END DECANT_PRAGMA_(GCC pop_options) DECANT_PRAGMA_(GCC diagnostic pop)
#endif
#endif
