"""Which device is opened, what doctor hears, and steps made from the model's objects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import config, device
from cuda_agent.device import Device, Quarantine, client, driver, jobs
from cuda_agent.errors import CompileError, DeviceMissing, SandboxError, UsageError
from cuda_agent.model import Arg, Binary, Buffer, Build, Launch, Pointer
from cuda_agent.toolchain import sandbox


@pytest.mark.parametrize("spec", ["gpu", "cuda:x", "emulator:", "ssh://host", ""])
def test_a_name_that_means_nothing(spec: str) -> None:
    with pytest.raises(UsageError, match="use auto, cuda:N"):
        device.open_device(spec)


def test_a_gpu_that_the_emulator_does_not_know() -> None:
    with pytest.raises(UsageError, match="h200"):
        device.open_device("emulator:voodoo2")


@pytest.mark.skipif(driver.why_not() is None, reason="this machine has a GPU")
def test_without_a_gpu_the_reason_is_given() -> None:
    with pytest.raises(DeviceMissing, match=r"driver|GPU"):
        device.open_device("cuda:0")
    first = device.probe()[0]
    assert (first.spec, first.info) == ("cuda:0", None)
    assert first.reason == driver.why_not()


def test_untrusted_kernels_on_the_emulator_need_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "available", lambda: False)
    with pytest.raises(SandboxError, match="bubblewrap"):
        device.open_device("emulator", untrusted=True)
    assert device.default_transport("emulator").wrap is None  # type: ignore[attr-defined]
    assert device.default_transport("cuda:0", untrusted=True).wrap is None  # type: ignore[attr-defined]


def launch() -> Launch:
    return Launch(
        mangled="_Z1kPKfPf",
        demangled="k(float const*, float*)",
        grid=(4, 1, 1),
        block=(128, 1, 1),
        shared=64,
        args=(Arg(0, bytes(8), (Pointer(0, 0, 16),)), Arg(8, bytes(8), (Pointer(0, 1, 0),))),
        buffers=(
            Buffer(1, 256, ("x1", "x2"), ("x1", "x2")),
            Buffer(2, 256, ("y",), ("z",)),
            Buffer(3, 8, ("w",), None),
        ),
        globals=(("factor", ("g",)),),
    )


BINARY = Binary("cubin", b"cubin", "sha", {}, "nvcc")


def test_steps_from_a_launch() -> None:
    assert jobs.load_step(BINARY) == {"op": "load", "module": "sha", "kind": "cubin", "blob": "sha"}
    step = jobs.launch_step("a", "m", launch(), shift=4, poison={1: [(0, 256, "ff")]}, grid=(1, 2, 3))
    assert (step["op"], step["run"], step["module"], step["kernel"]) == ("launch", "a", "m", "_Z1kPKfPf")
    assert (step["grid"], step["block"], step["shared"], step["shift"]) == ([1, 2, 3], [128, 1, 1], 64, 4)
    assert step["args"][0] == {"offset": 0, "hex": "00" * 8, "pointers": [[0, 0, 16]]}
    assert step["buffers"][0] == {"size": 256, "init": {"blobs": ["x1", "x2"]}, "poison": []}
    assert step["buffers"][1]["poison"] == [[0, 256, "ff"]]
    assert step["globals"] == [["factor", {"blobs": ["g"]}]]


def test_initial_bytes_may_be_replaced_and_the_kernel_renamed() -> None:
    fields = jobs.launch_fields("m", launch(), kernel="_Z1kPKfS_", inits={1: {"fill": "00"}}, shared=0)
    assert fields["kernel"] == "_Z1kPKfS_"
    assert fields["buffers"][1]["init"] == {"fill": "00"}
    assert fields["shared"] == 0
    assert "op" not in fields


def test_compare_with_what_the_program_left_skips_what_was_not_recorded() -> None:
    step = jobs.compare_after_step("a", launch(), ["f32", "f64", "i32"])
    assert [(b["buffer"], b["dtype"], b["expected"]) for b in step["buffers"]] == [
        (0, "f32", {"blobs": ["x1", "x2"]}),
        (1, "f64", {"blobs": ["z"]}),
    ]


def test_blobs_come_from_memory_or_from_the_store(tmp_path: Path) -> None:
    class Store:
        def get(self, names: tuple[str, ...]) -> bytes:
            return "+".join(names).encode()

    source: Any = jobs.BlobSource(Store()).add_binary(BINARY).add("made", b"up")
    assert source["sha"] == b"cubin"
    assert source["made"] == b"up"
    assert source["stored"] == b"stored"
    with pytest.raises(KeyError):
        jobs.BlobSource()["stored"]


def test_time_steps() -> None:
    a = jobs.launch_fields("a", launch())
    step = jobs.time_step(a, a, rounds=7, budget_s=2.0)
    assert (step["op"], step["rounds"], step["budget_s"], step["cold"]) == ("time", 7, 2.0, True)
    assert "check" not in step


def test_a_text_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compilers' cache reads every header anew: hundreds for a candidate that is judged."""
    asked: list[tuple[str, bool]] = []

    def compile_(self: Device, build: Build, text: str, untrusted: bool, kernel: str | None) -> Binary:
        asked.append((text, untrusted))
        if text == "bad":
            raise CompileError("no", "no")
        return Binary("emulator", text.encode(), text, {}, "g++", build.flags, "g++")

    monkeypatch.setattr(Device, "_compile", compile_)
    monkeypatch.setattr(client, "BINARIES", 2)
    opened, build = (
        Device("emulator", quarantine=Quarantine(), start=False),
        Build(tmp_path / "x.cu", tmp_path, "nvcc", (), "default"),
    )
    for text in "aabacabb":  # `a` is used all the time, `b` makes room for `c`
        assert opened.compile(build, text).data == text.encode()
    assert [text for text, _ in asked] == ["a", "b", "c", "b"]
    opened.compile(build, "b", untrusted=True)
    opened.compile(replace(build, flags=("-O1",)), "b")
    monkeypatch.setattr(config, "_current", replace(config.current(), extra_flags=("-O1",)))
    opened.compile(build, "b")
    assert asked[4:] == [("b", True), ("b", False), ("b", False)]
    for _ in range(2):
        with pytest.raises(CompileError):
            opened.compile(build, "bad")
    assert len(asked) == 9
