// The emulated GPU's properties, attributes and limits, and occupancy.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host.h"

namespace cuemu::host {
namespace {

// From NVIDIA's data sheets and the CUDA programming guide's table of compute capabilities.
const Gpu kGpus[] = {
    {"NVIDIA H200", 9, 0, 132, 228 << 10, 227 << 10, 2048, 32, 60 << 20, std::size_t{141} << 30, 3201000, 6144, 1980000},
    {"NVIDIA A100-SXM4-80GB", 8, 0, 108, 164 << 10, 163 << 10, 2048, 32, 40 << 20, std::size_t{80} << 30, 1593000, 5120, 1410000},
    {"NVIDIA GeForce RTX 4090", 8, 9, 128, 100 << 10, 99 << 10, 1536, 24, 72 << 20, std::size_t{24} << 30, 10501000, 384, 2520000},
    {"Tesla T4", 7, 5, 40, 64 << 10, 64 << 10, 1024, 16, 4 << 20, std::size_t{16} << 30, 5001000, 256, 1590000},
};

bool known(int device) { return device == 0; }

}  // namespace

const Gpu &gpu() {
    static const Gpu &chosen = []() -> const Gpu & {
        const char *wanted = std::getenv("CUDA_AGENT_EMULATOR_GPU");
        if (!wanted || !*wanted) return kGpus[0];
        for (const auto &g : kGpus) {
            std::string name = g.name;
            name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
            if (name.find(wanted) != std::string::npos) return g;
        }
        std::fprintf(stderr, "cuda-agent: no GPU %s to emulate (H200, A100, RTX4090, T4); taking H200\n", wanted);
        return kGpus[0];
    }();
    return chosen;
}

}  // namespace cuemu::host

