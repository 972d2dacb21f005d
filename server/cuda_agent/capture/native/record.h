// The raw record of kernel launches: what the CUPTI injection and the emulator's runtime both write.
//
// Plain C++17, header only, no dependency. Format: docs/architecture.md, "capture/: the raw record". One process writes
// files named `<pid>-<seq>.<buffer>.before|after`, `<pid>-<seq>.g<n>` and appends lines to the shared `launches.jsonl`.
//
// Use, around every launch:
//
//     auto& rec = cuda_agent::capture::recorder();
//     if (rec.enabled()) {
//         // counts it; may end the program
//         Launch launch = rec.begin(mangled, grid, block, shared_bytes, "NVIDIA H200", &parameters);
//         if (launch.wanted) {
//             launch.add_arg(offset, bytes, size, resolve);   // each argument; finds pointers in it through `resolve`
//             launch.add_global(symbol, bytes, size);         // optional: __constant__/__device__ variables
//             rec.before(launch, reader, resolve);            // false: it was skipped, and the record says why
//         }
//         … run the kernel …
//         if (launch.wanted) rec.finish(launch, reader);      // after bytes and the line; or rec.skip(launch, "why")
//     }
//
// `parameters` are those of every launch, wanted or not: a kernel's lines say which of them changed from launch to launch.
// Null where the caller cannot tell them.
//
// `resolve(word, base, size)` says whether `word` points into a live device allocation; `reader(address, host, bytes)`
// copies device memory to the host. All functions are thread-safe; between `before` and `finish` the caller keeps other
// launches from running (the memory must not change under the snapshot).
//
// Environment: CUDA_AGENT_CAPTURE_DIR (off when unset), _KERNEL (regex searched in the demangled name), _FIRST (launches
// kept a kernel and process, 2), _SELECT (first | smallest | largest; of the first, repetitions make room for launches of
// another shape or with other scalars), _CAP (bytes a launch, 1 GiB), _STOP (1: end the program with code 0 once every wanted
// launch is recorded; only with _SELECT=first).
#pragma once

#include <cxxabi.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cuda_agent::capture {

using Resolve = std::function<bool(std::uint64_t word, std::uint64_t& base, std::uint64_t& size)>;
using Reader = std::function<bool(std::uint64_t address, void* host, std::size_t bytes)>;
using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

// One parameter as a launch passes it.
struct Parameter {
    std::size_t offset, size;  // in the parameter block
    const void* data;
};
using Parameters = std::vector<Parameter>;

// Grid and block, x y z each, and dynamic shared bytes.
using Shape = std::array<std::uint64_t, 7>;

struct Pointer {
    std::size_t at;        // in the argument
    std::size_t buffer;    // index into Launch::buffers
    std::uint64_t offset;  // in that buffer
};

struct Argument {
    std::size_t offset;  // in the parameter block
    std::vector<unsigned char> data;
    std::vector<Pointer> pointers;
};

struct Buffer {
    std::uint64_t address;
    std::uint64_t size;
    std::string before, after;      // file names; empty while not written
    std::optional<Ranges> written;  // exact byte ranges, where the runtime knows them
};

struct Global {
    std::string symbol;
    std::vector<unsigned char> data;
    std::string file;
};

struct Launch {
    bool wanted = false;
    long seq = 0;
    std::string mangled, demangled, device;
    unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
    std::uint64_t shared = 0;
    std::string likeness;  // equal for launches of one kernel that differ in nothing but addresses and memory
    std::vector<Argument> args;
    std::vector<Buffer> buffers;
    std::vector<Global> globals;

    // Index of the buffer at `address`; added when it is new.
    std::size_t add_buffer(std::uint64_t address, std::uint64_t size) {
        for (std::size_t i = 0; i < buffers.size(); ++i)
            if (buffers[i].address == address) return i;
        buffers.push_back({address, size, "", "", std::nullopt});
        return buffers.size() - 1;
    }

