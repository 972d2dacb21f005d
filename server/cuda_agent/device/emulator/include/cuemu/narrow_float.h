// Half and bfloat16: stored in 16 bits, computed in float and rounded to nearest even, as CUDA's intrinsics are defined.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "qualifiers.h"

namespace cuemu {

CUEMU_INLINE std::uint32_t float_bits(float x) {
    std::uint32_t b;
    std::memcpy(&b, &x, 4);
    return b;
}
CUEMU_INLINE float bits_float(std::uint32_t b) {
    float x;
    std::memcpy(&x, &b, 4);
    return x;
}

struct HalfFormat {
    static inline std::uint16_t encode(float value) {
        const std::uint32_t b = float_bits(value), sign = b >> 16 & 0x8000u, magnitude = b & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return 0x7fff;                                     // NaN, as the hardware gives it
        if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65536
        if (magnitude < 0x33000000u) return static_cast<std::uint16_t>(sign);             // below half the smallest denormal
        std::uint32_t out, rest, middle;
        if (magnitude < 0x38800000u) {  // denormal: shift the significand down
            const std::uint32_t shift = 126 - (magnitude >> 23), significand = (magnitude & 0x7fffffu) | 0x800000u;
            out = significand >> shift;
            rest = significand & ((1u << shift) - 1);
            middle = 1u << (shift - 1);
        } else {
            out = (magnitude - 0x38000000u) >> 13;
            rest = magnitude & 0x1fffu;
            middle = 0x1000u;
        }
        if (rest > middle || (rest == middle && (out & 1))) ++out;
        return static_cast<std::uint16_t>(sign | out);
    }
    static inline float decode(std::uint16_t h) {
        const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16, exponent = h >> 10 & 0x1fu, fraction = h & 0x3ffu;
        if (exponent == 31) return bits_float(sign | 0x7f800000u | fraction << 13);
        if (exponent != 0) return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
        const float small = static_cast<float>(fraction) * 5.9604644775390625e-08f;  // 2^-24
        return sign != 0 ? -small : small;
    }
};

struct Bfloat16Format {
    static inline std::uint16_t encode(float value) {
        const std::uint32_t b = float_bits(value);
        if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
        return static_cast<std::uint16_t>((b + 0x7fffu + (b >> 16 & 1)) >> 16);
    }
    static inline float decode(std::uint16_t h) { return bits_float(static_cast<std::uint32_t>(h) << 16); }
};

}  // namespace cuemu

