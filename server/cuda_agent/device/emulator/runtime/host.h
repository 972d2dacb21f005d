// What the parts of the host runtime share: allocations, error state, the emulated GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "../include/cuda_runtime_api.h"
#include "../include/cuemu/runtime.h"

namespace cuemu::host {

enum class Memory { device, managed, pinned, registered };

struct Allocation {
    std::uintptr_t base;
    std::size_t size;
    Memory kind;
    std::size_t mapped;  // bytes of the mapping, 0 when the memory is the program's own
};

// The live allocation or registered global that holds `address`.
std::optional<Allocation> find_allocation(std::uintptr_t address);
bool is_global(std::uintptr_t address, std::size_t size);

// Error state of this thread (cudaGetLastError) and of the device (sticky: every later call fails with it).
cudaError_t fail(cudaError_t error);
cudaError_t sticky();
void set_sticky(cudaError_t error);
void clear_sticky();

struct Gpu {
    const char *name;
    int major, minor, sms;
    int shared_per_sm, shared_optin, max_threads_per_sm, max_blocks_per_sm;  // bytes, threads
    int l2_bytes;
    std::size_t memory;
    int memory_clock_khz, bus_bits, clock_khz;
};

// CUDA_AGENT_EMULATOR_GPU picks one of H200 (default), A100, RTX4090, T4.
const Gpu &gpu();
std::size_t total_memory();

// Largest dynamic shared memory a launch of `kernel` may ask for: 48 KiB, or what cudaFuncSetAttribute allowed.
std::size_t shared_limit(const Kernel *kernel);

}  // namespace cuemu::host
