#include "shadow.h"

#include <sys/mman.h>

namespace cuemu {

void *lazy_memory(std::size_t bytes) {
    if (bytes == 0) bytes = 1;
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}

void free_lazy(void *memory, std::size_t bytes) {
    if (memory != nullptr) munmap(memory, bytes == 0 ? 1 : bytes);
}

bool Shadow::reserve(std::size_t wanted) {
    size = wanted;
    words = static_cast<Cell *>(lazy_memory((size / 4 + 1) * sizeof(Cell)));
    bytes = static_cast<Cell *>(lazy_memory(size * sizeof(Cell)));
    if (words != nullptr && bytes != nullptr) return true;
    release();
    return false;
}

void Shadow::release() {
    free_lazy(words, (size / 4 + 1) * sizeof(Cell));
    free_lazy(bytes, size * sizeof(Cell));
    words = bytes = nullptr;
}

}  // namespace cuemu