    // Records one argument. Every 8-byte word aligned in the parameter block that resolves becomes a pointer, so structs
    // passed by value work too.
    Argument& add_arg(std::size_t offset, const void* data, std::size_t size, const Resolve& resolve = nullptr) {
        const auto* bytes = static_cast<const unsigned char*>(data);
        Argument arg{offset, {bytes, bytes + size}, {}};
        for (std::size_t at = (8 - offset % 8) % 8; resolve && at + 8 <= size; at += 8) {
            std::uint64_t word, base = 0, length = 0;
            std::memcpy(&word, bytes + at, 8);
            if (word != 0 && resolve(word, base, length)) arg.pointers.push_back({at, add_buffer(base, length), word - base});
        }
        args.push_back(std::move(arg));
        return args.back();
    }

    void add_global(const std::string& symbol, const void* data, std::size_t size) {
        const auto* bytes = static_cast<const unsigned char*>(data);
        globals.push_back({symbol, {bytes, bytes + size}, ""});
    }

    void add_written(std::size_t buffer, std::uint64_t start, std::uint64_t end) {
        auto& ranges = buffers.at(buffer).written;
        if (!ranges) ranges.emplace();
        ranges->emplace_back(start, end);
    }

    std::uint64_t bytes() const {
        std::uint64_t total = 0;
        for (const auto& b : buffers) total += b.size;
        for (const auto& g : globals) total += g.data.size();
        return total;
    }
};

inline std::string demangle(const std::string& mangled) {
    int status = 0;
    std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
    return status == 0 && text ? std::string(text.get()) : mangled;
}

class Recorder {
   public:
    Recorder() {
        dir_ = setting("DIR", "");
        if (dir_.empty()) return;
        try {
            const std::string pattern = setting("KERNEL", "");
            if (!pattern.empty()) filter_.emplace(pattern, std::regex::ECMAScript | std::regex::optimize);
        } catch (const std::regex_error& error) {
            std::fprintf(stderr, "cuda-agent: the kernel filter is not a regular expression: %s\n", error.what());
            dir_.clear();
            return;
        }
        first_ = std::strtol(setting("FIRST", "2").c_str(), nullptr, 10);
        select_ = setting("SELECT", "first");
        cap_ = std::strtoull(setting("CAP", "1073741824").c_str(), nullptr, 10);
        stop_ = setting("STOP", "0") == "1" && select_ == "first";
    }

    ~Recorder() {
        std::lock_guard<std::mutex> hold(mutex_);
        for (auto& [mangled, kernel] : kernels_) write_count(mangled, kernel);
    }

    bool enabled() const { return !dir_.empty(); }
    const std::string& directory() const { return dir_; }

    // Whether the demangled name passes the filter (not whether enough launches of it are recorded).
    bool wants(const std::string& demangled) const { return enabled() && (!filter_ || std::regex_search(demangled, *filter_)); }

    // Counts a launch and says in `.wanted` whether to record it. Ends the program when `_STOP` is set and this launch
    // shows that nothing more is wanted.
    Launch begin(const std::string& mangled, const unsigned grid[3], const unsigned block[3], std::uint64_t shared,
                 const std::string& device, const Parameters* parameters) {
        std::unique_lock<std::mutex> hold(mutex_);
        Kernel& kernel = kernels_[mangled];
        if (kernel.seen == 0) {
            kernel.demangled = demangle(mangled);
            kernel.matches = wants(kernel.demangled);
            quiet_ = 0;
        }
        const bool other = kernel.watch_shape(grid, block, shared);
        const bool news = kernel.watch(parameters) || other;
        ++kernel.seen;
        // At 1, 2, 4, … and where another parameter changes or a shape is new: a killed program keeps these lines.
        if (news || (kernel.seen & (kernel.seen - 1)) == 0) write_count(mangled, kernel);
        Launch launch;
        launch.seq = seq_++;
        launch.mangled = mangled;
        launch.demangled = kernel.demangled;
        launch.device = device;
        launch.shared = shared;
        std::memcpy(launch.grid, grid, sizeof launch.grid);
        std::memcpy(launch.block, block, sizeof launch.block);
        launch.wanted = kernel.matches && kernel.skipped < kSkips;
        if (launch.wanted && select_ == "first") {
            const bool room = kernel.recorded < first_;
            if (parameters && (room || kernel.repetition)) launch.likeness = likeness(launch, *parameters);
            // With the places taken, another size is worth more than a repetition: it takes its place in `finish`.
            launch.wanted = room || (kernel.repetition && !stop_ && parameters && !kernel.holds(launch.likeness));
        }
        if (launch.wanted)
            quiet_ = 0;
        else if (++quiet_, stop_ && satisfied())
            end_program(hold);
        return launch;
    }

