#include "scheduler.h"

#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cuemu {

std::uintptr_t shared_low = 0;
std::size_t shared_bytes = 0;

namespace {

constexpr unsigned char kPoison = 0xff;  // NaN in every float format, -1 in every integer

uint3 coordinates(unsigned linear, const dim3 &dim) {
    return uint3{linear % dim.x, linear / dim.x % dim.y, linear / dim.x / dim.y};
}

const char *name_of(Op op) {
    switch (op) {
        case Op::exchange: return "a shuffle";
        case Op::ballot: return "a warp vote";
        case Op::sync: return "__syncwarp";
        case Op::match_any:
        case Op::match_all: return "a match";
        case Op::active: return "__activemask";
        default: return "a warp reduction";
    }
}

std::string text_of(unsigned thread, const dim3 &dim) {
    uint3 c = coordinates(thread, dim);
    char text[64];
    std::snprintf(text, sizeof text, "thread (%u,%u,%u)", c.x, c.y, c.z);
    return text;
}

}  // namespace

// Every fiber of a block runs this: threads one after the other, as long as none blocks.
void fiber_main() {
    Context *context = cuemu::context();
    Block *block = context->owner;
    unsigned long long serial = 0;
    for (;;) {
        unsigned thread = block->next_thread;
        if (serial != block->serial) {
            serial = block->serial;
            context->block = block->index;
            context->block_dim = block->block_dim;
            context->grid_dim = block->grid_dim;
        }
        context->linear = thread;
        context->spins = 0;
        context->thread = coordinates(thread, block->block_dim);
        block->thunk(block->function, block->params);
        block->finish_thread(thread);
    }
}

void Block::prepare(LaunchState &state, unsigned worker) {
    launch = &state;
    tracer = state.trace == nullptr ? nullptr : trace_worker(state.trace, worker);
    const Request &request = *state.request;
    function = request.kernel->function;
    thunk = request.kernel->thunk;
    params = request.params;
    block_dim = request.block;
    grid_dim = request.grid;
    threads = block_dim.x * block_dim.y * block_dim.z;
    warps = (threads + kWarp - 1) / kWarp;
    shared = reinterpret_cast<unsigned char *>(shared_low) + worker * kSharedBytes;
    aborted = false;
}

void Block::forget_fibers() {
    for (Fiber *f : all) delete f;
    all.clear();
    idle.clear();
}

void Block::run(unsigned long long linear) {
    ++serial;
    index = uint3{static_cast<unsigned>(linear % grid_dim.x), static_cast<unsigned>(linear / grid_dim.x % grid_dim.y),
                  static_cast<unsigned>(linear / grid_dim.x / grid_dim.y)};
    alive = threads;
    arrived = true_predicates = 0;
    runnable_warps = 0;
    for (unsigned w = 0; w < warps; ++w) {
        unsigned lanes = threads - w * kWarp;
        std::uint32_t present = lanes >= kWarp ? ~0u : (1u << lanes) - 1;
        warp[w].alive = warp[w].runnable = present;
        warp[w].started = warp[w].in_op = warp[w].at_barrier = warp[w].lazy = 0;
        runnable_warps |= 1u << w;
    }
    std::size_t dynamic = launch->request->shared;
    shared_static = 0;
    shared_used = (dynamic + 127) / 128 * 128 + kSharedGap;
    if (dynamic != 0) std::memset(shared, kPoison, dynamic);
    if (tracer != nullptr) trace_block_start(tracer, *this, linear);
    // Without a seed the last warp goes first: where a program forgot the barrier between reading what warp 0 left and warp 0's
    // next write, the readers come first, as they do on a GPU. (A traced launch finds the race whatever the order.)
    current_warp = launch->seed == 0 ? warps - 1 : launch->warp_order[0];
    if (current_warp >= warps) current_warp = 0;
    current = nullptr;
    if (idle.empty() && !add_fiber()) {
        record_error(*launch, kNoStacks, nullptr, index, uint3{});
        aborted = true;
        return;
    }
    go(pick());
    switch_fiber(&main, current);
    if (aborted) {
        for (Fiber *f : all) reset_fiber(f, fiber_main);
        idle = all;
    }
    if (tracer != nullptr) trace_block_end(tracer);
}

// ---------------------------------------------------------------- who runs next

unsigned Block::pick_lane(std::uint32_t lanes) const {
    if (launch->seed == 0) return static_cast<unsigned>(__builtin_ctz(lanes));
    for (unsigned lane : launch->lane_order)
        if (lanes >> lane & 1) return lane;
    return 0;
}

