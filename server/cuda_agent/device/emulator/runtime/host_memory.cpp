// Device memory: mappings of host memory in a table, so that a pointer tells its allocation.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "host.h"

namespace cuemu::host {
namespace {

std::mutex mutex;
std::map<std::uintptr_t, Allocation> table;  // by base
std::size_t used = 0;                        // bytes of device and managed memory

std::size_t pages(std::size_t size) {
    static const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return (size + page - 1) / page * page;
}

cudaError_t allocate(void **pointer, std::size_t size, Memory kind) {
    if (!pointer) return fail(cudaErrorInvalidValue);
    if (sticky() != cudaSuccess) return sticky();
    *pointer = nullptr;
    if (size == 0) return cudaSuccess;
    std::lock_guard<std::mutex> hold(mutex);
    const bool counts = kind != Memory::pinned;
    if (size > total_memory() || (counts && used + size > total_memory())) return fail(cudaErrorMemoryAllocation);
    // One unreadable page follows, so that running far past the end stops the kernel as it would on a GPU.
    const std::size_t body = pages(size), guard = pages(1);
    void *base = mmap(nullptr, body + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
    mprotect(static_cast<char *>(base) + body, guard, PROT_NONE);
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    table[address] = {address, size, kind, body + guard};
    if (counts) used += size;
    *pointer = base;
    return cudaSuccess;
}

cudaError_t release(void *pointer, bool device) {
    if (!pointer) return cudaSuccess;
    std::lock_guard<std::mutex> hold(mutex);
    const auto found = table.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == table.end() || found->second.kind == Memory::registered || (found->second.kind == Memory::pinned) == device)
        return fail(cudaErrorInvalidValue);
    if (device) used -= found->second.size;
    munmap(pointer, found->second.mapped);
    table.erase(found);
    return sticky();
}

bool on_device(const void *pointer) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return find_allocation(address) || is_global(address, 1);
}

// Whether `size` bytes at `pointer` stay in the allocation it points into, when it points into one.
bool fits(const void *pointer, std::size_t size) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    const auto found = find_allocation(address);
    return !found || size <= found->base + found->size - address;
}

cudaError_t check(const void *to, const void *from, std::size_t size, cudaMemcpyKind kind) {
    if (sticky() != cudaSuccess) return sticky();
    if (static_cast<unsigned>(kind) > cudaMemcpyDefault) return fail(cudaErrorInvalidMemcpyDirection);
    if (size == 0) return cudaSuccess;
    if (!to || !from) return fail(cudaErrorInvalidValue);
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if ((to_device && !on_device(to)) || (from_device && !on_device(from))) return fail(cudaErrorInvalidValue);
    return fits(to, size) && fits(from, size) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

// Bytes from the first to the last of `height` rows.
std::size_t extent(std::size_t pitch, std::size_t width, std::size_t height) { return height ? (height - 1) * pitch + width : 0; }

}  // namespace

std::optional<Allocation> find_allocation(std::uintptr_t address) {
    std::lock_guard<std::mutex> hold(mutex);
    auto after = table.upper_bound(address);
    if (after == table.begin()) return std::nullopt;
    const Allocation &found = std::prev(after)->second;
    if (address - found.base >= found.size) return std::nullopt;
    return found;
}

bool is_global(std::uintptr_t address, std::size_t size) {
    for (const auto &global : globals()) {
        const auto base = reinterpret_cast<std::uintptr_t>(global.address);
        if (address >= base && address - base < global.size && size <= global.size - (address - base)) return true;
    }
    return false;
}

std::size_t total_memory() {
    // No more than four fifths of what this machine has: a program that sizes itself by cudaMemGetInfo must fit.
    static const std::size_t bytes = [] {
        const auto host = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        return std::min(gpu().memory, host / 5 * 4);
    }();
    return bytes;
}

}  // namespace cuemu::host

using namespace cuemu::host;

extern "C" {

cudaError_t cudaMalloc(void **pointer, size_t size) { return allocate(pointer, size, Memory::device); }
cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t) { return allocate(pointer, size, Memory::device); }
cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned int) { return allocate(pointer, size, Memory::managed); }
cudaError_t cudaMallocHost(void **pointer, size_t size) { return allocate(pointer, size, Memory::pinned); }
cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned int) { return allocate(pointer, size, Memory::pinned); }
cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    if (!pitch) return fail(cudaErrorInvalidValue);
    *pitch = (width + 511) / 512 * 512;
    return allocate(pointer, *pitch * height, Memory::device);
}
cudaError_t cudaMalloc3D(cudaPitchedPtr *pointer, cudaExtent extent) {
    if (!pointer) return fail(cudaErrorInvalidValue);
    pointer->xsize = extent.width;
    pointer->ysize = extent.height;
    return cudaMallocPitch(&pointer->ptr, &pointer->pitch, extent.width, extent.height * extent.depth);
}
cudaError_t cudaFree(void *pointer) { return release(pointer, true); }
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t) { return release(pointer, true); }
cudaError_t cudaFreeHost(void *pointer) { return release(pointer, false); }

cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned int) {
    if (!pointer || size == 0) return fail(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(mutex);
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (!table.emplace(address, Allocation{address, size, Memory::registered, 0}).second)
        return fail(cudaErrorHostMemoryAlreadyRegistered);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *pointer) {
    std::lock_guard<std::mutex> hold(mutex);
    const auto found = table.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == table.end() || found->second.kind != Memory::registered) return fail(cudaErrorHostMemoryNotRegistered);
    table.erase(found);
    return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int) {
    if (!device || !find_allocation(reinterpret_cast<std::uintptr_t>(host))) return fail(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}
cudaError_t cudaHostGetFlags(unsigned int *flags, void *) {
    *flags = cudaHostAllocMapped;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    std::lock_guard<std::mutex> hold(mutex);
    *total = total_memory();
    *available = *total - used;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
    if (!attributes || !pointer) return fail(cudaErrorInvalidValue);
    *attributes = {cudaMemoryTypeUnregistered, 0, nullptr, const_cast<void *>(pointer)};
    if (const auto found = find_allocation(reinterpret_cast<std::uintptr_t>(pointer))) {
        attributes->devicePointer = const_cast<void *>(pointer);
        attributes->type = found->kind == Memory::device    ? cudaMemoryTypeDevice
                           : found->kind == Memory::managed ? cudaMemoryTypeManaged
                                                            : cudaMemoryTypeHost;
        if (found->kind == Memory::device) attributes->hostPointer = nullptr;
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
    const cudaError_t status = check(to, from, size, kind);
    if (status == cudaSuccess && size != 0) std::memmove(to, from, size);
    return status;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpy(to, from, size, kind);
}
cudaError_t cudaMemcpyPeer(void *to, int, const void *from, int, size_t size) {
    return cudaMemcpy(to, from, size, cudaMemcpyDeviceToDevice);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t size, cudaStream_t) {
    return cudaMemcpy(to, from, size, cudaMemcpyDeviceToDevice);
}
cudaError_t cudaMemcpy2D(void *to, size_t toPitch, const void *from, size_t fromPitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    if (width > toPitch || width > fromPitch) return fail(cudaErrorInvalidPitchValue);
    cudaError_t status = check(to, from, width && height ? 1 : 0, kind);
    if (status == cudaSuccess && (!fits(to, extent(toPitch, width, height)) || !fits(from, extent(fromPitch, width, height))))
        status = fail(cudaErrorInvalidValue);
    if (status == cudaSuccess && width != 0)
        for (size_t y = 0; y < height; ++y)
            std::memmove(static_cast<char *>(to) + y * toPitch, static_cast<const char *>(from) + y * fromPitch, width);
    return status;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t toPitch, const void *from, size_t fromPitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpy2D(to, toPitch, from, fromPitch, width, height, kind);
}
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms *copy) {
    if (!copy || copy->srcArray || copy->dstArray) return fail(cudaErrorInvalidValue);
    const auto at = [](const cudaPitchedPtr &p, const cudaPos &pos, size_t z) {
        return static_cast<char *>(p.ptr) + ((pos.z + z) * p.ysize + pos.y) * p.pitch + pos.x;
    };
    for (size_t z = 0; z < copy->extent.depth; ++z) {
        const cudaError_t status = cudaMemcpy2D(at(copy->dstPtr, copy->dstPos, z), copy->dstPtr.pitch, at(copy->srcPtr, copy->srcPos, z),
                                                copy->srcPtr.pitch, copy->extent.width, copy->extent.height, copy->kind);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms *copy, cudaStream_t) { return cudaMemcpy3D(copy); }

cudaError_t cudaMemset(void *pointer, int value, size_t size) {
    const cudaError_t status = check(pointer, pointer, size, cudaMemcpyDeviceToDevice);
    if (status == cudaSuccess && size != 0) std::memset(pointer, value, size);
    return status;
}
cudaError_t cudaMemsetAsync(void *pointer, int value, size_t size, cudaStream_t) { return cudaMemset(pointer, value, size); }
cudaError_t cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height) {
    if (width > pitch) return fail(cudaErrorInvalidPitchValue);
    const cudaError_t status = check(pointer, pointer, extent(pitch, width, height), cudaMemcpyDeviceToDevice);
    if (status == cudaSuccess)
        for (size_t y = 0; y < height; ++y) std::memset(static_cast<char *>(pointer) + y * pitch, value, width);
    return status;
}
cudaError_t cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width, size_t height, cudaStream_t) {
    return cudaMemset2D(pointer, pitch, value, width, height);
}
cudaError_t cudaMemset3D(cudaPitchedPtr pointer, int value, cudaExtent size) {
    for (size_t z = 0; z < size.depth; ++z) {
        char *slice = static_cast<char *>(pointer.ptr) + z * pointer.ysize * pointer.pitch;
        const cudaError_t status = cudaMemset2D(slice, pointer.pitch, value, size.width, size.height);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void *, size_t, unsigned int) { return cudaSuccess; }

cudaError_t cuemuMemcpyToSymbol(const void *symbol, size_t size, const void *from, size_t count, size_t offset) {
    if (sticky() != cudaSuccess) return sticky();
    if (offset > size || count > size - offset || (count && !from)) return fail(cudaErrorInvalidValue);
    if (count) std::memmove(static_cast<char *>(const_cast<void *>(symbol)) + offset, from, count);
    return cudaSuccess;
}
cudaError_t cuemuMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t count, size_t offset) {
    if (sticky() != cudaSuccess) return sticky();
    if (offset > size || count > size - offset || (count && !to)) return fail(cudaErrorInvalidValue);
    if (count) std::memmove(to, static_cast<const char *>(symbol) + offset, count);
    return cudaSuccess;
}
}