    // Copies every buffer. False when the launch is skipped (cap, selection, nested pointers, unreadable memory, full disk):
    // then `wanted` is false, and the record says why.
    bool before(Launch& launch, const Reader& reader, const Resolve& resolve = nullptr) {
        if (launch.bytes() > cap_)
            return skip(launch, "its buffers hold " + std::to_string(launch.bytes()) + " bytes, the limit is " + std::to_string(cap_));
        if (!selected(launch)) return launch.wanted = false;
        for (std::size_t i = 0; i < launch.buffers.size(); ++i) {
            Buffer& buffer = launch.buffers[i];
            buffer.before = stem(launch) + "." + std::to_string(i) + ".before";
            Sampler sampler{resolve};
            const std::string trouble = copy(buffer, buffer.before, reader, sampler);
            if (!trouble.empty()) return skip(launch, trouble);
            if (sampler.nested())
                return skip(launch, "buffer " + std::to_string(i) + " holds device pointers (nested pointers cannot be replayed)");
        }
        for (std::size_t i = 0; i < launch.globals.size(); ++i) {
            Global& global = launch.globals[i];
            global.file = stem(launch) + ".g" + std::to_string(i);
            Out out(path(global.file));
            if (!out.write(global.data.data(), global.data.size())) return skip(launch, out.trouble());
        }
        return true;
    }

    // Copies the buffers again and writes the launch's line. A buffer that did not change names its `before` file twice.
    void finish(Launch& launch, const Reader& reader) {
        for (std::size_t i = 0; i < launch.buffers.size(); ++i) {
            Buffer& buffer = launch.buffers[i];
            const std::string trouble = copy_changed(buffer, stem(launch) + "." + std::to_string(i) + ".after", reader);
            if (!trouble.empty()) {
                skip(launch, trouble);
                return;
            }
        }
        std::lock_guard<std::mutex> hold(mutex_);
        line(json(launch, ""));
        Kernel& kernel = kernels_[launch.mangled];
        ++kernel.recorded;
        kernel.kept.emplace_back(launch);
        if (static_cast<long>(kernel.kept.size()) > first_) drop(kernel, select_ == "first" ? kernel.repetition.value_or(first_) : worst(kernel));
        if (select_ == "first") kernel.find_repetition();
    }

    // Says why a launch was not recorded and removes what was already written of it. Returns false for use in `return skip(…)`.
    bool skip(Launch& launch, const std::string& why) {
        std::lock_guard<std::mutex> hold(mutex_);
        remove_files(launch);
        launch.wanted = false;
        ++kernels_[launch.mangled].skipped;
        line(json(launch, why));
        return false;
    }

    // A message that belongs to no launch ("graph launches are not captured"); each text is written once.
    void note(const std::string& text) {
        std::lock_guard<std::mutex> hold(mutex_);
        if (!enabled() || noted_[text]) return;
        noted_[text] = true;
        line("{\"note\": " + quote(text) + "}");
    }

   private:
    // Launches in a row that nobody wants before the program is ended: a kernel not seen yet may still come. After the longer
    // wait, kernels that were launched too seldom to be complete count as done.
    static constexpr long kQuiet = 8, kLongQuiet = 16;
    static constexpr long kSkips = 16;  // after so many failures of one kernel it is left alone
    static constexpr std::size_t kShapes = 1024;     // of one kernel that are told
    static constexpr std::uint64_t kThreads = 1024;  // a block has at most
    static constexpr std::size_t kChunk = std::size_t{16} << 20;

