// The tracer of one OS thread and the state of a traced launch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "scheduler.h"
#include "shadow.h"
#include "trace.h"

namespace cuemu {

enum Kind : unsigned { kOutOfBounds, kUninitialised, kGlobalRace, kSharedRace, kDivergence, kMisaligned, kKinds };

constexpr unsigned kMaxSites = 65535;
constexpr std::uint64_t kSampledBlocks = 4096;   // traffic is counted in at most about so many blocks
constexpr unsigned kLoggedOccurrences = 2048;    // of one access by one lane between two points where its warp meets

struct Watched {
    std::uintptr_t base = 0;
    std::size_t size = 0;
    int buffer = -1;  // index in Options::regions; -1: a registered global
    Shadow shadow;
    unsigned char *written = nullptr;  // one byte each
    std::vector<std::pair<std::size_t, std::size_t>> unknown;  // start, end of bytes that held no value before the launch

    // Whether some of these bytes hold nothing: no value before the launch, and no store since.
    bool unwritten(std::size_t at, std::size_t bytes) const {
        if (written == nullptr) return false;
        for (const auto &[start, end] : unknown) {
            const std::size_t low = std::max(at, start), high = std::min(at + bytes, end);
            if (low < high && std::memchr(written + low, 0, high - low) != nullptr) return true;
        }
        return false;
    }
};

// Accesses of one warp at one place in the code: addresses by occurrence and lane.
struct SiteLog {
    unsigned site = 0;
    unsigned size = 0;
    bool write = false, atomic = false;
    std::uint64_t dropped = 0;
    unsigned count[kWarp] = {};
    std::vector<std::uintptr_t> address;  // [occurrence * 32 + lane]; 0 = this lane had none
};

struct SiteSum {
    bool write = false;
    double requests = 0, sectors = 0, bytes = 0, shared_requests = 0, wavefronts = 0, conflicts = 0, atomics = 0, lanes = 0;
};

struct Tracer {
    Trace *trace = nullptr;
    Block *block = nullptr;

    unsigned block_id = 0;  // 22 bits of the linear block index
    std::uint64_t block_index = 0;
    unsigned epoch = 0;
    bool checking = true;   // false once a block ran past the epochs or clocks that a cell can hold
    bool sampling = true;   // traffic of this block is counted
    bool fenced = false;
    std::uint32_t acquired = 0;  // time of the block's last global atomic
    unsigned clock[kMaxThreads / kWarp] = {};
    std::uint16_t seen[kMaxThreads / kWarp][kWarp][kWarp];  // [warp][lane][other]: clock up to which other's accesses are ordered

    Shadow shared;
    std::vector<unsigned char> shared_state;  // by byte of the arena: 0 nobody's, 1 not written, 2 written
    std::size_t shared_end = 0;

    std::vector<SiteLog *> logs[kMaxThreads / kWarp];  // by site
    std::vector<SiteLog *> active[kMaxThreads / kWarp];
    std::vector<SiteSum> sums;
    std::uint64_t sampled = 0;
    std::size_t last_region = 0;

    void access(std::uintptr_t address, std::size_t size, bool write, bool atomic, bool is_volatile, std::uintptr_t pc);
    void aligned(std::uintptr_t address, std::size_t size, bool write, std::uintptr_t pc);
    void warp_met(unsigned warp, std::uint32_t lanes);
    void flush(unsigned warp);

  private:
    void piece(std::uintptr_t address, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site);
    void shared_access(std::uintptr_t address, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site);
    void global_access(std::uintptr_t address, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site);
    void check(Shadow &shadow, std::size_t offset, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site,
               Kind kind, int buffer);
    const char *conflict(Cell &cell, bool write, bool atomic, unsigned thread, bool shared, unsigned *other) const;
    void note(Cell &cell, bool write, bool atomic, unsigned thread, unsigned site, bool shared);
    bool ordered(unsigned other_block, unsigned other_thread, unsigned other_epoch, unsigned other_clock, unsigned thread) const;
    bool released(unsigned other_block, unsigned other_epoch) const;
    void report(Kind kind, unsigned site, unsigned other_site, unsigned thread, int buffer, std::int64_t at, std::string text);
    void log(std::uintptr_t address, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site);
    void count_row(const SiteLog &log, const std::uintptr_t *row, SiteSum &sum) const;
    Watched *find(std::uintptr_t address, bool *near);
    friend struct Trace;
    friend void trace_divergence(Tracer *, const void *, const void *, unsigned, const char *);
    friend void trace_barrier_release(Tracer *);
};

struct Trace {
    Options options;
    dim3 grid, block_dim;
    std::uint64_t blocks = 0, stride = 1;
    std::vector<Watched> watched;  // sorted by address
    std::vector<std::unique_ptr<Tracer>> tracers;

    std::uintptr_t text_low = 0, text_size = 0, image_low = 0, image_size = 0;
    std::uint16_t *site_of = nullptr;  // by byte of the code
    std::vector<std::uintptr_t> pcs = std::vector<std::uintptr_t>(kMaxSites + 1, 0);  // by site; 0 is "unknown"
    unsigned pc_count = 1;
    std::mutex mutex;
    std::vector<Finding> findings;
    std::unique_ptr<std::atomic<bool>[]> reported;  // [kind * kMaxSites + site]
    std::atomic<bool> fences{false};
    std::atomic<std::uint32_t> time{0};
    std::unique_ptr<std::atomic<std::uint64_t>[]> releases;  // by block id: time << 32 | epoch + 1
    std::uint64_t release_count = 0;
    std::atomic<bool> gave_up{false}, dropped{false};
    std::vector<std::string> notes;
    std::vector<std::vector<std::uint64_t>> written;
    std::uint64_t sampled = 0;
    std::vector<SiteSum> sums;

    unsigned site(std::uintptr_t pc);
    ~Trace();
};

}  // namespace cuemu
