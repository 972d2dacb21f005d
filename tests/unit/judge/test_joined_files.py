"""A header's kernel and its launches in other files: what may change there, and that each file says what was judged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cuda_agent.device import open_device
from cuda_agent.errors import CompileError
from cuda_agent.judge import launch_text
from cuda_agent.judge.case import Case
from cuda_agent.judge.edit_tokens import Selection
from cuda_agent.judge.gates.g00_edit_policy import EditPolicy, violations
from cuda_agent.judge.gates.g01_compile import _other_sources
from cuda_agent.model import Candidate, LaunchMap, Workload
from cuda_agent.source import edits, joined
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.toolchain.build import find_build
from cuda_agent.toolchain.launchers import with_launches

KERNEL = """#pragma once
__device__ float twice(float x) { return 2.0f * x; }
__global__ void scale(float *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = twice(x[i]);
}
"""
A = """#define THREADS 256
#include "kernel.cuh"
__device__ float half(float x) { return 0.5f * x; }
int main()
{
    float *x = nullptr;
    int n = 1000;
    dim3 grid((n + THREADS - 1) / THREADS);
    scale<<<grid, THREADS>>>(x, n);
    return n;
}
"""
B = """#define THREADS 128
#include "kernel.cuh"
void more(float *x, int n) { scale<<<(n + THREADS - 1) / THREADS, THREADS>>>(x, n); }
"""
ORIGINAL = joined.join(KERNEL, {"a.cu": A, "b.cu": B})
SMALL = LaunchMap(grid=("ceil_div(gx * bx, 64)", "gy", "gz"), block=("64", "by", "bz"))
SMALLER = {"a.cu": A.replace("<<<grid, THREADS>>>", "<<<grid.x * 4, 64>>>")}
SMALLER["b.cu"] = B.replace("<<<(n + THREADS - 1) / THREADS, THREADS>>>", "<<<((n + 127) / 128) * 2, 64>>>")


def found(text: str) -> list[str]:
    before = Selection(module(Document("kernel.cuh", ORIGINAL)), "scale")
    after = Selection(module(Document("kernel.cuh", text)), "scale", before.feeding_names)
    return list(violations(before, after))


def change(name: str, old: str, new: str) -> str:
    files = joined.others(ORIGINAL)
    assert old in files[name]
    return joined.join(KERNEL, files | {name: files[name].replace(old, new, 1)})


GOOD = {
    "both launches": joined.join(KERNEL, SMALLER),
    "a helper that the kernel alone uses": ORIGINAL.replace("2.0f * x", "x + x"),
    "what only feeds a launch": change("a.cu", "(n + THREADS - 1) / THREADS", "(n + 255) / 256"),
    "comments": change("b.cu", "void more", "// twice\nvoid  more"),
}
BAD = {
    "host code beside a launch": (change("a.cu", "int n = 1000", "int n = 999"), "outside scale"),
    "a macro": (change("b.cu", "THREADS 128", "THREADS 64"), "outside scale"),
    "an argument": (change("b.cu", "(x, n)", "(x, n - 1)"), "other arguments"),
    "a launch gone": (change("a.cu", "scale<<<grid, THREADS>>>(x, n);", ""), "launches"),
    "a launch more": (change("b.cu", "{ scale", "{ scale<<<1, 1>>>(x, n); scale"), "launches"),
    "another stream": (change("b.cu", "THREADS>>>", "THREADS, 0, 1>>>"), "another stream"),
    "an include that a kernel may need": (
        change("a.cu", "#define", "#include <cuda_fp16.h>\n#define"),
        "outside scale",
    ),
    "a device function of that file": (change("a.cu", "0.5f", "0.25f"), "outside scale"),
    "a new device function there": (change("b.cu", "void more", "__device__ int f() { return 1; }\nvoid more"), "new"),
    "another header": (change("a.cu", "kernel.cuh", "kernel2.cuh"), "outside scale"),
}


@pytest.mark.parametrize("name", GOOD)
def test_launches_may_change_in_all_files(name: str) -> None:
    assert found(GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_nothing_else_may(name: str) -> None:
    text, word = BAD[name]
    sentences = found(text)
    assert any(word in sentence for sentence in sentences), sentences


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        (SMALLER, ""),
        ({"a.cu": SMALLER["a.cu"]}, "THREADS"),
        ({"b.cu": SMALLER["b.cu"]}, "THREADS"),
        # Right for the other file's macro only.
        (SMALLER | {"b.cu": B.replace("/ THREADS, THREADS", "/ THREADS * 4, 64")}, "judged was"),
    ],
)
def test_each_file_launches_what_was_judged(files: dict[str, str], wrong: str) -> None:
    texts = (ORIGINAL, joined.join(KERNEL, joined.others(ORIGINAL) | files))
    before, after = (module(Document("kernel.cuh", text)) for text in texts)
    said = launch_text.mismatch(before, after, before.kernel("scale"), SMALL)
    assert said is None if not wrong else wrong in str(said)


def candidate(text: str, launch: LaunchMap) -> Candidate:
    return Candidate("scale", ORIGINAL, text, edits.minimal(ORIGINAL, text), "rule:block-shape", launch=launch)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {"kernel.cuh": KERNEL, "a.cu": A, "b.cu": B}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def case(folder: Path, made: Candidate, device: object = None) -> Case:
    build = find_build(folder / "kernel.cuh")
    assert with_launches(build, KERNEL) == ORIGINAL
    workload = Workload("scale", "captured", (), folder, folder, "emulator")
    return Case(device, build, workload, ORIGINAL, made)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (joined.join(KERNEL, SMALLER), "only scale, what it alone uses and its launches in a.cu, b.cu changed"),
        (joined.join(KERNEL, SMALLER | {"b.cu": B}), "the text launches other shapes than were judged"),
        (joined.join(KERNEL, {"a.cu": SMALLER["a.cu"]}), "joined with other files"),
        (ORIGINAL.replace('file "b.cu"', 'file  "b.cu"'), "joined with other files"),
        (KERNEL, "joined with other files"),
    ],
)
def test_the_gate(project: Path, text: str, sentence: str) -> None:
    result = EditPolicy().check(case(project, candidate(text, SMALL)))
    assert sentence in result.detail
    assert result.status == ("pass" if sentence.startswith("only") else "fail")


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
def test_every_source_with_an_edited_launch_is_compiled(project: Path) -> None:
    right, wrong = (
        joined.join(KERNEL, SMALLER | {"b.cu": SMALLER["b.cu"].replace("2, 64", two)}) for two in ("2, 64", "t, 64")
    )
    with open_device("emulator") as device:
        assert _other_sources(case(project, candidate(wrong, SMALL), device)) == ["b.cu"]  # its build is not known
        known = [
            {"directory": str(project), "file": name, "arguments": ["nvcc", "-c", name]} for name in ("a.cu", "b.cu")
        ]
        (project / "compile_commands.json").write_text(json.dumps(known))
        assert _other_sources(case(project, candidate(right, SMALL), device)) == []
        with pytest.raises(CompileError) as raised:
            _other_sources(case(project, candidate(wrong, SMALL), device))
    assert "b.cu:3" in raised.value.diagnostics
