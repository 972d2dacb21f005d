"""Slices, NVRTC, and when its code may stand in for nvcc's."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from cuda_agent.errors import CompileError, SandboxError, SourceError, ToolMissing
from cuda_agent.model import Binary, Build
from cuda_agent.toolchain import compile as compiling
from cuda_agent.toolchain import nvcc, nvrtc, sandbox, slice
from patience import patience


def usable() -> bool:
    try:
        return nvrtc.worker().version() >= (13, 1)
    except ToolMissing:
        return False


needs_nvrtc = pytest.mark.skipif(not usable(), reason="needs NVRTC 13.1 or later and cuda.core")

TEXT = """#include <cstdio>
#include <vector>
#include "sizes.h"
using namespace std;
#define SCALE 2.0f
typedef struct { float x, y; } pair_t;
struct Host { std::vector<int> data; };
enum mode { FIRST, SECOND };
static const int ROWS = 4;
#ifdef EXTRA
__device__ float extra(float x) { return x + 1; }
#else
__device__ float extra(float x) { return x * SCALE; }
#endif
__device__ float unused(float x);
template <typename T>
__device__ T helper(T x) { return extra(x) + ROWS + WIDTH; }
__global__ void other(float *p) { p[0] = 1; }
namespace ns {
template <typename T, int N>
__global__ void k(const T *in, pair_t *out, mode m) {
  __shared__ T tile[N];
  tile[threadIdx.x] = helper(in[threadIdx.x]);
  __syncthreads();
  out[threadIdx.x].x = m == SECOND ? tile[N - 1 - threadIdx.x] : uint32_t(1);
}
}
__global__ void alone(float *p, int64_t n) { p[n] = p[n] / 3.0f; }
int main() {
  std::vector<float> v(10);
  Host h;
  ns::k<float, 64><<<1, 64>>>(v.data(), nullptr, SECOND);
  printf("%zu", h.data.size());
}
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "sizes.h").write_text("#pragma once\n#include <stdio.h>\n#define WIDTH 8\ninline void host() {}\n")
    file = tmp_path / "k.cu"
    file.write_text(TEXT)
    return Build(file, tmp_path, "nvcc", ("-std=c++17", "-O3"), "default")


def test_slice_keeps_what_is_reached_and_every_line() -> None:
    part = slice.slice_kernels(TEXT, "k.cu", ["ns::k"])
    assert len(part) == len(TEXT)
    assert part.count("\n") == TEXT.count("\n")
    for kept in (
        "pair_t",
        "enum mode",
        "ROWS = 4",
        "#ifdef EXTRA",
        "#else",
        "T helper",
        "#define SCALE",
        "namespace ns {",
    ):
        assert kept in part, kept
    for gone in (
        "vector",
        "main",
        "printf",
        "other",
        "unused",
        "alone",
        "struct Host",
        "using namespace std",
        "<cstdio>",
    ):
        assert gone not in part, gone
    assert part.count("__device__ float extra") == 2, "both branches stay: nothing is flattened"


def test_slice_of_two_kernels() -> None:
    part = slice.slice_kernels(TEXT, "k.cu", ["other", "alone"])
    assert "other" in part
    assert "alone" in part
    assert "helper" not in part


def test_slice_refuses_what_it_does_not_understand() -> None:
    with pytest.raises(SourceError):
        slice.slice_kernels(TEXT, "k.cu", ["absent"])
    with pytest.raises(SourceError):
        slice.slice_kernels("@@ !! }} ;;\n" + TEXT, "k.cu", ["alone"])


def test_headers_are_put_in_place_once(build: Build) -> None:
    whole = slice.with_headers(TEXT + '#include "sizes.h"\n#include "absent.h"\n', build.file, [])
    assert whole.count("#define WIDTH 8") == 1
    assert f'#line 4 "{build.file}"' in whole
    assert '#include "absent.h"' in whole


