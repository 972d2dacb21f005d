#include <elf.h>
#include <link.h>

#include <fstream>
#include <iterator>
#include <map>
#include <unordered_map>
#include <vector>

#include "symbols.h"

namespace cuemu {
namespace {

int anchor;  // an address inside this object

int find_image(dl_phdr_info *info, std::size_t, void *out) {
    auto *image = static_cast<Image *>(out);
    auto here = reinterpret_cast<std::uintptr_t>(&anchor);
    std::uintptr_t low = UINTPTR_MAX, high = 0, text_low = UINTPTR_MAX, text_high = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto &segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD) continue;
        std::uintptr_t start = info->dlpi_addr + segment.p_vaddr, end = start + segment.p_memsz;
        if (start < low) low = start;
        if (end > high) high = end;
        if (segment.p_flags & PF_X) {
            if (start < text_low) text_low = start;
            if (end > text_high) text_high = end;
        }
    }
    if (here < low || here >= high) return 0;
    *image = Image{info->dlpi_addr, low, high, text_low, text_high, info->dlpi_name};
    if (image->path.empty()) image->path = "/proc/self/exe";
    return 1;
}

struct Symbols {
    std::unordered_map<std::string, std::uintptr_t> functions;
    std::map<std::uintptr_t, std::uintptr_t> extents;  // start of a function → its end
    std::unordered_map<std::uintptr_t, std::string> objects;
};

template <class T> std::vector<T> table(const std::vector<char> &data, const ElfW(Shdr) & section) {
    std::vector<T> out;
    if (section.sh_offset + section.sh_size > data.size()) return out;
    auto *first = reinterpret_cast<const T *>(data.data() + section.sh_offset);
    out.assign(first, first + section.sh_size / sizeof(T));
    return out;
}

Symbols read_symbols() {
    Symbols out;
    std::ifstream file(image().path, std::ios::binary);
    std::vector<char> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (data.size() < sizeof(ElfW(Ehdr))) return out;
    auto *header = reinterpret_cast<const ElfW(Ehdr) *>(data.data());
    if (header->e_shoff == 0 || header->e_shoff + header->e_shnum * sizeof(ElfW(Shdr)) > data.size()) return out;
    auto *sections = reinterpret_cast<const ElfW(Shdr) *>(data.data() + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i) {
        if (sections[i].sh_type != SHT_SYMTAB && sections[i].sh_type != SHT_DYNSYM) continue;
        if (sections[i].sh_link >= header->e_shnum) continue;
        auto symbols = table<ElfW(Sym)>(data, sections[i]);
        auto names = table<char>(data, sections[sections[i].sh_link]);
        for (const auto &symbol : symbols) {
            if (symbol.st_shndx == SHN_UNDEF || symbol.st_name >= names.size()) continue;
            auto type = symbol.st_info & 0xf;
            const char *name = names.data() + symbol.st_name;
            if (type == STT_FUNC) {
                std::uintptr_t start = image().bias + symbol.st_value;
                out.functions.emplace(name, start);
                out.extents.emplace(start, start + symbol.st_size);
            }
            if (type == STT_OBJECT) out.objects.emplace(image().bias + symbol.st_value, name);
        }
    }
    return out;
}

const Symbols &symbols() {
    static const Symbols table = read_symbols();
    return table;
}

}  // namespace

const Image &image() {
    static const Image found = [] {
        Image image;
        dl_iterate_phdr(find_image, &image);
        return image;
    }();
    return found;
}

void *symbol_address(const std::string &mangled) {
    auto found = symbols().functions.find(mangled);
    return found == symbols().functions.end() ? nullptr : reinterpret_cast<void *>(found->second);
}

void *function_around(const void *pc) {
    auto at = reinterpret_cast<std::uintptr_t>(pc);
    auto after = symbols().extents.upper_bound(at);
    if (after == symbols().extents.begin()) return nullptr;
    --after;
    return at < after->second ? reinterpret_cast<void *>(after->first) : nullptr;
}

std::string symbol_name(const void *address) {
    auto found = symbols().objects.find(reinterpret_cast<std::uintptr_t>(address));
    return found == symbols().objects.end() ? std::string() : found->second;
}

}  // namespace cuemu