void Block::refresh(unsigned w) {
    if (warp[w].runnable == 0 && warp[w].lazy != 0) resolve_lazy(w);
    if (warp[w].runnable == 0)
        runnable_warps &= ~(1u << w);
    else
        runnable_warps |= 1u << w;
}

// The next thread to run: of the current warp while it has one, so that its lanes meet at warp primitives.
unsigned Block::pick() {
    refresh(current_warp);
    if (runnable_warps == 0) return kNone;
    if (!(runnable_warps >> current_warp & 1)) {
        if (launch->seed == 0) {
            current_warp = 31 - static_cast<unsigned>(__builtin_clz(runnable_warps));
        } else {
            for (unsigned w : launch->warp_order)
                if (runnable_warps >> w & 1) {
                    current_warp = w;
                    break;
                }
        }
    }
    return current_warp * kWarp + pick_lane(warp[current_warp].runnable);
}

// Makes `current` the fiber of this thread: its own when it was started, else an idle or a new one.
void Block::go(unsigned thread) {
    Warp &w = warp[thread / kWarp];
    std::uint32_t bit = 1u << (thread % kWarp);
    if (w.started & bit) {
        current = fiber[thread];
        return;
    }
    w.started |= bit;
    next_thread = thread;
    if (idle.empty() && !add_fiber()) fail(kNoStacks);
    current = idle.back();
    idle.pop_back();
}

bool Block::add_fiber() {
    Fiber *fresh = new_fiber(fiber_main);
    if (fresh == nullptr) return false;
    Context *c = fresh->context();
    std::memset(static_cast<void *>(c), 0, sizeof(Context));
    c->owner = this;
    all.push_back(fresh);
    idle.push_back(fresh);
    return true;
}

// Suspends the running thread; returns when it is picked again.
void Block::park(unsigned thread) {
    Fiber *self = current;
    fiber[thread] = self;
    unsigned next = pick();
    if (next == kNone) {
        const void *pc = nullptr;
        unsigned who = thread;
        std::string text = describe_deadlock(&pc, &who);
        if (tracer != nullptr) trace_divergence(tracer, pc, nullptr, who, text.c_str());
        fail(text, pc);
    }
    go(next);
    if (current != self) switch_fiber(self, current);
}

void Block::finish_thread(unsigned thread) {
    unsigned w = thread / kWarp;
    std::uint32_t bit = 1u << (thread % kWarp);
    warp[w].alive &= ~bit;
    warp[w].runnable &= ~bit;
    --alive;
    if (tracer != nullptr) trace_thread_end(tracer, thread, warp[w].alive == 0);
    if (warp[w].in_op != 0) complete_all_ops(w);
    if (arrived != 0 && arrived == alive) release_barrier();
    unsigned next = pick();
    if (next != kNone && !(warp[next / kWarp].started >> (next % kWarp) & 1)) {
        warp[next / kWarp].started |= 1u << (next % kWarp);
        next_thread = next;  // same fiber, next thread: a kernel without barriers is a plain loop
        return;
    }
    Fiber *self = current;
    idle.push_back(self);
    if (next == kNone) {
        if (alive != 0) {
            const void *pc = nullptr;
            unsigned who = 0;
            std::string text = describe_deadlock(&pc, &who);
            if (tracer != nullptr) trace_divergence(tracer, pc, nullptr, who, text.c_str());
            fail(text, pc);
        }
        switch_fiber(self, &main);
    } else {
        current = fiber[next];
        switch_fiber(self, current);
    }
}

void Block::fail(const std::string &error, const void *pc) {
    Context *c = current == nullptr ? nullptr : current->context();
    record_error(*launch, error, pc, index, c == nullptr ? uint3{} : c->thread);
    aborted = true;
    Fiber dropped;
    switch_fiber(&dropped, &main);
    std::abort();  // nobody resumes a dropped fiber
}

// Lets other threads of the block run while this one spins on a value that one of them will write.
void Block::yield() {
    unsigned self = current->context()->linear;
    if (launch->stop.load(std::memory_order_relaxed)) fail("cancelled");
    unsigned start = self + 1, next = kNone;
    for (unsigned i = 0; i + 1 < threads; ++i) {
        unsigned t = start + i < threads ? start + i : start + i - threads;
        if (warp[t / kWarp].runnable >> (t % kWarp) & 1) {
            next = t;
            break;
        }
    }
    if (next == kNone) {
        sched_yield();  // perhaps another block will write it
        return;
    }
    Fiber *mine = current;
    fiber[self] = mine;
    current_warp = next / kWarp;
    go(next);
    switch_fiber(mine, current);
}

// ---------------------------------------------------------------- barriers

