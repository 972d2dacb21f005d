// CUDA's atomics on the host's: relaxed order would do, sequential is what __atomic gives for nothing on x86.
#pragma once

#include <cstring>
#include <type_traits>

#include "device_api.h"
#include "qualifiers.h"

namespace cuemu {
namespace detail {

#if CUEMU_TRACED
#define CUEMU_TRACE_ATOMIC(address) ::cuemu::detail::trace_atomic(address, sizeof(*(address)), __builtin_return_address(0))
#else
#define CUEMU_TRACE_ATOMIC(address) ((void)0)
#endif

template <std::size_t kSize> struct Word;
template <> struct Word<2> { using type = std::uint16_t; };
template <> struct Word<4> { using type = std::uint32_t; };
template <> struct Word<8> { using type = std::uint64_t; };

// value → change(value), by compare-and-swap on the bits; returns the old value.
template <class T, class F> CUEMU_INLINE T update(T *address, F change) {
    using W = typename Word<sizeof(T)>::type;
    W *word = reinterpret_cast<W *>(address);
    W old = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {
        T before;
        std::memcpy(&before, &old, sizeof(T));
        T after = change(before);
        W wanted;
        std::memcpy(&wanted, &after, sizeof(T));
        if (__atomic_compare_exchange_n(word, &old, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return before;
    }
}

}  // namespace detail
}  // namespace cuemu

// Templates, so that a program's own atomicAdd(double *, double) is preferred and does not clash.
#define CUEMU_ATOMIC_INTEGER(name, builtin)                                                                        \
    template <class T, class U, std::enable_if_t<std::is_integral<T>::value, int> = 0>                             \
    CUEMU_HELPER T name(T *address, U value) {                                                                     \
        CUEMU_TRACE_ATOMIC(address);                                                                               \
        return builtin(address, static_cast<T>(value), __ATOMIC_SEQ_CST);                                          \
    }
CUEMU_ATOMIC_INTEGER(atomicAdd, __atomic_fetch_add)
CUEMU_ATOMIC_INTEGER(atomicSub, __atomic_fetch_sub)
CUEMU_ATOMIC_INTEGER(atomicAnd, __atomic_fetch_and)
CUEMU_ATOMIC_INTEGER(atomicOr, __atomic_fetch_or)
CUEMU_ATOMIC_INTEGER(atomicXor, __atomic_fetch_xor)
#undef CUEMU_ATOMIC_INTEGER

// Floating point, halves and their vectors: anything that adds.
template <class T, class U, std::enable_if_t<!std::is_integral<T>::value && sizeof(T) <= 8, int> = 0>
CUEMU_HELPER T atomicAdd(T *address, U value) {
    CUEMU_TRACE_ATOMIC(address);
    const T addend = static_cast<T>(value);
    return ::cuemu::detail::update(address, [&](T old) { return static_cast<T>(old + addend); });
}

template <class T, class U> CUEMU_HELPER T atomicExch(T *address, U value) {
    CUEMU_TRACE_ATOMIC(address);
    const T wanted = static_cast<T>(value);
    T old = ::cuemu::detail::update(address, [&](T) { return wanted; });
    // A lock taken by exchanging 1 spins here while another thread holds it.
    if (std::memcmp(&old, &wanted, sizeof(T)) == 0) ::cuemu::detail::spin();
    return old;
}

template <class T, class U, class V> CUEMU_HELPER T atomicCAS(T *address, U compare, V value) {
    CUEMU_TRACE_ATOMIC(address);
    using W = typename ::cuemu::detail::Word<sizeof(T)>::type;
    const T expected_value = static_cast<T>(compare), wanted_value = static_cast<T>(value);
    W expected, wanted;
    std::memcpy(&expected, &expected_value, sizeof(T));
    std::memcpy(&wanted, &wanted_value, sizeof(T));
    if (!__atomic_compare_exchange_n(reinterpret_cast<W *>(address), &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ::cuemu::detail::spin();
    T old;
    std::memcpy(&old, &expected, sizeof(T));
    return old;
}

template <class T, class U> CUEMU_HELPER T atomicMin(T *address, U value) {
    CUEMU_TRACE_ATOMIC(address);
    const T other = static_cast<T>(value);
    return ::cuemu::detail::update(address, [&](T old) { return other < old ? other : old; });
}
template <class T, class U> CUEMU_HELPER T atomicMax(T *address, U value) {
    CUEMU_TRACE_ATOMIC(address);
    const T other = static_cast<T>(value);
    return ::cuemu::detail::update(address, [&](T old) { return old < other ? other : old; });
}
template <class T> CUEMU_HELPER T atomicInc(T *address, T limit) {
    CUEMU_TRACE_ATOMIC(address);
    return ::cuemu::detail::update(address, [&](T old) { return old >= limit ? T{0} : static_cast<T>(old + 1); });
}
template <class T> CUEMU_HELPER T atomicDec(T *address, T limit) {
    CUEMU_TRACE_ATOMIC(address);
    return ::cuemu::detail::update(address, [&](T old) { return old == 0 || old > limit ? limit : static_cast<T>(old - 1); });
}
CUEMU_INLINE unsigned atomicInc(unsigned *address, int limit) { return atomicInc<unsigned>(address, static_cast<unsigned>(limit)); }
CUEMU_INLINE unsigned atomicDec(unsigned *address, int limit) { return atomicDec<unsigned>(address, static_cast<unsigned>(limit)); }

// The scopes differ in what other processors see; here all see all.
#define CUEMU_SCOPES(name)                                                                                        \
    template <class... A> CUEMU_INLINE auto name##_block(A... a) -> decltype(name(a...)) { return name(a...); }    \
    template <class... A> CUEMU_INLINE auto name##_system(A... a) -> decltype(name(a...)) { return name(a...); }
CUEMU_SCOPES(atomicAdd)
CUEMU_SCOPES(atomicSub)
CUEMU_SCOPES(atomicAnd)
CUEMU_SCOPES(atomicOr)
CUEMU_SCOPES(atomicXor)
CUEMU_SCOPES(atomicExch)
CUEMU_SCOPES(atomicCAS)
CUEMU_SCOPES(atomicMin)
CUEMU_SCOPES(atomicMax)
CUEMU_SCOPES(atomicInc)
CUEMU_SCOPES(atomicDec)
#undef CUEMU_SCOPES
