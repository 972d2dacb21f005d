// The block and warp primitives of CUB that kernels use: reductions and scans. Device-wide algorithms are not here.
#pragma once

#include "../cuemu/device.h"

namespace cub {

enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

struct Sum {
    template <class T> T operator()(const T &a, const T &b) const { return a + b; }
};
struct Max {
    template <class T> T operator()(const T &a, const T &b) const { return a < b ? b : a; }
};
struct Min {
    template <class T> T operator()(const T &a, const T &b) const { return b < a ? b : a; }
};

template <class Key, class Value> struct KeyValuePair {
    Key key;
    Value value;
};
struct ArgMax {
    template <class K, class V> KeyValuePair<K, V> operator()(const KeyValuePair<K, V> &a, const KeyValuePair<K, V> &b) const {
        return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};
struct ArgMin {
    template <class K, class V> KeyValuePair<K, V> operator()(const KeyValuePair<K, V> &a, const KeyValuePair<K, V> &b) const {
        return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};

// A value for each of the first `N` threads, combined by the calling group. Every thread of the block must call.
template <class T, int N> class Exchange {
  public:
    struct TempStorage {
        alignas(alignof(T)) unsigned char bytes[sizeof(T) * N];
        T &at(unsigned i) { return reinterpret_cast<T *>(bytes)[i]; }
    };
};

template <class T, int X, BlockReduceAlgorithm A = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0> class BlockReduce {
  public:
    static constexpr int kThreads = X * Y * Z;
    using TempStorage = typename Exchange<T, kThreads>::TempStorage;
    explicit BlockReduce(TempStorage &storage) : storage_(storage) {}

    // The result is thread 0's; others get something. Pairs are combined in tree order, left operand first.
    template <class F> T Reduce(T value, F combine, int valid = kThreads) {
        const unsigned rank = ::cuemu::thread_rank(), count = static_cast<unsigned>(valid < kThreads ? valid : kThreads);
        storage_.at(rank) = value;
        __syncthreads();
        for (unsigned step = 1; step < count; step *= 2) {
            if (rank % (2 * step) == 0 && rank + step < count) storage_.at(rank) = combine(storage_.at(rank), storage_.at(rank + step));
            __syncthreads();
        }
        return rank == 0 ? storage_.at(0) : value;
    }
    template <int K, class F> T Reduce(T (&values)[K], F combine) {
        T own = values[0];
        for (int i = 1; i < K; ++i) own = combine(own, values[i]);
        return Reduce(own, combine);
    }
    T Sum(T value) { return Reduce(value, cub::Sum()); }
    T Sum(T value, int valid) { return Reduce(value, cub::Sum(), valid); }
    template <int K> T Sum(T (&values)[K]) { return Reduce(values, cub::Sum()); }

  private:
    TempStorage &storage_;
};

template <class T, int X, BlockScanAlgorithm A = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0> class BlockScan {
  public:
    static constexpr int kThreads = X * Y * Z;
    using TempStorage = typename Exchange<T, kThreads>::TempStorage;
    explicit BlockScan(TempStorage &storage) : storage_(storage) {}

    template <class F> void InclusiveScan(T input, T &output, F combine, T &total) {
        const unsigned rank = ::cuemu::thread_rank();
        T value = input;
        storage_.at(rank) = value;
        __syncthreads();
        for (unsigned step = 1; step < kThreads; step *= 2) {
            T before{};
            if (rank >= step) before = storage_.at(rank - step);
            __syncthreads();
            if (rank >= step) {
                value = combine(before, value);
                storage_.at(rank) = value;
            }
            __syncthreads();
        }
        output = value;
        total = storage_.at(kThreads - 1);
    }
    template <class F> void InclusiveScan(T input, T &output, F combine) {
        T total;
        InclusiveScan(input, output, combine, total);
    }
    template <class F> void ExclusiveScan(T input, T &output, T initial, F combine, T &total) {
        T mine;
        InclusiveScan(input, mine, combine, total);
        const unsigned rank = ::cuemu::thread_rank();
        __syncthreads();
        storage_.at(rank) = mine;
        __syncthreads();
        output = rank == 0 ? initial : combine(initial, storage_.at(rank - 1));
    }
    template <class F> void ExclusiveScan(T input, T &output, T initial, F combine) {
        T total;
        ExclusiveScan(input, output, initial, combine, total);
    }
    void InclusiveSum(T input, T &output) { InclusiveScan(input, output, cub::Sum()); }
    void InclusiveSum(T input, T &output, T &total) { InclusiveScan(input, output, cub::Sum(), total); }
    void ExclusiveSum(T input, T &output) { ExclusiveScan(input, output, T{}, cub::Sum()); }
    void ExclusiveSum(T input, T &output, T &total) { ExclusiveScan(input, output, T{}, cub::Sum(), total); }

  private:
    TempStorage &storage_;
};

template <class T, int N = 32, int = 0> class WarpReduce {
  public:
    struct TempStorage {};
    explicit WarpReduce(TempStorage &) {}
    template <class F> T Reduce(T value, F combine) {
        for (int delta = 1; delta < N; delta *= 2) {
            T other = __shfl_down_sync(mask(), value, static_cast<unsigned>(delta), N);
            if (static_cast<int>(::cuemu::lane_id() % N) + delta < N) value = combine(value, other);
        }
        return value;
    }
    T Sum(T value) { return Reduce(value, cub::Sum()); }

  private:
    static unsigned mask() { return N == 32 ? 0xffffffffu : ((1u << N % 32) - 1) << (::cuemu::lane_id() / N * N); }
};

template <class T, int N = 32, int = 0> class WarpScan {
  public:
    struct TempStorage {};
    explicit WarpScan(TempStorage &) {}
    template <class F> void InclusiveScan(T input, T &output, F combine) {
        const unsigned mask = N == 32 ? 0xffffffffu : ((1u << N % 32) - 1) << (::cuemu::lane_id() / N * N);
        for (unsigned delta = 1; delta < N; delta *= 2) {
            T other = __shfl_up_sync(mask, input, delta, N);
            if (::cuemu::lane_id() % N >= delta) input = combine(other, input);
        }
        output = input;
    }
    void InclusiveSum(T input, T &output) { InclusiveScan(input, output, cub::Sum()); }
    void ExclusiveSum(T input, T &output) {
        T all;
        InclusiveScan(input, all, cub::Sum());
        output = all - input;
    }

};

}  // namespace cub
