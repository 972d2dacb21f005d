// Faults inside a kernel become the launch's error; faults elsewhere go to whoever handled them before.
#include <signal.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>

#include "scheduler.h"
#include "symbols.h"

namespace cuemu {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[64];

#if defined(__x86_64__)
std::uintptr_t stack_pointer(const ucontext_t *c) { return static_cast<std::uintptr_t>(c->uc_mcontext.gregs[REG_RSP]); }
std::uintptr_t program_counter(const ucontext_t *c) { return static_cast<std::uintptr_t>(c->uc_mcontext.gregs[REG_RIP]); }
void resume_in(ucontext_t *c, void (*function)(), std::uintptr_t stack) {
    c->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(function);
    c->uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(stack - 8);  // as after a call
}
#elif defined(__aarch64__)
std::uintptr_t stack_pointer(const ucontext_t *c) { return c->uc_mcontext.sp; }
std::uintptr_t program_counter(const ucontext_t *c) { return c->uc_mcontext.pc; }
void resume_in(ucontext_t *c, void (*function)(), std::uintptr_t stack) {
    c->uc_mcontext.pc = reinterpret_cast<std::uintptr_t>(function);
    c->uc_mcontext.sp = stack;
}
#else
#error "the emulator knows x86-64 and aarch64"
#endif

struct Fault {
    int number;
    int code;
    std::uintptr_t address;
    std::uintptr_t pc;
};
thread_local Fault fault;

// The first code address of this object on the stack: the caller, when the fault is inside libc.
std::uintptr_t own_pc(std::uintptr_t pc, std::uintptr_t sp, std::uintptr_t top) {
    const Image &self = image();
    if (pc >= self.text_low && pc < self.text_high) return pc + 1;  // as a return address: one past the instruction's start
    for (std::uintptr_t at = (sp + 7) & ~std::uintptr_t{7}; at + 8 <= top && at < sp + 4096; at += 8) {
        std::uintptr_t word = *reinterpret_cast<const std::uintptr_t *>(at);
        if (word >= self.text_low && word < self.text_high) return word;
    }
    return 0;
}

void report() {
    Block *block = context()->owner;
    auto stack = reinterpret_cast<std::uintptr_t>(context()) + sizeof(Context) - kStackSize;
    char text[160];
    const char *what = fault.number == SIGFPE ? "integer division by zero" : "illegal instruction (__builtin_trap or a bad call)";
    if (fault.number == SIGSEGV || fault.number == SIGBUS) {
        if (fault.address - stack < 8192)
            std::snprintf(text, sizeof text, "local memory: a thread used more than %zu KiB of stack", kStackSize / 1024);
        else if (fault.code == SI_KERNEL)
            std::snprintf(text, sizeof text, "illegal address or misaligned vector access");
        else
            std::snprintf(text, sizeof text, "illegal address 0x%zx", static_cast<std::size_t>(fault.address));
        what = text;
    }
    block->fail(what, reinterpret_cast<const void *>(fault.pc));
}

void chain(int number, siginfo_t *info, void *context) {
    struct sigaction &old = previous[number];
    if (old.sa_flags & SA_SIGINFO) {
        old.sa_sigaction(number, info, context);
    } else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
        old.sa_handler(number);
    } else {
        // Returning repeats the faulting instruction, now with the default action.
        sigaction(number, &old, nullptr);
    }
}

void handle(int number, siginfo_t *info, void *raw) {
    auto *c = static_cast<ucontext_t *>(raw);
    std::uintptr_t sp = stack_pointer(c);
    if (!stack_range.holds(sp)) {
        chain(number, info, raw);
        return;
    }
    auto *context = reinterpret_cast<Context *>((sp | (kStackSize - 1)) + 1 - sizeof(Context));
    if (context->owner == nullptr) {
        chain(number, info, raw);
        return;
    }
    auto top = reinterpret_cast<std::uintptr_t>(context);
    bool overflow = reinterpret_cast<std::uintptr_t>(info->si_addr) - (top + sizeof(Context) - kStackSize) < 8192;
    fault.number = number;
    fault.code = info->si_code;
    fault.address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    fault.pc = own_pc(program_counter(c), overflow ? top : sp, top);
    // Leave the handler onto the fiber's own stack, from its top: what the thread had there is lost, and not needed.
    resume_in(c, report, top);
}

}  // namespace

// Only while a grid runs: other loaded modules, and the program, have handlers of their own.
void install_fault_handlers() {
    image();  // found now: the handler must not look for it
    for (int number : kSignals) {
        struct sigaction action {};
        action.sa_sigaction = handle;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&action.sa_mask);
        sigaction(number, &action, &previous[number]);
    }
}

void restore_fault_handlers() {
    for (int number : kSignals) sigaction(number, &previous[number], nullptr);
}

}  // namespace cuemu
