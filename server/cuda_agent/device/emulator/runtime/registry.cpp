// Kernels and globals register themselves while the object is loaded.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>

#include "cuemu/launch.h"
#include "symbols.h"

namespace cuemu {
namespace {

struct Registry {
    std::mutex mutex;
    std::deque<Kernel> kernels;  // addresses stay
    std::vector<Global> globals;
};

Registry &registry() {
    static auto *instance = new Registry;  // never destroyed: registrars and late launches may outlive static destructors
    return *instance;
}

bool digits_only_name(const std::string &encoding) {
    // extern "C": the encoding is a bare <length><name>, without parameter types.
    std::size_t length = 0, at = 0;
    while (at < encoding.size() && encoding[at] >= '0' && encoding[at] <= '9')
        length = length * 10 + static_cast<std::size_t>(encoding[at++] - '0');
    return at != 0 && at + length == encoding.size();
}

// typeid(Tag).name() is Z<encoding of the kernel>E12cuemu_kernel: the local class's <local-name> in the Itanium ABI.
std::string mangled_from_tag(const char *tag) {
    std::string text = tag[0] == '*' ? tag + 1 : tag;
    const std::string tail = "E12cuemu_kernel";
    auto end = text.rfind(tail);
    if (text.empty() || text[0] != 'Z' || end == std::string::npos) return text;
    std::string encoding = text.substr(1, end - 1);
    if (digits_only_name(encoding)) return encoding.substr(encoding.find_first_not_of("0123456789"));
    return "_Z" + encoding;
}

// g++ marks names with internal linkage by an L (_ZL1kPi, _ZN2nsL1kEPi); nvcc leaves it out. Names here are nvcc's.
std::string without_internal_mark(const std::string &symbol) {
    if (symbol.compare(0, 2, "_Z") != 0) return symbol;
    std::size_t at = 2;
    if (at < symbol.size() && symbol[at] == 'N') ++at;
    auto digit = [&](std::size_t i) { return i < symbol.size() && symbol[i] >= '0' && symbol[i] <= '9'; };
    while (at < symbol.size()) {
        if (symbol[at] == 'L' && digit(at + 1)) return symbol.substr(0, at) + symbol.substr(at + 1);
        if (!digit(at)) break;
        std::size_t length = 0;
        while (digit(at)) length = length * 10 + static_cast<std::size_t>(symbol[at++] - '0');
        at += length;
    }
    return symbol;
}

// Variables of the global namespace have plain names, static ones too.
std::string variable_name(const std::string &symbol) {
    std::string plain = without_internal_mark(symbol);
    if (plain == symbol || !digits_only_name(plain.substr(2))) return symbol;
    return plain.substr(plain.find_first_not_of("0123456789", 2));
}

const Kernel *resolved(Kernel &kernel) {
    if (kernel.function == nullptr) kernel.function = symbol_address(kernel.symbol);
    return &kernel;
}

}  // namespace

namespace detail {

const Kernel *register_kernel(const char *tag, Thunk thunk, unsigned count, const unsigned *offsets, const unsigned *sizes,
                              unsigned bytes) {
    auto &r = registry();
    std::lock_guard<std::mutex> lock(r.mutex);
    std::string symbol = mangled_from_tag(tag);
    bool internal = tag[0] == '*';  // static kernels: two files may each have one of this name
    for (auto &kernel : r.kernels)
        if (!internal && kernel.symbol == symbol) return &kernel;
    r.kernels.push_back(Kernel{without_internal_mark(symbol), symbol, thunk, count, offsets, sizes, bytes, nullptr});
    return &r.kernels.back();
}

void resolve(const Kernel *kernel, const void *pc) {
    if (kernel->function != nullptr) return;
    auto &r = registry();
    std::lock_guard<std::mutex> lock(r.mutex);
    const_cast<Kernel *>(kernel)->function = function_around(pc);
}

int register_global(const char *name, const volatile void *address, std::size_t size) {
    auto &r = registry();
    std::lock_guard<std::mutex> lock(r.mutex);
    r.globals.push_back(Global{"", name, const_cast<void *>(address), size});
    return 0;
}

}  // namespace detail

std::vector<const Kernel *> kernels() {
    auto &r = registry();
    std::lock_guard<std::mutex> lock(r.mutex);
    std::vector<const Kernel *> out;
    for (auto &kernel : r.kernels) out.push_back(resolved(kernel));
    return out;
}

const Kernel *find_kernel(const void *function) {
    auto &r = registry();
    std::lock_guard<std::mutex> lock(r.mutex);
    for (auto &kernel : r.kernels)
        if (resolved(kernel)->function == function) return &kernel;
    return nullptr;
}

const Kernel *find_kernel(const char *mangled) {
    auto &r = registry();
    std::lock_guard<std::mutex> lock(r.mutex);
    for (auto &kernel : r.kernels)
        if (kernel.mangled == mangled) return resolved(kernel);
    return nullptr;
}

std::vector<Global> globals() {
    auto &r = registry();
    std::lock_guard<std::mutex> lock(r.mutex);
    for (auto &global : r.globals) {
        if (!global.mangled.empty()) continue;
        global.mangled = variable_name(symbol_name(global.address));
        if (global.mangled.empty()) global.mangled = global.name;
    }
    return r.globals;
}

}  // namespace cuemu

extern "C" __attribute__((weak)) void cuemu_on_launch(const cuemu::Request &request) {
    cuemu::Outcome outcome = cuemu::execute(request);
    if (outcome.error.empty()) return;
    std::fprintf(stderr, "kernel %s: %s\n", request.kernel->mangled.c_str(), outcome.error.c_str());
    std::abort();
}
