// One small kernel for each rule that moves memory in larger pieces, launched at a size that suits vectors and at one
// that does not.
#include <cstdio>
#include <cstdlib>

__global__ void rows(float *out, const float *in, int cols)
{
    float sum = 0;
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        sum += in[blockIdx.x * cols + c] * (c + 1);
    atomicAdd(&out[blockIdx.x], sum);
}

__global__ void dots(float *out, const float *a, const float *b, int rows, int cols)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (int c = 0; c < cols; c++)
        sum += a[row * cols + c] * b[c];
    out[row] = sum;
}

__global__ void means(float *out, const float *in, int n)
{
    float mean = 0;
    int count = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        count++;
        mean += (in[i] - mean) / count;
    }
    out[threadIdx.x] = mean;
}

__global__ void gate(float *out, const float *in, int half, int inner, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= half * inner * n) return;
    int o = i / inner / half, h = i / inner % half, c = i % inner;
    float g = in[(o * 2 * half + h + half) * inner + c];
    out[i] = in[(o * 2 * half + h) * inner + c] * (g > 0 ? g : c);
}

__global__ void shade(float *out, const float *in, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    if (in[y * width + x] < 0) return;
    out[y * width + x] = in[y * width + x] * x;
}

template <typename T>
__global__ void axpy(T *y, const T *x, const unsigned char *mask, T a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = mask[i] ? a * x[i] + y[i] : x[i];
}

__device__ void fade_row(float *p, int n)
{
    float last = 0.0f;
    for (int i = 0; i < n; i++) {
        *p = last = 0.5f * (last + *p);
        p++;
    }
}

__global__ void fade(float *x, int rows, int cols)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows)
        fade_row(x + row * cols, cols);
}

__global__ void turns(float *out, const float *in, int n)
{
    __shared__ float tile[32];
    float sum = 0.0f;
    for (int i = 0; i < n; i += 32) {
        if (i + threadIdx.x < n)
            tile[threadIdx.x] = in[i + threadIdx.x];
        __syncthreads();
        if (i + (threadIdx.x ^ 1) < n)
            sum += tile[threadIdx.x ^ 1];
        __syncthreads();
    }
    out[blockIdx.x * 32 + threadIdx.x] = sum;
}

template <typename T>
__global__ void spread(T *out, const T *in, int images, int height, int width)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height)
        return;
    T sum = 0, largest = in[y * width + x];
    int at = 0;
    for (int i = 0; i < images; i++) {
        T value = in[(i * height + y) * width + x];
        if (value > largest) {
            largest = value;
            at = i;
        }
        sum += value;
    }
    out[y * width + x] = largest - sum / images;
    out[(height + y) * width + x] = at;
}

int main()
{
    const int most = 4096;
    static float h[most];
    for (int i = 0; i < most; i++)
        h[i] = (i * 37 % 101) * 0.25f - 9;
    float *in, *out, *b;
    double *x, *y;
    unsigned char *mask;
    cudaMalloc(&in, most * sizeof(float));
    cudaMalloc(&out, most * sizeof(float));
    cudaMalloc(&b, most * sizeof(float));
    cudaMalloc(&x, most * sizeof(double));
    cudaMalloc(&y, most * sizeof(double));
    cudaMalloc(&mask, most);
    cudaMemcpy(in, h, most * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(out, h, most * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(b, h, most * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(x, h, most * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemset(x + most / 2, 0, most * sizeof(double) / 2);
    cudaMemset(y, 0, most * sizeof(double));
    cudaMemcpy(mask, h, most, cudaMemcpyHostToDevice);
    for (int odd = 0; odd < 2; odd++) {
        const int cols = 128 + 3 * odd, rows_ = 5;
        rows<<<rows_, 32>>>(out, in, cols);
        dots<<<1, 32>>>(out, in, b, rows_, cols);
        means<<<1, 32>>>(out, in, cols * 3);
        const int inner = 8 - odd, half = 3, n = 11, all = inner * half * n;
        gate<<<(all + 31) / 32, 32>>>(out, in, half, inner, n);
        const int height = 29 + odd;
        shade<<<dim3((cols + 3) / 4, (height + 1) / 2), dim3(4, 2)>>>(out, in, cols, height);
        spread<<<dim3((cols + 15) / 16, 2), dim3(16, 2)>>>(out, in, 5, 3 + odd, cols);
        fade<<<2, 32>>>(out, 40, 70 + odd);
        turns<<<2, 32>>>(out, in, cols * 3);
        axpy<double><<<(cols + 31) / 32, 32>>>(y, x, mask, 1.5, cols);
    }
    cudaMemcpy(h, out, most * sizeof(float), cudaMemcpyDeviceToHost);
    printf("%.3f\n", h[7]);
    return 0;
}
