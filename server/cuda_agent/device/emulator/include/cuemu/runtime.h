// Between the host runtime, the scheduler and the headers: kernels, launches and how one is executed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "context.h"

namespace cuemu {

using Thunk = void (*)(void *function, const unsigned char *params);

// One kernel instantiation. Offsets follow CUDA's parameter block: each parameter at its natural alignment.
struct Kernel {
    std::string mangled;  // as nvcc spells it
    std::string symbol;   // as this object has it
    Thunk thunk;
    unsigned count;
    const unsigned *offsets;
    const unsigned *sizes;
    unsigned param_bytes;
    void *function = nullptr;  // found in the symbol table on first use
};

// A registered __device__ or __constant__ variable.
struct Global {
    std::string mangled;
    std::string name;
    void *address;
    std::size_t size;
};

struct Request {
    const Kernel *kernel;
    dim3 grid, block;
    std::size_t shared;  // dynamic, bytes
    const void *stream;
    const unsigned char *params;  // kernel->param_bytes bytes, 64-byte aligned
};

// A buffer that the launch may touch. `guard` bytes of Options on each side belong to nobody.
struct Region {
    std::uintptr_t base;
    std::size_t size;
};

// Bytes of a region that hold no value before the launch: a read of them before a write is a finding.
struct Unwritten {
    std::size_t region;  // index in Options::regions
    std::size_t start, end;
};

struct Options {
    unsigned threads = 0;  // OS threads; 0 = all cores
    unsigned seed = 0;     // order in which threads run to their next barrier; 0 = last warp first, lanes ascending
    bool trace = false;
    std::vector<Region> regions;
    std::vector<Unwritten> unwritten;
    std::size_t guard = 4096;
};

struct Trace;  // runtime/trace.h

struct Outcome {
    std::string error;  // empty: the kernel ran to its end
    double seconds = 0;
    std::uintptr_t error_pc = 0;  // where, when known: a code address inside this object
    unsigned error_block[3] = {0, 0, 0};
    unsigned error_thread[3] = {0, 0, 0};
    Trace *trace = nullptr;  // owned by the caller, delete with destroy(trace); nullptr without Options::trace
};

std::vector<const Kernel *> kernels();
const Kernel *find_kernel(const void *function);
const Kernel *find_kernel(const char *mangled);
std::vector<Global> globals();

// Runs the whole grid; one launch at a time in a process. Never throws.
Outcome execute(const Request &request, const Options &options = {});
// Asks the running launch to stop at its next barrier or block; safe from any thread.
void cancel();

}  // namespace cuemu

// Called by CUEMU_LAUNCH. The host runtime defines it; the weak default executes and aborts the program on an error.
extern "C" void cuemu_on_launch(const cuemu::Request &request);
