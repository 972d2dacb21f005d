#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <vector>

#include "fiber.h"

// CUEMU_UCONTEXT forces the portable way, for tests.
#if !defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
#define CUEMU_UCONTEXT 1
#endif
#if defined(CUEMU_UCONTEXT)
#include <ucontext.h>
#endif

namespace cuemu {

// Made by the first module of the process and used by all; it outlives each of them.
struct StackPool {
    std::mutex grid;  // held while a grid runs
    std::mutex taking;
    StackRange range;
    std::size_t count = 0;          // stacks in the range
    std::size_t opened = 0;         // of the low end: accessible, but for their guard pages
    std::vector<std::size_t> free;  // of these: nobody's, and zero; the lowest last
    std::size_t bound = 0;          // of the high end: by launches that collect arguments
    unsigned long generation = 1;   // how often all stacks were taken, and one
};

StackRange stack_range;

namespace {

constexpr std::size_t kBinding = 64;  // kept for launches that collect their arguments
constexpr std::size_t kFewest = 1024 + kBinding;
std::mutex sharing;
StackPool *pool = nullptr;
unsigned long generation = 0;  // in which this module's fibers were made

// Stacks may make up half of the mappings that a process may have.
std::size_t most_stacks() {
    std::size_t mappings = 65530;
    std::ifstream("/proc/sys/vm/max_map_count") >> mappings;
    return mappings / 4;
}

StackPool *reserve() {
    const std::size_t wanted = std::max(kFewest, most_stacks());
    for (std::size_t count = wanted; count >= kFewest; count = count == kFewest ? 0 : std::max(kFewest, count / 2)) {
        std::size_t bytes = (count + 1) * kStackSize;
        void *memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) continue;
        auto *made = new StackPool;
        made->range.low = (reinterpret_cast<std::uintptr_t>(memory) + kStackSize - 1) & ~(kStackSize - 1);
        made->range.size = count * kStackSize;
        made->count = count;
        return made;
    }
    return nullptr;
}

unsigned char *stack(std::size_t index) { return reinterpret_cast<unsigned char *>(pool->range.low + index * kStackSize); }

bool open_stack(std::size_t index) {
    auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return mprotect(stack(index) + page, kStackSize - page, PROT_READ | PROT_WRITE) == 0;
}

// Zero again: what one module's threads left there is not for another's to find.
bool clear_stacks(std::size_t first, std::size_t count) {
    return count == 0 || madvise(stack(first), count * kStackSize, MADV_DONTNEED) == 0;
}

Fiber *fiber_on(std::size_t index, void (*entry)()) {
    auto *fiber = new Fiber;
    fiber->stack = stack(index);
    reset_fiber(fiber, entry);
    return fiber;
}

}  // namespace

StackPool *share_stacks(StackPool *reserved) {
    std::lock_guard<std::mutex> lock(sharing);
    if (pool == nullptr) pool = reserved != nullptr ? reserved : reserve();
    if (pool != nullptr) stack_range = pool->range;
    return pool;
}

StackLease::StackLease() {
    if (share_stacks(nullptr) == nullptr) return;
    lock_ = std::unique_lock<std::mutex>(pool->grid);
    granted = true;
    stale = generation != pool->generation;
    generation = pool->generation;
}

std::size_t stacks_for_blocks() {
    std::lock_guard<std::mutex> lock(pool->taking);
    return pool->count - std::max(pool->bound, kBinding);
}

bool supply_stacks(std::size_t more, bool *took_all) {
    *took_all = false;
    const std::size_t most = stacks_for_blocks();
    std::lock_guard<std::mutex> lock(pool->taking);
    if (pool->opened + more <= most + pool->free.size()) return true;
    if (!clear_stacks(0, pool->opened)) return false;
    pool->free.clear();
    for (std::size_t index = pool->opened; index-- > 0;) pool->free.push_back(index);
    generation = ++pool->generation;
    *took_all = true;
    return true;
}

