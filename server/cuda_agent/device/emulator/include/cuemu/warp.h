// Barriers, warp votes, shuffles, matches and reductions.
#pragma once

#include <cstring>
#include <type_traits>

#include "device_api.h"
#include "context.h"

#define CUEMU_FULL_MASK 0xffffffffu

CUEMU_INLINE void __syncthreads() { ::cuemu::detail::barrier(); }
CUEMU_INLINE int __syncthreads_count(int predicate) { return static_cast<int>(::cuemu::detail::barrier_count(predicate != 0)); }
CUEMU_INLINE int __syncthreads_and(int predicate) { return ::cuemu::detail::barrier_and(predicate != 0); }
CUEMU_INLINE int __syncthreads_or(int predicate) { return ::cuemu::detail::barrier_or(predicate != 0); }
CUEMU_INLINE void __syncwarp(unsigned mask = CUEMU_FULL_MASK) { ::cuemu::detail::warp_sync(mask); }
CUEMU_INLINE void __threadfence() { ::cuemu::detail::fence(); }
CUEMU_INLINE void __threadfence_block() { ::cuemu::detail::fence(); }
CUEMU_INLINE void __threadfence_system() { ::cuemu::detail::fence(); }
CUEMU_INLINE unsigned __activemask() { return ::cuemu::detail::active_mask(); }

CUEMU_INLINE unsigned __ballot_sync(unsigned mask, int predicate) { return ::cuemu::detail::warp_ballot(mask, predicate != 0).bits; }
CUEMU_INLINE int __any_sync(unsigned mask, int predicate) { return ::cuemu::detail::warp_ballot(mask, predicate != 0).bits != 0; }
CUEMU_INLINE int __all_sync(unsigned mask, int predicate) {
    ::cuemu::detail::Vote vote = ::cuemu::detail::warp_ballot(mask, predicate != 0);
    return vote.bits == vote.group;
}
CUEMU_INLINE int __uni_sync(unsigned mask, int predicate) {
    ::cuemu::detail::Vote vote = ::cuemu::detail::warp_ballot(mask, predicate != 0);
    return vote.bits == vote.group || vote.bits == 0;
}
CUEMU_INLINE unsigned __ballot(int predicate) { return __ballot_sync(CUEMU_FULL_MASK, predicate); }
CUEMU_INLINE int __any(int predicate) { return __any_sync(CUEMU_FULL_MASK, predicate); }
CUEMU_INLINE int __all(int predicate) { return __all_sync(CUEMU_FULL_MASK, predicate); }

namespace cuemu {

// The lane number of the calling thread in its warp.
CUEMU_INLINE unsigned lane_id() { return context_word<offsetof(Context, linear)>() % 32; }
CUEMU_INLINE unsigned thread_rank() { return context_word<offsetof(Context, linear)>(); }

template <class T> CUEMU_INLINE T shuffle(unsigned mask, T value, unsigned source) {
    static_assert(std::is_trivially_copyable<T>::value, "only plain values can be shuffled");
    T out;
    for (std::size_t at = 0; at < sizeof(T); at += 8) {
        const std::size_t part = sizeof(T) - at < 8 ? sizeof(T) - at : 8;
        std::uint64_t word = 0;
        std::memcpy(&word, reinterpret_cast<const char *>(&value) + at, part);
        word = detail::warp_exchange(mask, word, source);
        std::memcpy(reinterpret_cast<char *>(&out) + at, &word, part);
    }
    return out;
}

// Source lanes as the PTX manual defines shfl.sync: segments of `width` lanes; out of the segment gives the own value.
CUEMU_INLINE unsigned source_index(int lane, int width) {
    const unsigned self = lane_id(), w = static_cast<unsigned>(width);
    return (self & ~(w - 1)) | (static_cast<unsigned>(lane) & (w - 1));
}
CUEMU_INLINE unsigned source_up(unsigned delta, int width) {
    const unsigned self = lane_id(), w = static_cast<unsigned>(width);
    return (self & (w - 1)) < delta ? self : self - delta;
}
CUEMU_INLINE unsigned source_down(unsigned delta, int width) {
    const unsigned self = lane_id(), w = static_cast<unsigned>(width);
    return (self & (w - 1)) + delta >= w ? self : self + delta;
}
CUEMU_INLINE unsigned source_xor(int bits, int width) {
    const unsigned self = lane_id(), w = static_cast<unsigned>(width), other = self ^ static_cast<unsigned>(bits);
    // Lanes of a later segment are out of reach, lanes of an earlier one are not.
    return other >= (self & ~(w - 1)) + w ? self : other;
}

}  // namespace cuemu

