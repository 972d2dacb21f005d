#include "cuemu/device.h"

__device__ int shared_counter; CUEMU_GLOBAL(shared_counter)

__global__ void tree(const float *in, float *out) {
    CUEMU_KERNEL(in, out);
    CUEMU_SHARED(s, float[256]);
    int t = threadIdx.x;
    s[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (int d = blockDim.x / 2; d > 0; d >>= 1) {
        if (t < d) s[t] += s[t + d];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
}

__global__ void tree_without_barrier(const float *in, float *out) {
    CUEMU_KERNEL(in, out);
    CUEMU_SHARED(s, float[256]);
    int t = threadIdx.x;
    s[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (int d = blockDim.x / 2; d > 0; d >>= 1)
        if (t < d)
            s[t] += s[t + d];  // tree race
    if (t == 0) out[blockIdx.x] = s[0];
}

__global__ void warp_tree(const float *in, float *out, int sync) {
    CUEMU_KERNEL(in, out, sync);
    CUEMU_SHARED(s, float[64]);
    int t = threadIdx.x;
    s[t] = in[t];  // warp fill
    for (int d = 16; d > 0; d /= 2) {
        if (sync) __syncwarp();
        float v = t % 32 + d < 32 ? s[t + d] : 0;  // warp race read
        if (sync) __syncwarp();
        s[t] += v;  // warp race
    }
    out[t] = s[t];
}

__global__ void copy4(const float4 *in, float4 *out) {
    CUEMU_KERNEL(in, out);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 v = in[i];  // load 16
    v.x *= 2, v.y *= 2, v.z *= 2, v.w *= 2;
    out[i] = v;  // store 16
}

__global__ void stride(const float *in, float *out, int step) {
    CUEMU_KERNEL(in, out, step);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = in[i * step];  // strided
    out[i] = v;  // unit
}

__global__ void banks(float *out, int step) {
    CUEMU_KERNEL(out, step);
    CUEMU_SHARED(s, float[1024]);
    s[threadIdx.x * step % 1024] = 1;  // banks store
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x * step % 1024];  // banks load
}

__global__ void past_end(const float *in, float *out, int n) {
    CUEMU_KERNEL(in, out, n);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n)
        out[i] = 1;  // write past
    if (i < n) out[i] += in[i + 1];  // read past
}

__global__ void far_off(float *out) {
    CUEMU_KERNEL(out);
    out[(1ll << 30) + threadIdx.x] = 1;  // far
}

__global__ void reads_back(const int *in, int *out, int n) {
    CUEMU_KERNEL(in, out, n);
    int i = threadIdx.x;
    if (i < n) out[i] = in[i];
    atomicAdd(&out[i], 1);  // adds to what is there
    out[i] += out[i] / 2;
}

__global__ void shared_past(float *out) {
    CUEMU_KERNEL(out);
    CUEMU_SHARED(s, float[32]);
    s[threadIdx.x + 1] = 1;  // shared past
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];  // unwritten
}

__global__ void same_place(int *out) {
    CUEMU_KERNEL(out);
    out[0] = threadIdx.x;  // same place
}

__global__ void between_blocks(int *out) {
    CUEMU_KERNEL(out);
    if (threadIdx.x == 0) out[0] = out[0] + blockIdx.x;  // between blocks
}

__global__ void bytes(unsigned char *out) {
    CUEMU_KERNEL(out);
    out[threadIdx.x] = threadIdx.x;  // neighbours do not race
}

__global__ void byte_in_word(unsigned *out) {
    CUEMU_KERNEL(out);
    if (threadIdx.x == 0) out[0] = 1;  // word race
    if (threadIdx.x == 40) reinterpret_cast<unsigned char *>(out)[2] = 1;  // byte race
}

__global__ void histogram(const int *in, int *out) {
    CUEMU_KERNEL(in, out);
    atomicAdd(&out[in[blockIdx.x * blockDim.x + threadIdx.x]], 1);  // atomic
    atomicAdd(&shared_counter, 1);
}

__global__ void last_block(const float *in, float *part, float *out, unsigned *count) {
    CUEMU_KERNEL(in, part, out, count);
    CUEMU_SHARED(last, bool);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = in[blockIdx.x];
        __threadfence();
        last = atomicInc(count, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0;
        for (unsigned i = 0; i < gridDim.x; ++i) sum += part[i];
        *out = sum;
    }
}

__global__ void two_barriers(int *out) {
    CUEMU_KERNEL(out);
    if (threadIdx.x < 32)
        __syncthreads();  // first barrier
    else
        __syncthreads();  // second barrier
    out[threadIdx.x] = 1;
}

__global__ void heavy(const float *a, const float *b, float *out, int n) {
    CUEMU_KERNEL(a, b, out, n);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] * b[i] + 1;
}