    struct Kernel {
        std::string demangled;
        bool matches = false;
        long seen = 0, recorded = 0, skipped = 0;
        std::vector<Launch> kept;  // without data
        std::optional<std::size_t> repetition;  // the last kept launch that is like an earlier one
        bool told = false;         // the parameters of every launch so far
        std::vector<std::vector<unsigned char>> first;  // each parameter's bytes in the first launch
        std::vector<bool> varied;                       // whether a later launch had others
        std::set<Shape> shapes;                         // of all launches so far, the first kShapes of them
        std::vector<Shape> untold;                      // those that no line has yet

        // Whether no launch so far had this shape. One that no GPU launches is none.
        bool watch_shape(const unsigned grid[3], const unsigned block[3], std::uint64_t shared) {
            const Shape shape{grid[0], grid[1], grid[2], block[0], block[1], block[2], shared};
            if (std::count(shape.begin(), shape.begin() + 6, 0u) > 0 || shape[3] * shape[4] * shape[5] > kThreads) return false;
            if (shapes.size() >= kShapes || !shapes.insert(shape).second) return false;
            untold.push_back(shape);
            return true;
        }

        // Compares a launch's parameters with the first launch's: a memcmp for each that was always the same so far. Returns
        // whether that says anything new.
        bool watch(const Parameters* now) {
            if (seen == 0 && now) {
                told = true;
                for (const Parameter& p : *now) {
                    const auto* bytes = static_cast<const unsigned char*>(p.data);
                    first.emplace_back(bytes, bytes + p.size);
                }
                varied.assign(first.size(), false);
            }
            if (seen == 0 || !told) return false;
            if (!now || now->size() != first.size()) {  // another kernel of that name
                told = false;
                return true;
            }
            bool news = false;
            for (std::size_t i = 0; i < first.size(); ++i) {
                const Parameter& p = (*now)[i];
                if (varied[i] || (p.size == first[i].size() && std::memcmp(p.data, first[i].data(), p.size) == 0)) continue;
                varied[i] = news = true;
            }
            return news;
        }

        bool holds(const std::string& likeness) const {
            return std::any_of(kept.begin(), kept.end(), [&](const Launch& one) { return one.likeness == likeness; });
        }

        void find_repetition() {
            repetition.reset();
            for (std::size_t i = 1; i < kept.size(); ++i)
                if (std::any_of(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(i),
                                [&](const Launch& one) { return one.likeness == kept[i].likeness; }))
                    repetition = i;
        }
    };

    // Grid, block, shared memory and the parameters, but for words that could be addresses.
    static std::string likeness(const Launch& launch, const Parameters& parameters) {
        std::string out;
        const auto add = [&out](const void* data, std::size_t size) { out.append(static_cast<const char*>(data), size); };
        add(launch.grid, sizeof launch.grid);
        add(launch.block, sizeof launch.block);
        add(&launch.shared, sizeof launch.shared);
        for (const Parameter& p : parameters) {
            const std::size_t start = out.size();
            add(p.data, p.size);
            for (std::size_t at = (8 - p.offset % 8) % 8; at + 8 <= p.size; at += 8) {
                std::uint64_t word;
                std::memcpy(&word, &out[start + at], 8);
                if ((word >> 48) == 0 && (word >> 32) != 0) std::memset(&out[start + at], 0, 8);
            }
        }
        return out;
    }

    // Looks for device addresses in a buffer's content: arrays of pointers and structs that hold them.
    struct Sampler {
        const Resolve& resolve;
        std::size_t words = 0, hits = 0, bases = 0;

        void look(const unsigned char* data, std::size_t size) {
            if (!resolve) return;
            const std::size_t count = size / 8, head = count < 512 ? count : 512;
            for (std::size_t i = 0; i < head; ++i) word(data + i * 8);
            const std::size_t step = count / 512 + 1;
            for (std::size_t i = head; i < count; i += step) word(data + i * 8);
        }

