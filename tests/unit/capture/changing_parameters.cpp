// A program that launches kernels with parameters that change or do not, and one in other shapes.
// usage: changing_parameters [launches [first size [launch to die at [launches in other shapes]]]]
#include "record.h"

using namespace cuda_agent::capture;

static float x[64];

static bool resolve(std::uint64_t word, std::uint64_t &base, std::uint64_t &size) {
    base = reinterpret_cast<std::uint64_t>(x);
    size = sizeof x;
    return word >= base && word < base + size;
}

static bool copy_out(std::uint64_t address, void *host, std::size_t bytes) {
    std::memcpy(host, reinterpret_cast<void *>(address), bytes);
    return true;
}

static void launch(const char *mangled, const Parameters *parameters, unsigned blocks = 1) {
    const unsigned grid[3] = {blocks, 1, 1}, block[3] = {64, 1, 1};
    Launch made = recorder().begin(mangled, grid, block, 0, "emulator", parameters);
    if (!made.wanted) return;
    if (!parameters) {
        recorder().skip(made, "its parameters are not told");
        return;
    }
    for (const Parameter &p : *parameters) made.add_arg(p.offset, p.data, p.size, resolve);
    if (recorder().before(made, copy_out, resolve)) recorder().finish(made, copy_out);
}

int main(int argc, char **argv) {
    const int launches = argc > 1 ? std::atoi(argv[1]) : 5;
    const int size = argc > 2 ? std::atoi(argv[2]) : 2;
    const int last = argc > 3 ? std::atoi(argv[3]) : -1;
    const int shapes = argc > 4 ? std::atoi(argv[4]) : 0;
    const int rows = 7, steady = 3;
    for (int i = 0; i < launches; ++i) {
        if (i == last) std::_Exit(9);  // no destructor of the recorder
        float *view = x + i % 2;
        const int changing = i < 2 ? size : size << (i - 1);
        const Parameters step{{0, 8, &view}, {8, 4, &changing}, {12, 4, &rows}};
        launch("_Z4stepPfii", &step);
        const Parameters small{{0, 4, &steady}}, wide{{0, 4, &steady}, {4, 4, &rows}};
        launch("other", i == 0 ? &small : &wide);  // extern "C", of two modules
        const Parameters typed{{0, 4, &steady}, {4, 4, i == 0 ? &rows : &steady}};
        launch(i == 0 ? "_Z5typedIfEvii" : "_Z5typedIdEvii", &typed);
        if (i == 1) launch("untold", nullptr);
    }
    for (int i = 0; i < shapes; ++i) {
        if (i == last) std::_Exit(9);
        const Parameters shaped{{0, 4, &steady}};
        launch(i % 2 ? "_Z6shapedIfEvi" : "_Z6shapedIdEvi", &shaped, i / 4);  // the first of each is an empty grid
    }
}
