// Fibers: user-level threads on pooled stacks with guard pages.
#pragma once

#include <cstdint>
#include <string>

#include "cuemu/context.h"

namespace cuemu {

// OS threads that run blocks. Guard pages cost two memory mappings a fiber, and Linux allows 65,530 in a process.
constexpr unsigned kMostThreads = 16;

// A suspended execution: its stack pointer (assembly) or a ucontext_t (other machines).
struct Fiber {
    void *sp = nullptr;
    unsigned char *stack = nullptr;  // lowest address; the first page is the guard
    unsigned thread = 0;             // thread of the block to run next
    Context *context() const { return reinterpret_cast<Context *>(stack + kStackSize - sizeof(Context)); }
};

// All fiber stacks of this object lie in one reserved range, so that an address can be told to be one by a comparison.
struct StackPool {
    std::uintptr_t low = 0;
    std::size_t size = 0;
    bool holds(std::uintptr_t address) const { return address - low < size; }
};
extern StackPool stack_pool;

// Reserves address space; no memory is used until a stack is touched. False when the system refuses.
bool reserve_stacks(std::string *error);
// A fiber with a fresh stack that starts in `entry`. nullptr when stacks ran out.
Fiber *new_fiber(void (*entry)());
// Makes a fiber start in `entry` again, whatever it was doing.
void reset_fiber(Fiber *fiber, void (*entry)());

// Suspends the running code into *from and resumes `to`.
void switch_fiber(Fiber *from, Fiber *to);

}  // namespace cuemu
