// CUDA's math functions and intrinsics that libm does not have. Fast-math intrinsics give the accurate result.
#pragma once

#include <cassert>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <math.h>
#include <stdlib.h>

#include "device_api.h"
#include "qualifiers.h"
#include "vector_types.h"

#ifndef CUDART_INF_F
#define CUDART_INF_F (__builtin_inff())
#define CUDART_NAN_F (__builtin_nanf(""))
#define CUDART_INF (__builtin_inf())
#define CUDART_NAN (__builtin_nan(""))
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931e+0
#endif
#define __builtin_assume(condition) ((void)0)
#define __assume(condition) ((void)0)
#define __builtin_nontemporal_load(pointer) (*(pointer))

// ---------------------------------------------------------------- min, max, abs

#define CUEMU_MINMAX(type)                                                    \
    constexpr CUEMU_INLINE type min(type a, type b) { return b < a ? b : a; } \
    constexpr CUEMU_INLINE type max(type a, type b) { return a < b ? b : a; }
#define CUEMU_MINMAX_MIXED(left, right, type)                                                                                  \
    constexpr CUEMU_INLINE type min(left a, right b) { return min(static_cast<type>(a), static_cast<type>(b)); }               \
    constexpr CUEMU_INLINE type max(left a, right b) { return max(static_cast<type>(a), static_cast<type>(b)); }
CUEMU_MINMAX(int)
CUEMU_MINMAX(unsigned)
CUEMU_MINMAX(long)
CUEMU_MINMAX(unsigned long)
CUEMU_MINMAX(long long)
CUEMU_MINMAX(unsigned long long)
CUEMU_MINMAX_MIXED(int, unsigned, unsigned)
CUEMU_MINMAX_MIXED(unsigned, int, unsigned)
CUEMU_MINMAX_MIXED(long, unsigned long, unsigned long)
CUEMU_MINMAX_MIXED(unsigned long, long, unsigned long)
CUEMU_MINMAX_MIXED(long long, unsigned long long, unsigned long long)
CUEMU_MINMAX_MIXED(unsigned long long, long long, unsigned long long)
CUEMU_INLINE float min(float a, float b) { return ::fminf(a, b); }
CUEMU_INLINE float max(float a, float b) { return ::fmaxf(a, b); }
CUEMU_INLINE double min(double a, double b) { return ::fmin(a, b); }
CUEMU_INLINE double max(double a, double b) { return ::fmax(a, b); }
CUEMU_INLINE double min(float a, double b) { return ::fmin(static_cast<double>(a), b); }
CUEMU_INLINE double max(float a, double b) { return ::fmax(static_cast<double>(a), b); }
CUEMU_INLINE double min(double a, float b) { return ::fmin(a, static_cast<double>(b)); }
CUEMU_INLINE double max(double a, float b) { return ::fmax(a, static_cast<double>(b)); }
#undef CUEMU_MINMAX
#undef CUEMU_MINMAX_MIXED
CUEMU_INLINE unsigned umin(unsigned a, unsigned b) { return min(a, b); }
CUEMU_INLINE unsigned umax(unsigned a, unsigned b) { return max(a, b); }
CUEMU_INLINE long long llmin(long long a, long long b) { return min(a, b); }
CUEMU_INLINE long long llmax(long long a, long long b) { return max(a, b); }
CUEMU_INLINE unsigned long long ullmin(unsigned long long a, unsigned long long b) { return min(a, b); }
CUEMU_INLINE unsigned long long ullmax(unsigned long long a, unsigned long long b) { return max(a, b); }

// ---------------------------------------------------------------- functions

