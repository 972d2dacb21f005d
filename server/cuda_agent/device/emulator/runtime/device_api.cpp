// What device code calls, in terms of the block it runs in.
#include "cuemu/device_api.h"

#include <sched.h>

#include <cstdio>
#include <cstdlib>

#include "cuemu/launch.h"
#include "scheduler.h"

#define CUEMU_PC __builtin_return_address(0)

namespace cuemu {

bool in_kernel() {
    int here;
    if (!stack_range.holds(reinterpret_cast<std::uintptr_t>(&here))) return false;
    return context()->owner != nullptr;
}

Block &this_block(const char *what) {
    if (!in_kernel()) {
        std::fprintf(stderr, "%s was called outside a kernel\n", what);
        std::abort();
    }
    return *context()->owner;
}

namespace detail {

void barrier() { this_block("__syncthreads").barrier(false, CUEMU_PC); }

unsigned barrier_count(bool predicate) {
    Block &b = this_block("__syncthreads_count");
    b.barrier(predicate, CUEMU_PC);
    return b.barrier_count;
}

bool barrier_and(bool predicate) {
    Block &b = this_block("__syncthreads_and");
    b.barrier(predicate, CUEMU_PC);
    return b.barrier_count == b.barrier_threads;
}

bool barrier_or(bool predicate) {
    Block &b = this_block("__syncthreads_or");
    b.barrier(predicate, CUEMU_PC);
    return b.barrier_count != 0;
}

void warp_sync(std::uint32_t mask) { this_block("__syncwarp").warp_op(Op::sync, mask, 0, 0, CUEMU_PC); }

std::uint32_t active_mask() {
    return this_block("__activemask").warp_op(Op::active, ~0u, 0, 0, CUEMU_PC).group;
}

Vote warp_ballot(std::uint32_t mask, bool predicate) {
    const LaneOp &op = this_block("a vote").warp_op(Op::ballot, mask, predicate, 0, CUEMU_PC);
    return Vote{static_cast<std::uint32_t>(op.result), op.group};
}

std::uint64_t warp_exchange(std::uint32_t mask, std::uint64_t value, unsigned source) {
    return this_block("a shuffle").warp_op(Op::exchange, mask, value, source, CUEMU_PC).result;
}

std::uint32_t warp_match_any(std::uint32_t mask, std::uint64_t value) {
    return static_cast<std::uint32_t>(this_block("a match").warp_op(Op::match_any, mask, value, 0, CUEMU_PC).result);
}

std::uint32_t warp_match_all(std::uint32_t mask, std::uint64_t value) {
    return static_cast<std::uint32_t>(this_block("a match").warp_op(Op::match_all, mask, value, 0, CUEMU_PC).result);
}

std::uint32_t warp_reduce(std::uint32_t mask, Reduce operation, std::uint32_t value) {
    constexpr Op ops[] = {Op::add,          Op::min_signed, Op::min_unsigned, Op::max_signed,
                          Op::max_unsigned, Op::bit_and,    Op::bit_or,       Op::bit_xor};
    Op op = ops[static_cast<int>(operation)];
    return static_cast<std::uint32_t>(this_block("a warp reduction").warp_op(op, mask, value, 0, CUEMU_PC).result);
}

void fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (in_kernel() && context()->owner->tracer != nullptr) trace_fence(context()->owner->tracer);
}

void spin() {
    if (!in_kernel()) return;
    if (++context()->spins % 16 == 0) context()->owner->yield();
}

void nanosleep() { this_block("__nanosleep").yield(); }

void trap(const char *what) { this_block("__trap").fail(what, CUEMU_PC); }

void unsupported(const char *what) {
    std::string text = std::string("unsupported: ") + what;
    if (in_kernel()) context()->owner->fail(text, CUEMU_PC);
    std::fprintf(stderr, "%s\n", text.c_str());
    std::abort();
}

unsigned dynamic_shared_bytes() {
    return static_cast<unsigned>(this_block("%dynamic_smem_size").launch->request->shared);
}

bool is_shared(const volatile void *pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) - shared_low < shared_bytes;
}

void *shared_storage(unsigned *slot, std::size_t size) { return this_block("__shared__").shared_array(slot, size); }

void *dynamic_shared_storage() { return this_block("extern __shared__").shared; }

}  // namespace detail
}  // namespace cuemu

// assert() in a kernel stops the launch, elsewhere the program, as libc's does.
extern "C" [[noreturn]] void __assert_fail(const char *text, const char *file, unsigned line, const char *function) {
    if (cuemu::in_kernel()) {
        char message[512];
        std::snprintf(message, sizeof message, "assertion `%s' failed at %s:%u", text, file, line);
        cuemu::context()->owner->fail(message, CUEMU_PC);
    }
    std::fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, text);
    std::abort();
}
