// __nv_bfloat16 and __nv_bfloat162 (CUDA's cuda_bf16.h).
#pragma once

#include "cuemu/device.h"
#include "cuemu/narrow_float.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};
CUEMU_NARROW_TYPE(__nv_bfloat16, Bfloat16Format)
CUEMU_NARROW_PAIR(__nv_bfloat162, __nv_bfloat16)
CUEMU_NARROW_INTRINSICS(__nv_bfloat16, __nv_bfloat162)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __bfloat162float(__nv_bfloat16 a) { return float(a); }
inline __nv_bfloat16 __float2bfloat16(float a) { return __nv_bfloat16(a); }
inline __nv_bfloat16 __float2bfloat16_rn(float a) { return __nv_bfloat16(a); }
inline __nv_bfloat16 __double2bfloat16(double a) { return __nv_bfloat16(a); }
inline __nv_bfloat16 __int2bfloat16_rn(int a) { return __nv_bfloat16(a); }
inline int __bfloat162int_rn(__nv_bfloat16 a) { return __float2int_rn(float(a)); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.__x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short b) { return __nv_bfloat16(__nv_bfloat16_raw{b}); }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return __nv_bfloat162(a, a); }
inline __nv_bfloat162 __float2bfloat162_rn(float a) { return __nv_bfloat162(a, a); }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return __nv_bfloat162(a, b); }
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return __nv_bfloat162(a.x, a.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 a) { return make_float2(float(a.x), float(a.y)); }
inline float __low2float(__nv_bfloat162 a) { return float(a.x); }
inline float __high2float(__nv_bfloat162 a) { return float(a.y); }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