namespace cuemu {
constexpr double kPi = 3.14159265358979323846264338327950288;
inline double sinpi_exact(double x) {
    double r = std::fmod(x, 2.0);  // exact
    if (r == 0.0 || r == 1.0 || r == -1.0) return std::copysign(0.0, x);
    if (r == 0.5 || r == -1.5) return 1.0;
    if (r == -0.5 || r == 1.5) return -1.0;
    return std::sin(kPi * r);
}
inline double cospi_exact(double x) {
    double r = std::fabs(std::fmod(x, 2.0));
    if (r == 0.5 || r == 1.5) return 0.0;
    return std::cos(kPi * r);
}
// Giles, "Approximating the erfinv function" (2012), refined by two Newton steps on erf.
inline double erfinv_of(double x) {
    if (std::fabs(x) == 1.0) return std::copysign(__builtin_inf(), x);
    if (!(std::fabs(x) < 1.0)) return __builtin_nan("");
    double w = -std::log((1.0 - x) * (1.0 + x)), p;
    if (w < 5.0) {
        const double c[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                            -0.00125372503, -0.00417768164, 0.246640727,    1.50140941};
        w -= 2.5;
        p = c[0];
        for (int i = 1; i < 9; ++i) p = c[i] + p * w;
    } else {
        const double c[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                            -0.0076224613,   0.00943887047,  1.00167406,    2.83297682};
        w = std::sqrt(w) - 3.0;
        p = c[0];
        for (int i = 1; i < 9; ++i) p = c[i] + p * w;
    }
    double y = p * x;
    for (int i = 0; i < 2; ++i) y -= (std::erf(y) - x) / (2.0 / std::sqrt(kPi) * std::exp(-y * y));
    return y;
}
}  // namespace cuemu

inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rcbrt(double x) { return 1.0 / std::cbrt(x); }
inline float rcbrtf(float x) { return static_cast<float>(1.0 / std::cbrt(static_cast<double>(x))); }
inline double sinpi(double x) { return ::cuemu::sinpi_exact(x); }
inline double cospi(double x) { return ::cuemu::cospi_exact(x); }
inline float sinpif(float x) { return static_cast<float>(::cuemu::sinpi_exact(x)); }
inline float cospif(float x) { return static_cast<float>(::cuemu::cospi_exact(x)); }
inline void sincospi(double x, double *s, double *c) { *s = sinpi(x), *c = cospi(x); }
inline void sincospif(float x, float *s, float *c) { *s = sinpif(x), *c = cospif(x); }
inline double erfinv(double x) { return ::cuemu::erfinv_of(x); }
inline float erfinvf(float x) { return static_cast<float>(::cuemu::erfinv_of(x)); }
inline double erfcinv(double x) { return ::cuemu::erfinv_of(1.0 - x); }
inline float erfcinvf(float x) { return static_cast<float>(::cuemu::erfinv_of(1.0 - static_cast<double>(x))); }
inline double erfcx(double x) { return std::exp(x * x) * std::erfc(x); }
inline float erfcxf(float x) { return static_cast<float>(erfcx(static_cast<double>(x))); }
inline double normcdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
inline float normcdff(float x) { return static_cast<float>(normcdf(static_cast<double>(x))); }
inline double normcdfinv(double p) { return std::sqrt(2.0) * ::cuemu::erfinv_of(2.0 * p - 1.0); }
inline float normcdfinvf(float p) { return static_cast<float>(normcdfinv(static_cast<double>(p))); }
inline double rhypot(double x, double y) { return 1.0 / std::hypot(x, y); }
inline float rhypotf(float x, float y) { return static_cast<float>(1.0 / std::hypot(static_cast<double>(x), static_cast<double>(y))); }
inline double norm3d(double a, double b, double c) { return std::hypot(a, b, c); }
inline float norm3df(float a, float b, float c) { return static_cast<float>(std::hypot(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c))); }
inline double rnorm3d(double a, double b, double c) { return 1.0 / std::hypot(a, b, c); }
inline float rnorm3df(float a, float b, float c) { return static_cast<float>(1.0 / std::hypot(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c))); }
inline double norm4d(double a, double b, double c, double d) { return std::hypot(std::hypot(a, b), std::hypot(c, d)); }
inline float norm4df(float a, float b, float c, float d) { return static_cast<float>(norm4d(a, b, c, d)); }
inline float fdividef(float a, float b) { return a / b; }
inline float cyl_bessel_i0f(float x) { return static_cast<float>(std::cyl_bessel_i(0.0, std::fabs(static_cast<double>(x)))); }
inline double cyl_bessel_i0(double x) { return std::cyl_bessel_i(0.0, std::fabs(x)); }
inline float saturate(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

inline float __expf(float x) { return ::expf(x); }
inline float __exp10f(float x) { return ::powf(10.0f, x); }
inline float __exp2f(float x) { return ::exp2f(x); }
inline float __logf(float x) { return ::logf(x); }
inline float __log2f(float x) { return ::log2f(x); }
inline float __log10f(float x) { return ::log10f(x); }
inline float __powf(float x, float y) { return ::powf(x, y); }
inline float __sinf(float x) { return ::sinf(x); }
inline float __cosf(float x) { return ::cosf(x); }
inline float __tanf(float x) { return ::tanf(x); }
inline float __tanhf(float x) { return ::tanhf(x); }
inline void __sincosf(float x, float *s, float *c) { *s = ::sinf(x), *c = ::cosf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return saturate(x); }  // NaN becomes 0

// ---------------------------------------------------------------- arithmetic with a rounding mode

namespace cuemu {
// The host rounds to nearest; other modes are set around one operation, whose operands the compiler must not fold.
template <class T, class F> T rounded(int mode, F operation) {
    const int old = std::fegetround();
    std::fesetround(mode);
    volatile T result = operation();
    std::fesetround(old);
    return result;
}
}  // namespace cuemu

#define CUEMU_ROUNDED2(name, type, expression)                                                                       \
    inline type name##_rn(type x, type y) { return expression; }                                                     \
    inline type name##_rz(type a, type b) { volatile type x = a, y = b; return ::cuemu::rounded<type>(FE_TOWARDZERO, [&] { return expression; }); } \
    inline type name##_ru(type a, type b) { volatile type x = a, y = b; return ::cuemu::rounded<type>(FE_UPWARD, [&] { return expression; }); }     \
    inline type name##_rd(type a, type b) { volatile type x = a, y = b; return ::cuemu::rounded<type>(FE_DOWNWARD, [&] { return expression; }); }
#define CUEMU_ROUNDED1(name, type, expression)                                                              \
    inline type name##_rn(type x) { return static_cast<type>(expression); }                                 \
    inline type name##_rz(type a) { volatile type x = a; return ::cuemu::rounded<type>(FE_TOWARDZERO, [&] { return static_cast<type>(expression); }); } \
    inline type name##_ru(type a) { volatile type x = a; return ::cuemu::rounded<type>(FE_UPWARD, [&] { return static_cast<type>(expression); }); }     \
    inline type name##_rd(type a) { volatile type x = a; return ::cuemu::rounded<type>(FE_DOWNWARD, [&] { return static_cast<type>(expression); }); }
CUEMU_ROUNDED2(__fadd, float, x + y)
CUEMU_ROUNDED2(__fsub, float, x - y)
CUEMU_ROUNDED2(__fmul, float, x * y)
CUEMU_ROUNDED2(__fdiv, float, x / y)
CUEMU_ROUNDED2(__dadd, double, x + y)
CUEMU_ROUNDED2(__dsub, double, x - y)
CUEMU_ROUNDED2(__dmul, double, x * y)
CUEMU_ROUNDED2(__ddiv, double, x / y)
CUEMU_ROUNDED1(__frcp, float, 1.0f / x)
CUEMU_ROUNDED1(__fsqrt, float, ::sqrtf(x))
CUEMU_ROUNDED1(__drcp, double, 1.0 / x)
CUEMU_ROUNDED1(__dsqrt, double, ::sqrt(x))
#undef CUEMU_ROUNDED1
#undef CUEMU_ROUNDED2
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
#define CUEMU_FMA(suffix, mode)                                                                                                 \
    inline float __fmaf_##suffix(float a, float b, float c) { return ::cuemu::rounded<float>(mode, [&] { return ::fmaf(a, b, c); }); } \
    inline double __fma_##suffix(double a, double b, double c) { return ::cuemu::rounded<double>(mode, [&] { return ::fma(a, b, c); }); }
CUEMU_FMA(rz, FE_TOWARDZERO)
CUEMU_FMA(ru, FE_UPWARD)
CUEMU_FMA(rd, FE_DOWNWARD)
#undef CUEMU_FMA
inline float __fmaf_rn(float a, float b, float c) { return ::fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return ::fma(a, b, c); }

// ---------------------------------------------------------------- conversions

namespace cuemu {
// CUDA's conversions saturate, and NaN becomes 0.
template <class T, class F> T to_integer(F x) {
    if (x != x) return 0;
    if (x <= static_cast<F>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    if (x >= static_cast<F>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    return static_cast<T>(x);
}
}  // namespace cuemu

#define CUEMU_TO_INTEGER(name, type, from)                                                       \
    inline type name##_rn(from x) { return ::cuemu::to_integer<type>(std::nearbyint(x)); }       \
    inline type name##_rz(from x) { return ::cuemu::to_integer<type>(std::trunc(x)); }           \
    inline type name##_ru(from x) { return ::cuemu::to_integer<type>(std::ceil(x)); }            \
    inline type name##_rd(from x) { return ::cuemu::to_integer<type>(std::floor(x)); }
CUEMU_TO_INTEGER(__float2int, int, float)
CUEMU_TO_INTEGER(__float2uint, unsigned, float)
CUEMU_TO_INTEGER(__float2ll, long long, float)
CUEMU_TO_INTEGER(__float2ull, unsigned long long, float)
CUEMU_TO_INTEGER(__double2int, int, double)
CUEMU_TO_INTEGER(__double2uint, unsigned, double)
CUEMU_TO_INTEGER(__double2ll, long long, double)
CUEMU_TO_INTEGER(__double2ull, unsigned long long, double)
#undef CUEMU_TO_INTEGER
#define CUEMU_FROM(name, type, from)                                                                                            \
    inline type name##_rn(from x) { return static_cast<type>(x); }                                                              \
    inline type name##_rz(from a) { volatile from x = a; return ::cuemu::rounded<type>(FE_TOWARDZERO, [&] { return static_cast<type>(x); }); } \
    inline type name##_ru(from a) { volatile from x = a; return ::cuemu::rounded<type>(FE_UPWARD, [&] { return static_cast<type>(x); }); }     \
    inline type name##_rd(from a) { volatile from x = a; return ::cuemu::rounded<type>(FE_DOWNWARD, [&] { return static_cast<type>(x); }); }
CUEMU_FROM(__int2float, float, int)
CUEMU_FROM(__uint2float, float, unsigned)
CUEMU_FROM(__ll2float, float, long long)
CUEMU_FROM(__ull2float, float, unsigned long long)
CUEMU_FROM(__ll2double, double, long long)
CUEMU_FROM(__ull2double, double, unsigned long long)
CUEMU_FROM(__double2float, float, double)
#undef CUEMU_FROM
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }

#define CUEMU_AS(name, to, from)           \
    CUEMU_INLINE to name(from x) {         \
        to out;                            \
        std::memcpy(&out, &x, sizeof out); \
        return out;                        \
    }
CUEMU_AS(__float_as_int, int, float)
CUEMU_AS(__float_as_uint, unsigned, float)
CUEMU_AS(__int_as_float, float, int)
CUEMU_AS(__uint_as_float, float, unsigned)
CUEMU_AS(__double_as_longlong, long long, double)
CUEMU_AS(__double_as_ulonglong, unsigned long long, double)
CUEMU_AS(__longlong_as_double, double, long long)
CUEMU_AS(__ulonglong_as_double, double, unsigned long long)
#undef CUEMU_AS
inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int hi, int lo) {
    return __longlong_as_double((static_cast<long long>(hi) << 32) | static_cast<unsigned>(lo));
}

// ---------------------------------------------------------------- integers

CUEMU_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
CUEMU_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
CUEMU_INLINE int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
CUEMU_INLINE int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
CUEMU_INLINE int __ffs(int x) { return __builtin_ffs(x); }
CUEMU_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __fns(unsigned mask, unsigned base, int offset) {
    // The offset-th set bit from base, counting base itself for offset 0 and 1, downwards for negative offsets.
    int at = static_cast<int>(base), step = offset < 0 ? -1 : 1, left = offset == 0 ? 1 : (offset < 0 ? -offset : offset);
    if (offset == 0) return mask >> base & 1 ? base : 0xffffffffu;
    for (; at >= 0 && at < 32; at += step)
        if ((mask >> at & 1) && --left == 0) return static_cast<unsigned>(at);
    return 0xffffffffu;
}
inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    const std::uint64_t both = static_cast<std::uint64_t>(y) << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned select = s >> (4 * i) & 0xf;
        unsigned byte = static_cast<unsigned>(both >> (8 * (select & 7)) & 0xff);
        if (select & 8) byte = byte & 0x80 ? 0xff : 0;  // sign replication
        out |= byte << (8 * i);
    }
    return out;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) {
    return static_cast<unsigned>((static_cast<std::uint64_t>(hi) << 32 | lo) << (s & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
    return static_cast<unsigned>((static_cast<std::uint64_t>(hi) << 32 | lo) >> (s & 31));
}
inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned s) {
    return s >= 32 ? lo : __funnelshift_l(lo, hi, s);
}
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned s) {
    return s >= 32 ? hi : __funnelshift_r(lo, hi, s);
}
CUEMU_INLINE int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
CUEMU_INLINE unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32); }
CUEMU_INLINE long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }
CUEMU_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
CUEMU_INLINE int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
CUEMU_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
CUEMU_INLINE unsigned __sad(int a, int b, unsigned c) {
    return c + (a < b ? static_cast<unsigned>(b) - static_cast<unsigned>(a) : static_cast<unsigned>(a) - static_cast<unsigned>(b));
}
CUEMU_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a < b ? b - a : a - b); }
CUEMU_INLINE int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
CUEMU_INLINE int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
CUEMU_INLINE unsigned __uhadd(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<unsigned long long>(a) + b) >> 1); }
CUEMU_INLINE unsigned __urhadd(unsigned a, unsigned b) {
    return static_cast<unsigned>((static_cast<unsigned long long>(a) + b + 1) >> 1);
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += static_cast<signed char>(a >> (8 * i)) * static_cast<signed char>(b >> (8 * i));
    return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
    return c;
}

