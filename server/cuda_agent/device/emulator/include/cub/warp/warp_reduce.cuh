// cub::WarpReduce: a tree of shuffles down, as CUB's; the result is valid in the warp's lane 0.
#pragma once

#include "../operators.cuh"

namespace cub {

template <class T, int kLogicalThreads = 32> class WarpReduce {
   public:
    struct TempStorage {
        unsigned char unused;
    };

    __device__ explicit WarpReduce(TempStorage &) {}
    __device__ T Sum(T input) { return Reduce(input, cub::Sum{}); }
    __device__ T Sum(T input, int valid) { return Reduce(input, cub::Sum{}, valid); }
    template <class Op> __device__ T Reduce(T input, Op op) { return Reduce(input, op, kLogicalThreads); }
    // Lanes from `valid` on take part in the shuffles and add nothing.
    template <class Op> __device__ T Reduce(T input, Op op, int valid) {
        return ReduceLanes(0xffffffffu, input, op, valid);
    }
    // `mask`: the lanes that are there at all.
    template <class Op> __device__ static T ReduceLanes(unsigned mask, T input, Op op, int valid) {
        const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        const int lane = static_cast<int>(thread % 32) % kLogicalThreads;
        for (int offset = 1; offset < kLogicalThreads; offset *= 2) {
            const T other = __shfl_down_sync(mask, input, static_cast<unsigned>(offset), kLogicalThreads);
            if (lane + offset < valid) input = op(input, other);
        }
        return input;
    }
};

}  // namespace cub
