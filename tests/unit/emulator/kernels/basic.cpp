#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cooperative_groups.h"
#include "cooperative_groups/reduce.h"
#include "cub/cub.cuh"
namespace cg = cooperative_groups;

__device__ int counter = 5; CUEMU_GLOBAL(counter)
static __constant__ float weights[3] = {1, 2, 3}; CUEMU_GLOBAL(weights)

struct Pair {
    char tag;
    double value;
};

template <class T> __global__ void sum_blocks(const T *in, T *out) {
    CUEMU_KERNEL(in, out);
    CUEMU_SHARED(s, T[256]);
    int t = threadIdx.x;
    s[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (int d = blockDim.x / 2; d > 0; d >>= 1) {
        if (t < d) s[t] += s[t + d];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
}

__global__ void sum_warps(const float *in, float *out) {
    CUEMU_KERNEL(in, out);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = in[i];
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffff, v, d);
    out[i] = v;
}

__global__ void shuffles(int *out) {
    CUEMU_KERNEL(out);
    int t = threadIdx.x;
    out[t] = __shfl_sync(0xffffffff, t, 3, 8);
    out[32 + t] = __shfl_up_sync(0xffffffff, t, 2, 16);
    out[64 + t] = __shfl_down_sync(0xffffffff, t, 2, 16);
    out[96 + t] = static_cast<int>(__shfl_sync(0xffffffff, 1.5 * t, 31));
    out[128 + t] = static_cast<int>(__ballot_sync(0xffffffff, t % 3 == 0));
    out[160 + t] = __all_sync(0xffffffff, t < 32) + 2 * __any_sync(0xffffffff, t == 31) + 4 * __all_sync(0xffffffff, t != 7);
    out[192 + t] = static_cast<int>(__match_any_sync(0xffffffff, t / 8));
    out[224 + t] = __reduce_add_sync(0xffffffff, t) + 1000 * __reduce_max_sync(0xffffffff, -t);
    if (t & 1) out[256 + t] = static_cast<int>(__activemask()); else out[256 + t] = 0;
}

__global__ void counts(int *out) {
    CUEMU_KERNEL(out);
    int t = threadIdx.x;
    int a = __syncthreads_count(t % 5 == 0), b = __syncthreads_and(t < 100), c = __syncthreads_or(t == 99);
    if (t == 0) out[0] = a, out[1] = b, out[2] = c;
}

extern "C" __global__ void reversed(const int *in, int *out) {
    CUEMU_KERNEL(in, out);
    CUEMU_DYNAMIC_SHARED(s, int);
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

__global__ void histogram(const int *in, int *out, int n) {
    CUEMU_KERNEL(in, out, n);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&out[in[i]], 1);
}

__global__ void atomics(int *i, unsigned *u, unsigned long long *l, float *f, double *d) {
    CUEMU_KERNEL(i, u, l, f, d);
    int t = threadIdx.x;
    atomicAdd(i, t); atomicSub(i + 1, 1); atomicMin(i + 2, t - 7); atomicMax(i + 3, t); atomicOr(i + 4, 1 << t % 31);
    atomicInc(u, 9u); atomicDec(u + 1, 9u); atomicXor(u + 2, static_cast<unsigned>(t)); atomicMin(u + 3, static_cast<unsigned>(t));
    atomicAdd(l, 1ull << 33); atomicMax(l + 1, static_cast<unsigned long long>(t) << 40);
    atomicAdd(f, 0.5f); atomicAdd(d, 0.25); atomicAdd_block(f + 1, 1);
    int old = i[5], seen;
    do { seen = old; old = atomicCAS(i + 5, seen, seen + 2); } while (old != seen);
}

__global__ void lock(int *mutex, int *value) {
    CUEMU_KERNEL(mutex, value);
    while (atomicCAS(mutex, 0, 1) != 0) {}
    *(volatile int *)value = *(volatile int *)value + 1;
    __threadfence();
    atomicExch(mutex, 0);
}

__global__ void takes(char c, Pair p, short s, float *out, dim3 d) {
    CUEMU_KERNEL(c, p, s, out, d);
    out[0] = c, out[1] = p.tag, out[2] = p.value, out[3] = s, out[4] = d.y, out[5] = weights[2], out[6] = counter;
}

__global__ void where(int *out) {
    CUEMU_KERNEL(out);
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

__global__ void halves(const float *in, __half *h, __nv_bfloat16 *b, float *back) {
    CUEMU_KERNEL(in, h, b, back);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    h[i] = __float2half(in[i]), b[i] = __float2bfloat16(in[i]);
    half2 p = __hadd2(make_half2(h[i], h[i]), __float2half2_rn(1.0f));
    back[i] = __low2float(p);
}

__global__ void groups(const float *in, float *out, int *ranks) {
    CUEMU_KERNEL(in, out, ranks);
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    out[block.thread_rank()] = cg::reduce(tile, in[block.thread_rank()], cg::plus<float>());
    if (threadIdx.x % 4 == 1) {
        cg::coalesced_group active = cg::coalesced_threads();
        ranks[threadIdx.x] = 100 * active.size() + active.thread_rank();
    }
    block.sync();
}

__global__ void cub_sums(const int *in, int *total, int *scan) {
    CUEMU_KERNEL(in, total, scan);
    typedef cub::BlockReduce<int, 128> Reduce;
    typedef cub::BlockScan<int, 128> Scan;
    CUEMU_SHARED(a, Reduce::TempStorage);
    CUEMU_SHARED(b, Scan::TempStorage);
    int sum = Reduce(a).Sum(in[threadIdx.x]), before;
    Scan(b).ExclusiveSum(in[threadIdx.x], before);
    scan[threadIdx.x] = before;
    if (threadIdx.x == 0) *total = sum;
}

__global__ void intrinsics(const unsigned *u, const float *f, unsigned *a, float *b) {
    CUEMU_KERNEL(u, f, a, b);
    a[0] = __popc(u[0]), a[1] = __clz(u[0]), a[2] = __ffs(u[0]), a[3] = __brev(u[0]), a[4] = __umulhi(u[0], u[1]);
    a[5] = __byte_perm(u[0], u[1], 0x3715), a[6] = __funnelshift_l(u[0], u[1], 8), a[7] = __float_as_uint(f[0]);
    a[8] = __float2int_rn(f[1]), a[9] = __float2uint_rz(f[2]), a[10] = min(u[0], 7), a[11] = __clz(0);
    b[0] = rsqrtf(f[0]), b[1] = sinpif(f[1]), b[2] = __fdividef(f[0], f[1]), b[3] = fmaf(f[0], f[1], f[2]), b[4] = __saturatef(f[0]);
    b[5] = erfinvf(0.5f), b[6] = normcdff(1.0f), b[7] = __ldg(f + 1), b[8] = __fadd_ru(1.0f, 1e-9f), b[9] = max(f[0], f[1]);
}

__global__ void saxpy(int n, float a, const float *x, float *y) {
    CUEMU_KERNEL(n, a, x, y);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void neighbour(int *out) {
    CUEMU_KERNEL(out);
    CUEMU_SHARED(s, int[64]);
    s[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = s[(threadIdx.x + 1) % 64];
}

__global__ void wild(int *p) { CUEMU_KERNEL(p); *(volatile int *)(8 + blockIdx.x) = 1; }
__global__ void by_zero(int *p) { CUEMU_KERNEL(p); p[0] = 7 / p[1]; }
__global__ void asserts(int *p) { CUEMU_KERNEL(p); assert(p[0] == 123); }
__global__ void traps(int *p) { CUEMU_KERNEL(p); if (p[0] == 0) __trap(); }
__global__ void texture(int *p) { CUEMU_KERNEL(p); CUEMU_UNSUPPORTED("textures"); }
__global__ void large_tiles(int *p) {
    CUEMU_KERNEL(p);
    CUEMU_SHARED(scratch, cg::block_tile_memory<256>);
    auto tile = cg::tiled_partition<64>(cg::this_thread_block(scratch));
    p[threadIdx.x] = cg::reduce(tile, 1, cg::plus<int>());
}
__global__ void nested(int *p) { CUEMU_KERNEL(p); CUEMU_LAUNCH((traps), (1, 1), p); }
__global__ void stuck(int *p) { CUEMU_KERNEL(p); if (threadIdx.x < 3) __syncwarp(); else __syncthreads(); }
__global__ void unnamed(int *p) { CUEMU_KERNEL(p); p[0] = __shfl_sync(1, p[1], 0); }
__global__ void deep(int *p) { CUEMU_KERNEL(p); volatile int a[100]; a[p[0] % 100] = p[0]; if (p[0] == 0) deep(p); p[1] = a[3]; }

static __global__ void only(int *p) { CUEMU_KERNEL(p); p[0] = 1; }
namespace ns {
static __global__ void only(int *p) { CUEMU_KERNEL(p); p[0] = 2; }
template <class T> static __global__ void each(T *p) { CUEMU_KERNEL(p); p[0] = 3; }
}  // namespace ns

// Host code of the module: launches decide which templates exist.
void host(const float *a, float *b, const double *c, double *d) {
    CUEMU_LAUNCH((sum_blocks), (1, 256), a, b);
    CUEMU_LAUNCH((ns::each), (1, 1), static_cast<int *>(nullptr));
    CUEMU_LAUNCH((sum_blocks<double>), (dim3(1), dim3(256), 0, nullptr), c, d);
}
