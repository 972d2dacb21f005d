"""Capture of real programs on a GPU through the CUPTI injection."""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path

import pytest

from cuda_agent import capture as room
from cuda_agent.capture import CaptureOptions, CaptureReport, NothingCaptured
from cuda_agent.model import Build, Workload
from cuda_agent.workload import bundle

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(room.session.gpu_count() == 0, reason="no CUDA device"),
]

PROGRAM = r"""
#include <cstdio>
#include <cstring>
#include <vector>
#include <cuda_runtime.h>
struct View { float *data; int n; };
__constant__ float factor;
__device__ int hits;
__global__ void scale(View v, float a) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < v.n) v.data[i] *= a; }
template <typename T> __global__ void add(const T *x, T *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += x[i];
}
__global__ void constant(float *y, int n) { int i = threadIdx.x; if (i < n) y[i] *= factor; }
__global__ void counting(int n) { if (threadIdx.x < n) atomicAdd(&hits, 1); }
__global__ void rows(float **p, int n) { p[blockIdx.x][threadIdx.x] = n; }
__global__ void empty() {}
__global__ void hosted(const float *x, float *y) { if (x == nullptr) y[0] = 1; }
int main(int argc, char **argv) {
  const int n = 1000;
  float *x, *y; double *dx, *dy; float **p;
  cudaMalloc(&x, n * 4); cudaMalloc(&y, n * 4); cudaMalloc(&dx, n * 8); cudaMalloc(&dy, n * 8); cudaMalloc(&p, 16);
  std::vector<float> h(n); for (int i = 0; i < n; ++i) h[i] = i;
  std::vector<double> d(n); for (int i = 0; i < n; ++i) d[i] = i / 3.0;
  cudaMemcpy(x, h.data(), n * 4, cudaMemcpyHostToDevice); cudaMemcpy(y, h.data(), n * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(dx, d.data(), n * 8, cudaMemcpyHostToDevice); cudaMemcpy(dy, d.data(), n * 8, cudaMemcpyHostToDevice);
  float f = 3; cudaMemcpyToSymbol(factor, &f, 4);
  float *host[2] = {x, y}; cudaMemcpy(p, host, 16, cudaMemcpyHostToDevice);
  for (int k = 0; k < 5; ++k) scale<<<4, 256>>>(View{x + 8, n - 8}, 2.0f);
  for (int k = 1; k < 4; ++k) add<float><<<4, 256>>>(x, y, n / k);
  add<double><<<4, 256>>>(dx, dy, n);
  constant<<<1, 64>>>(y, 64);
  counting<<<1, 32>>>(7);
  rows<<<2, 8>>>(p, 5);
  empty<<<1, 1>>>();
  hosted<<<1, 1>>>(h.data(), y);
  scale<<<1, 2048>>>(View{x, n}, 1.0f);  // invalid block: the launch fails
  cudaGetLastError();
  cudaStream_t s; cudaStreamCreate(&s); cudaGraph_t g; cudaGraphExec_t e;
  cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
  constant<<<1, 64, 0, s>>>(y, 64);
  cudaStreamEndCapture(s, &g); cudaGraphInstantiate(&e, g, 0); cudaGraphLaunch(e, s);
  cudaError_t error = cudaDeviceSynchronize();
  printf("%s\n", cudaGetErrorString(error));
  if (argc > 1) return atoi(argv[1]);
  return error != cudaSuccess;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc to build the program with")
    path = tmp_path_factory.mktemp("program") / "main.cu"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def report(program: Path) -> CaptureReport:
    return run(program)


def run(program: Path, *args: str, **options: object) -> CaptureReport:
    build = Build(program, program.parent, "nvcc", ("-std=c++17", "-O2"), "default")
    return room.build_and_run(program, args, build, CaptureOptions(device="cuda", **options))  # type: ignore[arg-type]


def load(program: Path, kernel: str) -> Workload:
    found = bundle.find(program, kernel)
    assert found is not None
    return found


def floats(workload: Workload, launch: int, buffer: int, after: bool = False) -> list[float]:
    entry = workload.launches[launch].buffers[buffer]
    names = entry.after if after else entry.before
    assert names is not None
    data = bundle.BlobStore(workload.blobs).get(names)
    return list(struct.unpack(f"{len(data) // 4}f", data))


def test_a_struct_by_value_with_an_interior_pointer(program: Path, report: CaptureReport) -> None:
    workload = load(program, "scale")
    assert len(workload.launches) == 2
    assert workload.device == report.device != ""
    first = workload.launches[0]
    assert (first.grid, first.block) == ((4, 1, 1), (256, 1, 1))
    (pointer,) = first.args[0].pointers
    assert (pointer.at, pointer.offset) == (0, 32)
    assert struct.unpack("f", first.args[1].data) == (2.0,)
    before, after = floats(workload, 0, 0), floats(workload, 0, 0, after=True)
    assert before == [float(i) for i in range(1000)]
    assert after == before[:8] + [2 * value for value in before[8:]]
    assert floats(workload, 1, 0) == after  # the second launch starts where the first ended


def test_template_instantiations_and_signatures(program: Path, report: CaptureReport) -> None:
    workload = load(program, "add")
    kinds = [bundle.signature(launch) for launch in workload.launches]
    assert kinds == [("f32", "f32"), ("f32", "f32"), ("f64", "f64")]


def test_module_variables(program: Path, report: CaptureReport) -> None:
    workload = load(program, "constant")
    found = dict(workload.launches[0].globals)
    assert struct.unpack("f", bundle.BlobStore(workload.blobs).get(found["factor"])) == (3.0,)


def test_what_is_not_recorded_says_why(report: CaptureReport) -> None:
    why = {kernel.kernel: " ".join(reason for reason, _ in kernel.skipped) for kernel in report.kernels}
    assert "writes the module variable hits" in why["counting"]
    assert "device pointers" in why["rows"]
    assert "no device allocation" in why["hosted"]
    assert "captured into a CUDA graph" in why["constant"]
    assert any("graph" in note for note in report.notes)
    assert report.exit_code == 0
    assert "no error" in report.output


def test_counts(report: CaptureReport) -> None:
    seen = {kernel.kernel: (kernel.launches, kernel.recorded) for kernel in report.kernels}
    assert seen["scale"][0] in (5, 6)  # the invalid launch may be refused before the driver is asked
    assert seen["scale"][1] == 2
    assert seen["add"] == (4, 3)
    assert seen["empty"] == (1, 1)


def test_parameters_that_change_between_launches(program: Path, report: CaptureReport) -> None:
    assert load(program, "add").varied == {0, 1, 2}  # its arrays by the instantiation, its size from launch to launch
    assert load(program, "constant").varied == set()  # in the graph too
    assert load(program, "empty").varied == set()


def test_filter_and_selection(program: Path) -> None:
    report = run(program, kernel=r"\badd<", select="largest", first=1)
    recorded = {kernel.kernel: kernel.recorded for kernel in report.kernels}
    assert recorded["add"] == 2  # one of each instantiation
    assert sum(recorded.values()) == 2


def test_the_cap_is_named(program: Path) -> None:
    with pytest.raises(NothingCaptured, match="limit is 100"):
        run(program, kernel="scale", cap=100)


def test_stop_ends_the_program_well(program: Path) -> None:
    report = run(program, "7", kernel="scale", stop=True)
    assert report.stopped
    assert report.exit_code == 0  # not the 7 that the program would have returned
    assert report.recorded == 2


def test_a_failing_program_keeps_its_launches(program: Path) -> None:
    report = run(program, "7", kernel="scale")
    assert report.exit_code == 7
    assert any("exit code 7" in note for note in report.notes)


def test_cupy(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    script = tmp_path / "main.py"
    script.write_text(
        "import cupy as cp\n"
        "k = cp.RawKernel('extern \"C\" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }', 'twice')\n"
        "x = cp.arange(32, dtype=cp.float32)\nk((1,), (32,), (x,))\nassert float(x.sum()) == 992.0\n"
    )
    report = room.capture([sys.executable, str(script)], tmp_path, CaptureOptions(device="cuda", kernel="twice"))
    workload = load(tmp_path / "main.cu", "twice")
    assert report.recorded == 1
    pointer = workload.launches[0].args[0].pointers[0]
    start = pointer.offset // 4
    assert floats(workload, 0, pointer.buffer)[start : start + 32] == [float(i) for i in range(32)]
    assert floats(workload, 0, pointer.buffer, after=True)[start : start + 32] == [2.0 * i for i in range(32)]
