"""nvcc's spellings."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.device.emulator.options import parse
from cuda_agent.errors import UsageError


def test_a_usual_command_line() -> None:
    line = "-O2 -std=c++20 -arch=sm_80 -I../inc -I inc2 -DN=4 -D M -Xcompiler -Wall,-fopenmp -Xptxas -v -lineinfo"
    found = parse([*line.split(), "-c", "a.cu", "-o", "a.o"])
    assert found.inputs == ["a.cu"]
    assert (found.output, found.phase, found.optimize, found.standard, found.arch) == ("a.o", "-c", "2", "c++20", 800)
    assert found.includes == ["../inc", "inc2"]
    assert found.macros == ["-DN=4", "-DM"]
    assert found.host == ["-Wall", "-fopenmp"]


def test_linking_drops_cuda_libraries_and_keeps_the_rest() -> None:
    found = parse(["a.o", "b.o", "-L/x", "-lcudart", "-lm", "-lcuda", "-Xlinker", "-rpath,/y", "-shared", "-o", "main"])
    assert found.inputs == ["a.o", "b.o"]
    assert found.link == ["-L/x", "-lm", "-Wl,-rpath", "-Wl,/y"]
    assert found.shared
    assert found.phase == "link"


@pytest.mark.parametrize(
    "spelling", [["--generate-code=arch=compute_90,code=sm_90"], ["-gencode", "arch=compute_90,code=sm_90"]]
)
def test_architectures(spelling: list[str]) -> None:
    assert parse(spelling).arch == 900


@pytest.mark.parametrize(
    ("words", "phase"),
    [
        (["-dc"], "-c"),
        (["--compile"], "-c"),
        (["-M"], "-M"),
        (["--version"], "-V"),
        (["-ptx"], "-ptx"),
        (["-rdc=true"], "link"),
    ],
)
def test_phases(words: list[str], phase: str) -> None:
    assert parse([*words, "a.cu"]).phase == phase


def test_long_and_joined_forms() -> None:
    found = parse(
        [
            "--output-file=x",
            "--define-macro",
            "A",
            "--include-path=i",
            "--use_fast_math",
            "-x=cu",
            "-maxrregcount",
            "32",
        ]
    )
    assert (found.output, found.macros, found.includes, found.fast_math, found.language) == (
        "x",
        ["-DA"],
        ["i"],
        True,
        "cu",
    )
    assert not found.inputs


def test_options_file(tmp_path: Path) -> None:
    (tmp_path / "o.txt").write_text("-DA -O1\n-lm")
    found = parse(["-optf", "o.txt", "a.cu"], tmp_path)
    assert (found.macros, found.optimize, found.link, found.inputs) == (["-DA"], "1", ["-lm"], ["a.cu"])


def test_trouble() -> None:
    with pytest.raises(UsageError, match="-o needs a value"):
        parse(["a.cu", "-o"])
    with pytest.raises(UsageError, match="64-bit"):
        parse(["-m32"])
    with pytest.raises(UsageError, match="options file"):
        parse(["-optf", "/nowhere"])