using namespace cuemu::host;

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    if (!count) return fail(cudaErrorInvalidValue);
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return known(device) ? sticky() : fail(cudaErrorInvalidDevice); }
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) { return cudaSetDevice(device); }
cudaError_t cudaChooseDevice(int *device, const cudaDeviceProp *) { return cudaGetDevice(device); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (!p) return fail(cudaErrorInvalidValue);
    if (!known(device)) return fail(cudaErrorInvalidDevice);
    const Gpu &g = gpu();
    std::memset(p, 0, sizeof *p);
    std::snprintf(p->name, sizeof p->name, "%s (emulated)", g.name);
    p->totalGlobalMem = total_memory();
    p->sharedMemPerBlock = 48 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = 0x7fffffff;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->clockRate = g.clock_khz;
    p->totalConstMem = 64 << 10;
    p->major = g.major;
    p->minor = g.minor;
    p->textureAlignment = 512;
    p->texturePitchAlignment = 32;
    p->deviceOverlap = 1;
    p->multiProcessorCount = g.sms;
    p->canMapHostMemory = 1;
    p->concurrentKernels = 1;
    p->asyncEngineCount = 3;
    p->unifiedAddressing = 1;
    p->memoryClockRate = g.memory_clock_khz;
    p->memoryBusWidth = g.bus_bits;
    p->l2CacheSize = g.l2_bytes;
    p->maxThreadsPerMultiProcessor = g.max_threads_per_sm;
    p->streamPrioritiesSupported = 1;
    p->globalL1CacheSupported = p->localL1CacheSupported = 1;
    p->sharedMemPerMultiprocessor = static_cast<std::size_t>(g.shared_per_sm);
    p->managedMemory = 1;
    p->singleToDoublePrecisionPerfRatio = 2;
    p->concurrentManagedAccess = 1;
    p->computePreemptionSupported = 1;
    p->cooperativeLaunch = 1;
    p->sharedMemPerBlockOptin = static_cast<std::size_t>(g.shared_optin);
    p->maxBlocksPerMultiProcessor = g.max_blocks_per_sm;
    p->reservedSharedMemPerBlock = g.major >= 8 ? 1024 : 0;
    p->memoryPoolsSupported = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    if (!value) return fail(cudaErrorInvalidValue);
    cudaDeviceProp p;
    const cudaError_t status = cudaGetDeviceProperties(&p, device);
    if (status != cudaSuccess) return status;
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
        case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
        case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
        case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
        case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
        case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
        case cudaDevAttrTotalConstantMemory: *value = static_cast<int>(p.totalConstMem); break;
        case cudaDevAttrWarpSize: *value = p.warpSize; break;
        case cudaDevAttrMaxPitch: *value = static_cast<int>(p.memPitch); break;
        case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
        case cudaDevAttrClockRate: *value = p.clockRate; break;
        case cudaDevAttrTextureAlignment: *value = static_cast<int>(p.textureAlignment); break;
        case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
        case cudaDevAttrIntegrated: *value = 0; break;
        case cudaDevAttrCanMapHostMemory: *value = 1; break;
        case cudaDevAttrComputeMode: *value = 0; break;
        case cudaDevAttrConcurrentKernels: *value = 1; break;
        case cudaDevAttrEccEnabled: *value = 0; break;
        case cudaDevAttrMemoryClockRate: *value = p.memoryClockRate; break;
        case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
        case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
        case cudaDevAttrUnifiedAddressing: *value = 1; break;
        case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
        case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
        case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
        case cudaDevAttrManagedMemory: *value = 1; break;
        case cudaDevAttrPageableMemoryAccess: *value = 0; break;
        case cudaDevAttrConcurrentManagedAccess: *value = 1; break;
        case cudaDevAttrCooperativeLaunch: *value = 1; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
        case cudaDevAttrReservedSharedMemoryPerBlock: *value = static_cast<int>(p.reservedSharedMemPerBlock); break;
        case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
        default: return fail(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { return sticky(); }
cudaError_t cudaThreadSynchronize(void) { return sticky(); }
cudaError_t cudaDeviceReset(void) {
    clear_sticky();
    return cudaSuccess;
}
cudaError_t cudaThreadExit(void) { return cudaDeviceReset(); }
cudaError_t cudaSetDeviceFlags(unsigned int) { return cudaSuccess; }
cudaError_t cudaGetDeviceFlags(unsigned int *flags) {
    *flags = cudaDeviceScheduleAuto;
    return cudaSuccess;
}
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t *value, cudaLimit limit) {
    *value = limit == cudaLimitStackSize ? 1024 : limit == cudaLimitPrintfFifoSize ? 1 << 20 : 8 << 20;
    return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache *config) {
    *config = cudaFuncCachePreferNone;
    return cudaSuccess;
}
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig *config) {
    *config = cudaSharedMemBankSizeFourByte;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned int) { return fail(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceDisablePeerAccess(int) { return fail(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    if (!known(device)) return fail(cudaErrorInvalidDevice);
    std::snprintf(id, static_cast<std::size_t>(length), "0000:00:00.0");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) {
    *pool = nullptr;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block, size_t shared) {
    if (!blocks || block <= 0) return fail(cudaErrorInvalidValue);
    if (!cuemu::find_kernel(function)) return fail(cudaErrorInvalidDeviceFunction);
    const Gpu &g = gpu();
    const int reserved = g.major >= 8 ? 1024 : 0;
    // Registers are the GPU compiler's business: this is the limit by threads, blocks and dynamic shared memory.
    int most = std::min(g.max_threads_per_sm / ((block + 31) / 32 * 32), g.max_blocks_per_sm);
    if (shared + static_cast<size_t>(reserved) > 0)
        most = static_cast<int>(std::min<size_t>(static_cast<size_t>(most), static_cast<size_t>(g.shared_per_sm) / (shared + static_cast<size_t>(reserved))));
    *blocks = block > 1024 || shared > static_cast<size_t>(g.shared_optin) ? 0 : most;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int block, size_t shared,
                                                                   unsigned int) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block, shared);
}
}
