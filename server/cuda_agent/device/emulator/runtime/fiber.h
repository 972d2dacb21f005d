// Fibers: user-level threads on pooled stacks with guard pages.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "cuemu/context.h"

namespace cuemu {

// OS threads that run blocks, at most.
constexpr unsigned kMostThreads = 16;

// A suspended execution: its stack pointer (assembly) or a ucontext_t (other machines).
struct Fiber {
    void *sp = nullptr;
    unsigned char *stack = nullptr;  // lowest address; the first page is the guard
    unsigned thread = 0;             // thread of the block to run next
    Context *context() const { return reinterpret_cast<Context *>(stack + kStackSize - sizeof(Context)); }
};

// The error of a launch whose threads get no stacks: the device's trouble, not the kernel's.
constexpr char kNoStacks[] =
    "out of memory: the system gives no address space for the stacks of a block's threads (ulimit -v, vm.max_map_count)";

// All fiber stacks of the process lie in one reserved range, so that an address can be told to be one by a comparison.
struct StackRange {
    std::uintptr_t low = 0;
    std::size_t size = 0;
    bool holds(std::uintptr_t address) const { return address - low < size; }
};
extern StackRange stack_range;

// The stacks of the process. A guard page makes two memory mappings of each, and Linux allows 65,530 in a process, so the modules
// loaded into it share them. A module keeps those of its fibers until it is unloaded, or until another one needs them all.
struct StackPool;

// Uses the stacks that another module of this process reserved, or reserves them when there are none: address space only, no memory
// is used until a stack is touched. Returns what to hand to the next module; nullptr when the system refuses.
StackPool *share_stacks(StackPool *reserved);
// Waits until no other grid of the process runs, and lets this module's run until the lease ends.
class StackLease {
  public:
    StackLease();
    bool granted = false;  // false: the system refuses stacks
    bool stale = false;    // another module took all stacks since this one's last grid: its fibers are gone

  private:
    std::unique_lock<std::mutex> lock_;
};
// How many stacks the blocks of a grid may have together.
std::size_t stacks_for_blocks();
// Makes sure that so many more fibers can be had. `took_all`: by taking every stack of the process, this module's too.
// False when the system refuses.
bool supply_stacks(std::size_t more, bool *took_all);
// The fibers of a module that is about to be unloaded: their stacks are free again.
void give_back_stacks(const std::vector<Fiber *> &fibers);

// A fiber with a stack that starts in `entry`. nullptr when the system gives none.
Fiber *new_fiber(void (*entry)());
// The same for a launch that collects its arguments: it is kept whatever other modules do.
Fiber *new_bind_fiber(void (*entry)());
// Makes a fiber start in `entry` again, whatever it was doing.
void reset_fiber(Fiber *fiber, void (*entry)());

// Suspends the running code into *from and resumes `to`.
void switch_fiber(Fiber *from, Fiber *to);

}  // namespace cuemu
