// cub::BlockReduce: each warp by shuffles, then thread 0 adds the warps in order, as CUB's BLOCK_REDUCE_WARP_REDUCTIONS.
// The result is valid in thread 0; the other algorithms give the same sums in this order.
#pragma once

#include "../operators.cuh"
#include "../warp/warp_reduce.cuh"

namespace cub {

enum BlockReduceAlgorithm {
    BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
    BLOCK_REDUCE_RAKING,
    BLOCK_REDUCE_WARP_REDUCTIONS
};

template <class T, int kDimX, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int kDimY = 1, int kDimZ = 1> class BlockReduce {
    static constexpr int kThreads = kDimX * kDimY * kDimZ;
    static constexpr int kWarps = (kThreads + 31) / 32;

   public:
    struct TempStorage {
        alignas(T) unsigned char totals[kWarps * sizeof(T)];
    };

    __device__ explicit BlockReduce(TempStorage &storage) : totals_(reinterpret_cast<T *>(storage.totals)) {}
    __device__ T Sum(T input) { return Reduce(input, cub::Sum{}, kThreads); }
    __device__ T Sum(T input, int valid) { return Reduce(input, cub::Sum{}, valid); }
    template <class Op> __device__ T Reduce(T input, Op op) { return Reduce(input, op, kThreads); }
    template <class Op> __device__ T Reduce(T input, Op op, int valid) {
        const int thread = static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
        const int warp = thread / 32, lane = thread % 32;
        const int lanes = kThreads - warp * 32 < 32 ? kThreads - warp * 32 : 32;
        const int warp_valid = valid - warp * 32 < lanes ? valid - warp * 32 : lanes;
        const unsigned mask = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
        const T total = WarpReduce<T>::ReduceLanes(mask, input, op, warp_valid);
        if (lane == 0) totals_[warp] = total;
        __syncthreads();
        T sum = total;
        if (thread == 0)
            for (int other = 1; other < kWarps && other * 32 < valid; ++other) sum = op(sum, totals_[other]);
        return sum;
    }

   private:
    T *totals_;
};

}  // namespace cub
