// __half and __half2 (CUDA's cuda_fp16.h).
#pragma once

#include "cuemu/device.h"
#include "cuemu/narrow_float.h"

struct __half_raw {
    unsigned short x;
};
struct __half2_raw {
    unsigned short x, y;
};
CUEMU_NARROW_TYPE(__half, HalfFormat)
CUEMU_NARROW_PAIR(__half2, __half)
CUEMU_NARROW_INTRINSICS(__half, __half2)
using half = __half;
using half2 = __half2;
using __nv_half = __half;
using __nv_half2 = __half2;

inline float __half2float(__half a) { return float(a); }
inline __half __float2half(float a) { return __half(a); }
inline __half __float2half_rn(float a) { return __half(a); }
inline __half __double2half(double a) { return __half(a); }
inline __half __int2half_rn(int a) { return __half(a); }
inline __half __uint2half_rn(unsigned a) { return __half(a); }
inline __half __short2half_rn(short a) { return __half(a); }
inline int __half2int_rn(__half a) { return __float2int_rn(float(a)); }
inline int __half2int_rz(__half a) { return __float2int_rz(float(a)); }
inline unsigned __half2uint_rn(__half a) { return __float2uint_rn(float(a)); }
inline short __half2short_rn(__half a) { return static_cast<short>(__float2int_rn(float(a))); }
inline unsigned short __half_as_ushort(__half a) { return a.__x; }
inline short __half_as_short(__half a) { return static_cast<short>(a.__x); }
inline __half __ushort_as_half(unsigned short b) { return __half(__half_raw{b}); }
inline __half __short_as_half(short b) { return __half(__half_raw{static_cast<unsigned short>(b)}); }
inline __half2 make_half2(__half x, __half y) { return __half2(x, y); }
inline __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
inline __half2 __half2half2(__half a) { return __half2(a, a); }
inline __half2 __float2half2_rn(float a) { return __half2(a, a); }
inline __half2 __floats2half2_rn(float a, float b) { return __half2(a, b); }
inline __half2 __float22half2_rn(float2 a) { return __half2(a.x, a.y); }
inline float2 __half22float2(__half2 a) { return make_float2(float(a.x), float(a.y)); }
inline float __low2float(__half2 a) { return float(a.x); }
inline float __high2float(__half2 a) { return float(a.y); }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline __half2 __low2half2(__half2 a) { return __half2(a.x, a.x); }
inline __half2 __high2half2(__half2 a) { return __half2(a.y, a.y); }
inline __half2 __lowhigh2highlow(__half2 a) { return __half2(a.y, a.x); }
inline __half2 __lows2half2(__half2 a, __half2 b) { return __half2(a.x, b.x); }
inline __half2 __highs2half2(__half2 a, __half2 b) { return __half2(a.y, b.y); }