        void word(const unsigned char* at) {
            std::uint64_t value, base = 0, size = 0;
            std::memcpy(&value, at, 8);
            // User-space and device addresses lie between 2^32 and 2^48; asking the driver for other words is waste.
            if (value == 0) return;
            ++words;
            if ((value >> 48) != 0 || (value >> 32) == 0 || value % 4 != 0 || !resolve(value, base, size)) return;
            ++hits;
            bases += value == base;
        }

        // One word that is the start of an allocation is no accident; interior addresses need to be frequent (a pair of 32-bit
        // integers can look like one).
        bool nested() const { return bases > 0 || (hits > 0 && hits * 8 >= words); }
    };

    struct Out {
        std::FILE* file;
        int error = 0;
        std::string name;
        explicit Out(const std::string& path) : file(std::fopen(path.c_str(), "wb")), name(path) {
            if (!file) error = errno;
        }
        Out(const Out&) = delete;
        Out& operator=(const Out&) = delete;
        ~Out() { close(); }
        bool write(const void* data, std::size_t size) {
            if (file && error == 0 && size != 0 && std::fwrite(data, 1, size, file) != size) error = errno ? errno : EIO;
            return error == 0;
        }
        bool close() {
            if (file && std::fclose(file) != 0 && error == 0) error = errno;
            file = nullptr;
            return error == 0;
        }
        std::string trouble() const { return "cannot write " + name + ": " + std::strerror(error); }
    };

    std::string dir_, select_;
    std::optional<std::regex> filter_;
    long first_ = 2, seq_ = 0, quiet_ = 0;
    std::uint64_t cap_ = 0;
    bool stop_ = false;
    std::mutex mutex_;
    std::map<std::string, Kernel> kernels_;
    std::map<std::string, bool> noted_;

    static std::string setting(const char* name, const char* fallback) {
        const char* value = std::getenv((std::string("CUDA_AGENT_CAPTURE_") + name).c_str());
        return value && *value ? value : fallback;
    }

    std::string path(const std::string& name) const { return dir_ + "/" + name; }
    static std::string stem(const Launch& launch) { return std::to_string(getpid()) + "-" + std::to_string(launch.seq); }

    bool satisfied() const {
        bool any = false, complete = true, some = true;
        for (const auto& [mangled, kernel] : kernels_) {
            if (!kernel.matches) continue;
            complete &= kernel.recorded >= first_ || kernel.skipped >= kSkips;
            some &= kernel.recorded > 0 || kernel.skipped > 0;
            any |= kernel.recorded > 0;
        }
        return any && ((complete && quiet_ >= (filter_ ? 1 : kQuiet)) || (some && quiet_ >= kLongQuiet));
    }

    [[noreturn]] void end_program(std::unique_lock<std::mutex>& hold) {
        for (auto& [mangled, kernel] : kernels_) write_count(mangled, kernel);
        line("{\"stopped\": " + std::to_string(getpid()) + "}");
        hold.unlock();
        std::cout.flush();
        std::fflush(nullptr);
        // No destructors: the device context may be in use by this very call.
        std::_Exit(0);
    }

    bool selected(const Launch& launch) {
        if (select_ == "first") return true;
        std::lock_guard<std::mutex> hold(mutex_);
        const Kernel& kernel = kernels_[launch.mangled];
        if (static_cast<long>(kernel.kept.size()) < first_) return true;
        for (const auto& kept : kernel.kept)
            if (select_ == "smallest" ? launch.bytes() < kept.bytes() : launch.bytes() > kept.bytes()) return true;
        return false;
    }

    std::size_t worst(const Kernel& kernel) const {
        std::size_t worst = 0;
        for (std::size_t i = 1; i < kernel.kept.size(); ++i) {
            const std::uint64_t a = kernel.kept[i].bytes(), b = kernel.kept[worst].bytes();
            if (select_ == "smallest" ? a > b : a < b) worst = i;
        }
        return worst;
    }

    void drop(Kernel& kernel, std::size_t index) {
        Launch& launch = kernel.kept[index];
        line("{\"dropped\": " + std::to_string(launch.seq) + ", \"pid\": " + std::to_string(getpid()) + "}");
        remove_files(launch);
        kernel.kept.erase(kernel.kept.begin() + static_cast<std::ptrdiff_t>(index));
    }

