"""Candidates compiled in the background: one that takes long holds nobody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent import compiler
from cuda_agent.errors import CompileError
from cuda_agent.model import Binary, Build, Candidate
from patience import patience
from unit.judge.conftest import build


class Device:
    """Compiles a text when the test lets it."""

    def __init__(self, *texts: str) -> None:
        self.gates = {text: threading.Event() for text in texts}
        self.begun: list[str] = []

    def compile(self, build: Build, text: str, *, untrusted: bool = False) -> Binary:
        self.begun.append(text)
        assert self.gates[text].wait(patience(20))
        if text == "bad":
            raise CompileError("it does not compile", "x.cu(3): error: expected a ;")
        return Binary("host", text.encode(), text, {}, "nvcc", (), "host 1.0")  # type: ignore[arg-type]


def made(text: str) -> Candidate:
    return Candidate("k", "", text, (), "test", "bit-exact", id=text)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    device = Device("a", "b", "c", "bad")
    yield device
    for gate in device.gates.values():
        gate.set()


def compiled(device: Any, folder: Path, texts: str, **order: bool) -> Iterator[str]:
    with compiler.compiler(device, build(folder), folder, lambda: False) as compiling:
        candidates = [made(text) for text in texts.split()]
        for candidate, binary in compiling.compiled(candidates, **order):
            yield candidate.id if binary.binary else binary.note


def test_one_that_takes_long_is_overtaken(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "PATIENCE_S", 0.01)
    device.gates["b"].set()
    device.gates["bad"].set()
    found = compiled(device, tmp_path, "a b c bad")
    assert {next(found), next(found)} == {"b", "does not compile: x.cu(3): error: expected a ;"}
    device.gates["c"].set()
    assert next(found) == "c"
    device.gates["a"].set()
    assert list(found) == ["a"]


def test_one_that_is_asked_for_now_waits_for_the_compilation_under_way(device: Device, tmp_path: Path) -> None:
    with compiler.compiler(device, build(tmp_path), tmp_path, lambda: False) as compiling:  # type: ignore[arg-type]
        compiling.guess(lambda: [made("a")])
        while not device.begun:
            time.sleep(0.01)
        threading.Timer(0.05, device.gates["a"].set).start()
        assert compiling.binary(made("a")).sha256 == "a"
        assert device.begun == ["a"]
        device.gates["bad"].set()
        with pytest.raises(CompileError):
            compiling.binary(made("bad"))


def test_of_those_that_are_done_the_first_proposed_comes_first(device: Device, tmp_path: Path) -> None:
    for text in "cba":
        device.gates[text].set()
    assert list(compiled(device, tmp_path, "a b c")) == ["a", "b", "c"]


def test_a_recorded_order_is_kept(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "PATIENCE_S", 0.0)
    device.gates["b"].set()
    threading.Timer(0.2, device.gates["a"].set).start()
    assert list(compiled(device, tmp_path, "a b", in_order=True)) == ["a", "b"]


def test_a_text_is_compiled_once(device: Device, tmp_path: Path) -> None:
    device.gates["a"].set()
    assert list(compiled(device, tmp_path, "a a")) == ["a", "a"]
    assert device.begun == ["a"]
