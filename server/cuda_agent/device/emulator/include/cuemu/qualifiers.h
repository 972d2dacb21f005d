// CUDA's function and variable qualifiers, as far as a CPU has a use for them.
#pragma once

// A kernel is called through its address only; noipa keeps GCC from changing its signature or cloning it.
#define __global__ __attribute__((noipa, used))
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__
#define __forceinline__ inline __attribute__((always_inline))
#define __inline_hint__
// No macro __noinline__: libstdc++ writes __attribute__((__noinline__)). The translator replaces it in people's text.
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __block_size__(...)
#define __grid_constant__
#define __nv_pure__
#define __device_builtin__
#define __cudart_builtin__
#define CUDART_CB
#define CUDARTAPI

#define CUEMU_INLINE inline __attribute__((always_inline))
#if defined(__SANITIZE_THREAD__)
#define CUEMU_TRACED 1
// Runtime helpers of a traced build: called, never inlined, so that their return address is the user's line,
// and not instrumented, so that only the user's own accesses are seen.
#define CUEMU_HELPER inline __attribute__((noinline, no_sanitize_thread))
#else
#define CUEMU_TRACED 0
#define CUEMU_HELPER inline __attribute__((always_inline))
#endif