void Block::barrier(bool predicate, const void *pc) {
    if (launch->stop.load(std::memory_order_relaxed)) fail("cancelled");
    unsigned thread = current->context()->linear;
    Warp &w = warp[thread / kWarp];
    std::uint32_t bit = 1u << (thread % kWarp);
    barrier_pc[thread] = pc;
    ++arrived;
    true_predicates += predicate ? 1 : 0;
    w.at_barrier |= bit;
    w.runnable &= ~bit;
    if (arrived == alive) release_barrier();
    park(thread);
}

void Block::release_barrier() {
    barrier_threads = arrived;
    barrier_count = true_predicates;
    arrived = true_predicates = 0;
    for (unsigned i = 0; i < warps; ++i) {
        warp[i].runnable |= warp[i].at_barrier;
        warp[i].at_barrier = 0;
        if (warp[i].runnable != 0) runnable_warps |= 1u << i;
    }
    if (tracer != nullptr) trace_barrier_release(tracer);
    if (launch->seed == 0) {
        current_warp = 31 - static_cast<unsigned>(__builtin_clz(runnable_warps));
    } else {
        for (unsigned w : launch->warp_order)
            if (runnable_warps >> w & 1) {
                current_warp = w;
                break;
            }
    }
}

// ---------------------------------------------------------------- warp operations

const LaneOp &Block::warp_op(Op kind, std::uint32_t mask, std::uint64_t value, std::uint32_t source, const void *pc) {
    unsigned thread = current->context()->linear;
    unsigned w = thread / kWarp, lane = thread % kWarp;
    LaneOp &op = warp[w].op[lane];
    if (!(mask >> lane & 1)) {
        char text[160];
        std::snprintf(text, sizeof text, "barrier: lane %u calls %s with mask 0x%08x, which does not name it", lane,
                      name_of(kind), mask);
        if (tracer != nullptr) trace_divergence(tracer, pc, nullptr, thread, text);
        fail(text, pc);
    }
    op.value = value;
    op.mask = mask;
    op.source = source;
    op.kind = kind;
    op.pc = pc;
    warp[w].in_op |= 1u << lane;
    warp[w].runnable &= ~(1u << lane);
    if (kind == Op::active)
        warp[w].lazy |= 1u << lane;
    else
        complete_op(w, lane);
    if (warp[w].runnable >> lane & 1 && launch->seed == 0 && !(warp[w].runnable & ((1u << lane) - 1))) return op;
    park(thread);
    return op;
}

// Complete when every living lane of the mask waits in the same operation with the same mask.
void Block::complete_op(unsigned w, unsigned lane) {
    Warp &p = warp[w];
    const LaneOp &mine = p.op[lane];
    std::uint32_t group = mine.mask & p.alive;
    if ((p.in_op & ~p.lazy & group) != group) return;
    for (std::uint32_t rest = group; rest != 0; rest &= rest - 1) {
        const LaneOp &other = p.op[__builtin_ctz(rest)];
        if (other.mask != mine.mask || other.kind != mine.kind) return;
    }
    finish_group(w, group);
}

void Block::complete_all_ops(unsigned w) {
    for (std::uint32_t rest = warp[w].in_op & ~warp[w].lazy; rest != 0; rest &= rest - 1) {
        auto lane = static_cast<unsigned>(__builtin_ctz(rest));
        if (warp[w].in_op >> lane & 1) complete_op(w, lane);
    }
}

// __activemask has no mask to wait for: the lanes that stand at the same place when the warp cannot go on form the group.
void Block::resolve_lazy(unsigned w) {
    Warp &p = warp[w];
    auto first = static_cast<unsigned>(__builtin_ctz(p.lazy));
    std::uint32_t group = 0;
    for (std::uint32_t rest = p.lazy; rest != 0; rest &= rest - 1) {
        auto lane = static_cast<unsigned>(__builtin_ctz(rest));
        if (p.op[lane].pc == p.op[first].pc) group |= 1u << lane;
    }
    finish_group(w, group);
}

