// CUDA's vector types with CUDA's alignments (vector_types.h): a 16-byte vector is 16-byte aligned, a 3-vector is as its element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sys/types.h>

#define CUEMU_VECTOR_TYPES(element, name, align2, align4)                                                                     \
    struct name##1 {                                                                                                          \
        element x;                                                                                                            \
    };                                                                                                                        \
    struct alignas(align2) name##2 {                                                                                          \
        element x, y;                                                                                                         \
    };                                                                                                                        \
    struct name##3 {                                                                                                          \
        element x, y, z;                                                                                                      \
    };                                                                                                                        \
    struct alignas(align4) name##4 {                                                                                          \
        element x, y, z, w;                                                                                                   \
    };                                                                                                                        \
    constexpr inline name##1 make_##name##1(element x) { return name##1{x}; }                                                 \
    constexpr inline name##2 make_##name##2(element x, element y) { return name##2{x, y}; }                                   \
    constexpr inline name##3 make_##name##3(element x, element y, element z) { return name##3{x, y, z}; }                     \
    constexpr inline name##4 make_##name##4(element x, element y, element z, element w) { return name##4{x, y, z, w}; }

CUEMU_VECTOR_TYPES(signed char, char, 2, 4)
CUEMU_VECTOR_TYPES(unsigned char, uchar, 2, 4)
CUEMU_VECTOR_TYPES(short, short, 4, 8)
CUEMU_VECTOR_TYPES(unsigned short, ushort, 4, 8)
CUEMU_VECTOR_TYPES(int, int, 8, 16)
CUEMU_VECTOR_TYPES(unsigned int, uint, 8, 16)
CUEMU_VECTOR_TYPES(long, long, 16, 16)
CUEMU_VECTOR_TYPES(unsigned long, ulong, 16, 16)
CUEMU_VECTOR_TYPES(long long, longlong, 16, 16)
CUEMU_VECTOR_TYPES(unsigned long long, ulonglong, 16, 16)
CUEMU_VECTOR_TYPES(float, float, 8, 16)
CUEMU_VECTOR_TYPES(double, double, 16, 16)
#undef CUEMU_VECTOR_TYPES

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};
