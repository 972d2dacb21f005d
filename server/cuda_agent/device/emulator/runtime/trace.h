// What a traced launch found, after it ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuemu/runtime.h"

namespace cuemu {

struct Finding {
    const char *kind;  // out-of-bounds, uninitialised, global-race, shared-race, barrier-divergence, misaligned
    std::string text;
    std::uintptr_t pc = 0, other_pc = 0;  // return addresses; 0 when unknown
    unsigned block[3] = {0, 0, 0}, thread[3] = {0, 0, 0};
    int buffer = -1;      // index in Options::regions, -1: none
    std::int64_t at = 0;  // byte offset in the buffer or the shared array
};

// Traffic of one instrumented access in the code, summed over the sampled blocks and scaled to all.
struct Site {
    std::uintptr_t pc;
    bool write;
    std::uint64_t requests = 0;  // warp-level accesses to global memory
    std::uint64_t sectors = 0;   // 32-byte sectors these touched
    std::uint64_t bytes = 0;     // asked for by the lanes
    std::uint64_t shared_requests = 0;
    std::uint64_t wavefronts = 0;      // passes over shared memory's 32 banks
    std::uint64_t bank_conflicts = 0;  // wavefronts beyond the fewest possible
    std::uint64_t atomics = 0;         // warp-level atomic requests, global or shared
    std::uint64_t lanes = 0;           // lanes that took part in all of these
};

// Who last stored to a byte of a region.
struct Writer {
    bool known = false;
    std::uintptr_t pc = 0;
    unsigned block[3] = {0, 0, 0}, thread[3] = {0, 0, 0};
};

std::vector<Finding> findings(const Trace &);
std::vector<Site> sites(const Trace &);
const std::vector<std::uint64_t> &written(const Trace &, std::size_t region);
Writer writer(const Trace &, std::size_t region, std::size_t at);
std::vector<std::string> notes(const Trace &);
std::uint64_t sampled_blocks(const Trace &);
void destroy(Trace *);

}  // namespace cuemu
