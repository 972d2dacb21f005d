// A program that "launches kernels" on the host and records them through record.h, as the emulator's runtime does.
// usage: recorded_program [launches [exit code [milliseconds a launch]]]
#include <chrono>
#include <thread>

#include "record.h"

using namespace cuda_agent::capture;

static float x[1000], y[5000000];
static float *rows[4] = {x, x + 1, x + 2, x + 3};

static bool resolve(std::uint64_t word, std::uint64_t &base, std::uint64_t &size) {
    const std::pair<void *, std::size_t> all[] = {{x, sizeof x}, {y, sizeof y}, {rows, sizeof rows}};
    for (const auto &[address, bytes] : all) {
        const auto start = reinterpret_cast<std::uint64_t>(address);
        if (word >= start && word < start + bytes) {
            base = start;
            size = bytes;
            return true;
        }
    }
    return false;
}

static bool copy_out(std::uint64_t address, void *host, std::size_t bytes) {
    std::memcpy(host, reinterpret_cast<void *>(address), bytes);
    return true;
}

template <class Args, class Work>
static void launch(const char *mangled, unsigned blocks, const Args &args, Work work) {
    const unsigned grid[3] = {blocks, 1, 1}, block[3] = {256, 1, 1};
    const Parameters parameters{{0, sizeof args, &args}};
    Launch made = recorder().begin(mangled, grid, block, 0, "emulator", &parameters);
    if (made.wanted) {
        made.add_arg(0, &args, sizeof args, resolve);
        recorder().before(made, copy_out, resolve);
    }
    work();
    if (made.wanted) {
        if (!made.buffers.empty()) made.add_written(0, 0, 4);
        recorder().finish(made, copy_out);
    }
}

int main(int argc, char **argv) {
    const int launches = argc > 1 ? std::atoi(argv[1]) : 5;
    const int code = argc > 2 ? std::atoi(argv[2]) : 0;
    const int pause = argc > 3 ? std::atoi(argv[3]) : 0;
    struct {
        float *x, *y;
        int n;
    } view{x, y + 3, 1000};
    for (int i = 0; i < launches; ++i) {
        launch("_Z5scale4View", 4, view, [&] { x[i % 1000] = static_cast<float>(i + 1); });
        if (i == 0) launch("_ZN2ns3endEPf", 1, &y[4999999], [] { y[4999999] = 7; });
        std::printf("launch %d\n", i);
        std::fflush(stdout);
        std::this_thread::sleep_for(std::chrono::milliseconds(pause));
    }
    float **nested = rows;
    launch("_Z6nestedPPf", 1, nested, [] {});
    const void *host = &view;
    launch("_Z6hostedPKf", 1, host, [] {});
    return code;
}
