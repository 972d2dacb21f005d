// Launches: collecting a kernel's arguments, and running its grid on the machine's cores.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuemu/launch.h"
#include "scheduler.h"

namespace cuemu {
namespace {

std::atomic<LaunchState *> running{nullptr};
std::mutex error_mutex;

// One for each OS thread that runs blocks; their fibers stay pooled between launches.
// (Not destroyed when a program exits: a grid may still run then.)
Block *blocks[kMostThreads];

Block &block_of(unsigned worker) {
    if (blocks[worker] == nullptr) blocks[worker] = new Block;
    return *blocks[worker];
}

void forget_fibers() {
    for (Block *block : blocks)
        if (block != nullptr) block->forget_fibers();
}

// Fewer OS threads when there are not stacks for all threads of all their blocks. False: not even for one block.
bool supply(unsigned long long *workers, std::size_t threads) {
    *workers = std::min<unsigned long long>(*workers, stacks_for_blocks() / threads);
    if (*workers == 0) return false;
    std::size_t more = 0;
    for (unsigned i = 0; i < *workers; ++i) {
        std::size_t has = blocks[i] == nullptr ? 0 : blocks[i]->all.size();
        more += std::max(has, threads) - has;
    }
    bool took_all = false;
    if (!supply_stacks(more, &took_all)) return false;
    if (took_all) forget_fibers();
    return true;
}

bool reserve_shared(std::string *error) {
    if (shared_low != 0) return true;
    std::size_t bytes = kSharedBytes * kMostThreads;
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        *error = "out of memory: the system refuses 8 MiB for shared memory";
        return false;
    }
    shared_low = reinterpret_cast<std::uintptr_t>(memory);
    shared_bytes = bytes;
    return true;
}

// Helper threads, started once and kept: a program may launch thousands of small grids.
class Helpers {
  public:
    void run(unsigned count, const std::function<void(unsigned)> &work) {
        std::unique_lock<std::mutex> lock(mutex_);
        while (threads_.size() < count) {
            unsigned number = static_cast<unsigned>(threads_.size()) + 1;
            threads_.emplace_back([this, number, seen = turn_]() mutable { loop(number, seen); });
        }
        work_ = &work;
        wanted_ = count;
        busy_ = count;
        ++turn_;
        wake_.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
    }
    void stop() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
            wake_.notify_all();
        }
        for (auto &thread : threads_) thread.join();
        threads_.clear();
        stop_ = false;
    }

  private:
    void loop(unsigned number, unsigned long seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stop_ || turn_ != seen; });
            if (stop_) return;
            seen = turn_;
            if (number > wanted_) continue;
            const auto *work = work_;
            lock.unlock();
            (*work)(number);
            lock.lock();
            if (--busy_ == 0) done_.notify_all();
        }
    }
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
    const std::function<void(unsigned)> *work_ = nullptr;
    unsigned wanted_ = 0, busy_ = 0;
    unsigned long turn_ = 0;
    bool stop_ = false;
};

Helpers &helpers() {
    static auto *instance = new Helpers;
    return *instance;
}

// A permutation of 0..31 that depends on the seed only (xorshift).
void shuffle(unsigned seed, unsigned *order) {
    for (unsigned i = 0; i < 32; ++i) order[i] = i;
    if (seed == 0) return;
    std::uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
    for (unsigned i = 31; i > 0; --i) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        std::swap(order[i], order[x % (i + 1)]);
    }
}

std::string refusal(const Request &request) {
    auto threads = static_cast<unsigned long long>(request.block.x) * request.block.y * request.block.z;
    if (threads == 0 || threads > kMaxThreads) return "invalid configuration: a block has 1 to 1024 threads";
    if (request.grid.x == 0 || request.grid.y == 0 || request.grid.z == 0) return "invalid configuration: the grid is empty";
    if (request.shared > kSharedLimit) return "invalid configuration: more than 227 KiB of dynamic shared memory";
    if (request.kernel->function == nullptr)
        return "the kernel " + request.kernel->mangled + " has no symbol: link without -s and do not strip";
    return "";
}

// A signal stack while this OS thread runs blocks, so that a fault on a full fiber stack can still be handled.
class SignalStack {
  public:
    explicit SignalStack(Block &block) {
        stack_t wanted{};
        wanted.ss_sp = block.signal_stack;
        wanted.ss_size = sizeof block.signal_stack;
        sigaltstack(&wanted, &before_);
    }
    ~SignalStack() { sigaltstack(&before_, nullptr); }
    SignalStack(const SignalStack &) = delete;
    SignalStack &operator=(const SignalStack &) = delete;

  private:
    stack_t before_{};
};

}  // namespace

void record_error(LaunchState &state, const std::string &error, const void *pc, uint3 block, uint3 thread) {
    std::lock_guard<std::mutex> lock(error_mutex);
    state.stop = true;
    Outcome &out = *state.outcome;
    if (!out.error.empty()) return;
    out.error = error;
    out.error_pc = reinterpret_cast<std::uintptr_t>(pc);
    const unsigned b[] = {block.x, block.y, block.z}, t[] = {thread.x, thread.y, thread.z};
    for (int i = 0; i < 3; ++i) {
        out.error_block[i] = b[i];
        out.error_thread[i] = t[i];
    }
}

