// Shadow memory: who last wrote and who last read each 4-byte word (and, where sub-word accesses happen, each byte).
//
// Happens-before inside a block: a block barrier orders everything before it (epochs); a warp operation orders the lanes it names
// (clocks). Between blocks nothing is ordered, except through a fence followed by an atomic on one side and an atomic on the other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuemu {

struct Cell {
    std::uint64_t writer;       // packed Stamp; 0 = none
    std::uint64_t reader;       // packed, with the flags of Readers; 0 = none
    std::uint32_t reader_lanes;  // lanes of the reader's warp that read since
    std::uint16_t writer_pc, reader_pc;
};
static_assert(sizeof(Cell) == 24, "a shadow cell costs six times the memory it watches");

// valid 1 | atomic 1 | block 22 | thread 10 | epoch 14 | clock 16
struct Stamp {
    static constexpr std::uint64_t kValid = 1ull << 63, kAtomic = 1ull << 62;
    static std::uint64_t pack(bool atomic, unsigned block, unsigned thread, unsigned epoch, unsigned clock) {
        return kValid | (atomic ? kAtomic : 0) | static_cast<std::uint64_t>(block & 0x3fffff) << 40 |
               static_cast<std::uint64_t>(thread) << 30 | static_cast<std::uint64_t>(epoch) << 16 | clock;
    }
    static unsigned block(std::uint64_t s) { return static_cast<unsigned>(s >> 40) & 0x3fffff; }
    static unsigned thread(std::uint64_t s) { return static_cast<unsigned>(s >> 30) & 0x3ff; }
    static unsigned epoch(std::uint64_t s) { return static_cast<unsigned>(s >> 16) & 0x3fff; }
    static unsigned clock(std::uint64_t s) { return static_cast<unsigned>(s) & 0xffff; }
};

// valid 1 | many blocks 1 | block 22 | many warps 1 | (unused 4) | warp 5 | epoch 14 | clock 16
struct Readers {
    static constexpr std::uint64_t kValid = 1ull << 63, kManyBlocks = 1ull << 62, kManyWarps = 1ull << 39;
    static std::uint64_t pack(unsigned block, unsigned warp, unsigned epoch, unsigned clock) {
        return kValid | static_cast<std::uint64_t>(block & 0x3fffff) << 40 | static_cast<std::uint64_t>(warp) << 30 |
               static_cast<std::uint64_t>(epoch) << 16 | clock;
    }
    static unsigned block(std::uint64_t s) { return static_cast<unsigned>(s >> 40) & 0x3fffff; }
    static unsigned warp(std::uint64_t s) { return static_cast<unsigned>(s >> 30) & 0x1f; }
    static unsigned epoch(std::uint64_t s) { return static_cast<unsigned>(s >> 16) & 0x3fff; }
    static unsigned clock(std::uint64_t s) { return static_cast<unsigned>(s) & 0xffff; }
};

constexpr unsigned kMostEpochs = 0x3fff, kMostClocks = 0xffff;

// Zeroed memory that costs nothing until it is touched. nullptr when the system refuses.
void *lazy_memory(std::size_t bytes);
void free_lazy(void *memory, std::size_t bytes);

// Cells of one range of memory. Byte cells are used by accesses below 4 bytes; `fine` says that there were some.
struct Shadow {
    Cell *words = nullptr, *bytes = nullptr;
    std::size_t size = 0;
    bool fine = false;
    bool reserve(std::size_t size);
    void release();
};

}  // namespace cuemu
