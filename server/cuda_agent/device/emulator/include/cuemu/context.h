// What a CUDA thread knows of itself: a Context at the top of its fiber's stack.
//
// Fiber stacks are kStackSize bytes, aligned to kStackSize, so the context's address follows from the stack pointer: no
// thread-local storage, and nothing to update when fibers switch.
#pragma once

#include "qualifiers.h"
#include "vector_types.h"

namespace cuemu {

// CUDA gives a thread at most 512 KiB of local memory; only what is touched costs memory.
constexpr std::size_t kStackSize = 1024 * 1024;

struct Binding;
struct Block;

struct alignas(64) Context {
    uint3 thread;
    uint3 block;
    dim3 block_dim;
    dim3 grid_dim;
    Binding *binding;  // set while a launch collects its arguments: the kernel's body must not run
    Block *owner;      // the block this thread runs in; nullptr in bind mode
    unsigned linear;   // thread number in its block
    unsigned spins;    // failed or repeated atomics since the last switch: yields now and then
    unsigned char reserved[256 - 72];
};
static_assert(sizeof(Context) == 256, "the context's size is part of the stack layout");

#if defined(__x86_64__)
// No volatile and no memory operand: the answer never changes within one call, so the compiler may reuse it.
CUEMU_INLINE Context *context() {
    std::uintptr_t sp;
    asm("mov %%rsp, %0" : "=r"(sp));
    return reinterpret_cast<Context *>((sp | (kStackSize - 1)) + 1 - sizeof(Context));
}
template <unsigned kOffset> CUEMU_INLINE unsigned context_word() {
    unsigned value;
    asm("movl %c1(%2), %0" : "=r"(value) : "i"(kOffset), "r"(context()));
    return value;
}
CUEMU_INLINE bool binding() {
    Binding *value;
    asm("movq %c1(%2), %0" : "=r"(value) : "i"(offsetof(Context, binding)), "r"(context()));
    return __builtin_expect(value != nullptr, 0);
}
#else
CUEMU_INLINE Context *context() {
    auto sp = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    return reinterpret_cast<Context *>((sp | (kStackSize - 1)) + 1 - sizeof(Context));
}
template <unsigned kOffset> CUEMU_INLINE unsigned context_word() {
    return *reinterpret_cast<const unsigned *>(reinterpret_cast<const char *>(context()) + kOffset);
}
CUEMU_INLINE bool binding() { return __builtin_expect(context()->binding != nullptr, 0); }
#endif

template <class T, unsigned kOffset> CUEMU_INLINE T context_triple() {
    return T{context_word<kOffset>(), context_word<kOffset + 4>(), context_word<kOffset + 8>()};
}

}  // namespace cuemu

#define threadIdx (::cuemu::context_triple<uint3, offsetof(::cuemu::Context, thread)>())
#define blockIdx (::cuemu::context_triple<uint3, offsetof(::cuemu::Context, block)>())
#define blockDim (::cuemu::context_triple<dim3, offsetof(::cuemu::Context, block_dim)>())
#define gridDim (::cuemu::context_triple<dim3, offsetof(::cuemu::Context, grid_dim)>())
// Not a macro: cudaDeviceProp has a member of this name.
inline constexpr int warpSize = 32;
