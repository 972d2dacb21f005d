// cooperative_groups: blocks, tiles of a warp, coalesced threads. A grid group has no sync here: its threads do not all run at once.
#pragma once

#include <cstdint>

#include "cuemu/device.h"

namespace cooperative_groups {

namespace detail {
// A group of lanes of one warp, ranked in lane order.
class Lanes {
  public:
    explicit Lanes(std::uint32_t mask) : mask_(mask) {}
    void sync() const { __syncwarp(mask_); }
    unsigned size() const { return static_cast<unsigned>(__popc(mask_)); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return static_cast<unsigned>(__popc(mask_ & ((1u << ::cuemu::lane_id()) - 1))); }
    template <class T> T shfl(T value, int rank) const { return ::cuemu::shuffle(mask_, value, lane(static_cast<unsigned>(rank))); }
    template <class T> T shfl_up(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return ::cuemu::shuffle(mask_, value, lane(rank < delta ? rank : rank - delta));
    }
    template <class T> T shfl_down(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return ::cuemu::shuffle(mask_, value, lane(rank + delta >= size() ? rank : rank + delta));
    }
    template <class T> T shfl_xor(T value, unsigned bits) const {
        const unsigned rank = thread_rank(), other = rank ^ bits;
        return ::cuemu::shuffle(mask_, value, lane(other >= size() ? rank : other));
    }
    int any(int predicate) const { return __any_sync(mask_, predicate); }
    int all(int predicate) const { return __all_sync(mask_, predicate); }
    unsigned ballot(int predicate) const { return packed(__ballot_sync(mask_, predicate)); }
    template <class T> unsigned match_any(T value) const { return packed(__match_any_sync(mask_, value)); }
    template <class T> unsigned match_all(T value, int &predicate) const { return packed(__match_all_sync(mask_, value, &predicate)); }
    std::uint32_t lane_mask() const { return mask_; }