@needs_nvrtc
def test_facts_of_a_slice(build: Build) -> None:
    made = nvrtc.compile(build, TEXT, "sm_90", ["ns::k"], ["ns::k<float, 64>"])
    ((name, facts),) = made.kernels.items()
    assert facts.demangled.startswith("void ns::k<float, 64>(float const*")
    assert (facts.shared_bytes, facts.arch) == (256, "sm_90")
    assert facts.registers > 0
    line = next(n for n, text in enumerate(TEXT.splitlines(), 1) if "tile[threadIdx.x] = helper" in text)
    assert line in {f.line for f in facts.lines}
    assert (made.path, name) == ("nvrtc", facts.mangled)


@needs_nvrtc
def test_mangled_as_nvcc_does(build: Build) -> None:
    assert set(nvrtc.compile(build, TEXT, "sm_90", ["alone"], ["alone"]).kernels) == {"_Z5alonePfl"}


@needs_nvrtc
def test_errors_name_the_persons_line(build: Build) -> None:
    bad = TEXT.replace("p[n] / 3.0f", "p[n] / nothing")
    line = next(n for n, text in enumerate(bad.splitlines(), 1) if "nothing" in text)
    with pytest.raises(CompileError) as caught:
        nvrtc.compile(build, bad, "sm_90", ["alone"], ["alone"])
    assert f"{build.file}({line}): error" in caught.value.diagnostics
    assert nvrtc.compile(build, TEXT, "sm_90", ["alone"], ["alone"]).kernels, "the worker goes on"


@needs_nvrtc
def test_flags(build: Build) -> None:
    fast = dataclasses.replace(build, flags=("-use_fast_math", "-DX=1"))
    plain = "__global__ void k(float *p) { p[0] = p[1] / p[2] + X; }\n"
    slow = dataclasses.replace(build, flags=("-DX=1",))
    a = nvrtc.compile(fast, plain, "sm_90", ["k"], ["k"]).kernels["_Z1kPf"]
    b = nvrtc.compile(slow, plain, "sm_90", ["k"], ["k"]).kernels["_Z1kPf"]
    assert a.instructions < b.instructions
    with pytest.raises(CompileError, match="-G"):
        nvrtc.options(dataclasses.replace(build, flags=("-G",)), "sm_90")


@needs_nvrtc
def test_worker_that_hangs_or_dies_is_replaced(build: Build) -> None:
    worker = nvrtc.Worker(timeout=20)
    worker.version()
    assert worker._process is not None
    worker._process.kill()
    worker._process.wait()
    code = "__global__ void k(float *p) { p[0] = 1; }"
    assert worker.compile(code, "/k.cu", {"arch": "sm_90"}, ["k"])[0].startswith(b"\x7fELF")
    worker.timeout = 0.0
    started = time.monotonic()
    with pytest.raises(CompileError, match="took longer"):
        worker.compile(code + "\n" * 7, "/k.cu", {"arch": "sm_90"}, ["k"])
    assert time.monotonic() - started < patience(5)
    worker.timeout = 20
    assert worker.compile(code, "/k.cu", {"arch": "sm_90"}, ["k"])[0]
    worker.close()


@needs_nvrtc
@pytest.mark.skipif(not sandbox.available(), reason="bubblewrap does not work here")
def test_worker_sees_no_file_outside() -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.worker().compile('#include "/etc/passwd"\n', "/k.cu", {"arch": "sm_90"}, [])
    assert "root:" not in str(caught.value) + caught.value.diagnostics


@needs_nvrtc
def test_untrusted_needs_the_sandbox(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "available", lambda: False)
    with pytest.raises(SandboxError):
        nvrtc.compile(build, TEXT + "// new\n", "sm_90", ["alone"], ["alone"], untrusted=True)


# ---------------------------------------------------------------- without a toolkit


@pytest.fixture
def no_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "_places", lambda: iter(()))