    void remove_files(Launch& launch) {
        for (auto& b : launch.buffers) {
            for (auto* name : {&b.before, &b.after})
                if (!name->empty()) std::remove(path(*name).c_str());
            b.before.clear();
            b.after.clear();
        }
        for (auto& g : launch.globals)
            if (!g.file.empty()) std::remove(path(g.file).c_str());
    }

    std::string copy(const Buffer& buffer, const std::string& name, const Reader& reader, Sampler& sampler) {
        Out out(path(name));
        std::vector<unsigned char> host(std::min<std::uint64_t>(buffer.size, kChunk));
        for (std::uint64_t at = 0; at < buffer.size; at += host.size()) {
            const std::size_t size = std::min<std::uint64_t>(host.size(), buffer.size - at);
            if (!reader(buffer.address + at, host.data(), size)) return "its memory could not be read";
            sampler.look(host.data(), size);
            if (!out.write(host.data(), size)) return out.trouble();
        }
        return out.close() ? "" : out.trouble();
    }

    // Writes `name` only when a byte differs from the before file; the equal prefix is then copied from there.
    std::string copy_changed(Buffer& buffer, const std::string& name, const Reader& reader) {
        std::unique_ptr<std::FILE, int (*)(std::FILE*)> old(std::fopen(path(buffer.before).c_str(), "rb"), std::fclose);
        if (!old) return "cannot read " + path(buffer.before) + ": " + std::strerror(errno);
        std::unique_ptr<Out> out;
        std::vector<unsigned char> host(std::min<std::uint64_t>(buffer.size, kChunk)), was(host.size());
        for (std::uint64_t at = 0; at < buffer.size; at += host.size()) {
            const std::size_t size = std::min<std::uint64_t>(host.size(), buffer.size - at);
            if (!reader(buffer.address + at, host.data(), size)) return "its memory could not be read after the launch";
            if (!out) {
                if (std::fread(was.data(), 1, size, old.get()) != size) return "cannot read " + path(buffer.before);
                if (std::memcmp(was.data(), host.data(), size) == 0) continue;
                buffer.after = name;
                out = std::make_unique<Out>(path(name));
                std::rewind(old.get());
                for (std::uint64_t done = 0; done < at; done += was.size()) {
                    const std::size_t part = std::min<std::uint64_t>(was.size(), at - done);
                    if (std::fread(was.data(), 1, part, old.get()) != part) return "cannot read " + path(buffer.before);
                    if (!out->write(was.data(), part)) return out->trouble();
                }
            }
            if (!out->write(host.data(), size)) return out->trouble();
        }
        if (out && !out->close()) return out->trouble();
        return "";
    }

    static std::string quote(const std::string& text) {
        std::string out = "\"";
        for (const char c : text) {
            if (c == '"' || c == '\\') {
                out += '\\';
                out += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                char code[8];
                std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
                out += code;
            } else {
                out += c;
            }
        }
        return out + '"';
    }

    static std::string hex(const std::vector<unsigned char>& data) {
        static const char digits[] = "0123456789abcdef";
        std::string out = "\"";
        for (const unsigned char byte : data) out += {digits[byte >> 4], digits[byte & 15]};
        return out + '"';
    }

    static std::string dims(const unsigned d[3]) {
        return "[" + std::to_string(d[0]) + "," + std::to_string(d[1]) + "," + std::to_string(d[2]) + "]";
    }

