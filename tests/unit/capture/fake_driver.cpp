// A CUDA driver (as libcuda.so.1) with host memory and two functions, as far as the CUPTI injection asks it. A function's handle is
// the address of its description, so that a handle can be given to another function.
#include <cuda.h>

#include <cstring>

#include "fake_driver.h"

unsigned char fake_memory[256];
long fake_questions = 0;

extern "C" {
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int, CUdevice) {
    std::strcpy(name, "Fake GPU");
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
    std::memcpy(to, reinterpret_cast<const void *>(from), bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    *base = reinterpret_cast<CUdeviceptr>(fake_memory);
    *size = sizeof fake_memory;
    return address >= *base && address < *base + *size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult cuKernelGetName(const char **name, CUkernel handle) {
    const auto *function = reinterpret_cast<const FakeFunction *>(handle);
    if (!function->kernel) return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetName(const char **name, CUfunction handle) {
    *name = reinterpret_cast<const FakeFunction *>(handle)->name;
    return CUDA_SUCCESS;
}
static CUresult parameter(const FakeFunction *function, size_t index, size_t *offset, size_t *size) {
    ++fake_questions;
    if (index >= function->sizes.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = 0;
    for (size_t i = 0; i <= index; ++i) {
        *size = function->sizes[i];
        *offset = (*offset + *size - 1) / *size * *size + (i < index ? *size : 0);
    }
    return CUDA_SUCCESS;
}
CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size) {
    const auto *function = reinterpret_cast<const FakeFunction *>(handle);
    return function->kernel ? parameter(function, index, offset, size) : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size) {
    const auto *function = reinterpret_cast<const FakeFunction *>(handle);
    return function->kernel ? CUDA_ERROR_INVALID_HANDLE : parameter(function, index, offset, size);
}
}
