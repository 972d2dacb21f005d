"""Whole programs: built by the drop-in nvcc, run without a GPU, recorded; and the host API that they see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cuda_agent.device.emulator import build, native, nvcc
from cuda_agent.errors import CompileError, Unsupported
from cuda_agent.model import Build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

CORPUS = Path(__file__).parents[2] / "corpus"

HOST_API = r"""
#include <cstdio>
#include <cstring>
#include <vector>
#include <cuda_runtime.h>

#define EXPECT(x) do { if (!(x)) { std::printf("line %d: %s\n", __LINE__, #x); return 1; } } while (0)

struct Pair { const int *from; int *to; };
__constant__ int factor;
__device__ int total;

__global__ void scale(Pair p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { p.to[i] = p.from[i] * factor; atomicAdd(&total, 1); }
}
__global__ void reverse(int *x, int n) {
    extern __shared__ int tile[];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = tile[n - 1 - threadIdx.x];
}
template <typename T> __global__ void fill(T *x, T value) { x[threadIdx.x] = value; }
__global__ void fault(int *x) { x[1 << 30] = 1; }

int main() {
    int count = 0;
    EXPECT(cudaGetDeviceCount(&count) == cudaSuccess && count == 1);
    cudaDeviceProp prop;
    EXPECT(cudaGetDeviceProperties(&prop, 0) == cudaSuccess && prop.warpSize == 32 && prop.major == 9);
    EXPECT(cudaSetDevice(3) == cudaErrorInvalidDevice && cudaGetLastError() == cudaErrorInvalidDevice);
    EXPECT(cudaGetLastError() == cudaSuccess);
    EXPECT(!std::strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue"));
    EXPECT(!std::strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));

    const int n = 100;
    int *a, *b;
    EXPECT(cudaMalloc(&a, n * sizeof(int)) == cudaSuccess && cudaMalloc(&b, n * sizeof(int)) == cudaSuccess);
    std::vector<int> host(n), back(n);
    for (int i = 0; i < n; ++i) host[i] = i;
    EXPECT(cudaMemcpy(a, host.data(), n * sizeof(int), cudaMemcpyHostToDevice) == cudaSuccess);
    EXPECT(cudaMemcpy(host.data(), b, n * sizeof(int), cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    EXPECT(cudaMemcpy(a, host.data(), n * sizeof(int) + 1, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    cudaGetLastError();
    int three = 3, zero = 0;
    EXPECT(cudaMemcpyToSymbol(factor, &three, sizeof three) == cudaSuccess);
    EXPECT(cudaMemcpyToSymbol(total, &zero, sizeof zero) == cudaSuccess);

    dim3 blockDim(32), gridDim((n + blockDim.x - 1) / blockDim.x);
    scale<<<gridDim, blockDim>>>(Pair{a, b}, n);
    EXPECT(cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    EXPECT(cudaMemcpy(back.data(), b, n * sizeof(int), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < n; ++i) EXPECT(back[i] == 3 * i);
    int ran = 0;
    EXPECT(cudaMemcpyFromSymbol(&ran, total, sizeof ran) == cudaSuccess && ran == n);

    int *reversed = b + 4, size = 64;
    void *args[] = {&reversed, &size};
    EXPECT(cudaLaunchKernel((const void *)reverse, dim3(1), dim3(64), args, 64 * sizeof(int), nullptr) == cudaSuccess);
    EXPECT(cudaMemcpy(back.data(), b, n * sizeof(int), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < 64; ++i) EXPECT(back[4 + i] == 3 * (4 + 63 - i));

    fill<<<1, 2000>>>(a, 1);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    fill<<<0, 1>>>(a, 1);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    fill<<<1, 1, 49 * 1024>>>(a, 1);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    EXPECT(cudaFuncSetAttribute(fill<int>, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024) == cudaSuccess);
    fill<<<1, 1, 49 * 1024>>>(a, 1);
    EXPECT(cudaGetLastError() == cudaSuccess);
    const auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    EXPECT(cudaFuncSetAttribute(fill<int>, most, 1 << 20) == cudaErrorInvalidValue);
    cudaGetLastError();

    int blocks = 0, best = 0;
    EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reverse, 256, 0) == cudaSuccess && blocks == 8);
    EXPECT(cudaOccupancyMaxPotentialBlockSize(&blocks, &best, reverse) == cudaSuccess && best == 1024);

    size_t pitch = 0;
    char *image;
    EXPECT(cudaMallocPitch(&image, &pitch, 100, 8) == cudaSuccess && pitch == 512);
    EXPECT(cudaMemset2D(image, pitch, 7, 100, 8) == cudaSuccess);
    char rows[2][100];
    EXPECT(cudaMemcpy2D(rows, 100, image + pitch, pitch, 100, 2, cudaMemcpyDeviceToHost) == cudaSuccess);
    EXPECT(rows[1][99] == 7);

    cudaStream_t stream;
    cudaEvent_t start, stop;
    float ms = -1;
    EXPECT(cudaStreamCreate(&stream) == cudaSuccess && cudaEventCreate(&start) == cudaSuccess);
    EXPECT(cudaEventCreate(&stop) == cudaSuccess && cudaEventRecord(start, stream) == cudaSuccess);
    EXPECT(cudaMemsetAsync(a, 0, n * sizeof(int), stream) == cudaSuccess);
    EXPECT(cudaEventRecord(stop, stream) == cudaSuccess);
    EXPECT(cudaEventElapsedTime(&ms, start, stop) == cudaSuccess && ms >= 0);
    EXPECT(cudaStreamDestroy(stream) == cudaSuccess);
    EXPECT(cudaMalloc(&a, size_t{1} << 50) == cudaErrorMemoryAllocation);
    cudaGetLastError();
    EXPECT(cudaFree(b + 1) == cudaErrorInvalidValue && cudaFree(b) == cudaSuccess && cudaFree(nullptr) == cudaSuccess);
    cudaGetLastError();

    fault<<<1, 1>>>((int *)image);
    EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress && cudaFree(image) == cudaErrorIllegalAddress);
    std::printf("PASS\n");
}
"""

FAILS = r"""
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
__global__ void fail(int how, int *x) {
    if (how == 0) __trap();
    if (how == 1) assert(how == 2);
    if (how == 2) __builtin_trap();
    if (how != 3) return;
    if (threadIdx.x == 0)
        __syncwarp();
    else
        __syncthreads();
}
int main(int, char **argv) {
    fail<<<1, 32>>>(std::atoi(argv[1]), nullptr);
    std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
}
"""

HEADER = """#pragma once
template <typename T> __global__ void twice(T *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
"""
USER = """#include "twice.cuh"
void run(float *x, int n) { twice<<<1, 32>>>(x, n); }
"""
MAIN = """#include <cstdio>
#include <cuda_runtime.h>
void run(float *x, int n);
int main() {
    float *x, y[32];
    for (int i = 0; i < 32; ++i) y[i] = i;
    cudaMallocManaged(&x, sizeof y);
    cudaMemcpy(x, y, sizeof y, cudaMemcpyHostToDevice);
    run(x, 31);
    cudaDeviceSynchronize();
    std::printf("%g %g\\n", x[30], x[31]);
}
"""


def run(program: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_AGENT_OUTPUTS", raising=False)
    return tmp_path


def test_host_api(here: Path) -> None:
    Path("api.cu").write_text(HOST_API)
    assert nvcc.main(["-O1", "-arch=sm_90", "api.cu", "-o", "api"]) == 0
    output = run(here / "api")
    assert output.startswith("PASS") or output.endswith("PASS\n"), output
    assert "illegal address" in output


def test_how_a_kernel_failed_is_what_the_program_is_told(here: Path) -> None:
    (here / "fails.cu").write_text(FAILS)
    assert nvcc.main(["fails.cu", "-o", "fails"]) == 0
    said = [run(here / "fails", str(how)).partition("\n")[0] for how in range(4)]
    assert said == [
        "cudaErrorLaunchFailure",
        "cudaErrorAssert",
        "cudaErrorIllegalInstruction",
        "cudaErrorLaunchFailure",
    ]


def test_softmax_rows_is_recorded(here: Path) -> None:
    assert nvcc.main(["-o", "softmax", str(CORPUS / "softmax_rows.cu")]) == 0
    record = here / "record"
    record.mkdir()
    assert run(here / "softmax", "64", "50", "3", CUDA_AGENT_CAPTURE_DIR=str(record)).endswith("PASS\n")
    launches = [json.loads(line) for line in (record / "launches.jsonl").read_text().splitlines()]
    launches = [launch for launch in launches if launch.get("buffers")]
    assert [launch["seq"] for launch in launches] == [0, 1]
    first = launches[0]
    assert first["mangled"] == "_Z12softmax_rowsPKfPfii"
    assert (first["grid"], first["block"]) == ([1, 1, 1], [256, 1, 1])
    assert [(arg["offset"], arg["pointers"]) for arg in first["args"]] == [
        (0, [[0, 0, 0]]),
        (8, [[0, 1, 0]]),
        (16, []),
        (20, []),
    ]
    assert [buffer["size"] for buffer in first["buffers"]] == [64 * 50 * 4] * 2
    before, after = ((record / first["buffers"][1][key]).read_bytes() for key in ("before", "after"))
    assert before == bytes(64 * 50 * 4)
    assert before != after


def test_capture_ends_the_program(here: Path) -> None:
    assert nvcc.main(["-o", "softmax", str(CORPUS / "softmax_rows.cu")]) == 0
    output = run(here / "softmax", "64", "50", "40", CUDA_AGENT_CAPTURE_DIR=str(here), CUDA_AGENT_CAPTURE_STOP="1")
    assert output == ""


def test_several_files_a_header_and_dependencies(here: Path) -> None:
    Path("twice.cuh").write_text(HEADER)
    Path("user.cu").write_text(USER)
    Path("main.cpp").write_text(MAIN)
    assert nvcc.main(["-c", "-MD", "-rdc=true", "user.cu", "-o", "user.o"]) == 0
    assert nvcc.main(["-c", "main.cpp"]) == 0
    assert nvcc.main(["-arch=sm_80", "user.o", "main.o", "-lcudart", "-o", "main"]) == 0
    assert run(here / "main") == "60 31\n"
    rule = Path("user.d").read_text()
    assert rule.startswith("user.o:")
    assert str(here / "twice.cuh") in rule
    assert "/0_user" not in rule


def test_outputs_are_listed_and_the_persons_own_saved(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("user.cu").write_text(USER)
    Path("twice.cuh").write_text(HEADER)
    Path("user.o").write_text("theirs")
    monkeypatch.setenv("CUDA_AGENT_OUTPUTS", str(here / "outputs"))
    for _ in range(2):
        assert nvcc.main(["-c", "user.cu"]) == 0
    assert Path("outputs").read_text() == f"{here}/user.o\n"
    assert Path("user.o.cuda-agent-saved").read_text() == "theirs"


def test_errors_name_the_persons_file_and_line(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("bad.cu").write_text("__global__ void k(int *x) {\n  *x = y;\n}\n")
    assert nvcc.main(["-c", "bad.cu"]) == 1
    assert f"{here}/bad.cu:2:" in capfd.readouterr().err
    Path("tex.cu").write_text("texture<float, 2> t;\n__global__ void k(float *x) { *x = tex2D(t, 0, 0); }\n")
    assert nvcc.main(["-c", "tex.cu"]) == 2
    assert "tex.cu:1: the emulator cannot run texture references" in capfd.readouterr().err
    assert nvcc.main(["-ptx", "bad.cu"]) == 1
    assert nvcc.main([]) == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert nvcc.main(["--version"]) == 0
    assert "release 13.0" in capsys.readouterr().out


def test_module_of_one_file_of_a_program(tmp_path: Path) -> None:
    text = (
        '__global__ void k(float *x) { *x += 1; }\nextern "C" __global__ void c(int n) {}\n'
        "int other();\nint main() { return other(); }\n"
    )
    file = tmp_path / "k.cu"
    binary = build.compile(Build(file, tmp_path, "nvcc", ("-O3",), "default"), text, traced=False)
    assert binary.kind == "emulator"
    assert sorted(binary.kernels) == ["_Z1kPf", "c"]
    module = native.Module.load(binary.data)
    assert sorted(kernel.mangled for kernel in module.kernels()) == ["_Z1kPf", "c"]
    module.close()
    again = build.compile(Build(file, tmp_path, "nvcc", ("-O3",), "default"), text, traced=False)
    assert again.sha256 == binary.sha256


def test_module_that_does_not_compile(tmp_path: Path) -> None:
    build_ = Build(tmp_path / "k.cu", tmp_path, "nvcc", (), "default")
    with pytest.raises(CompileError) as failure:
        build.compile(build_, "__global__ void k() {\n\n  nothing();\n}\n")
    assert f"{tmp_path}/k.cu:3:" in failure.value.diagnostics
    with pytest.raises(Unsupported, match=r"k\.cu:1: the emulator cannot run texture objects"):
        build.compile(build_, "__global__ void k(cudaTextureObject_t t) {}\n")
    with pytest.raises(CompileError):
        build.compile(build_, '#include "/etc/passwd"\n', untrusted=True)
