// A traced launch: set up, told of by the scheduler, and read out.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "symbols.h"
#include "tracer.h"

namespace cuemu {

std::atomic<bool> tracing{false};  // read by every instrumented access

namespace {

// Shadow memory is six times what it watches. Larger buffers are run without a race check, and that is said.
std::size_t shadow_budget() {
    auto memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return memory / 2 / 6;
}

void watch(Trace &trace, std::uintptr_t base, std::size_t size, int buffer, std::size_t &budget) {
    Watched w;
    w.base = base;
    w.size = size;
    w.buffer = buffer;
    if (size <= budget && w.shadow.reserve(size))
        budget -= size;
    else
        trace.notes.push_back("no race check for buffer " + std::to_string(buffer) + " of " + std::to_string(size) +
                              " bytes: its shadow memory does not fit this machine");
    if (buffer >= 0) w.written = static_cast<unsigned char *>(lazy_memory(size));
    trace.watched.push_back(std::move(w));
}

std::vector<std::uint64_t> ranges(const unsigned char *flags, std::size_t size) {
    std::vector<std::uint64_t> out;
    std::size_t at = 0;
    while (flags != nullptr && at < size) {
        auto *first = static_cast<const unsigned char *>(std::memchr(flags + at, 1, size - at));
        if (first == nullptr) break;
        auto start = static_cast<std::size_t>(first - flags);
        auto *last = static_cast<const unsigned char *>(std::memchr(first, 0, size - start));
        at = last == nullptr ? size : static_cast<std::size_t>(last - flags);
        out.push_back(start);
        out.push_back(at);
    }
    return out;
}

}  // namespace

unsigned Trace::site(std::uintptr_t pc) {
    if (pc - text_low >= text_size) return 0;
    std::uint16_t known = __atomic_load_n(&site_of[pc - text_low], __ATOMIC_RELAXED);
    if (__builtin_expect(known != 0, 1)) return known;
    std::lock_guard<std::mutex> lock(mutex);
    if (site_of[pc - text_low] != 0) return site_of[pc - text_low];
    if (pc_count > kMaxSites) return 0;
    pcs[pc_count] = pc;
    __atomic_store_n(&site_of[pc - text_low], static_cast<std::uint16_t>(pc_count), __ATOMIC_RELEASE);
    return pc_count++;
}

Trace::~Trace() {
    free_lazy(site_of, text_size * sizeof *site_of);
    for (auto &w : watched) {
        w.shadow.release();
        free_lazy(w.written, w.size);
    }
    for (auto &t : tracers) {
        t->shared.release();
        for (auto &warp : t->logs)
            for (SiteLog *log : warp) delete log;
    }
}

Trace *trace_begin(const Request &request, const Options &options, unsigned workers) {
    auto trace = std::make_unique<Trace>();
    trace->options = options;
    trace->grid = request.grid;
    trace->block_dim = request.block;
    trace->blocks = static_cast<std::uint64_t>(request.grid.x) * request.grid.y * request.grid.z;
    trace->stride = (trace->blocks + kSampledBlocks - 1) / kSampledBlocks;
    const Image &self = image();
    trace->text_low = self.text_low;
    trace->text_size = self.text_high - self.text_low;
    trace->image_low = self.low;
    trace->image_size = self.high - self.low;
    trace->site_of = static_cast<std::uint16_t *>(lazy_memory(trace->text_size * sizeof(std::uint16_t)));
    trace->reported.reset(new std::atomic<bool>[kKinds * (kMaxSites + 1)]());
    trace->release_count = std::min<std::uint64_t>(trace->blocks, 1u << 22);
    trace->releases.reset(new std::atomic<std::uint64_t>[trace->release_count]());
    std::size_t budget = shadow_budget();
    for (std::size_t i = 0; i < options.regions.size(); ++i)
        watch(*trace, options.regions[i].base, options.regions[i].size, static_cast<int>(i), budget);
    for (const Unwritten &range : options.unwritten) trace->watched[range.region].unknown.emplace_back(range.start, range.end);
    for (const auto &global : globals()) watch(*trace, reinterpret_cast<std::uintptr_t>(global.address), global.size, -1, budget);
    std::sort(trace->watched.begin(), trace->watched.end(), [](const Watched &a, const Watched &b) { return a.base < b.base; });
    for (unsigned i = 0; i < workers; ++i) {
        auto tracer = std::make_unique<Tracer>();
        tracer->trace = trace.get();
        tracer->shared.reserve(kSharedBytes);
        tracer->shared_state.assign(kSharedBytes, 0);
        trace->tracers.push_back(std::move(tracer));
    }
    tracing = true;
    return trace.release();
}

Tracer *trace_worker(Trace *trace, unsigned worker) { return trace->tracers[worker].get(); }

void trace_finish(Trace *trace) {
    tracing = false;
    for (auto &tracer : trace->tracers) {
        trace->sampled += tracer->sampled;
        if (trace->sums.size() < tracer->sums.size()) trace->sums.resize(tracer->sums.size());
        for (std::size_t i = 0; i < tracer->sums.size(); ++i) {
            SiteSum &to = trace->sums[i];
            const SiteSum &from = tracer->sums[i];
            to.write = to.write || from.write;
            to.requests += from.requests;
            to.sectors += from.sectors;
            to.bytes += from.bytes;
            to.shared_requests += from.shared_requests;
            to.wavefronts += from.wavefronts;
            to.conflicts += from.conflicts;
            to.atomics += from.atomics;
            to.lanes += from.lanes;
        }
        tracer->shared.release();
    }
    trace->written.resize(trace->options.regions.size());
    for (auto &w : trace->watched) {
        // Shadows of what was stored to stay until the next launch, for `writer`.
        bool kept = false;
        if (w.buffer >= 0) {
            auto &stored = trace->written[static_cast<std::size_t>(w.buffer)];
            stored = ranges(w.written, w.size);
            kept = !stored.empty();
        }
        if (!kept) w.shadow.release();
        free_lazy(w.written, w.size);
        w.written = nullptr;
    }
    if (trace->gave_up) trace->notes.push_back("races were not checked in blocks past 16,383 barriers or 65,535 warp operations");
    if (trace->dropped)
        trace->notes.push_back("traffic of long loops is extrapolated from the first 2,048 accesses of each lane");
    if (trace->sampled < trace->blocks)
        trace->notes.push_back("traffic was counted in " + std::to_string(trace->sampled) + " of " + std::to_string(trace->blocks) +
                               " blocks and scaled");
}

// ---------------------------------------------------------------- told by the scheduler

void trace_block_start(Tracer *t, Block &block, unsigned long long index) {
    Trace &trace = *t->trace;
    std::size_t dynamic = block.launch->request->shared;
    t->block = &block;
    t->block_index = index;
    t->block_id = static_cast<unsigned>(index & 0x3fffff);
    t->epoch = 0;
    t->checking = true;
    t->fenced = false;
    t->acquired = 0;
    t->sampling = index % trace.stride == 0;
    if (t->sampling) ++t->sampled;
    std::size_t warps = block.warps;
    std::memset(t->clock, 0, warps * sizeof t->clock[0]);
    std::memset(t->seen, 0, warps * sizeof t->seen[0]);
    std::memset(t->shared_state.data(), 0, t->shared_end);
    std::memset(t->shared_state.data(), 1, dynamic);
    t->shared_end = dynamic;
}

void trace_shared_array(Tracer *t, std::size_t offset, std::size_t size) {
    std::memset(t->shared_state.data() + offset, 1, size);
    t->shared_end = std::max(t->shared_end, offset + size);
}

void trace_thread_end(Tracer *t, unsigned thread, bool last_of_warp) {
    if (last_of_warp) t->flush(thread / kWarp);
}

void trace_barrier_release(Tracer *t) {
    Block &b = *t->block;
    const void *first = nullptr;
    for (unsigned thread = 0; thread < b.threads; ++thread) {
        // Those that wait here are the living ones: all of them arrived.
        if (!(b.warp[thread / kWarp].alive >> (thread % kWarp) & 1)) continue;
        const void *pc = b.barrier_pc[thread];
        if (first == nullptr) first = pc;
        if (pc != first)
            trace_divergence(t, pc, first, thread, "threads of one block wait at different barriers");
    }
    for (unsigned w = 0; w < b.warps; ++w) {
        t->flush(w);
        if (t->clock[w] == 0) continue;
        t->clock[w] = 0;
        std::memset(t->seen[w], 0, sizeof t->seen[w]);
    }
    if (++t->epoch >= kMostEpochs) {
        t->epoch = kMostEpochs;
        t->checking = false;
        t->trace->gave_up = true;
    }
}

void trace_warp_sync(Tracer *t, unsigned warp, unsigned lanes) { t->warp_met(warp, lanes); }

void trace_fence(Tracer *t) {
    t->fenced = true;
    t->trace->fences.store(true, std::memory_order_relaxed);
}

void trace_block_end(Tracer *t) {
    for (unsigned w = 0; w < t->block->warps; ++w) t->flush(w);
}

void trace_divergence(Tracer *t, const void *pc, const void *other, unsigned thread, const char *text) {
    Trace &trace = *t->trace;
    unsigned other_site = other == nullptr ? 0 : trace.site(reinterpret_cast<std::uintptr_t>(other));
    t->report(kDivergence, trace.site(reinterpret_cast<std::uintptr_t>(pc)), other_site, thread, -1, 0, text);
}

// ---------------------------------------------------------------- read out

std::vector<Finding> findings(const Trace &trace) { return trace.findings; }

std::vector<Site> sites(const Trace &trace) {
    std::vector<Site> out;
    double scale = trace.sampled == 0 ? 1 : static_cast<double>(trace.blocks) / static_cast<double>(trace.sampled);
    auto whole = [scale](double x) { return static_cast<std::uint64_t>(x * scale + 0.5); };
    for (std::size_t i = 0; i < trace.sums.size(); ++i) {
        const SiteSum &s = trace.sums[i];
        if (s.requests == 0 && s.shared_requests == 0) continue;
        out.push_back(Site{trace.pcs[i], s.write, whole(s.requests), whole(s.sectors), whole(s.bytes), whole(s.shared_requests),
                           whole(s.wavefronts), whole(s.conflicts), whole(s.atomics), whole(s.lanes)});
    }
    return out;
}

const std::vector<std::uint64_t> &written(const Trace &trace, std::size_t region) {
    static const std::vector<std::uint64_t> none;
    return region < trace.written.size() ? trace.written[region] : none;
}

Writer writer(const Trace &trace, std::size_t region, std::size_t at) {
    Writer out;
    for (const Watched &w : trace.watched) {
        if (w.buffer < 0 || static_cast<std::size_t>(w.buffer) != region || at >= w.size || w.shadow.words == nullptr) continue;
        const Cell *cell = &w.shadow.words[at / 4];
        if (w.shadow.fine && w.shadow.bytes[at].writer != 0) cell = &w.shadow.bytes[at];
        if (cell->writer == 0 || trace.blocks > (1u << 22)) continue;
        const dim3 &d = trace.block_dim, &g = trace.grid;
        unsigned thread = Stamp::thread(cell->writer), block = Stamp::block(cell->writer);
        out.known = true;
        out.pc = trace.pcs[cell->writer_pc];
        out.block[0] = block % g.x, out.block[1] = block / g.x % g.y, out.block[2] = block / g.x / g.y;
        out.thread[0] = thread % d.x, out.thread[1] = thread / d.x % d.y, out.thread[2] = thread / d.x / d.y;
    }
    return out;
}

std::vector<std::string> notes(const Trace &trace) { return trace.notes; }
std::uint64_t sampled_blocks(const Trace &trace) { return trace.sampled; }
void destroy(Trace *trace) { delete trace; }

}  // namespace cuemu
