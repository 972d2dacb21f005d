// The symbol table of the object that this runtime is linked into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cuemu {

// Address of a function by its mangled name; nullptr when the object has no such symbol (or was stripped).
void *symbol_address(const std::string &mangled);
// Start of the function that holds this code address; nullptr when unknown.
void *function_around(const void *pc);
// Mangled name of the data object at this address; empty when there is none.
std::string symbol_name(const void *address);
// Where this object is mapped (all segments) and the file it came from.
struct Image {
    std::uintptr_t bias = 0;  // runtime address minus address in the file
    std::uintptr_t low = 0, high = 0;
    std::uintptr_t text_low = 0, text_high = 0;
    std::string path;
};
const Image &image();

}  // namespace cuemu
