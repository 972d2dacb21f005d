// The C interface of native.py: JSON out, plain values in. Code addresses are relative to the object's load address.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "cuemu/runtime.h"
#include "scheduler.h"
#include "symbols.h"
#include "trace.h"

namespace {

char *copy(const std::string &text) { return strdup(text.c_str()); }

std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (unsigned char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += static_cast<char>(c);
        } else if (c < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", c);
            out += escape;
        } else {
            out += static_cast<char>(c);
        }
    }
    return out + '"';
}

std::string list(const unsigned *values, unsigned count) {
    std::string out = "[";
    for (unsigned i = 0; i < count; ++i) out += (i ? "," : "") + std::to_string(values[i]);
    return out + "]";
}

std::uint64_t relative(std::uintptr_t pc) { return pc == 0 ? 0 : pc - cuemu::image().bias; }

cuemu::Trace *last_trace = nullptr;  // of the last traced launch: cuemu_written reads it

std::string findings_json(const cuemu::Trace &trace) {
    std::string out = "[";
    for (const auto &f : cuemu::findings(trace)) {
        if (out.size() > 1) out += ",";
        out += "{\"kind\":" + quoted(f.kind) + ",\"text\":" + quoted(f.text) + ",\"pc\":" + std::to_string(relative(f.pc)) +
               ",\"other_pc\":" + std::to_string(relative(f.other_pc)) + ",\"block\":" + list(f.block, 3) +
               ",\"thread\":" + list(f.thread, 3) + ",\"buffer\":" + (f.buffer < 0 ? "null" : std::to_string(f.buffer)) +
               ",\"at\":" + std::to_string(f.at) + "}";
    }
    return out + "]";
}

std::string sites_json(const cuemu::Trace &trace) {
    std::string out = "[";
    for (const auto &s : cuemu::sites(trace)) {
        if (out.size() > 1) out += ",";
        out += "{\"pc\":" + std::to_string(relative(s.pc)) + ",\"write\":" + (s.write ? "true" : "false") +
               ",\"requests\":" + std::to_string(s.requests) + ",\"sectors\":" + std::to_string(s.sectors) +
               ",\"bytes\":" + std::to_string(s.bytes) + ",\"shared_requests\":" + std::to_string(s.shared_requests) +
               ",\"wavefronts\":" + std::to_string(s.wavefronts) + ",\"bank_conflicts\":" + std::to_string(s.bank_conflicts) +
               ",\"atomics\":" + std::to_string(s.atomics) + ",\"lanes\":" + std::to_string(s.lanes) + "}";
    }
    return out + "]";
}

}  // namespace

extern "C" {

void cuemu_free(void *memory) { std::free(memory); }

char *cuemu_kernels() {
    std::string out = "[";
    for (const auto *k : cuemu::kernels()) {
        if (out.size() > 1) out += ",";
        out += "{\"mangled\":" + quoted(k->mangled) + ",\"offsets\":" + list(k->offsets, k->count) +
               ",\"sizes\":" + list(k->sizes, k->count) + ",\"bytes\":" + std::to_string(k->param_bytes) + "}";
    }
    return copy(out + "]");
}

char *cuemu_globals() {
    std::string out = "[";
    for (const auto &g : cuemu::globals()) {
        if (out.size() > 1) out += ",";
        out += "{\"mangled\":" + quoted(g.mangled) + ",\"name\":" + quoted(g.name) +
               ",\"address\":" + std::to_string(reinterpret_cast<std::uintptr_t>(g.address)) +
               ",\"size\":" + std::to_string(g.size) + "}";
    }
    return copy(out + "]");
}

char *cuemu_launch(const char *mangled, const std::uint32_t *dims, std::uint64_t shared, const char *args, std::uint64_t args_size,
                   const std::uint64_t *regions, std::uint64_t region_count, const std::uint64_t *unwritten,
                   std::uint64_t unwritten_count, std::uint64_t guard, int trace, std::uint32_t seed, std::uint32_t threads) {
    struct alignas(64) Params {
        unsigned char bytes[32 * 1024];
    };
    auto params = std::make_unique<Params>();
    std::memcpy(params->bytes, args, args_size < sizeof params->bytes ? args_size : sizeof params->bytes);
    cuemu::Options options;
    options.threads = threads;
    options.seed = seed;
    options.trace = trace != 0;
    options.guard = guard;
    for (std::uint64_t i = 0; i < region_count; ++i)
        options.regions.push_back({static_cast<std::uintptr_t>(regions[2 * i]), static_cast<std::size_t>(regions[2 * i + 1])});
    for (std::uint64_t i = 0; i < unwritten_count; ++i) {
        const std::uint64_t *range = unwritten + 3 * i;
        options.unwritten.push_back({static_cast<std::size_t>(range[0]), static_cast<std::size_t>(range[1]), static_cast<std::size_t>(range[2])});
    }
    cuemu::Request request{cuemu::find_kernel(mangled), dim3(dims[0], dims[1], dims[2]), dim3(dims[3], dims[4], dims[5]),
                           static_cast<std::size_t>(shared), nullptr, params->bytes};
    cuemu::destroy(last_trace);
    last_trace = nullptr;
    cuemu::Outcome outcome = cuemu::execute(request, options);
    last_trace = outcome.trace;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.9f", outcome.seconds);
    std::string out = "{\"error\":" + quoted(outcome.error) + ",\"seconds\":" + seconds +
                      ",\"error_pc\":" + std::to_string(relative(outcome.error_pc)) +
                      ",\"error_block\":" + list(outcome.error_block, 3) + ",\"error_thread\":" + list(outcome.error_thread, 3);
    if (outcome.trace != nullptr) {
        out += ",\"findings\":" + findings_json(*outcome.trace) + ",\"sites\":" + sites_json(*outcome.trace) + ",\"notes\":[";
        bool first = true;
        for (const auto &note : cuemu::notes(*outcome.trace)) {
            out += (first ? "" : ",") + quoted(note);
            first = false;
        }
        out += "],\"sampled_blocks\":" + std::to_string(cuemu::sampled_blocks(*outcome.trace)) +
               ",\"blocks\":" + std::to_string(static_cast<std::uint64_t>(dims[0]) * dims[1] * dims[2]);
    }
    return copy(out + "}");
}

// Ranges of a region that the last traced launch stored to: start and end in turn. Valid until the next launch.
const std::uint64_t *cuemu_written(std::uint64_t region, std::uint64_t *count) {
    *count = 0;
    if (last_trace == nullptr) return nullptr;
    const auto &ranges = cuemu::written(*last_trace, region);
    *count = ranges.size() / 2;
    return ranges.data();
}

// Who last stored to a byte of a region in the last traced launch; null when nobody did or it is not known.
char *cuemu_writer(std::uint64_t region, std::uint64_t at) {
    if (last_trace == nullptr) return copy("null");
    auto w = cuemu::writer(*last_trace, region, at);
    if (!w.known) return copy("null");
    return copy("{\"block\":" + list(w.block, 3) + ",\"thread\":" + list(w.thread, 3) + ",\"pc\":" + std::to_string(relative(w.pc)) + "}");
}

// The stacks of this process, for the next module that is loaded; `reserved` is what an earlier module answered, or null.
void *cuemu_share_stacks(void *reserved) {
    return cuemu::share_stacks(static_cast<cuemu::StackPool *>(reserved));
}

void cuemu_cancel() { cuemu::cancel(); }

void cuemu_shutdown() {
    cuemu::destroy(last_trace);
    last_trace = nullptr;
    cuemu::shutdown();
}

}  // extern "C"
