// Launches and the registration of kernels and globals. See README.md for what translate.py writes.
#pragma once

#include <cstring>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "runtime.h"

namespace cuemu {

struct Config {
    dim3 grid, block;
    std::size_t shared;
    const void *stream;
    Config(dim3 g, dim3 b, std::size_t s = 0, const void *st = nullptr) : grid(g), block(b), shared(s), stream(st) {}
};

// Filled by the kernel's own prologue while `Context::binding` points here.
struct Binding {
    const Kernel *kernel = nullptr;
    alignas(64) unsigned char params[32 * 1024];  // CUDA's largest parameter block is 32,764 bytes
};

namespace detail {

const Kernel *register_kernel(const char *tag, Thunk thunk, unsigned count, const unsigned *offsets, const unsigned *sizes,
                              unsigned bytes);
int register_global(const char *name, const volatile void *address, std::size_t size);
void launch(const Config &config, void *callable, void (*call)(void *));
Binding *current_binding();
void resolve(const Kernel *kernel, const void *pc);  // the kernel is the function around this code address
[[noreturn]] void unsupported(const char *what);

template <class... P> struct Layout {
    static constexpr unsigned kCount = sizeof...(P);
    struct Table {
        unsigned offsets[kCount + 1];
        unsigned sizes[kCount + 1];
        unsigned bytes;
    };
    static constexpr Table make() {
        Table t{};
        constexpr unsigned size[] = {static_cast<unsigned>(sizeof(P))..., 0};
        constexpr unsigned align[] = {static_cast<unsigned>(alignof(P))..., 1};
        unsigned at = 0;
        for (unsigned i = 0; i < kCount; ++i) {
            at = (at + align[i] - 1) / align[i] * align[i];
            t.offsets[i] = at;
            t.sizes[i] = size[i];
            at += size[i];
        }
        t.bytes = at;
        return t;
    }
    static constexpr Table table = make();

    template <std::size_t... I>
    // Reads of the parameter block are not the kernel's.
    __attribute__((no_sanitize_thread)) static void call_all(void *function, const unsigned char *params, std::index_sequence<I...>) {
        (void)params;
        reinterpret_cast<void (*)(P...)>(function)(*reinterpret_cast<const P *>(params + table.offsets[I])...);
    }
    __attribute__((no_sanitize_thread)) static void thunk(void *function, const unsigned char *params) {
        call_all(function, params, std::index_sequence_for<P...>{});
    }
};

// One static member for each kernel instantiation (Tag is a local class of it): registered when the object is loaded.
template <class Tag, class... P> struct Registrar {
    static const Kernel *const entry;
};
template <class Tag, class... P>
const Kernel *const Registrar<Tag, P...>::entry =
    register_kernel(typeid(Tag).name(), &Layout<P...>::thunk, Layout<P...>::kCount, Layout<P...>::table.offsets,
                    Layout<P...>::table.sizes, Layout<P...>::table.bytes);

// GCC deduces `T *__restrict__` for such a parameter, and cannot form pointers to that.
template <class T> struct Plain {
    using type = T;
};
template <class T> struct Plain<T *__restrict__> {
    using type = T *;
};

template <class Tag, class... P> __attribute__((noinline, no_sanitize_thread)) void bind(const P &...p) {
    Binding *b = current_binding();
    const Kernel *kernel = Registrar<Tag, typename Plain<P>::type...>::entry;
    resolve(kernel, __builtin_return_address(0));
    b->kernel = kernel;
    unsigned i = 0;
    (void)i;
    ((std::memcpy(b->params + kernel->offsets[i], (const unsigned char *)(&p), sizeof(P)), ++i), ...);
}

template <class F> void launch_with(const Config &config, F &&call) {
    using Call = std::remove_reference_t<F>;
    launch(config, &call, [](void *f) { (*static_cast<Call *>(f))(); });
}

}  // namespace detail
}  // namespace cuemu

#define CUEMU_LAUNCH(kernel, config, ...) \
    ::cuemu::detail::launch_with(::cuemu::Config config, [&]() { kernel(__VA_ARGS__); })

// `struct cuemu_kernel` is local to the kernel's instantiation: its typeid holds the kernel's mangled name.
// The empty asm keeps `bind` from becoming a tail call: its return address must lie in the kernel.
#define CUEMU_KERNEL(...)                                \
    struct cuemu_kernel {};                              \
    if (::cuemu::binding()) {                            \
        ::cuemu::detail::bind<cuemu_kernel>(__VA_ARGS__); \
        __asm__ volatile("");                            \
        return;                                          \
    }

#define CUEMU_GLOBAL(name)                                                                               \
    [[maybe_unused]] static const int cuemu_global_##name =                                              \
        ::cuemu::detail::register_global(#name, reinterpret_cast<const volatile char *>(&(name)), sizeof(name));

#define CUEMU_UNSUPPORTED(what) ::cuemu::detail::unsupported(what)
