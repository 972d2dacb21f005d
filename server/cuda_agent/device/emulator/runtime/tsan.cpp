// The entry points that GCC's -fsanitize=thread calls, in place of libtsan's: each access of a traced module arrives here.
#include <cstdint>

#include "cuemu/device_api.h"
#include "tracer.h"

namespace cuemu {

extern std::atomic<bool> tracing;

namespace {

__attribute__((always_inline)) inline Tracer *tracer_here() {
    if (!tracing.load(std::memory_order_relaxed)) return nullptr;
    // Host code of the module is instrumented too: only a kernel's fiber has a context.
    if (!stack_range.holds(reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)))) return nullptr;
    Block *block = context()->owner;
    return block == nullptr ? nullptr : block->tracer;
}

__attribute__((always_inline)) inline void on_access(const volatile void *address, std::size_t size, bool write, bool atomic,
                                                     bool is_volatile, const void *pc) {
    if (Tracer *t = tracer_here())
        t->access(reinterpret_cast<std::uintptr_t>(address), size, write, atomic, is_volatile, reinterpret_cast<std::uintptr_t>(pc));
}

// Accesses of a type that is aligned to its size.
__attribute__((always_inline)) inline void on_aligned(const volatile void *address, std::size_t size, bool write, bool is_volatile,
                                                      const void *pc) {
    auto at = reinterpret_cast<std::uintptr_t>(address);
    if (__builtin_expect(at % size != 0, 0))
        if (Tracer *t = tracer_here()) t->aligned(at, size, write, reinterpret_cast<std::uintptr_t>(pc));
    on_access(address, size, write, false, is_volatile, pc);
}

// Whole-object copies: as the instructions a GPU would use, at most 16 bytes each.
inline void on_range(const void *address, std::size_t size, bool write, const void *pc) {
    auto at = reinterpret_cast<std::uintptr_t>(address);
    while (size != 0) {
        std::size_t part = 16;
        while (part > size || at % part != 0) part /= 2;
        on_access(reinterpret_cast<const void *>(at), part, write, false, false, pc);
        at += part;
        size -= part;
    }
}

}  // namespace

namespace detail {
void trace_atomic(const volatile void *address, std::size_t size, const void *pc) {
    on_access(address, size, true, true, false, pc);
}
}  // namespace detail
}  // namespace cuemu

#define PC __builtin_return_address(0)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}

#define CUEMU_SIZE(n)                                                                                        \
    void __tsan_read##n(void *p) { cuemu::on_aligned(p, n, false, false, PC); }                              \
    void __tsan_write##n(void *p) { cuemu::on_aligned(p, n, true, false, PC); }                              \
    void __tsan_volatile_read##n(void *p) { cuemu::on_aligned(p, n, false, true, PC); }                      \
    void __tsan_volatile_write##n(void *p) { cuemu::on_aligned(p, n, true, true, PC); }                      \
    void __tsan_unaligned_read##n(void *p) { cuemu::on_access(p, n, false, false, false, PC); }              \
    void __tsan_unaligned_write##n(void *p) { cuemu::on_access(p, n, true, false, false, PC); }              \
    void __tsan_unaligned_volatile_read##n(void *p) { cuemu::on_access(p, n, false, false, true, PC); }      \
    void __tsan_unaligned_volatile_write##n(void *p) { cuemu::on_access(p, n, true, false, true, PC); }
CUEMU_SIZE(1)
CUEMU_SIZE(2)
CUEMU_SIZE(4)
CUEMU_SIZE(8)
CUEMU_SIZE(16)
#undef CUEMU_SIZE

void __tsan_read_range(void *p, std::size_t size) { cuemu::on_range(p, size, false, PC); }
void __tsan_write_range(void *p, std::size_t size) { cuemu::on_range(p, size, true, PC); }

// std::atomic and __atomic_* of the program: done here, with the order that is always enough.
#define CUEMU_ATOMIC(bits, type)                                                                                              \
    type __tsan_atomic##bits##_load(const volatile type *p, int) {                                                            \
        cuemu::on_access(p, sizeof(type), false, true, false, PC);                                                            \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                          \
    }                                                                                                                         \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int) {                                                         \
        cuemu::on_access(p, sizeof(type), true, true, false, PC);                                                             \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                                             \
    }                                                                                                                         \
    type __tsan_atomic##bits##_exchange(volatile type *p, type v, int) {                                                      \
        cuemu::on_access(p, sizeof(type), true, true, false, PC);                                                             \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                                   \
    }                                                                                                                         \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *c, type v, int, int) {                          \
        cuemu::on_access(p, sizeof(type), true, true, false, PC);                                                             \
        return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                               \
    }                                                                                                                         \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type *p, type *c, type v, int, int) {                            \
        cuemu::on_access(p, sizeof(type), true, true, false, PC);                                                             \
        return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                               \
    }                                                                                                                         \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *p, type c, type v, int, int) {                             \
        cuemu::on_access(p, sizeof(type), true, true, false, PC);                                                             \
        __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                     \
        return c;                                                                                                             \
    }                                                                                                                         \
    CUEMU_FETCH(bits, type, add)                                                                                              \
    CUEMU_FETCH(bits, type, sub)                                                                                              \
    CUEMU_FETCH(bits, type, and)                                                                                              \
    CUEMU_FETCH(bits, type, or)                                                                                               \
    CUEMU_FETCH(bits, type, xor)                                                                                              \
    CUEMU_FETCH(bits, type, nand)
#define CUEMU_FETCH(bits, type, op)                                              \
    type __tsan_atomic##bits##_fetch_##op(volatile type *p, type v, int) {       \
        cuemu::on_access(p, sizeof(type), true, true, false, PC);                \
        return __atomic_fetch_##op(p, v, __ATOMIC_SEQ_CST);                      \
    }
CUEMU_ATOMIC(8, std::uint8_t)
CUEMU_ATOMIC(16, std::uint16_t)
CUEMU_ATOMIC(32, std::uint32_t)
CUEMU_ATOMIC(64, std::uint64_t)
#undef CUEMU_ATOMIC
#undef CUEMU_FETCH

void __tsan_atomic_thread_fence(int) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (cuemu::in_kernel() && cuemu::context()->owner->tracer != nullptr) cuemu::trace_fence(cuemu::context()->owner->tracer);
}
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"
