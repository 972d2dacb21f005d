// cooperative_groups::reduce: a butterfly of shuffles in tiles of a power of two, in order of rank in other groups.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class T> struct plus {
    __device__ T operator()(T a, T b) const { return a + b; }
};
template <class T> struct less {
    __device__ T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T> struct greater {
    __device__ T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T> struct bit_and {
    __device__ T operator()(T a, T b) const { return a & b; }
};
template <class T> struct bit_or {
    __device__ T operator()(T a, T b) const { return a | b; }
};
template <class T> struct bit_xor {
    __device__ T operator()(T a, T b) const { return a ^ b; }
};

template <unsigned kSize, class Parent, class T, class Op>
__device__ T reduce(const thread_block_tile<kSize, Parent> &group, T value, Op op) {
    for (unsigned offset = kSize / 2; offset != 0; offset /= 2) value = op(value, group.shfl_xor(value, offset));
    return value;
}
template <class T, class Op> __device__ T reduce(const coalesced_group &group, T value, Op op) {
    T total = group.shfl(value, 0);
    for (unsigned rank = 1; rank < group.size(); ++rank) total = op(total, group.shfl(value, rank));
    return total;
}

}  // namespace cooperative_groups
