// The source of facts_sm_80.cubin and facts_sm_90.cubin (nvcc 13.0 -cubin -lineinfo, compiled as /src/facts.cu).
__device__ float helper(float x) {
  return x * x + 1.0f;
}
__device__ __noinline__ float far(float x, float y) {
  return x / y;
}
__constant__ float table[64];
template <typename T, int N>
__global__ void reverse(const T *__restrict__ in, T *out, long long n, short k) {
  __shared__ T tile[N];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[N - 1 - threadIdx.x] + n + k;
}
template __global__ void reverse<float, 64>(const float *, float *, long long, short);
static __global__ void hidden(float *p) {
  p[threadIdx.x] = helper(p[threadIdx.x]);
}
namespace {
__global__ void anonymous(float *p) {
  p[threadIdx.x] = far(p[threadIdx.x], p[0]);
}
}
namespace ns {
__global__ void stack(const float *in, float *out, int n) {
  float local[200];
  for (int i = 0; i < 200; i++) local[i] = in[i * n];
  out[n] = local[n] + table[n];
  atomicAdd(out, 1.0f);
}
}
extern "C" __global__ void plain(int *p) {
  *p = 1;
}
void use(float *p) {
  hidden<<<1, 1>>>(p);
  anonymous<<<1, 1>>>(p);
}