// One type: construction, conversions, operators. `name` is a struct at global scope, as CUDA's are.
#define CUEMU_NARROW_TYPE(name, format)                                                                                  \
    struct alignas(2) name {                                                                                             \
        std::uint16_t __x;                                                                                               \
        name() = default;                                                                                                \
        name(float v) : __x(::cuemu::format::encode(v)) {}                                                               \
        name(double v) : name(static_cast<float>(v)) {}                                                                  \
        name(int v) : name(static_cast<float>(v)) {}                                                                     \
        name(unsigned v) : name(static_cast<float>(v)) {}                                                                \
        name(short v) : name(static_cast<float>(v)) {}                                                                   \
        name(unsigned short v) : name(static_cast<float>(v)) {}                                                          \
        name(long v) : name(static_cast<float>(v)) {}                                                                    \
        name(unsigned long v) : name(static_cast<float>(v)) {}                                                           \
        name(long long v) : name(static_cast<float>(v)) {}                                                               \
        name(unsigned long long v) : name(static_cast<float>(v)) {}                                                      \
        name(name##_raw v) : __x(v.x) {}                                                                        \
        operator float() const { return ::cuemu::format::decode(__x); }                                                  \
        name &operator+=(const name &o) { return *this = name(float(*this) + float(o)); }                                \
        name &operator-=(const name &o) { return *this = name(float(*this) - float(o)); }                                \
        name &operator*=(const name &o) { return *this = name(float(*this) * float(o)); }                                \
        name &operator/=(const name &o) { return *this = name(float(*this) / float(o)); }                                \
        name &operator++() { return *this += name(1.0f); }                                                               \
        name &operator--() { return *this -= name(1.0f); }                                                               \
        name operator-() const { name r; r.__x = __x ^ 0x8000u; return r; }                                              \
        name operator+() const { return *this; }                                                                         \
    };                                                                                                                   \
    inline name operator+(const name &a, const name &b) { return name(float(a) + float(b)); }                            \
    inline name operator-(const name &a, const name &b) { return name(float(a) - float(b)); }                            \
    inline name operator*(const name &a, const name &b) { return name(float(a) * float(b)); }                            \
    inline name operator/(const name &a, const name &b) { return name(float(a) / float(b)); }                            \
    inline bool operator==(const name &a, const name &b) { return float(a) == float(b); }                                \
    inline bool operator!=(const name &a, const name &b) { return float(a) != float(b); }                                \
    inline bool operator<(const name &a, const name &b) { return float(a) < float(b); }                                  \
    inline bool operator>(const name &a, const name &b) { return float(a) > float(b); }                                  \
    inline bool operator<=(const name &a, const name &b) { return float(a) <= float(b); }                                \
    inline bool operator>=(const name &a, const name &b) { return float(a) >= float(b); }

#define CUEMU_NARROW_PAIR(pair, name)                                                                     \
    struct alignas(4) pair {                                                                              \
        name x, y;                                                                                        \
        pair() = default;                                                                                 \
        pair(const name &a, const name &b) : x(a), y(b) {}                                                \
    };                                                                                                    \
    inline pair operator+(const pair &a, const pair &b) { return pair(a.x + b.x, a.y + b.y); }            \
    inline pair operator-(const pair &a, const pair &b) { return pair(a.x - b.x, a.y - b.y); }            \
    inline pair operator*(const pair &a, const pair &b) { return pair(a.x * b.x, a.y * b.y); }            \
    inline pair operator/(const pair &a, const pair &b) { return pair(a.x / b.x, a.y / b.y); }            \
    inline pair operator-(const pair &a) { return pair(-a.x, -a.y); }                                     \
    inline pair &operator+=(pair &a, const pair &b) { return a = a + b; }                                 \
    inline pair &operator-=(pair &a, const pair &b) { return a = a - b; }                                 \
    inline pair &operator*=(pair &a, const pair &b) { return a = a * b; }                                 \
    inline bool operator==(const pair &a, const pair &b) { return a.x == b.x && a.y == b.y; }             \
    inline bool operator!=(const pair &a, const pair &b) { return !(a == b); }

// The intrinsics that both types share. A product and sum in one step (fma) is exact in double before its one rounding.
#define CUEMU_NARROW_ONE(function, name, expression) \
    inline name function(const name &a) { return name(expression); }
#define CUEMU_NARROW_TWO(function, name, expression) \
    inline name function(const name &a, const name &b) { return expression; }
#define CUEMU_NARROW_TEST(function, name, expression) \
    inline bool function(const name &a, const name &b) { return expression; }
#define CUEMU_NARROW_INTRINSICS(name, pair)                                                                               \
    CUEMU_NARROW_TWO(__hadd, name, a + b)                                                                                 \
    CUEMU_NARROW_TWO(__hsub, name, a - b)                                                                                 \
    CUEMU_NARROW_TWO(__hmul, name, a * b)                                                                                 \
    CUEMU_NARROW_TWO(__hdiv, name, a / b)                                                                                 \
    CUEMU_NARROW_TWO(__hadd_rn, name, a + b)                                                                              \
    CUEMU_NARROW_TWO(__hsub_rn, name, a - b)                                                                              \
    CUEMU_NARROW_TWO(__hmul_rn, name, a * b)                                                                              \
    CUEMU_NARROW_TWO(__hadd_sat, name, name(std::fmin(std::fmax(float(a + b), 0.0f), 1.0f)))                              \
    CUEMU_NARROW_TWO(__hmul_sat, name, name(std::fmin(std::fmax(float(a * b), 0.0f), 1.0f)))                              \
    CUEMU_NARROW_TWO(__hmax, name, name(std::fmax(float(a), float(b))))                                                   \
    CUEMU_NARROW_TWO(__hmin, name, name(std::fmin(float(a), float(b))))                                                   \
    CUEMU_NARROW_TEST(__heq, name, a == b)                                                                                \
    CUEMU_NARROW_TEST(__hne, name, a != b)                                                                                \
    CUEMU_NARROW_TEST(__hlt, name, a < b)                                                                                 \
    CUEMU_NARROW_TEST(__hle, name, a <= b)                                                                                \
    CUEMU_NARROW_TEST(__hgt, name, a > b)                                                                                 \
    CUEMU_NARROW_TEST(__hge, name, a >= b)                                                                                \
    inline bool __hisnan(const name &a) { return std::isnan(float(a)); }                                                  \
    inline int __hisinf(const name &a) { return std::isinf(float(a)) ? (float(a) < 0 ? -1 : 1) : 0; }                     \
    inline name __hneg(const name &a) { return -a; }                                                                      \
    inline name __habs(const name &a) { name r = a; r.__x &= 0x7fffu; return r; }                                         \
    inline name __hfma(const name &a, const name &b, const name &c) {                                                     \
        return name(static_cast<float>(static_cast<double>(float(a)) * float(b) + float(c)));                             \
    }                                                                                                                     \
    CUEMU_NARROW_ONE(hexp, name, std::exp(float(a)))                                                                      \
    CUEMU_NARROW_ONE(hexp2, name, std::exp2(float(a)))                                                                    \
    CUEMU_NARROW_ONE(hlog, name, std::log(float(a)))                                                                      \
    CUEMU_NARROW_ONE(hlog2, name, std::log2(float(a)))                                                                    \
    CUEMU_NARROW_ONE(hlog10, name, std::log10(float(a)))                                                                  \
    CUEMU_NARROW_ONE(hsqrt, name, std::sqrt(float(a)))                                                                    \
    CUEMU_NARROW_ONE(hrsqrt, name, 1.0 / std::sqrt(double(float(a))))                                                     \
    CUEMU_NARROW_ONE(hrcp, name, 1.0f / float(a))                                                                         \
    CUEMU_NARROW_ONE(hsin, name, std::sin(float(a)))                                                                      \
    CUEMU_NARROW_ONE(hcos, name, std::cos(float(a)))                                                                      \
    CUEMU_NARROW_ONE(htanh, name, std::tanh(float(a)))                                                                    \
    CUEMU_NARROW_ONE(hfloor, name, std::floor(float(a)))                                                                  \
    CUEMU_NARROW_ONE(hceil, name, std::ceil(float(a)))                                                                    \
    CUEMU_NARROW_ONE(htrunc, name, std::trunc(float(a)))                                                                  \
    CUEMU_NARROW_ONE(hrint, name, std::nearbyint(float(a)))                                                               \
    inline pair __hadd2(const pair &a, const pair &b) { return a + b; }                                                   \
    inline pair __hsub2(const pair &a, const pair &b) { return a - b; }                                                   \
    inline pair __hmul2(const pair &a, const pair &b) { return a * b; }                                                   \
    inline pair __h2div(const pair &a, const pair &b) { return a / b; }                                                   \
    inline pair __hneg2(const pair &a) { return -a; }                                                                     \
    inline pair __habs2(const pair &a) { return pair(__habs(a.x), __habs(a.y)); }                                         \
    inline pair __hmax2(const pair &a, const pair &b) { return pair(__hmax(a.x, b.x), __hmax(a.y, b.y)); }                \
    inline pair __hmin2(const pair &a, const pair &b) { return pair(__hmin(a.x, b.x), __hmin(a.y, b.y)); }                \
    inline pair __hfma2(const pair &a, const pair &b, const pair &c) { return pair(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); } \
    inline pair h2exp(const pair &a) { return pair(hexp(a.x), hexp(a.y)); }                                               \
    inline pair h2log(const pair &a) { return pair(hlog(a.x), hlog(a.y)); }                                               \
    inline pair h2sqrt(const pair &a) { return pair(hsqrt(a.x), hsqrt(a.y)); }                                            \
    inline pair h2rsqrt(const pair &a) { return pair(hrsqrt(a.x), hrsqrt(a.y)); }                                         \
    inline pair h2rcp(const pair &a) { return pair(hrcp(a.x), hrcp(a.y)); }                                               \
    inline pair h2tanh(const pair &a) { return pair(htanh(a.x), htanh(a.y)); }                                            \
    inline bool __hbeq2(const pair &a, const pair &b) { return a == b; }