void give_back_stacks(const std::vector<Fiber *> &fibers) {
    if (pool == nullptr) return;
    std::lock_guard<std::mutex> grid(pool->grid);
    if (generation != pool->generation) return;
    std::vector<std::size_t> given;
    for (const Fiber *fiber : fibers) given.push_back((reinterpret_cast<std::uintptr_t>(fiber->stack) - pool->range.low) / kStackSize);
    std::sort(given.begin(), given.end());
    std::lock_guard<std::mutex> lock(pool->taking);
    for (std::size_t start = 0, end = 0; start < given.size(); start = end) {
        for (end = start + 1; end < given.size() && given[end] == given[end - 1] + 1;) ++end;
        // Stacks that the system does not clear stay unused until all are taken.
        if (!clear_stacks(given[start], end - start)) continue;
        pool->free.insert(pool->free.end(), given.begin() + static_cast<std::ptrdiff_t>(start), given.begin() + static_cast<std::ptrdiff_t>(end));
    }
    std::sort(pool->free.rbegin(), pool->free.rend());
}

#if !defined(CUEMU_UCONTEXT)

// void cuemu_switch_stack(void **save, void *load): callee-saved registers and the stack pointer are all that a call preserves.
extern "C" void cuemu_switch_stack(void **save, void *load);
asm(R"(
.text
.p2align 4
.globl cuemu_switch_stack
.hidden cuemu_switch_stack
.type cuemu_switch_stack, @function
cuemu_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuemu_switch_stack, .-cuemu_switch_stack
)");

void switch_fiber(Fiber *from, Fiber *to) { cuemu_switch_stack(&from->sp, to->sp); }

void reset_fiber(Fiber *fiber, void (*entry)()) {
    auto top = reinterpret_cast<std::uintptr_t>(fiber->context());
    // Stacks at equal offsets would all compete for the same cache sets: start each at another line.
    top -= (reinterpret_cast<std::uintptr_t>(fiber->stack) / kStackSize) % 32 * 128;
    auto *words = reinterpret_cast<std::uintptr_t *>(top);
    *--words = 0;  // entry's return address (it never returns), which leaves the alignment that a call leaves
    *--words = reinterpret_cast<std::uintptr_t>(entry);
    for (int i = 0; i < 6; ++i) *--words = 0;
    fiber->sp = words;
}

#else

void switch_fiber(Fiber *from, Fiber *to) {
    ucontext_t here;
    from->sp = &here;
    swapcontext(&here, static_cast<ucontext_t *>(to->sp));
}

void reset_fiber(Fiber *fiber, void (*entry)()) {
    // The start context lies below where its own stack begins.
    auto *start = reinterpret_cast<ucontext_t *>(reinterpret_cast<unsigned char *>(fiber->context()) - 4096);
    getcontext(start);
    start->uc_stack.ss_sp = fiber->stack;
    start->uc_stack.ss_size = kStackSize - sizeof(Context) - 8192;
    start->uc_link = nullptr;
    makecontext(start, entry, 0);
    fiber->sp = start;
}

#endif

Fiber *new_fiber(void (*entry)()) {
    std::lock_guard<std::mutex> lock(pool->taking);
    std::size_t index = pool->opened;
    if (!pool->free.empty()) {
        index = pool->free.back();
        pool->free.pop_back();
    } else if (pool->opened + pool->bound == pool->count || !open_stack(index)) {
        return nullptr;
    } else {
        ++pool->opened;
    }
    return fiber_on(index, entry);
}

Fiber *new_bind_fiber(void (*entry)()) {
    if (share_stacks(nullptr) == nullptr) return nullptr;
    std::lock_guard<std::mutex> lock(pool->taking);
    std::size_t index = pool->count - 1 - pool->bound;
    if (pool->opened + pool->bound == pool->count || !open_stack(index)) return nullptr;
    ++pool->bound;
    return fiber_on(index, entry);
}

}  // namespace cuemu