// ---------------------------------------------------------------- loads, stores, clocks

template <class T> CUEMU_INLINE T __ldg(const T *p) { return *p; }
template <class T> CUEMU_INLINE T __ldca(const T *p) { return *p; }
template <class T> CUEMU_INLINE T __ldcg(const T *p) { return *p; }
template <class T> CUEMU_INLINE T __ldcs(const T *p) { return *p; }
template <class T> CUEMU_INLINE T __ldlu(const T *p) { return *p; }
template <class T> CUEMU_INLINE T __ldcv(const T *p) { return *const_cast<const volatile T *>(p); }
template <class T, class U> CUEMU_INLINE void __stcg(T *p, U v) { *p = v; }
template <class T, class U> CUEMU_INLINE void __stcs(T *p, U v) { *p = v; }
template <class T, class U> CUEMU_INLINE void __stwb(T *p, U v) { *p = v; }
template <class T, class U> CUEMU_INLINE void __stwt(T *p, U v) { *p = v; }

namespace cuemu {
inline long long nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}
}  // namespace cuemu
// Not the GPU's cycles: only that it grows may be relied on.
inline long long clock64() { return ::cuemu::nanoseconds(); }
inline unsigned long long __globaltimer() { return static_cast<unsigned long long>(::cuemu::nanoseconds()); }
