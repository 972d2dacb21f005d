// Bounds, initialisation and races of single accesses.
#include <cstdio>
#include <cstring>

#include "tracer.h"

namespace cuemu {

// Between blocks: ordered when the other one fenced and did an atomic after the access, and this one did an atomic later.
bool Tracer::released(unsigned other_block, unsigned other_epoch) const {
    if (!trace->fences.load(std::memory_order_relaxed) || other_block >= trace->release_count) return false;
    std::uint64_t r = trace->releases[other_block].load(std::memory_order_relaxed);
    return r != 0 && static_cast<std::uint32_t>(r >> 32) <= acquired && (r & 0xffffffff) >= other_epoch + 1;
}

bool Tracer::ordered(unsigned other_block, unsigned other_thread, unsigned other_epoch, unsigned other_clock,
                     unsigned thread) const {
    if (other_block != block_id) return released(other_block, other_epoch);
    if (other_epoch != epoch || other_thread == thread) return true;
    if (other_thread / kWarp != thread / kWarp) return false;
    return seen[thread / kWarp][thread % kWarp][other_thread % kWarp] > other_clock;
}

// What is wrong between an access and the cell's last ones; nullptr when nothing is. Two accesses race when they are not ordered and
// at least one is a store that is not atomic.
const char *Tracer::conflict(Cell &cell, bool write, bool atomic, unsigned thread, bool shared, unsigned *other) const {
    std::uint64_t w = cell.writer;
    if (w != 0 && shared && Stamp::block(w) != block_id) {
        cell = Cell{};  // left by an earlier block that used the same arena
        return nullptr;
    }
    bool plain_write = write && !atomic;
    if (w != 0 && (plain_write || !(w & Stamp::kAtomic)) &&
        !ordered(Stamp::block(w), Stamp::thread(w), Stamp::epoch(w), Stamp::clock(w), thread)) {
        *other = cell.writer_pc;
        return write ? "two threads write it without a barrier between" : "one thread reads what another writes, without a barrier between";
    }
    std::uint64_t r = cell.reader;
    if (!plain_write || r == 0) return nullptr;
    *other = cell.reader_pc;
    const char *text = "one thread writes what another reads, without a barrier between";
    if (Readers::block(r) != block_id || (r & Readers::kManyBlocks)) {
        if (shared) return nullptr;
        if (!(r & Readers::kManyBlocks)) return released(Readers::block(r), Readers::epoch(r)) ? nullptr : text;
        return trace->fences.load(std::memory_order_relaxed) ? nullptr : text;
    }
    if (Readers::epoch(r) != epoch) return nullptr;
    if ((r & Readers::kManyWarps) || Readers::warp(r) != thread / kWarp) return text;
    for (std::uint32_t rest = cell.reader_lanes & ~(1u << thread % kWarp); rest != 0; rest &= rest - 1) {
        auto lane = static_cast<unsigned>(__builtin_ctz(rest));
        if (seen[thread / kWarp][thread % kWarp][lane] <= Readers::clock(r)) return text;
    }
    return nullptr;
}

void Tracer::note(Cell &cell, bool write, bool atomic, unsigned thread, unsigned site, bool shared) {
    unsigned warp = thread / kWarp, lane = thread % kWarp;
    if (write) {
        cell.writer = Stamp::pack(atomic, block_id, thread, epoch, clock[warp]);
        cell.writer_pc = static_cast<std::uint16_t>(site);
        if (!atomic) cell.reader = 0;
        return;
    }
    std::uint64_t r = cell.reader;
    std::uint64_t mine = Readers::pack(block_id, warp, epoch, clock[warp]);
    if (r == 0 || (shared && Readers::block(r) != block_id)) {
        cell.reader = mine;
        cell.reader_lanes = 1u << lane;
    } else if (Readers::block(r) != block_id || (r & Readers::kManyBlocks)) {
        cell.reader = r | Readers::kManyBlocks;
    } else if (Readers::epoch(r) != epoch) {
        cell.reader = mine;
        cell.reader_lanes = 1u << lane;
    } else if (Readers::warp(r) != warp) {
        cell.reader = r | Readers::kManyWarps;
    } else if (!(r & Readers::kManyWarps)) {
        // Keep the lanes whose reads are not yet ordered before this one, with the earliest clock among them.
        std::uint32_t kept = 0;
        for (std::uint32_t rest = cell.reader_lanes & ~(1u << lane); rest != 0; rest &= rest - 1) {
            auto other = static_cast<unsigned>(__builtin_ctz(rest));
            if (seen[warp][lane][other] <= Readers::clock(r)) kept |= 1u << other;
        }
        cell.reader_lanes = kept | 1u << lane;
        if (kept == 0) cell.reader = mine;
    }
    cell.reader_pc = static_cast<std::uint16_t>(site);
}

void Tracer::check(Shadow &shadow, std::size_t offset, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site,
                   Kind kind, int buffer) {
    if (shadow.words == nullptr || !checking) return;
    bool is_shared = kind == kSharedRace;
    const char *text = nullptr;
    unsigned other = 0;
    std::size_t where = offset;
    if (size >= 4 && offset % 4 == 0 && size % 4 == 0) {
        for (std::size_t at = offset; at < offset + size; at += 4) {
            Cell &cell = shadow.words[at / 4];
            if (const char *found = conflict(cell, write, atomic, thread, is_shared, &other)) text = found, where = at;
            note(cell, write, atomic, thread, site, is_shared);
            if (!shadow.fine) continue;
            for (std::size_t b = at; b < at + 4; ++b)
                if (const char *found = conflict(shadow.bytes[b], write, atomic, thread, is_shared, &other)) text = found, where = b;
        }
    } else {
        shadow.fine = true;
        for (std::size_t b = offset; b < offset + size; ++b) {
            if (const char *found = conflict(shadow.words[b / 4], write, atomic, thread, is_shared, &other)) text = found, where = b;
            if (const char *found = conflict(shadow.bytes[b], write, atomic, thread, is_shared, &other)) text = found, where = b;
            note(shadow.bytes[b], write, atomic, thread, site, is_shared);
        }
    }
    if (text != nullptr) report(kind, site, other, thread, buffer, static_cast<std::int64_t>(where), text);
}

void Tracer::shared_access(std::uintptr_t address, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site) {
    auto base = reinterpret_cast<std::uintptr_t>(block->shared);
    std::size_t offset = address - base;
    if (offset >= kSharedBytes || offset + size > kSharedBytes) {
        report(kOutOfBounds, site, 0, thread, -1, static_cast<std::int64_t>(offset), "an access to another block's shared memory");
        return;
    }
    bool outside = false, fresh = false;
    for (std::size_t i = offset; i < offset + size; ++i) {
        outside = outside || shared_state[i] == 0;
        fresh = fresh || shared_state[i] == 1;
    }
    if (outside) {
        report(kOutOfBounds, site, 0, thread, -1, static_cast<std::int64_t>(offset),
               std::string(write ? "a write" : "a read") + " outside the block's shared arrays");
        return;
    }
    if (fresh && (!write || atomic))
        report(kUninitialised, site, 0, thread, -1, static_cast<std::int64_t>(offset), "a read of shared memory that no thread of the block wrote");
    if (write) std::memset(&shared_state[offset], 2, size);
    check(shared, offset, size, write, atomic, thread, site, kSharedRace, -1);
}

Watched *Tracer::find(std::uintptr_t address, bool *near) {
    auto &all = trace->watched;
    *near = false;
    if (all.empty()) return nullptr;
    if (last_region < all.size() && address - all[last_region].base < all[last_region].size) return &all[last_region];
    std::size_t low = 0, high = all.size();
    while (low < high) {
        std::size_t middle = (low + high) / 2;
        if (all[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    // all[low - 1] starts at or before the address, all[low] after it.
    if (low > 0 && address - all[low - 1].base < all[low - 1].size) {
        last_region = low - 1;
        return &all[low - 1];
    }
    *near = true;
    std::size_t guard = trace->options.guard;
    if (low > 0 && all[low - 1].buffer >= 0 && address - (all[low - 1].base + all[low - 1].size) < guard) return &all[low - 1];
    if (low < all.size() && all[low].buffer >= 0 && all[low].base - address <= guard) return &all[low];
    return nullptr;
}

void Tracer::global_access(std::uintptr_t address, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site) {
    bool near = false;
    Watched *region = find(address, &near);
    if (region == nullptr) {
        if (trace->options.regions.empty() || address - trace->image_low < trace->image_size) return;
        char text[96];
        std::snprintf(text, sizeof text, "a %s at 0x%zx, inside no buffer of the launch", write ? "write" : "read",
                      static_cast<std::size_t>(address));
        report(kOutOfBounds, site, 0, thread, -1, static_cast<std::int64_t>(address), text);
        // A stray write may hit this process's own memory: the launch ends before it happens.
        if (write) block->fail("illegal address: " + std::string(text), reinterpret_cast<const void *>(trace->pcs[site]));
        return;
    }
    auto at = static_cast<std::int64_t>(address - region->base);
    if (near || static_cast<std::size_t>(at) + size > region->size) {
        char text[128];
        long long beyond = near && at < 0 ? -at : at + static_cast<std::int64_t>(size) - static_cast<std::int64_t>(region->size);
        std::snprintf(text, sizeof text, "a %s of %zu bytes reaches %lld bytes %s the buffer of %zu bytes", write ? "write" : "read", size,
                      beyond, at < 0 ? "before" : "beyond", region->size);
        report(kOutOfBounds, site, 0, thread, region->buffer, at, text);
        return;
    }
    if ((!write || atomic) && region->unwritten(static_cast<std::size_t>(at), size))
        report(kUninitialised, site, 0, thread, region->buffer, at, "a read of memory that held nothing before the launch and that no thread wrote");
    if (write && region->written != nullptr) std::memset(region->written + at, 1, size);
    check(region->shadow, static_cast<std::size_t>(at), size, write, atomic, thread, site, kGlobalRace, region->buffer);
}

void Tracer::piece(std::uintptr_t address, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site) {
    if (address - shared_low < shared_bytes)
        shared_access(address, size, write, atomic, thread, site);
    else
        global_access(address, size, write, atomic, thread, site);
    if (sampling) log(address, size, write, atomic, thread, site);
}

void Tracer::access(std::uintptr_t address, std::size_t size, bool write, bool atomic, bool is_volatile, std::uintptr_t pc) {
    if (stack_range.holds(address)) return;  // local memory
    unsigned thread = context()->linear;
    unsigned site = trace->site(pc);
    bool is_shared = address - shared_low < shared_bytes;
    // A volatile global is how flags between blocks are spelled; a volatile shared one still races.
    bool synchronises = !is_shared && (atomic || is_volatile);
    if (synchronises && trace->fences.load(std::memory_order_relaxed)) {
        std::uint32_t now = trace->time.fetch_add(1, std::memory_order_relaxed) + 1;
        if (fenced && write && block_id < trace->release_count)
            trace->releases[block_id].store(static_cast<std::uint64_t>(now) << 32 | (epoch + 1), std::memory_order_relaxed);
        acquired = now;
    }
    piece(address, size, write, atomic || (is_volatile && !is_shared), thread, site);
}

// A GPU ends the launch where an access of a type's own alignment is not aligned; this machine only is slower.
void Tracer::aligned(std::uintptr_t address, std::size_t size, bool write, std::uintptr_t pc) {
    if (address % size == 0 || stack_range.holds(address)) return;
    bool near = false;
    Watched *region = find(address, &near);
    if (region == nullptr || near || region->buffer < 0) return;
    char text[96];
    std::snprintf(text, sizeof text, "a %s of %zu bytes at an address that is no multiple of %zu", write ? "write" : "read", size, size);
    report(kMisaligned, trace->site(pc), 0, context()->linear, region->buffer, static_cast<std::int64_t>(address - region->base), text);
}

void Tracer::report(Kind kind, unsigned site, unsigned other_site, unsigned thread, int buffer, std::int64_t at, std::string text) {
    static const char *names[kKinds] = {"out-of-bounds", "uninitialised", "global-race", "shared-race", "barrier-divergence",
                                         "misaligned"};
    if (trace->reported[kind * (kMaxSites + 1) + site].exchange(true, std::memory_order_relaxed)) return;
    const dim3 &d = trace->block_dim;
    Finding f;
    f.kind = names[kind];
    f.text = std::move(text);
    f.pc = trace->pcs[site];
    f.other_pc = trace->pcs[other_site];
    f.block[0] = block->index.x, f.block[1] = block->index.y, f.block[2] = block->index.z;
    f.thread[0] = thread % d.x, f.thread[1] = thread / d.x % d.y, f.thread[2] = thread / d.x / d.y;
    f.buffer = buffer;
    f.at = at;
    std::lock_guard<std::mutex> lock(trace->mutex);
    trace->findings.push_back(std::move(f));
}

}  // namespace cuemu
