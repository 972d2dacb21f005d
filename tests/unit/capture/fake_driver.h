#pragma once
#include <cstddef>
#include <vector>

struct FakeFunction {
    const char *name;
    bool kernel;  // a CUkernel, which the CUfunction questions refuse
    std::vector<std::size_t> sizes;
};

extern unsigned char fake_memory[256];
extern long fake_questions;  // about parameters