@needs_nvrtc
@pytest.mark.usefixtures("no_toolkit")
def test_no_toolkit_gives_facts_of_self_contained_kernels(build: Build) -> None:
    made = compiling.compile(build, TEXT, "sm_90")
    assert {f.demangled.split("(")[0] for f in made.kernels.values()} == {"void ns::k<float, 64>", "other", "alone"}
    one = compiling.compile(build, TEXT, "sm_90", "alone")
    assert set(one.kernels) == {"_Z5alonePfl"}
    partly = TEXT + "#include <thrust/sort.h>\n__global__ void needy(float *p) { thrust::sort(p, p + 4); }\n"
    assert "needy" not in str(list(compiling.compile(build, partly, "sm_90").kernels))


@needs_nvrtc
@pytest.mark.usefixtures("no_toolkit")
def test_no_toolkit_and_nothing_self_contained_says_what_to_install(build: Build) -> None:
    with pytest.raises(ToolMissing, match=r"Install the CUDA Toolkit.*NVRTC was tried"):
        compiling.compile(build, "__global__ void k(Foreign *p) { p->go(); }\n", "sm_90")
    with pytest.raises(ToolMissing, match="no launch in this file"):
        compiling.compile(build, "template <class T> __global__ void k(T *p) { *p = 1; }\n", "sm_90")


@pytest.mark.usefixtures("no_toolkit")
def test_nothing_at_all_says_both_ways(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "installed", lambda: False)
    with pytest.raises(ToolMissing, match=r"Install the CUDA Toolkit.*pip install 'cuda-agent-lsp\[cuda13\]'"):
        compiling.compile(build, TEXT, "sm_90")


# ---------------------------------------------------------------- when it may stand in for nvcc


@needs_nvrtc
def test_fast_path_only_after_equal_sass(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc is played by NVRTC here: of the same release when it agrees, and told to differ when it must not count."""
    tool = nvcc.Nvcc(Path("/nvcc"), Path("/"), (*nvrtc.worker().version(), 0), "nvcc same")
    whole = nvrtc.compile(build, TEXT, "sm_90", ["alone"], ["alone"])
    calls: list[str] = []

    def as_nvcc(build: Build, text: str, arch: str, **_: object) -> Binary:
        calls.append(text)
        return whole

    monkeypatch.setattr(nvcc, "find", lambda: tool)
    monkeypatch.setattr(nvcc, "compile", as_nvcc)
    edited = TEXT.replace("/ 3.0f", "/ 5.0f")
    made = compiling.compile(build, edited, "sm_90", "alone")
    assert made.path == "nvrtc"
    assert calls == [TEXT], "only the original went through nvcc"
    assert made.kernels["_Z5alonePfl"].sass_hash != whole.kernels["_Z5alonePfl"].sass_hash

    other_release = dataclasses.replace(tool, version=(12, 0, 0), text="nvcc other")
    assert compiling.fast_instances(other_release, build, "sm_90", "alone") == ()

    facts = dataclasses.replace(whole.kernels["_Z5alonePfl"], sass_hash="different")
    whole = dataclasses.replace(whole, kernels={"_Z5alonePfl": facts})
    differs = dataclasses.replace(tool, text="nvcc differs")
    assert compiling.fast_instances(differs, build, "sm_90", "alone") == ()


@needs_nvrtc
def test_what_nvrtc_cannot_compile_goes_to_nvcc(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "fast_instances", lambda *a: ("alone",))
    monkeypatch.setattr(nvcc, "find", lambda: nvcc.Nvcc(Path("/nvcc"), Path("/"), (13, 5, 0), "nvcc"))

    def refuse(*_: object, **__: object) -> Binary:
        raise CompileError("from nvcc")

    monkeypatch.setattr(nvcc, "compile", refuse)
    with pytest.raises(CompileError, match="from nvcc"):
        compiling.compile(build, TEXT.replace("3.0f", "nothing"), "sm_90", "alone")