template <class T> CUEMU_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    return ::cuemu::shuffle(mask, value, ::cuemu::source_index(lane, width));
}
template <class T> CUEMU_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return ::cuemu::shuffle(mask, value, ::cuemu::source_up(delta, width));
}
template <class T> CUEMU_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return ::cuemu::shuffle(mask, value, ::cuemu::source_down(delta, width));
}
template <class T> CUEMU_INLINE T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    return ::cuemu::shuffle(mask, value, ::cuemu::source_xor(bits, width));
}
template <class T> CUEMU_INLINE T __shfl(T value, int lane, int width = 32) { return __shfl_sync(CUEMU_FULL_MASK, value, lane, width); }
template <class T> CUEMU_INLINE T __shfl_up(T value, unsigned delta, int width = 32) {
    return __shfl_up_sync(CUEMU_FULL_MASK, value, delta, width);
}
template <class T> CUEMU_INLINE T __shfl_down(T value, unsigned delta, int width = 32) {
    return __shfl_down_sync(CUEMU_FULL_MASK, value, delta, width);
}
template <class T> CUEMU_INLINE T __shfl_xor(T value, int bits, int width = 32) {
    return __shfl_xor_sync(CUEMU_FULL_MASK, value, bits, width);
}

namespace cuemu {
template <class T> CUEMU_INLINE std::uint64_t bits_of(T value) {
    std::uint64_t word = 0;
    static_assert(sizeof(T) <= 8, "match compares 32- and 64-bit values");
    std::memcpy(&word, &value, sizeof(T));
    return word;
}
}  // namespace cuemu

template <class T> CUEMU_INLINE unsigned __match_any_sync(unsigned mask, T value) {
    return ::cuemu::detail::warp_match_any(mask, ::cuemu::bits_of(value));
}
template <class T> CUEMU_INLINE unsigned __match_all_sync(unsigned mask, T value, int *predicate) {
    unsigned out = ::cuemu::detail::warp_match_all(mask, ::cuemu::bits_of(value));
    *predicate = out != 0;
    return out;
}

#define CUEMU_REDUCE(name, type, operation)                                                                     \
    CUEMU_INLINE type name(unsigned mask, type value) {                                                         \
        return static_cast<type>(                                                                               \
            ::cuemu::detail::warp_reduce(mask, ::cuemu::detail::Reduce::operation, static_cast<unsigned>(value))); \
    }
CUEMU_REDUCE(__reduce_add_sync, unsigned, add)
CUEMU_REDUCE(__reduce_add_sync, int, add)
CUEMU_REDUCE(__reduce_min_sync, unsigned, min_unsigned)
CUEMU_REDUCE(__reduce_min_sync, int, min_signed)
CUEMU_REDUCE(__reduce_max_sync, unsigned, max_unsigned)
CUEMU_REDUCE(__reduce_max_sync, int, max_signed)
CUEMU_REDUCE(__reduce_and_sync, unsigned, bit_and)
CUEMU_REDUCE(__reduce_or_sync, unsigned, bit_or)
CUEMU_REDUCE(__reduce_xor_sync, unsigned, bit_xor)
#undef CUEMU_REDUCE

CUEMU_INLINE void __nanosleep(unsigned) { ::cuemu::detail::nanosleep(); }
[[noreturn]] CUEMU_INLINE void __trap() { ::cuemu::detail::trap("__trap was called"); }
CUEMU_INLINE void __brkpt() {}
CUEMU_INLINE void __prof_trigger(int) {}
CUEMU_INLINE unsigned __isShared(const void *p) { return ::cuemu::detail::is_shared(p); }
CUEMU_INLINE unsigned __isGlobal(const void *p) { return !::cuemu::detail::is_shared(p); }
