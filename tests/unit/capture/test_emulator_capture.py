"""A whole program on the emulator: compiled, run, captured, with nothing left behind."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from cuda_agent import capture as room
from cuda_agent.capture import CaptureOptions
from cuda_agent.model import Build
from cuda_agent.toolchain import build as builds
from cuda_agent.workload import bundle

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles with g++")

SOFTMAX = Path(__file__).parents[2] / "corpus" / "softmax_rows.cu"
ROWS, COLS = 40, 16


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copy(SOFTMAX, tmp_path / "softmax_rows.cu"))


def check(source: Path) -> None:
    made = bundle.find(source, "softmax_rows")
    assert made is not None
    assert made.device == "emulator"
    first = made.launches[0]
    assert bundle.signature(first) == ("f32", "f32")
    assert [int.from_bytes(arg.data, "little") for arg in first.args[2:]] == [ROWS, COLS]
    after = first.buffers[1].after
    assert after is not None
    count = ROWS * COLS
    values = struct.unpack(f"{count}f", bundle.BlobStore(made.blobs).get(after)[: 4 * count])
    for row in range(ROWS):
        assert sum(values[row * COLS : (row + 1) * COLS]) == pytest.approx(1, abs=1e-5)


def test_a_file_with_a_main(source: Path) -> None:
    build = Build(source, source.parent, "nvcc", ("-std=c++17", "-O2", "-arch=sm_90"), "default")
    options = CaptureOptions(device="emulator", kernel="softmax_rows")
    report = room.build_and_run(source, [str(ROWS), str(COLS), "3"], build, options)
    assert report.recorded == 2
    check(source)
    assert sorted(path.name for path in source.parent.iterdir()) == [".cuda-agent", "softmax_rows.cu"]


CHANGING = """
#include <cuda_runtime.h>

__global__ void step(float *x, int width, int stride)
{
    int i = threadIdx.x;
    x[i / width * width + (i + stride) % width] += 1;
}

int main()
{
    float *x;
    cudaMalloc(&x, 64 * sizeof(float));
    cudaMemset(x, 0, 64 * sizeof(float));
    for (int stride = 1; stride < 32; stride *= 2)
        step<<<1, stride > 4 ? 32 : 64>>>(x, 8, stride);
    return cudaDeviceSynchronize();
}
"""


def test_a_scalar_and_a_block_that_change_after_the_recorded_launch(tmp_path: Path) -> None:
    file = tmp_path / "step.cu"
    file.write_text(CHANGING)
    build = Build(file, tmp_path, "nvcc", ("-std=c++17", "-arch=sm_90"), "default")
    room.build_and_run(file, [], build, CaptureOptions(device="emulator", first=1, stop=False))
    made = bundle.find(file, "step")
    assert made is not None
    assert (len(made.launches), made.seen, made.varied, made.ended) == (1, 5, {2}, False)
    assert {shape.block for shape in made.shapes or ()} == {(64, 1, 1), (32, 1, 1)}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_run(source: Path) -> None:
    (source.parent / "Makefile").write_text(
        f"run: main\n\t./main {ROWS} {COLS} 3\nmain: main.o\n\tnvcc main.o -o main\n"
        "main.o: softmax_rows.cu\n\tnvcc -O3 --use_fast_math -c softmax_rows.cu -o main.o\n"
    )
    report = room.capture(["make", "run"], source.parent, CaptureOptions(device="emulator", stop=False))
    assert report.exit_code == 0
    check(source)
    assert sorted(path.name for path in source.parent.iterdir()) == [".cuda-agent", "Makefile", "softmax_rows.cu"]
    found = builds.find_build(source)
    assert found.origin == "recorded"
    assert any("use_fast_math" in flag for flag in found.flags)


INSTANTIATED = """
#include <cuda_runtime.h>

template <typename T, int N>
__global__ void scale(T *x)
{
    x[threadIdx.x] *= N;
}

__global__ void plain(float *x)
{
    x[threadIdx.x] += 1;
}

template <typename T>
void run()
{
    T *x;
    cudaMalloc(&x, 32 * sizeof(T));
    cudaMemset(x, 0, 32 * sizeof(T));
    for (int i = 0; i < 5; i++)
        scale<T, 3><<<1, 32>>>(x);
}

int main()
{
    float *x;
    cudaMalloc(&x, 32 * sizeof(float));
    cudaMemset(x, 0, 32 * sizeof(float));
    for (int i = 0; i < 5; i++)
        plain<<<1, 32>>>(x);
    run<int>();
    run<double>();
    return 0;
}
"""


@pytest.mark.parametrize(
    ("kernel", "stop", "recorded", "note"),
    [
        (r"\bscale\b", None, {"_Z5scaleIiLi3EEvPT_"}, ["the program was ended after scale<int, 3>:", "--no-stop"]),
        (r"\bscale\b", False, {"_Z5scaleIiLi3EEvPT_", "_Z5scaleIdLi3EEvPT_"}, None),
        (r"\bplain\b", None, {"_Z5plainPf"}, None),
    ],
)
def test_instantiations_that_come_later(
    tmp_path: Path, kernel: str, stop: bool | None, recorded: set[str], note: list[str] | None
) -> None:
    """Without a file nobody knows what else there is: where the program is ended at the first, that is said."""
    (tmp_path / "scale.cu").write_text(INSTANTIATED)
    (tmp_path / "Makefile").write_text("run: main\n\t./main\nmain: scale.cu\n\tnvcc -O2 scale.cu -o main\n")
    options = CaptureOptions(device="emulator", kernel=kernel, stop=stop)
    report = room.capture(["make", "run"], tmp_path, options)
    (kept,) = report.kernels if kernel == r"\bplain\b" else [one for one in report.kernels if one.wanted]
    assert kept.bundle is not None
    assert {launch.mangled for launch in bundle.load(kept.bundle).launches} == recorded
    said = [text for text in report.notes if "ended after" in text]
    assert len(said) == (note is not None)
    assert all(word in said[0] for word in note or ())
