// Cooperative groups of a block: the block, tiles of a warp, coalesced threads. Grids can be named, not synchronised.
#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

class thread_group {
   public:
    __device__ explicit thread_group(unsigned mask, unsigned size, unsigned rank) : mask_(mask), size_(size), rank_(rank) {}
    __device__ unsigned thread_rank() const { return rank_; }
    __device__ unsigned size() const { return size_; }
    __device__ unsigned num_threads() const { return size_; }
    // A group without a mask is the whole block.
    __device__ void sync() const {
        if (mask_ == 0)
            __syncthreads();
        else
            __syncwarp(mask_);
    }

   protected:
    unsigned mask_, size_, rank_;
};

class thread_block : public thread_group {
   public:
    __device__ thread_block() : thread_group(0, blockDim.x * blockDim.y * blockDim.z, ::cuemu::thread_rank()) {}
    __device__ static void sync() { __syncthreads(); }
    __device__ static unsigned thread_rank() { return ::cuemu::thread_rank(); }
    __device__ static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    __device__ static unsigned num_threads() { return size(); }
    __device__ static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    __device__ static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
    __device__ static dim3 group_dim() { return dim3(blockDim.x, blockDim.y, blockDim.z); }
    __device__ static dim3 dim_threads() { return group_dim(); }
};

__device__ inline thread_block this_thread_block() { return thread_block(); }
__device__ inline void sync(const thread_group &group) { group.sync(); }
__device__ inline void sync(const thread_block &) { __syncthreads(); }

class grid_group {
   public:
    __device__ static unsigned long long thread_rank() {
        const unsigned long long block = blockIdx.x + static_cast<unsigned long long>(gridDim.x) * (blockIdx.y + gridDim.y * blockIdx.z);
        return block * thread_block::size() + ::cuemu::thread_rank();
    }
    __device__ static unsigned long long size() {
        return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z * thread_block::size();
    }
    __device__ static unsigned long long num_threads() { return size(); }
    __device__ static dim3 group_dim() { return dim3(gridDim.x, gridDim.y, gridDim.z); }
    __device__ static bool is_valid() { return false; }
    __device__ static void sync() { CUEMU_UNSUPPORTED("grid-wide synchronisation"); }
};
__device__ inline grid_group this_grid() { return grid_group(); }

// Shuffles and votes among the lanes of a mask, by rank in the group.
class lane_group : public thread_group {
   public:
    using thread_group::thread_group;
    __device__ void sync() const { __syncwarp(mask_); }
    template <class T> __device__ T shfl(T value, unsigned rank) const { return ::cuemu::shuffle(mask_, value, lane(rank % size_)); }
    template <class T> __device__ T shfl_down(T value, unsigned delta) const {
        return ::cuemu::shuffle(mask_, value, lane(rank_ + delta < size_ ? rank_ + delta : rank_));
    }
    template <class T> __device__ T shfl_up(T value, unsigned delta) const {
        return ::cuemu::shuffle(mask_, value, lane(rank_ >= delta ? rank_ - delta : rank_));
    }
    template <class T> __device__ T shfl_xor(T value, unsigned bits) const {
        return ::cuemu::shuffle(mask_, value, lane((rank_ ^ bits) < size_ ? rank_ ^ bits : rank_));
    }
    __device__ int any(int predicate) const { return __any_sync(mask_, predicate); }
    __device__ int all(int predicate) const { return __all_sync(mask_, predicate); }
    __device__ unsigned ballot(int predicate) const { return packed(__ballot_sync(mask_, predicate)); }
    template <class T> __device__ unsigned match_any(T value) const { return packed(__match_any_sync(mask_, value)); }
    template <class T> __device__ unsigned match_all(T value, int &predicate) const {
        return packed(__match_all_sync(mask_, value, &predicate));
    }

   private:
    // The lane of the warp that has a rank: the rank-th bit of the mask.
    __device__ unsigned lane(unsigned rank) const {
        unsigned left = mask_;
        for (; rank != 0; --rank) left &= left - 1;
        return static_cast<unsigned>(__builtin_ctz(left));
    }
    // Bits of lanes as bits of ranks.
    __device__ unsigned packed(unsigned lanes) const {
        unsigned out = 0, rank = 0;
        for (unsigned left = mask_; left != 0; left &= left - 1, ++rank)
            if (lanes & (left & (0u - left))) out |= 1u << rank;
        return out;
    }
};

template <unsigned kSize, class Parent = void> class thread_block_tile : public lane_group {
    static_assert(kSize != 0 && kSize <= 32 && (kSize & (kSize - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads");

   public:
    __device__ thread_block_tile() : lane_group(own_mask(), kSize, ::cuemu::lane_id() % kSize) {}
    template <class Other> __device__ thread_block_tile(const thread_block_tile<kSize, Other> &) : thread_block_tile() {}
    __device__ static constexpr unsigned size() { return kSize; }
    __device__ static constexpr unsigned num_threads() { return kSize; }
    __device__ unsigned meta_group_rank() const { return ::cuemu::thread_rank() / kSize; }
    __device__ unsigned meta_group_size() const { return (thread_block::size() + kSize - 1) / kSize; }

   private:
    __device__ static unsigned own_mask() {
        if (kSize == 32) return 0xffffffffu;
        return ((1u << (kSize & 31)) - 1) << (::cuemu::lane_id() / kSize * kSize);
    }
};

template <unsigned kSize, class Parent> __device__ thread_block_tile<kSize, Parent> tiled_partition(const Parent &) { return {}; }
__device__ inline lane_group tiled_partition(const thread_group &, unsigned size) {
    const unsigned lane = ::cuemu::lane_id();
    const unsigned mask = size >= 32 ? 0xffffffffu : ((1u << size) - 1) << (lane / size * size);
    return lane_group(mask, size, lane % size);
}

class coalesced_group : public lane_group {
   public:
    __device__ explicit coalesced_group(unsigned mask)
        : lane_group(mask, static_cast<unsigned>(__builtin_popcount(mask)),
                     static_cast<unsigned>(__builtin_popcount(mask & ((1u << ::cuemu::lane_id()) - 1)))) {}
    __device__ static unsigned meta_group_size() { return 1; }
    __device__ static unsigned meta_group_rank() { return 0; }
};
__device__ inline coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

}  // namespace cooperative_groups