    static std::string json(const Launch& launch, const std::string& skipped) {
        std::string out = "{\"seq\": " + std::to_string(launch.seq) + ", \"pid\": " + std::to_string(getpid()) +
                          ", \"mangled\": " + quote(launch.mangled) + ", \"demangled\": " + quote(launch.demangled) +
                          ", \"grid\": " + dims(launch.grid) + ", \"block\": " + dims(launch.block) +
                          ", \"shared\": " + std::to_string(launch.shared) + ", \"device\": " + quote(launch.device);
        if (!skipped.empty()) return out + ", \"skipped\": " + quote(skipped) + "}";
        out += ", \"args\": [";
        for (const auto& arg : launch.args) {
            out += std::string(&arg == &launch.args.front() ? "" : ", ") + "{\"offset\": " + std::to_string(arg.offset) +
                   ", \"hex\": " + hex(arg.data) + ", \"pointers\": [";
            for (const auto& p : arg.pointers)
                out += std::string(&p == &arg.pointers.front() ? "" : ", ") + "[" + std::to_string(p.at) + ", " + std::to_string(p.buffer) +
                       ", " + std::to_string(p.offset) + "]";
            out += "]}";
        }
        out += "], \"buffers\": [";
        for (const auto& b : launch.buffers) {
            out += std::string(&b == &launch.buffers.front() ? "" : ", ") + "{\"address\": " + std::to_string(b.address) +
                   ", \"size\": " + std::to_string(b.size) + ", \"before\": " + quote(b.before) +
                   ", \"after\": " + quote(b.after.empty() ? b.before : b.after) + ", \"written\": ";
            if (b.written) {
                out += "[";
                for (const auto& r : *b.written)
                    out += std::string(&r == &b.written->front() ? "" : ", ") + "[" + std::to_string(r.first) + ", " +
                           std::to_string(r.second) + "]";
                out += "]}";
            } else {
                out += "null}";
            }
        }
        out += "], \"globals\": [";
        for (const auto& g : launch.globals)
            out += std::string(&g == &launch.globals.front() ? "" : ", ") + "[" + quote(g.symbol) + ", " + quote(g.file) + "]";
        return out + "], \"skipped\": null}";
    }

    void write_count(const std::string& mangled, Kernel& kernel) {
        line("{\"seen\": " + std::to_string(kernel.seen) + ", \"pid\": " + std::to_string(getpid()) +
             ", \"mangled\": " + quote(mangled) + ", \"demangled\": " + quote(kernel.demangled) +
             ", \"wanted\": " + (kernel.matches ? "true" : "false") + parameters(kernel) + shapes(kernel) + "}");
    }

    // What is known of the parameters of all launches; the first launch's bytes only in its own line.
    static std::string parameters(const Kernel& kernel) {
        if (!kernel.told) return ", \"varied\": null";
        std::string varied, first;
        for (std::size_t i = 0; i < kernel.first.size(); ++i) {
            if (kernel.varied[i]) varied += (varied.empty() ? "" : ", ") + std::to_string(i);
            if (kernel.seen == 1) first += (i == 0 ? "" : ", ") + hex(kernel.first[i]);
        }
        return ", \"varied\": [" + varied + "]" + (kernel.seen == 1 ? ", \"first\": [" + first + "]" : "");
    }

    // The shapes that the kernel's earlier lines do not have.
    static std::string shapes(Kernel& kernel) {
        std::string all;
        for (const Shape& shape : kernel.untold) {
            std::string one;
            for (const std::uint64_t number : shape) one += (one.empty() ? "" : ", ") + std::to_string(number);
            all += (all.empty() ? "[" : ", [") + one + "]";
        }
        kernel.untold.clear();
        return ", \"shapes\": [" + all + "]";
    }

    // One locked append a line: several processes of one run share the file.
    void line(std::string text) {
        text += '\n';
        const int fd = ::open(path("launches.jsonl").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (fd < 0) return complain();
        ::flock(fd, LOCK_EX);
        const char* at = text.data();
        for (std::size_t left = text.size(); left != 0;) {
            const ssize_t n = ::write(fd, at, left);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) {
                complain();
                break;
            }
            at += n;
            left -= static_cast<std::size_t>(n);
        }
        ::close(fd);
    }

    void complain() const { std::fprintf(stderr, "cuda-agent: cannot write %s/launches.jsonl: %s\n", dir_.c_str(), std::strerror(errno)); }
};

// The process's recorder; made on first use from the environment.
inline Recorder& recorder() {
    static Recorder instance;
    return instance;
}

}  // namespace cuda_agent::capture
