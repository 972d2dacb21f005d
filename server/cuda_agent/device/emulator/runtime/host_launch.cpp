// Launches from the host: limits, errors, and the raw record when the program runs under capture.
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "../../../capture/native/record.h"
#include "host.h"

namespace cuemu::host {
namespace {

std::mutex attributes_mutex;
std::map<const Kernel *, int> dynamic_shared;  // by cudaFuncSetAttribute

cudaError_t limits(const Request &request) {
    const dim3 &g = request.grid, &b = request.block;
    const auto threads = static_cast<unsigned long long>(b.x) * b.y * b.z;
    if (threads == 0 || g.x == 0 || g.y == 0 || g.z == 0) return cudaErrorInvalidConfiguration;
    if (threads > 1024 || b.x > 1024 || b.y > 1024 || b.z > 64) return cudaErrorInvalidConfiguration;
    if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) return cudaErrorInvalidConfiguration;
    if (request.shared > shared_limit(request.kernel)) return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t code_of(const std::string &error) {
    const auto begins = [&](const char *text) { return error.compare(0, std::strlen(text), text) == 0; };
    if (begins("illegal address")) return cudaErrorIllegalAddress;
    if (begins("misaligned")) return cudaErrorMisalignedAddress;
    if (begins("assertion")) return cudaErrorAssert;
    if (begins("unsupported")) return cudaErrorNotSupported;
    if (begins("illegal instruction")) return cudaErrorIllegalInstruction;
    if (begins("out of memory")) return cudaErrorMemoryAllocation;
    return cudaErrorLaunchFailure;  // __trap, a barrier that is never complete …: "unspecified launch failure"
}

void run(const Request &request, std::string *error) {
    const Outcome outcome = execute(request);
    if (outcome.error.empty()) return;
    *error = outcome.error;
    std::fprintf(stderr, "cuda-agent: kernel %s: %s (block %u,%u,%u thread %u,%u,%u)\n",
                 cuda_agent::capture::demangle(request.kernel->mangled).c_str(), outcome.error.c_str(), outcome.error_block[0],
                 outcome.error_block[1], outcome.error_block[2], outcome.error_thread[0], outcome.error_thread[1],
                 outcome.error_thread[2]);
    set_sticky(code_of(outcome.error));
}

bool resolve(std::uint64_t word, std::uint64_t &base, std::uint64_t &size) {
    const auto found = find_allocation(static_cast<std::uintptr_t>(word));
    if (!found) return false;
    base = found->base;
    size = found->size;
    return true;
}

bool read(std::uint64_t address, void *host, std::size_t bytes) {
    std::memcpy(host, reinterpret_cast<const void *>(address), bytes);
    return true;
}

cuda_agent::capture::Parameters parameters_of(const Request &request) {
    const Kernel &kernel = *request.kernel;
    cuda_agent::capture::Parameters found;
    found.reserve(kernel.count);
    for (unsigned i = 0; i < kernel.count; ++i)
        found.push_back({kernel.offsets[i], kernel.sizes[i], request.params + kernel.offsets[i]});
    return found;
}

void run_recorded(const Request &request) {
    // Streams run in order here, but several host threads may launch: the snapshot must hold still.
    static std::mutex launching;
    std::lock_guard<std::mutex> hold(launching);
    auto &recorder = cuda_agent::capture::recorder();
    const unsigned grid[3] = {request.grid.x, request.grid.y, request.grid.z};
    const unsigned block[3] = {request.block.x, request.block.y, request.block.z};
    const auto parameters = parameters_of(request);
    auto launch = recorder.begin(request.kernel->mangled, grid, block, request.shared, "emulator", &parameters);
    if (launch.wanted) {
        for (const auto &p : parameters) launch.add_arg(p.offset, p.data, p.size, resolve);
        for (const auto &global : globals()) launch.add_global(global.mangled, global.address, global.size);
        recorder.before(launch, read, resolve);
    }
    std::string error;
    run(request, &error);
    if (!launch.wanted) return;
    if (error.empty())
        recorder.finish(launch, read);
    else
        recorder.skip(launch, "the kernel failed on the emulator: " + error);
}

// A launch that never ran still has a shape, and the record says why there is nothing else.
void record_refused(const Request &request) {
    auto &recorder = cuda_agent::capture::recorder();
    if (!recorder.enabled()) return;
    const unsigned grid[3] = {request.grid.x, request.grid.y, request.grid.z};
    const unsigned block[3] = {request.block.x, request.block.y, request.block.z};
    const auto parameters = parameters_of(request);
    auto launch = recorder.begin(request.kernel->mangled, grid, block, request.shared, "emulator", &parameters);
    if (launch.wanted) recorder.skip(launch, "the launch was refused: it asks for more than the device has, or for nothing");
}

}  // namespace

std::size_t shared_limit(const Kernel *kernel) {
    std::lock_guard<std::mutex> hold(attributes_mutex);
    const auto found = dynamic_shared.find(kernel);
    return static_cast<std::size_t>(found == dynamic_shared.end() ? 48 << 10 : std::max(found->second, 48 << 10));
}

}  // namespace cuemu::host

using namespace cuemu::host;

extern "C" {

void cuemu_on_launch(const cuemu::Request &request) {
    if (sticky() != cudaSuccess) {
        fail(sticky());
        return;
    }
    const cudaError_t status = limits(request);
    if (status != cudaSuccess) {
        record_refused(request);
        fail(status);
        return;
    }
    if (cuda_agent::capture::recorder().enabled()) {
        run_recorded(request);
    } else {
        std::string error;
        run(request, &error);
    }
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    const cuemu::Kernel *kernel = cuemu::find_kernel(function);
    if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
    if (kernel->count != 0 && !args) return fail(cudaErrorInvalidValue);
    std::vector<unsigned char> storage(kernel->param_bytes + 64);
    unsigned char *params = storage.data() + (64 - reinterpret_cast<std::uintptr_t>(storage.data()) % 64) % 64;
    for (unsigned i = 0; i < kernel->count; ++i) std::memcpy(params + kernel->offsets[i], args[i], kernel->sizes[i]);
    const cudaError_t before = cudaGetLastError();
    cuemu_on_launch({kernel, grid, block, shared, stream, params});
    const cudaError_t status = cudaPeekAtLastError();
    if (status == cudaSuccess) fail(before);
    return status;
}
cudaError_t cudaLaunchCooperativeKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t) {
    std::fprintf(stderr, "cuda-agent: the emulator cannot run cooperative launches (grid-wide synchronisation)\n");
    return fail(cudaErrorNotSupported);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *function) {
    if (!attributes) return fail(cudaErrorInvalidValue);
    const cuemu::Kernel *kernel = cuemu::find_kernel(function);
    if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
    std::memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->ptxVersion = attributes->binaryVersion = gpu().major * 10 + gpu().minor;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(shared_limit(kernel));
    attributes->preferredShmemCarveout = cudaSharedmemCarveoutDefault;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value) {
    const cuemu::Kernel *kernel = cuemu::find_kernel(function);
    if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > gpu().shared_optin) return fail(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(attributes_mutex);
    dynamic_shared[kernel] = value;
    return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void *function, cudaFuncCache) {
    return cuemu::find_kernel(function) ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}
cudaError_t cudaFuncSetSharedMemConfig(const void *function, cudaSharedMemConfig) {
    return cuemu::find_kernel(function) ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}
}
