// Memory traffic: the lanes of a warp that execute the same access for the same time form one request.
#include <algorithm>
#include <cstring>

#include "tracer.h"

namespace cuemu {

void Tracer::log(std::uintptr_t address, std::size_t size, bool write, bool atomic, unsigned thread, unsigned site) {
    unsigned warp = thread / kWarp, lane = thread % kWarp;
    auto &table = logs[warp];
    if (table.size() <= site) table.resize(site + 64, nullptr);
    SiteLog *log = table[site];
    if (log == nullptr) log = table[site] = new SiteLog;
    if (log->size == 0) {
        log->site = site;
        log->size = static_cast<unsigned>(size);
        log->write = write;
        log->atomic = atomic;
        active[warp].push_back(log);
    }
    unsigned occurrence = log->count[lane];
    if (occurrence >= kLoggedOccurrences) {
        ++log->dropped;
        return;
    }
    log->count[lane] = occurrence + 1;
    std::size_t at = static_cast<std::size_t>(occurrence) * kWarp + lane;
    if (log->address.size() <= at) log->address.resize((occurrence + 1) * kWarp, 0);
    log->address[at] = address;
}

void Tracer::count_row(const SiteLog &log, const std::uintptr_t *row, SiteSum &sum) const {
    unsigned lanes = 0;
    std::uintptr_t sectors[kWarp * 2];
    unsigned sector_count = 0;
    std::uintptr_t words[kWarp * 4];
    unsigned banks[32];
    bool any_global = false, any_shared = false;
    // 8-byte accesses are served by half warps, 16-byte ones by quarters.
    unsigned group_lanes = log.size <= 4 ? 32 : log.size <= 8 ? 16 : 8;
    unsigned wavefronts = 0, groups = 0;
    for (unsigned start = 0; start < kWarp; start += group_lanes) {
        unsigned word_count = 0, deepest = 0;
        std::memset(banks, 0, sizeof banks);
        for (unsigned lane = start; lane < start + group_lanes; ++lane) {
            std::uintptr_t a = row[lane];
            if (a == 0) continue;
            ++lanes;
            if (a - shared_low < shared_bytes) {
                any_shared = true;
                for (std::uintptr_t w = a / 4; w <= (a + log.size - 1) / 4; ++w) {
                    if (word_count == kWarp * 4 || std::find(words, words + word_count, w) != words + word_count) continue;
                    words[word_count++] = w;
                    deepest = std::max(deepest, ++banks[w % 32]);
                }
            } else {
                any_global = true;
                for (std::uintptr_t s = a / 32; s <= (a + log.size - 1) / 32; ++s) {
                    if (sector_count != 0 && sectors[sector_count - 1] == s) continue;
                    if (sector_count == kWarp * 2 || std::find(sectors, sectors + sector_count, s) != sectors + sector_count) continue;
                    sectors[sector_count++] = s;
                }
            }
        }
        if (word_count != 0) {
            wavefronts += deepest;
            ++groups;
        }
    }
    if (any_global) {
        sum.requests += 1;
        sum.sectors += sector_count;
        sum.bytes += lanes * log.size;
    }
    if (any_shared) {
        sum.shared_requests += 1;
        sum.wavefronts += wavefronts;
        sum.conflicts += wavefronts - groups;
    }
    if (log.atomic) sum.atomics += 1;
    sum.lanes += lanes;
}

void Tracer::flush(unsigned warp) {
    for (SiteLog *log : active[warp]) {
        unsigned rows = *std::max_element(log->count, log->count + kWarp);
        std::uint64_t logged = 0;
        for (unsigned c : log->count) logged += c;
        SiteSum sum;
        for (unsigned i = 0; i < rows; ++i) count_row(*log, &log->address[static_cast<std::size_t>(i) * kWarp], sum);
        if (sums.size() <= log->site) sums.resize(log->site + 64);
        SiteSum &total = sums[log->site];
        double scale = 1;
        if (log->dropped != 0) {
            scale = static_cast<double>(logged + log->dropped) / static_cast<double>(logged);
            trace->dropped = true;
        }
        total.write = total.write || log->write;
        total.requests += sum.requests * scale;
        total.sectors += sum.sectors * scale;
        total.bytes += sum.bytes * scale;
        total.shared_requests += sum.shared_requests * scale;
        total.wavefronts += sum.wavefronts * scale;
        total.conflicts += sum.conflicts * scale;
        total.atomics += sum.atomics * scale;
        total.lanes += sum.lanes * scale;
        std::fill(log->address.begin(), log->address.begin() + static_cast<std::ptrdiff_t>(rows) * kWarp, 0);
        std::memset(log->count, 0, sizeof log->count);
        log->size = 0;
        log->dropped = 0;
    }
    active[warp].clear();
}

// A warp operation orders the lanes it names; when all living lanes meet, occurrences start anew.
void Tracer::warp_met(unsigned warp, std::uint32_t lanes) {
    if (clock[warp] == kMostClocks) {
        checking = false;
        trace->gave_up = true;
    } else {
        unsigned now = ++clock[warp];
        std::uint16_t joined[kWarp] = {};
        for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
            const std::uint16_t *row = seen[warp][__builtin_ctz(rest)];
            for (unsigned i = 0; i < kWarp; ++i) joined[i] = std::max(joined[i], row[i]);
        }
        for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
            joined[__builtin_ctz(rest)] = static_cast<std::uint16_t>(now);
        for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
            std::memcpy(seen[warp][__builtin_ctz(rest)], joined, sizeof joined);
    }
    if (lanes == block->warp[warp].alive) flush(warp);
}

}  // namespace cuemu
