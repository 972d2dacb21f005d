// Shared memory: storage of the running block, found by a slot number for static arrays.
#pragma once

#include "launch.h"

namespace cuemu {
namespace detail {

// Storage of one __shared__ variable in the current block: the same address for all its threads, filled with a poison
// pattern when the block first asks.
void *shared_storage(unsigned *slot, std::size_t size);
void *dynamic_shared_storage();

template <class Tag> struct SharedSlot {
    static unsigned slot;
};
template <class Tag> unsigned SharedSlot<Tag>::slot = 0;  // 0: not numbered yet

template <class Tag, class T> CUEMU_INLINE T &shared() {
    return *reinterpret_cast<T *>(shared_storage(&SharedSlot<Tag>::slot, sizeof(T)));
}
template <class T> CUEMU_INLINE T *dynamic_shared() {
    return reinterpret_cast<T *>(dynamic_shared_storage());
}

template <class T> struct DynamicShared {
    operator T *() const { return dynamic_shared<T>(); }
    template <class U> explicit operator U *() const { return reinterpret_cast<U *>(dynamic_shared<T>()); }
};
template <class Tag, class T> struct OutsideShared {
    operator T &() const { return shared<Tag, T>(); }
};
template <class Tag, class T, std::size_t N> struct OutsideShared<Tag, T[N]> {
    operator T *() const { return shared<Tag, T[N]>(); }
};

}  // namespace detail

template <class T> CUEMU_INLINE T *dynamic_shared() { return detail::dynamic_shared<T>(); }

}  // namespace cuemu

#define CUEMU_SHARED(name, ...)   \
    struct cuemu_shared_##name {}; \
    auto &name = ::cuemu::detail::shared<cuemu_shared_##name, __VA_ARGS__>()
#define CUEMU_DYNAMIC_SHARED(name, ...) auto *const name = ::cuemu::detail::dynamic_shared<__VA_ARGS__>()
#define CUEMU_SHARED_OUTSIDE(name, ...) \
    struct cuemu_shared_##name;         \
    static const ::cuemu::detail::OutsideShared<cuemu_shared_##name, __VA_ARGS__> name {}
#define CUEMU_DYNAMIC_SHARED_OUTSIDE(name, ...) static const ::cuemu::detail::DynamicShared<__VA_ARGS__> name {}
