// CUB's function objects.
#pragma once

#include "cuda_runtime.h"

namespace cub {

struct Sum {
    template <class T, class U> __host__ __device__ auto operator()(const T &a, const U &b) const { return a + b; }
};
struct Max {
    template <class T> __host__ __device__ T operator()(const T &a, const T &b) const { return a < b ? b : a; }
};
struct Min {
    template <class T> __host__ __device__ T operator()(const T &a, const T &b) const { return b < a ? b : a; }
};

}  // namespace cub
