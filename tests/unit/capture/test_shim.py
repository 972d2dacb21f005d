"""The recording nvcc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.capture import injection, shim
from cuda_agent.errors import ToolMissing
from cuda_agent.toolchain import build

FAKE = """#!/bin/sh
echo "$@" > "{log}"
exit 3
"""


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A toolkit whose nvcc writes down its arguments and fails with code 3."""
    root = tmp_path / "toolkit"
    (root / "bin").mkdir(parents=True)
    (root / "include").mkdir()
    (root / "include" / "cuda.h").write_text("")
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(FAKE.format(log=tmp_path / "log"))
    nvcc.chmod(0o755)
    (root / "bin" / "ptxas").write_text("")
    return nvcc


def install(tmp_path: Path, real: Path) -> shim.Shim:
    return shim.install(
        tmp_path / "cuda", real, real.parents[1], None, tmp_path / "builds.jsonl", tmp_path / "globals.txt"
    )


def test_this_process_never_opens_what_will_be_run_for_writing(tmp_path: Path, real: Path) -> None:
    """A process that another thread starts meanwhile would hold it open: "Text file busy", 4 times in 100."""
    opened: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and arguments[1] in ("w", "wb", "r+", "a"):
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    tools = install(tmp_path, real)
    watching = False  # a hook stays for good
    assert opened
    assert str(tools.nvcc) not in opened


def test_it_records_and_becomes_nvcc(tmp_path: Path, real: Path) -> None:
    tools = install(tmp_path, real)
    work = tmp_path / "a project"
    work.mkdir()
    (work / "main.cu").write_text("__constant__ float weights[9];\n")
    argv = ["nvcc", "-O3", '-DNAME="a b"', "-arch=sm_90", "-c", "main.cu", "-o", "main.o"]
    done = subprocess.run(argv, cwd=work, env={**os.environ, **tools.environment}, check=False)
    assert done.returncode == 3
    assert (tmp_path / "log").read_text().startswith('-O3 -DNAME="a b" -arch=sm_90 -c main.cu')
    (line,) = [json.loads(line) for line in (tmp_path / "builds.jsonl").read_text().splitlines()]
    assert line["arguments"] == [str(real), *argv[1:]]
    assert line["directory"] == str(work)
    (found,) = build.parse_command(line["arguments"], Path(line["directory"]))
    assert found.file == work / "main.cu"
    assert "-O3" in found.flags
    assert (tmp_path / "globals.txt").read_text() == "weights\n"


def test_linking_is_not_a_build(tmp_path: Path, real: Path) -> None:
    tools = install(tmp_path, real)
    subprocess.run(["nvcc", "main.o", "-o", "main"], cwd=tmp_path, env={**os.environ, **tools.environment}, check=False)
    assert not (tmp_path / "builds.jsonl").exists()
    assert (tmp_path / "log").exists()


def test_a_record_that_cannot_be_written_does_not_break_the_build(tmp_path: Path, real: Path) -> None:
    tools = install(tmp_path, real)
    (tmp_path / "builds.jsonl").mkdir()
    environment = {**os.environ, **tools.environment}
    argv = ["nvcc", "-c", "main.cu"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 3
    assert "was not recorded" in done.stderr


def test_the_folder_looks_like_the_toolkit(tmp_path: Path, real: Path) -> None:
    tools = install(tmp_path, real)
    assert (tools.folder / "include" / "cuda.h").is_file()
    assert (tools.folder / "bin" / "ptxas").resolve() == real.parent / "ptxas"
    assert tools.environment["CUDA_HOME"] == str(tools.folder)
    assert tools.environment["CUDACXX"] == tools.environment["NVCC"] == str(tools.nvcc)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_a_makefile_finds_it(tmp_path: Path, real: Path) -> None:
    tools = install(tmp_path, real)
    (tmp_path / "main.cu").write_text("")
    (tmp_path / "Makefile").write_text("all:\n\t-$(CUDA_HOME)/bin/nvcc -O1 -c main.cu\n\t-nvcc -O2 -c main.cu\n")
    subprocess.run(["make"], cwd=tmp_path, env={**os.environ, **tools.environment}, check=True, capture_output=True)
    flags = [json.loads(line)["arguments"][1] for line in (tmp_path / "builds.jsonl").read_text().splitlines()]
    assert flags == ["-O1", "-O2"]


def test_dry_runs_are_read(tmp_path: Path) -> None:
    text = (
        "make: Entering directory '/p'\nnvcc -O3 -c a.cu -o a.o\nmake[1]: Entering directory '/p/sub'\n"
        '/opt/bin/nvcc -DX="1 2" -c b.cu\ng++ c.cpp\necho "nvcc\nmake[1]: Leaving directory \'/p/sub\'\nnvcc -c c.cu\n'
    )
    assert shim.record_dry_run(text, tmp_path, tmp_path / "builds.jsonl", "/real/nvcc") == 3
    entries = [json.loads(line) for line in (tmp_path / "builds.jsonl").read_text().splitlines()]
    assert [(entry["directory"], entry["file"]) for entry in entries] == [
        ("/p", "/p/a.cu"),
        ("/p/sub", "/p/sub/b.cu"),
        ("/p", "/p/c.cu"),
    ]
    assert all(entry["arguments"][0] == "/real/nvcc" for entry in entries)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("__constant__ float weights[9], other;", ["weights", "other"]),
        ("static __device__ int counter = 0;", ["counter"]),
        ("__device__ __align__(16) float4 table[N * 2];", ["table"]),
        ("__managed__ double total;", ["total"]),
        ("__constant__ float c[2] = {1, 2};", ["c"]),
        ("__device__ float f(float x) { return x; }", []),
        ("__global__ void k(int n) {} // __device__ int no;\n/* __constant__ int nor; */", []),
        ("template <class T> __device__ T g(T x);", []),
    ],
)
def test_module_variables(text: str, names: list[str]) -> None:
    assert shim.variables(text) == names


def test_outputs_are_taken_back(tmp_path: Path) -> None:
    old, new = tmp_path / "main.o", tmp_path / "main"
    old.write_text("emulator")
    new.write_text("emulator")
    Path(f"{old}.cuda-agent-saved").write_text("gpu")
    listing = tmp_path / "outputs"
    listing.write_text(f"{old}\n{new}\n{old}\n")
    assert shim.clean_outputs(listing) == 2
    assert old.read_text() == "gpu"
    assert not new.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["main.o", "outputs"]
    assert shim.clean_outputs(tmp_path / "none") == 0


def test_missing_cupti_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection, "_roots", lambda: iter(()))
    with pytest.raises(ToolMissing, match="pip install nvidia-cuda-cupti"):
        injection.find_cupti()


def test_the_injection_builds_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        injection.find_cupti()
    except ToolMissing as error:
        pytest.skip(str(error))
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    first = injection.build_injection()
    stamp = first.stat().st_mtime_ns
    assert injection.build_injection() == first
    assert first.stat().st_mtime_ns == stamp
    assert list(first.parent.glob("injection*")) == [first]
