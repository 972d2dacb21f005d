// CUDA's language on the host: the device headers, the host API and the templates that nvcc's own header adds to it.
#pragma once
#define __CUDA_RUNTIME_H__  // as in CUDA's own: headers of others ask whether this one is there

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "cuda_runtime_api.h"
#include "cuemu/device.h"

inline cudaExtent make_cudaExtent(size_t width, size_t height, size_t depth) { return {width, height, depth}; }
inline cudaPos make_cudaPos(size_t x, size_t y, size_t z) { return {x, y, z}; }
inline cudaPitchedPtr make_cudaPitchedPtr(void *ptr, size_t pitch, size_t xsize, size_t ysize) { return {ptr, pitch, xsize, ysize}; }

template <class T> cudaError_t cudaMalloc(T **pointer, size_t size) { return ::cudaMalloc(reinterpret_cast<void **>(pointer), size); }
template <class T> cudaError_t cudaMallocHost(T **pointer, size_t size, unsigned int flags = 0) {
    return ::cudaHostAlloc(reinterpret_cast<void **>(pointer), size, flags);
}
template <class T> cudaError_t cudaHostAlloc(T **pointer, size_t size, unsigned int flags) {
    return ::cudaHostAlloc(reinterpret_cast<void **>(pointer), size, flags);
}
template <class T> cudaError_t cudaMallocManaged(T **pointer, size_t size, unsigned int flags = cudaMemAttachGlobal) {
    return ::cudaMallocManaged(reinterpret_cast<void **>(pointer), size, flags);
}
template <class T> cudaError_t cudaMallocAsync(T **pointer, size_t size, cudaStream_t stream) {
    return ::cudaMallocAsync(reinterpret_cast<void **>(pointer), size, stream);
}
template <class T> cudaError_t cudaMallocPitch(T **pointer, size_t *pitch, size_t width, size_t height) {
    return ::cudaMallocPitch(reinterpret_cast<void **>(pointer), pitch, width, height);
}
template <class T> cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned int flags) {
    return ::cudaHostGetDevicePointer(reinterpret_cast<void **>(device), host, flags);
}

namespace cuemu::detail {
// A symbol is the variable itself; names went with CUDA 5.
template <class T> const void *symbol_address(const T &symbol) {
    return const_cast<const char *>(&reinterpret_cast<const volatile char &>(symbol));
}
}  // namespace cuemu::detail

template <class T>
cudaError_t cudaMemcpyToSymbol(const T &symbol, const void *from, size_t count, size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice) {
    return cuemuMemcpyToSymbol(cuemu::detail::symbol_address(symbol), sizeof(T), from, count, offset);
}
template <class T>
cudaError_t cudaMemcpyToSymbolAsync(const T &symbol, const void *from, size_t count, size_t offset = 0,
                                    cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) {
    return cudaMemcpyToSymbol(symbol, from, count, offset, kind);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void *to, const T &symbol, size_t count, size_t offset = 0, cudaMemcpyKind = cudaMemcpyDeviceToHost) {
    return cuemuMemcpyFromSymbol(to, cuemu::detail::symbol_address(symbol), sizeof(T), count, offset);
}
template <class T>
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const T &symbol, size_t count, size_t offset = 0,
                                      cudaMemcpyKind kind = cudaMemcpyDeviceToHost, cudaStream_t = nullptr) {
    return cudaMemcpyFromSymbol(to, symbol, count, offset, kind);
}
template <class T> cudaError_t cudaGetSymbolAddress(void **pointer, const T &symbol) {
    *pointer = const_cast<void *>(cuemu::detail::symbol_address(symbol));
    return cudaSuccess;
}
template <class P, class T, class = std::enable_if_t<!std::is_void_v<P>>>
cudaError_t cudaGetSymbolAddress(P **pointer, const T &symbol) {
    return cudaGetSymbolAddress(reinterpret_cast<void **>(pointer), symbol);
}
template <class T> cudaError_t cudaGetSymbolSize(size_t *size, const T &) {
    *size = sizeof(T);
    return cudaSuccess;
}

template <class... P> const void *cuemuKernelAddress(void (*function)(P...)) { return reinterpret_cast<const void *>(function); }
template <class... P>
cudaError_t cudaLaunchKernel(void (*function)(P...), dim3 grid, dim3 block, void **args, size_t shared = 0, cudaStream_t stream = nullptr) {
    return ::cudaLaunchKernel(cuemuKernelAddress(function), grid, block, args, shared, stream);
}
inline cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared = 0) {
    return ::cudaLaunchKernel(function, grid, block, args, shared, nullptr);
}
template <class... P>
cudaError_t cudaLaunchCooperativeKernel(void (*function)(P...), dim3 grid, dim3 block, void **args, size_t shared = 0, cudaStream_t stream = nullptr) {
    return ::cudaLaunchCooperativeKernel(cuemuKernelAddress(function), grid, block, args, shared, stream);
}
template <class... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*function)(P...)) {
    return ::cudaFuncGetAttributes(attributes, cuemuKernelAddress(function));
}
template <class... P> cudaError_t cudaFuncSetAttribute(void (*function)(P...), cudaFuncAttribute attribute, int value) {
    return ::cudaFuncSetAttribute(cuemuKernelAddress(function), attribute, value);
}
template <class... P> cudaError_t cudaFuncSetCacheConfig(void (*function)(P...), cudaFuncCache config) {
    return ::cudaFuncSetCacheConfig(cuemuKernelAddress(function), config);
}
template <class... P> cudaError_t cudaFuncSetSharedMemConfig(void (*function)(P...), cudaSharedMemConfig config) {
    return ::cudaFuncSetSharedMemConfig(cuemuKernelAddress(function), config);
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*function)(P...), int block, size_t shared) {
    return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, cuemuKernelAddress(function), block, shared);
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void (*function)(P...), int block, size_t shared,
                                                                   unsigned int flags) {
    return ::cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, cuemuKernelAddress(function), block, shared, flags);
}

// The block size with the most resident threads, and the smallest grid that fills the device with it.
template <class Kernel, class SharedOfBlock>
cudaError_t cudaOccupancyMaxPotentialBlockSizeVariableSMem(int *minGrid, int *blockSize, Kernel kernel, SharedOfBlock shared,
                                                           int limit = 0) {
    int best = 0, blocks = 0, sms = 0, device = 0;
    *minGrid = *blockSize = 0;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return cudaErrorUnknown;
    for (int size = limit > 0 && limit < 1024 ? limit : 1024; size > 0; size = size % 32 ? size - size % 32 : size - 32) {
        const cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, size, shared(size));
        if (status != cudaSuccess) return status;
        if (blocks * size > best) {
            best = blocks * size;
            *blockSize = size;
            *minGrid = blocks * sms;
        }
    }
    return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int *minGrid, int *blockSize, Kernel kernel, size_t shared = 0, int limit = 0) {
    return cudaOccupancyMaxPotentialBlockSizeVariableSMem(minGrid, blockSize, kernel, [shared](int) { return shared; }, limit);
}
