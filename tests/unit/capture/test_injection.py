"""The CUPTI injection without a GPU: its callbacks called as CUPTI calls them, over a driver of host memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.capture import injection
from cuda_agent.errors import ToolMissing

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ builds the injection")

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        cupti = injection.find_cupti()
    except ToolMissing as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("injected")
    argv = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{injection.NATIVE}"]
    argv += [f"-isystem{path}" for path in cupti.includes]
    library, output = folder / "libcuda.so.1", folder / "program"
    driver = [*argv, "-fPIC", "-shared", f"-Wl,-soname,{library.name}", str(HERE / "fake_driver.cpp")]
    subprocess.run([*driver, "-o", str(library)], check=True)
    sources = [str(HERE / "injected_program.cpp"), str(injection.NATIVE / "injection.cpp"), str(library)]
    subprocess.run([*argv, *sources, f"-Wl,-rpath,{folder}", "-ldl", "-pthread", "-o", str(output)], check=True)
    return output


@pytest.fixture(scope="module")
def ran(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """What the program printed and the record's lines."""
    folder = tmp_path_factory.mktemp("raw")
    environment = {**os.environ, "CUDA_AGENT_CAPTURE_DIR": str(folder), "CUDA_AGENT_CAPTURE_FIRST": "1"}
    done = subprocess.run([str(program)], env=environment, check=True, capture_output=True, text=True)
    lines = (folder / "launches.jsonl").read_text().splitlines()
    return done.stdout, [json.loads(line) for line in lines]


def last(lines: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return [line for line in lines if line.get("demangled", "").partition("(")[0] == name and "seen" in line][-1]


@pytest.mark.parametrize(("kernel", "varied"), [("step", [2]), ("packed", [1])])
def test_every_launch_is_compared_and_one_recorded(
    ran: tuple[str, list[dict[str, Any]]], kernel: str, varied: list[int]
) -> None:
    lines = ran[1]
    assert last(lines, kernel)["seen"] == 5
    assert last(lines, kernel)["varied"] == varied
    told = [
        shape
        for line in lines
        if line.get("demangled", "").startswith(f"{kernel}(")
        for shape in line.get("shapes", ())
    ]
    assert told == [[1, 1, 1, 1, 1, 1, 0]]
    (recorded,) = [line for line in lines if line.get("demangled", "").startswith(f"{kernel}(") and "args" in line]
    assert [len(arg["hex"]) // 2 for arg in recorded["args"]] == [8, 4, 4]
    assert recorded["args"][0]["pointers"] == [[0, 0, 0]]
    assert recorded["args"][varied[0]]["hex"] == "01000000"


def test_a_launch_of_a_known_function_asks_one_question(ran: tuple[str, list[dict[str, Any]]]) -> None:
    assert ran[0].split() == ["1"] * 4


def test_a_handle_that_was_given_to_another_function(ran: tuple[str, list[dict[str, Any]]]) -> None:
    lines = ran[1]
    assert last(lines, "other")["varied"] == []
    assert last(lines, "fused")["varied"] is None  # two functions of one name
    assert (last(lines, "none")["seen"], last(lines, "none")["varied"]) == (2, [])


def test_arguments_that_are_missing(ran: tuple[str, list[dict[str, Any]]]) -> None:
    lines = ran[1]
    assert [line["skipped"] for line in lines if line.get("skipped")] == ["argument 0 has no value"]
    assert last(lines, "missing")["varied"] is None
