// How one OS thread runs one block: its threads on fibers, one after the other until each blocks or ends.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "cuemu/runtime.h"
#include "fiber.h"
#include "trace_hooks.h"

namespace cuemu {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kSharedBytes = 512 * 1024;  // a block's arena: 227 KiB at most are used, gaps between arrays included
constexpr std::size_t kSharedLimit = 227 * 1024;
constexpr std::size_t kSharedGap = 256;  // belongs to no array: an index past the end lands here

enum class Op : unsigned char {
    exchange, ballot, sync, match_any, match_all, active,
    add, min_signed, min_unsigned, max_signed, max_unsigned, bit_and, bit_or, bit_xor,
};

// What a lane brought to a warp operation and what it takes away.
struct LaneOp {
    std::uint64_t value = 0;
    std::uint64_t result = 0;
    std::uint32_t mask = 0;    // lanes that take part, as the lane named them
    std::uint32_t source = 0;  // exchange: the lane to read
    std::uint32_t group = 0;   // out: lanes that took part
    Op kind = Op::sync;
    const void *pc = nullptr;
};

// Masks have one bit a lane. A lane is alive until it returns, whether it was started or not.
struct Warp {
    std::uint32_t alive, runnable, started, in_op, at_barrier, lazy;
    LaneOp op[kWarp];
};

enum class Predicate : unsigned char { none, count, all, any };

struct LaunchState {
    const Request *request;
    unsigned seed = 0;
    unsigned warp_order[32], lane_order[32];
    unsigned long long blocks = 0;
    unsigned long long chunk = 1;
    std::atomic<unsigned long long> next{0};
    std::atomic<bool> stop{false};
    Trace *trace = nullptr;
    Outcome *outcome = nullptr;
};

struct Block {
    LaunchState *launch = nullptr;
    Tracer *tracer = nullptr;
    void *function = nullptr;
    Thunk thunk = nullptr;
    const unsigned char *params = nullptr;

    unsigned long long serial = 0;  // counts blocks run here: tells a fiber that its context is stale
    uint3 index{};
    dim3 block_dim, grid_dim;
    unsigned threads = 0, warps = 0, alive = 0;
    unsigned current_warp = 0;
    std::uint32_t runnable_warps = 0;

    unsigned arrived = 0, true_predicates = 0;
    unsigned barrier_count = 0, barrier_threads = 0;  // of the last completed barrier
    unsigned next_thread = 0;
    bool aborted = false;

    Warp warp[kMaxThreads / kWarp];
    Fiber *fiber[kMaxThreads];
    const void *barrier_pc[kMaxThreads];
    Fiber main;
    Fiber *current = nullptr;
    std::vector<Fiber *> idle;
    std::vector<Fiber *> all;
    alignas(16) unsigned char signal_stack[64 * 1024];

    unsigned char *shared = nullptr;
    std::size_t shared_used = 0, shared_static = 0;
    std::vector<std::pair<unsigned char *, unsigned long long>> slots;  // by slot number: address, serial

    void prepare(LaunchState &state, unsigned worker);
    void forget_fibers();                 // their stacks are no longer this block's
    void run(unsigned long long linear);  // `aborted` afterwards: the launch failed in this block

    // On a fiber of this block:
    [[noreturn]] void fail(const std::string &error, const void *pc = nullptr);
    void barrier(bool predicate, const void *pc);
    const LaneOp &warp_op(Op kind, std::uint32_t mask, std::uint64_t value, std::uint32_t source, const void *pc);
    void yield();
    void *shared_array(unsigned *slot, std::size_t size);

  private:
    friend void fiber_main();
    static constexpr unsigned kNone = ~0u;
    unsigned pick();
    unsigned pick_lane(std::uint32_t lanes) const;
    void refresh(unsigned warp);
    void go(unsigned thread);
    bool add_fiber();
    void park(unsigned thread);
    void finish_thread(unsigned thread);
    void release_barrier();
    void complete_op(unsigned warp, unsigned lane);
    void complete_all_ops(unsigned warp);
    void resolve_lazy(unsigned warp);
    void finish_group(unsigned warp, std::uint32_t group);
    std::string describe_deadlock(const void **pc, unsigned *thread) const;
};

// The block that the calling code belongs to; stops the program when it is not on a kernel's fiber.
Block &this_block(const char *what);
bool in_kernel();
// First error of the launch wins.
void record_error(LaunchState &state, const std::string &error, const void *pc, uint3 block, uint3 thread);
void run_worker(LaunchState &state, unsigned worker);
void install_fault_handlers();
void restore_fault_handlers();
void shutdown();
extern std::uintptr_t shared_low;
extern std::size_t shared_bytes;

}  // namespace cuemu
