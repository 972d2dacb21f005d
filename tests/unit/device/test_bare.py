"""One launch in a process of its own, over a stand-in for the driver: what it asks of it, and what it says of the
end."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fake_driver
from cuda_agent.device import bare, driver
from cuda_agent.device.backend import DeviceFault
from cuda_agent.device.bare import Task
from cuda_agent.device.driver import DriverError
from cuda_agent.device.jobs import StepFailed
from patience import patience

from .kernels import DOUBLE, Program, sha


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    made = fake_driver.FakeDriver()
    monkeypatch.setattr(driver, "library", lambda: made)
    return made


def task(
    folder: Path, kernel: str = "double", text: str = DOUBLE, unwritten: tuple[int, ...] = (), **more: Any
) -> Task:
    program = Program(text)
    for name, data in program.blobs.items():
        (folder / name).write_bytes(data)
    launch = {**program.launch("run", kernel, poison=""), **more}
    return Task(program.load(), launch, folder, frozenset(unwritten))


def floats(memory: ctypes.Array[ctypes.c_char]) -> list[float]:
    return list((ctypes.c_float * (len(memory) // 4)).from_buffer(memory))


def test_a_buffer_is_an_allocation_of_its_size(fake: fake_driver.FakeDriver, tmp_path: Path) -> None:
    made = task(tmp_path)
    bare.perform(made, 0)
    x, y = fake.allocated.values()
    assert [len(x), len(y)] == [buffer["size"] for buffer in made.launch["buffers"]]
    assert floats(y) == [2 * value for value in floats(x)]
    assert floats(x)[:3] == [1.0, -2.5, 3.0]
    assert fake.calls[:4] == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    # The checkers' last words come with the end of the context; nothing runs that the launch does not need.
    assert fake.calls[-3:] == ["cuLaunchKernel", "cuCtxSynchronize", "cuDevicePrimaryCtxRelease_v2"]
    assert "cuModuleEnumerateFunctions" not in fake.calls


def test_what_nobody_wrote_is_left_alone(fake: fake_driver.FakeDriver, tmp_path: Path) -> None:
    bare.perform(task(tmp_path, "nothing", unwritten=(1,)), 0)
    _, y = fake.allocated.values()
    assert set(y.raw) == {0xCD}
    assert fake.calls.count("cuMemcpyHtoD_v2") == 1


def test_a_buffer_in_chunks_an_empty_one_and_a_global(fake: fake_driver.FakeDriver, tmp_path: Path) -> None:
    made = task(tmp_path, "scaled")
    first, second = b"\x00\x00\x80\x3f" * 2, b"\x00\x00\x00\x40" * 3
    for data in (first, second):
        (tmp_path / sha(data)).write_bytes(data)
    made.launch["buffers"][0]["init"] = {"blobs": [sha(first), sha(second)]}
    made.launch["buffers"].append({"size": 0, "init": {"blobs": []}, "poison": []})
    made.launch["globals"] = [["scale", {"blobs": [sha(b"\x00\x00\x40\x40")]}]]
    (tmp_path / sha(b"\x00\x00\x40\x40")).write_bytes(b"\x00\x00\x40\x40")
    bare.perform(made, 0)
    _, y = fake.allocated.values()
    assert floats(y) == [3.0, 3.0, 6.0, 6.0, 6.0]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"kernel": "gone"}, "the binary has no kernel gone; it has chatter, double"),
        ({"args": []}, "takes other parameters than were captured"),
        ({"globals": [["nowhere", {"blobs": []}]]}, "the binary has no global nowhere"),
        ({"buffers": [{"size": 4, "init": {"fill": "00"}}] * 2}, "a buffer's init must be blobs"),
        ({"buffers": [{"size": 4, "init": {"blobs": []}}] * 2}, "the recorded bytes are 0, the buffer has 4"),
        ({"buffers": [{"size": 1 << 40, "init": {"blobs": []}}] * 2}, "CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_what_cannot_be_done(fake: fake_driver.FakeDriver, tmp_path: Path, more: dict[str, Any], says: str) -> None:
    with pytest.raises(StepFailed, match=says):
        bare.perform(task(tmp_path, **more), 0)
    assert "cuLaunchKernel" not in fake.calls


def test_faults_and_missing_gpus(fake: fake_driver.FakeDriver, tmp_path: Path) -> None:
    with pytest.raises(DeviceFault, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        bare.perform(task(tmp_path, "fault"), 0)
    assert fake.calls[-1] == "cuCtxSynchronize"  # a broken context is not asked again
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_DEVICE"):
        bare.perform(task(tmp_path), 1)


def run(folder: Path) -> tuple[int, str, str]:
    """Exit code and what it printed."""
    argv = [sys.executable, fake_driver.__file__, "cuda:0", str(folder)]
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr)
        code = process.wait(patience(20))
        assert process.stdin is not None
        process.stdin.close()
    return code, out.read_text(), err.read_text()


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ("chatter", ""),
        ("fault", "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)"),
        ("segfault", None),
    ],
)
def test_the_process_says_how_it_ended(tmp_path: Path, kernel: str, says: str | None) -> None:
    task(tmp_path, kernel).write(tmp_path)
    code, out, err = run(tmp_path)
    assert bare.error_of(tmp_path) == says
    assert out == ""  # printf of a kernel goes to standard error
    assert ("this is printf" in err) == (kernel == "chatter")
    assert code == {"": 0, None: -11}.get(says, 1)


def test_it_ends_with_whoever_waits(tmp_path: Path) -> None:
    task(tmp_path, "spin").write(tmp_path)
    process = subprocess.Popen([sys.executable, fake_driver.__file__, "cuda:0", str(tmp_path)], stdin=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(patience(10)) == -9


def test_no_array_library(tmp_path: Path) -> None:
    """Importing one under a checker takes longer than the launch."""
    code = "import sys, cuda_agent.device.bare; print(*sorted({'numpy', 'cupy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"\n"


def test_a_task_on_disk(tmp_path: Path) -> None:
    made = task(tmp_path, unwritten=(1, 0))
    made.write(tmp_path)
    assert Task.read(tmp_path)[0] == made
    assert json.loads((tmp_path / "job.json").read_text())["unwritten"] == [0, 1]
