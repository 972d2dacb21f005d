// Softmax over the rows of a matrix, one thread a row.
// usage: softmax_rows [rows [columns [repeats]]]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call)                                                                                   \
    do {                                                                                              \
        cudaError_t status = (call);                                                                  \
        if (status != cudaSuccess) {                                                                  \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));      \
            std::exit(1);                                                                             \
        }                                                                                             \
    } while (0)

__global__ void softmax_rows(const float *in, float *out, int rows, int cols)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;

    float largest = in[row * cols];
    for (int c = 1; c < cols; c++)
        largest = fmaxf(largest, in[row * cols + c]);

    float sum = 0.0f;
    for (int c = 0; c < cols; c++) {
        float e = expf(in[row * cols + c] - largest);
        out[row * cols + c] = e;
        sum += e;
    }

    for (int c = 0; c < cols; c++)
        out[row * cols + c] /= sum;
}

static void softmax_reference(const float *in, double *out, int cols)
{
    double largest = in[0];
    for (int c = 1; c < cols; c++)
        largest = std::fmax(largest, in[c]);

    double sum = 0.0;
    for (int c = 0; c < cols; c++) {
        out[c] = std::exp(in[c] - largest);
        sum += out[c];
    }

    for (int c = 0; c < cols; c++)
        out[c] /= sum;
}

int main(int argc, char **argv)
{
    int rows = argc > 1 ? std::atoi(argv[1]) : 8192;
    int cols = argc > 2 ? std::atoi(argv[2]) : 1024;
    int repeats = argc > 3 ? std::atoi(argv[3]) : 10;
    if (rows < 1 || cols < 1 || repeats < 1 || (long long)rows * cols > 0x7fffffff) {
        std::fprintf(stderr, "usage: %s [rows [columns [repeats]]], rows * columns below 2^31\n", argv[0]);
        return 2;
    }

    size_t count = (size_t)rows * cols;
    std::vector<float> in(count), out(count);
    unsigned state = 12345;
    for (float &x : in) {
        state = state * 1664525u + 1013904223u;
        x = (float)(state >> 8) / (1 << 24) * 16.0f - 8.0f;
    }

    float *d_in, *d_out;
    CHECK(cudaMalloc(&d_in, count * sizeof(float)));
    CHECK(cudaMalloc(&d_out, count * sizeof(float)));
    CHECK(cudaMemcpy(d_in, in.data(), count * sizeof(float), cudaMemcpyHostToDevice));

    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));

    dim3 block(256);
    dim3 grid((rows + block.x - 1) / block.x);
    CHECK(cudaEventRecord(start));
    for (int i = 0; i < repeats; i++)
        softmax_rows<<<grid, block>>>(d_in, d_out, rows, cols);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(stop));
    CHECK(cudaEventSynchronize(stop));

    float milliseconds = 0.0f;
    CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    CHECK(cudaMemcpy(out.data(), d_out, count * sizeof(float), cudaMemcpyDeviceToHost));

    double worst = 0.0;
    std::vector<double> expected(cols);
    for (int r = 0; r < rows; r++) {
        softmax_reference(&in[(size_t)r * cols], expected.data(), cols);
        for (int c = 0; c < cols; c++) {
            double error = std::fabs(out[(size_t)r * cols + c] - expected[c]) / expected[c];
            if (!(error <= worst)) // also takes a NaN
                worst = error;
        }
    }

    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(stop));
    CHECK(cudaFree(d_in));
    CHECK(cudaFree(d_out));

    std::printf("%d x %d: %.3f us a launch, largest relative error %.2e\n", rows, cols, 1000.0f * milliseconds / repeats,
                worst);
    bool pass = worst < 1e-4;
    std::printf("%s\n", pass ? "PASS" : "FAIL");
    return pass ? 0 : 1;
}