  private:
    unsigned lane(unsigned rank) const { return __fns(mask_, 0, static_cast<int>(rank % size()) + 1); }
    // Votes of a group are numbered by rank, not by lane.
    unsigned packed(unsigned bits) const {
        unsigned out = 0, rank = 0;
        for (std::uint32_t rest = mask_; rest != 0; rest &= rest - 1, ++rank) out |= (bits >> __builtin_ctz(rest) & 1u) << rank;
        return out;
    }
    std::uint32_t mask_;
};
}  // namespace detail

class thread_block {
  public:
    void sync() const { __syncthreads(); }
    static unsigned thread_rank() { return ::cuemu::thread_rank(); }
    static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned num_threads() { return size(); }
    static dim3 group_index() { return dim3(blockIdx); }
    static dim3 thread_index() { return dim3(threadIdx); }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return thread_block(); }

template <unsigned MaxBlockSize = 1024> struct block_tile_memory {};
template <unsigned N> inline thread_block this_thread_block(block_tile_memory<N> &) { return thread_block(); }

class grid_group {
  public:
    void sync() const { ::cuemu::detail::unsupported("grid-wide barriers (cooperative_groups::grid_group::sync)"); }
    bool is_valid() const { return false; }
    static unsigned long long thread_rank() { return block_rank() * thread_block::size() + ::cuemu::thread_rank(); }
    static unsigned long long block_rank() {
        return (static_cast<unsigned long long>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    static unsigned long long num_blocks() { return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z; }
    static unsigned long long size() { return num_blocks() * thread_block::size(); }
    static unsigned long long num_threads() { return size(); }
    static dim3 group_dim() { return gridDim; }
    static dim3 dim_blocks() { return gridDim; }
    static dim3 block_index() { return dim3(blockIdx); }
};
inline grid_group this_grid() { return grid_group(); }

class coalesced_group : public detail::Lanes {
  public:
    explicit coalesced_group(std::uint32_t mask) : Lanes(mask) {}
    unsigned meta_group_rank() const { return 0; }
    unsigned meta_group_size() const { return 1; }
};
inline coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

// Lanes of the calling thread's tile of N threads. A kernel with larger tiles compiles, beside others, and does not run.
template <unsigned N> inline std::uint32_t tile_mask() {
    static_assert(N >= 1 && (N & (N - 1)) == 0);
    if (N > 32) ::cuemu::detail::unsupported("tiles of more than a warp (cooperative_groups::tiled_partition)");
    return N >= 32 ? 0xffffffffu : ((1u << N % 32) - 1) << (::cuemu::lane_id() & ~(N - 1));
}

template <unsigned N, class Parent = void> class thread_block_tile : public detail::Lanes {
  public:
    thread_block_tile() : Lanes(tile_mask<N>()) {}
    template <class Other> thread_block_tile(const thread_block_tile<N, Other> &) : thread_block_tile() {}
    static constexpr unsigned size() { return N; }
    static constexpr unsigned num_threads() { return N; }
    unsigned thread_rank() const { return ::cuemu::lane_id() & (N - 1); }
    unsigned meta_group_rank() const { return ::cuemu::thread_rank() / N; }
    unsigned meta_group_size() const { return (thread_block::size() + N - 1) / N; }
    template <class T> T shfl(T value, int rank) const { return __shfl_sync(lane_mask(), value, rank, N); }
    template <class T> T shfl_up(T value, unsigned delta) const { return __shfl_up_sync(lane_mask(), value, delta, N); }
    template <class T> T shfl_down(T value, unsigned delta) const { return __shfl_down_sync(lane_mask(), value, delta, N); }
    template <class T> T shfl_xor(T value, unsigned bits) const {
        return __shfl_xor_sync(lane_mask(), value, static_cast<int>(bits), N);
    }
};

// A tile whose width is known at run time.
class thread_group : public detail::Lanes {
  public:
    explicit thread_group(std::uint32_t mask) : Lanes(mask) {}
};

template <unsigned N, class Parent> inline thread_block_tile<N, Parent> tiled_partition(const Parent &) { return {}; }
inline thread_group tiled_partition(const thread_block &, unsigned n) {
    return thread_group(n >= 32 ? 0xffffffffu : ((1u << n) - 1) << (::cuemu::lane_id() & ~(n - 1)));
}
template <class Parent> inline coalesced_group binary_partition(const Parent &group, bool predicate) {
    const std::uint32_t yes = ::cuemu::detail::warp_ballot(group.lane_mask(), predicate).bits;
    return coalesced_group(predicate ? yes : group.lane_mask() & ~yes);
}
template <class Parent> inline coalesced_group labeled_partition(const Parent &group, int label) {
    return coalesced_group(__match_any_sync(group.lane_mask(), label));
}

template <class Group> inline void sync(const Group &group) { group.sync(); }

// ---------------------------------------------------------------- reduce and scan (cooperative_groups/reduce.h, scan.h)

template <class T = void> struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <class T = void> struct less {
    T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T = void> struct greater {
    T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T = void> struct bit_and {
    T operator()(T a, T b) const { return a & b; }
};
template <class T = void> struct bit_or {
    T operator()(T a, T b) const { return a | b; }
};
template <class T = void> struct bit_xor {
    T operator()(T a, T b) const { return a ^ b; }
};

// The result goes to every thread of the group. A tile combines in the hardware's butterfly order, other groups by rank.
template <unsigned N, class P, class T, class F> inline T reduce(const thread_block_tile<N, P> &group, T value, F combine) {
    for (unsigned bits = N / 2; bits > 0; bits /= 2) value = combine(value, group.shfl_xor(value, bits));
    return value;
}
template <class T, class F> inline T reduce(const detail::Lanes &group, T value, F combine) {
    T out = group.shfl(value, 0);
    for (unsigned i = 1; i < group.size(); ++i) out = combine(out, group.shfl(value, static_cast<int>(i)));
    return out;
}
template <class Group, class T, class F> inline T inclusive_scan(const Group &group, T value, F combine) {
    for (unsigned delta = 1; delta < group.size(); delta *= 2) {
        T other = group.shfl_up(value, delta);
        if (group.thread_rank() >= delta) value = combine(other, value);
    }
    return value;
}
template <class Group, class T> inline T inclusive_scan(const Group &group, T value) { return inclusive_scan(group, value, plus<T>()); }
template <class Group, class T> inline T exclusive_scan(const Group &group, T value) {
    T all = inclusive_scan(group, value, plus<T>());
    T before = group.shfl_up(all, 1);
    return group.thread_rank() == 0 ? T{} : before;
}

}  // namespace cooperative_groups