void Block::finish_group(unsigned w, std::uint32_t group) {
    Warp &p = warp[w];
    auto first = static_cast<unsigned>(__builtin_ctz(group));
    Op kind = p.op[first].kind;
    std::uint64_t all = 0;
    bool same = true;
    auto each = [&](auto &&action) {
        for (std::uint32_t rest = group; rest != 0; rest &= rest - 1) {
            auto lane = static_cast<unsigned>(__builtin_ctz(rest));
            action(lane, p.op[lane]);
        }
    };
    auto fold = [&](auto zero, auto combine) {
        auto sum = zero;
        each([&](unsigned lane, LaneOp &op) {
            auto value = static_cast<decltype(zero)>(op.value);
            sum = lane == first ? value : static_cast<decltype(zero)>(combine(sum, value));
        });
        all = static_cast<std::uint64_t>(sum);
    };
    switch (kind) {
        case Op::exchange:
            each([&](unsigned, LaneOp &op) {
                // A lane outside the group has no defined value; the hardware then often returns the lane's own.
                op.result = group >> op.source & 1 ? p.op[op.source].value : op.value;
            });
            break;
        case Op::ballot:
            each([&](unsigned lane, LaneOp &op) { all |= static_cast<std::uint64_t>(op.value != 0) << lane; });
            break;
        case Op::match_any:
            each([&](unsigned, LaneOp &op) {
                op.result = 0;
                each([&](unsigned other, LaneOp &o) { op.result |= static_cast<std::uint64_t>(o.value == op.value) << other; });
            });
            break;
        case Op::match_all:
            each([&](unsigned, LaneOp &op) { same = same && op.value == p.op[first].value; });
            all = same ? group : 0;
            break;
        case Op::sync:
        case Op::active: all = group; break;
        case Op::add: fold(std::uint32_t{0}, [](auto a, auto b) { return a + b; }); break;
        case Op::min_signed: fold(std::int32_t{0}, [](auto a, auto b) { return a < b ? a : b; }); break;
        case Op::min_unsigned: fold(std::uint32_t{0}, [](auto a, auto b) { return a < b ? a : b; }); break;
        case Op::max_signed: fold(std::int32_t{0}, [](auto a, auto b) { return a < b ? b : a; }); break;
        case Op::max_unsigned: fold(std::uint32_t{0}, [](auto a, auto b) { return a < b ? b : a; }); break;
        case Op::bit_and: fold(std::uint32_t{0}, [](auto a, auto b) { return a & b; }); break;
        case Op::bit_or: fold(std::uint32_t{0}, [](auto a, auto b) { return a | b; }); break;
        case Op::bit_xor: fold(std::uint32_t{0}, [](auto a, auto b) { return a ^ b; }); break;
    }
    each([&](unsigned, LaneOp &op) {
        if (kind != Op::exchange && kind != Op::match_any) op.result = all;
        op.group = group;
    });
    p.in_op &= ~group;
    p.lazy &= ~group;
    p.runnable |= group;
    runnable_warps |= 1u << w;
    // __activemask orders nothing; the others do (shuffles too: leaner than the letter of the manual, as racecheck is).
    if (tracer != nullptr && kind != Op::active) trace_warp_sync(tracer, w, group);
}

std::string Block::describe_deadlock(const void **pc, unsigned *thread) const {
    for (unsigned w = 0; w < warps; ++w) {
        if (warp[w].in_op == 0) continue;
        auto lane = static_cast<unsigned>(__builtin_ctz(warp[w].in_op));
        const LaneOp &op = warp[w].op[lane];
        *pc = op.pc;
        *thread = w * kWarp + lane;
        std::uint32_t missing = op.mask & warp[w].alive & ~warp[w].in_op;
        char text[256];
        const char *why = missing != 0 ? "wait at __syncthreads" : "wait in another warp operation or with another mask";
        if (missing == 0) missing = op.mask & warp[w].alive & ~(1u << lane);
        std::snprintf(text, sizeof text, "barrier: %s waits at %s with mask 0x%08x for lanes 0x%08x, which %s",
                      text_of(*thread, block_dim).c_str(), name_of(op.kind), op.mask, missing, why);
        return text;
    }
    return "barrier: the threads of the block wait for each other";
}

// ---------------------------------------------------------------- shared memory

void *Block::shared_array(unsigned *slot, std::size_t size) {
    static std::atomic<unsigned> count{0};
    unsigned number = __atomic_load_n(slot, __ATOMIC_RELAXED);
    if (__builtin_expect(number == 0, 0)) {
        unsigned fresh = count.fetch_add(1) + 1, expected = 0;
        // Another OS thread may have numbered it meanwhile: then its number stands.
        number = __atomic_compare_exchange_n(slot, &expected, fresh, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ? fresh : expected;
    }
    if (slots.size() <= number) slots.resize(number + 1, {nullptr, 0});
    auto &entry = slots[number];
    if (__builtin_expect(entry.second == serial, 1)) return entry.first;
    shared_static += size;
    std::size_t dynamic = launch->request->shared;
    if (shared_static + dynamic > kSharedLimit || shared_used + size + kSharedGap > kSharedBytes)
        fail("the block uses more than 227 KiB of shared memory");
    unsigned char *address = shared + shared_used;
    std::memset(address, kPoison, size);
    if (tracer != nullptr) trace_shared_array(tracer, shared_used, size);
    shared_used += (size + 127) / 128 * 128 + kSharedGap;
    entry = {address, serial};
    return address;
}

}  // namespace cuemu
