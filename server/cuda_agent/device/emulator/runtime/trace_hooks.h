// What the scheduler tells the tracer of one OS thread. All calls come from the thread that runs the block.
#pragma once

#include <cstdint>

#include "cuemu/runtime.h"

namespace cuemu {

struct Tracer;
struct Block;

void trace_block_start(Tracer *, Block &, unsigned long long block_index);
void trace_shared_array(Tracer *, std::size_t offset, std::size_t size);
void trace_thread_end(Tracer *, unsigned thread, bool last_of_warp);
void trace_barrier_release(Tracer *);
void trace_warp_sync(Tracer *, unsigned warp, unsigned lanes);
void trace_fence(Tracer *);
void trace_block_end(Tracer *);

// One launch: made before, merged after. `tracers` has one for each OS thread.
Trace *trace_begin(const Request &, const Options &, unsigned workers);
Tracer *trace_worker(Trace *, unsigned worker);
void trace_finish(Trace *);
// A deadlock or a divergent barrier becomes a finding as well as an error.
void trace_divergence(Tracer *, const void *pc, const void *other_pc, unsigned thread, const char *text);

}  // namespace cuemu