void run_worker(LaunchState &state, unsigned worker) {
    Block &block = block_of(worker);
    SignalStack signals(block);
    block.prepare(state, worker);
    while (!state.stop.load(std::memory_order_relaxed)) {
        unsigned long long first = state.next.fetch_add(state.chunk, std::memory_order_relaxed);
        if (first >= state.blocks) break;
        unsigned long long end = first + state.chunk < state.blocks ? first + state.chunk : state.blocks;
        for (unsigned long long i = first; i < end; ++i) {
            block.run(i);
            if (block.aborted) return;
            if (state.stop.load(std::memory_order_relaxed)) return;
        }
    }
}

Outcome execute(const Request &request, const Options &options) {
    Outcome outcome;
    outcome.error = refusal(request);
    if (!outcome.error.empty()) return outcome;
    StackLease stacks;  // one grid at a time, as in the default stream
    if (!stacks.granted) outcome.error = kNoStacks;
    if (!outcome.error.empty() || !reserve_shared(&outcome.error)) return outcome;
    if (stacks.stale) forget_fibers();
    LaunchState state;
    state.request = &request;
    state.outcome = &outcome;
    state.seed = options.seed;
    shuffle(options.seed, state.warp_order);
    shuffle(options.seed == 0 ? 0 : options.seed + 0x5bd1e995u, state.lane_order);
    state.blocks = static_cast<unsigned long long>(request.grid.x) * request.grid.y * request.grid.z;

    unsigned cores = options.threads != 0 ? options.threads : std::thread::hardware_concurrency();
    unsigned long long workers = cores == 0 ? 1 : cores;
    if (workers > kMostThreads) workers = kMostThreads;
    if (workers > state.blocks) workers = state.blocks;
    if (!supply(&workers, request.block.x * request.block.y * request.block.z)) {
        outcome.error = kNoStacks;
        return outcome;
    }
    state.chunk = state.blocks / (workers * 16);
    if (state.chunk < 1) state.chunk = 1;
    if (state.chunk > 64) state.chunk = 64;
    if (options.trace) state.trace = trace_begin(request, options, static_cast<unsigned>(workers));
    running = &state;
    install_fault_handlers();

    auto start = std::chrono::steady_clock::now();
    std::function<void(unsigned)> work = [&state](unsigned worker) { run_worker(state, worker); };
    if (workers > 1) helpers().run(static_cast<unsigned>(workers) - 1, work);
    run_worker(state, 0);
    if (workers > 1) helpers().wait();
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    restore_fault_handlers();
    running = nullptr;
    if (state.trace != nullptr) trace_finish(state.trace);
    outcome.trace = state.trace;
    return outcome;
}

void cancel() {
    LaunchState *state = running.load();
    if (state != nullptr) record_error(*state, "cancelled", nullptr, uint3{}, uint3{});
}

// Leaves nothing behind that outlives the object: it is about to be unloaded.
void shutdown() {
    helpers().stop();
    std::vector<Fiber *> fibers;
    for (Block *block : blocks)
        if (block != nullptr) fibers.insert(fibers.end(), block->all.begin(), block->all.end());
    give_back_stacks(fibers);
    forget_fibers();
    for (Block *&block : blocks) {
        delete block;
        block = nullptr;
    }
    if (shared_low != 0) munmap(reinterpret_cast<void *>(shared_low), shared_bytes);
    shared_low = shared_bytes = 0;
}

// ---------------------------------------------------------------- collecting arguments

namespace {

struct BindJob : Binding {
    Fiber caller;
    void *callable = nullptr;
    void (*call)(void *) = nullptr;
    std::exception_ptr thrown;
};

std::mutex bind_mutex;
std::vector<Fiber *> bind_fibers;

void bind_main() {
    Context *c = context();
    Fiber *self;
    std::memcpy(&self, c->reserved, sizeof self);  // put there by take_bind_fiber
    for (;;) {
        auto *job = static_cast<BindJob *>(c->binding);
        try {
            job->call(job->callable);
        } catch (...) {
            job->thrown = std::current_exception();
        }
        switch_fiber(self, &job->caller);
    }
}

Fiber *take_bind_fiber() {
    std::lock_guard<std::mutex> lock(bind_mutex);
    if (!bind_fibers.empty()) {
        Fiber *fiber = bind_fibers.back();
        bind_fibers.pop_back();
        return fiber;
    }
    Fiber *fiber = new_bind_fiber(bind_main);
    if (fiber == nullptr) {
        std::fprintf(stderr, "no stack for a launch: %s\n", kNoStacks);
        std::abort();
    }
    std::memset(static_cast<void *>(fiber->context()), 0, sizeof(Context));
    std::memcpy(fiber->context()->reserved, &fiber, sizeof fiber);
    return fiber;
}

}  // namespace

namespace detail {

Binding *current_binding() { return context()->binding; }

void launch(const Config &config, void *callable, void (*call)(void *)) {
    if (in_kernel()) unsupported("dynamic parallelism (a launch inside a kernel)");
    auto job = std::make_unique<BindJob>();
    job->callable = callable;
    job->call = call;
    Fiber *fiber = take_bind_fiber();
    fiber->context()->binding = job.get();
    switch_fiber(&job->caller, fiber);
    {
        std::lock_guard<std::mutex> lock(bind_mutex);
        bind_fibers.push_back(fiber);
    }
    if (job->thrown) std::rethrow_exception(job->thrown);
    if (job->kernel == nullptr) {
        std::fprintf(stderr, "a launch called a function that is not a kernel\n");
        std::abort();
    }
    Request request{job->kernel, config.grid, config.block, config.shared, config.stream, job->params};
    cuemu_on_launch(request);
}

}  // namespace detail
}  // namespace cuemu
