// The runtime as device code sees it. Calls that block record their return address: it is the line that findings show.
#pragma once

#include <cstdint>

namespace cuemu {
namespace detail {

enum class Reduce : int { add, min_signed, min_unsigned, max_signed, max_unsigned, bit_and, bit_or, bit_xor };

void barrier();
unsigned barrier_count(bool predicate);
bool barrier_and(bool predicate);
bool barrier_or(bool predicate);

struct Vote {
    std::uint32_t bits;   // lanes whose predicate is true
    std::uint32_t group;  // lanes that took part
};
void warp_sync(std::uint32_t mask);
std::uint32_t active_mask();
Vote warp_ballot(std::uint32_t mask, bool predicate);
std::uint64_t warp_exchange(std::uint32_t mask, std::uint64_t value, unsigned source);
std::uint32_t warp_match_any(std::uint32_t mask, std::uint64_t value);
std::uint32_t warp_match_all(std::uint32_t mask, std::uint64_t value);
std::uint32_t warp_reduce(std::uint32_t mask, Reduce operation, std::uint32_t value);

void fence();      // __threadfence and its kin
void spin();       // an atomic that did not get what it wanted: lets others run now and then
void nanosleep();
[[noreturn]] void trap(const char *what);
[[noreturn]] void unsupported(const char *what);
unsigned dynamic_shared_bytes();
bool is_shared(const volatile void *pointer);

// Traced builds: an atomic access by the caller of the caller.
void trace_atomic(const volatile void *address, std::size_t size, const void *pc);

}  // namespace detail
}  // namespace cuemu
