#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "fiber.h"

// CUEMU_UCONTEXT forces the portable way, for tests.
#if !defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
#define CUEMU_UCONTEXT 1
#endif
#if defined(CUEMU_UCONTEXT)
#include <ucontext.h>
#endif

namespace cuemu {

StackPool stack_pool;

namespace {
std::mutex pool_mutex;
std::size_t next_stack = 0;
std::size_t stack_count = 0;
}  // namespace

bool reserve_stacks(std::string *error) {
    std::lock_guard<std::mutex> lock(pool_mutex);
    if (stack_pool.size != 0) return true;
    std::size_t cores = std::thread::hardware_concurrency();
    if (cores == 0) cores = 1;
    if (cores > kMostThreads) cores = kMostThreads;
    // 1,024 threads a block, one more fiber to go on with, and some for launches that collect their arguments.
    for (std::size_t count = cores * 1025 + 64; count >= 1100; count /= 2) {
        std::size_t bytes = (count + 1) * kStackSize;
        void *memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) continue;
        auto low = (reinterpret_cast<std::uintptr_t>(memory) + kStackSize - 1) & ~(kStackSize - 1);
        stack_pool.low = low;
        stack_pool.size = count * kStackSize;
        stack_count = count;
        return true;
    }
    *error = "the system refuses address space for fiber stacks (ulimit -v): at least 1.1 GiB are needed";
    return false;
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
    std::size_t index;
    {
        std::lock_guard<std::mutex> lock(pool_mutex);
        if (next_stack == stack_count) return nullptr;
        index = next_stack++;
    }
    auto *stack = reinterpret_cast<unsigned char *>(stack_pool.low + index * kStackSize);
    std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (mprotect(stack + page, kStackSize - page, PROT_READ | PROT_WRITE) != 0) return nullptr;
    auto *fiber = new Fiber;
    fiber->stack = stack;
    reset_fiber(fiber, entry);
    return fiber;
}

}  // namespace cuemu
