"""Turns on one GPU: a timing is alone, the rest share, nobody waits for ever, and a dead process holds nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from cuda_agent.device.client import Device
from cuda_agent.device.jobs import Job
from cuda_agent.device.turn import turn
from cuda_agent.errors import Cancelled
from patience import patience

from .conftest import HostTransport
from .kernels import Program

LONG_S = 5.0


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOST_GPU", "cafe")
    return "cafe"


class Taking(threading.Thread):
    """Takes a turn in a thread and keeps it until told."""

    def __init__(self, uuid: str, alone: bool) -> None:
        super().__init__(daemon=True)
        self.uuid, self.alone = uuid, alone
        self.has, self.leave = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with turn(self.uuid, alone=self.alone):
            self.has.set()
            self.leave.wait(patience(LONG_S))


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [(False, False, True), (False, True, False), (True, False, False), (True, True, False)],
)
def test_who_shares(gpu: str, first: bool, second: bool, together: bool) -> None:
    one = Taking(gpu, first)
    assert one.has.wait(patience(LONG_S))
    other = Taking(gpu, second)
    assert other.has.wait(patience(LONG_S) if together else 0.1) == together
    one.leave.set()
    assert other.has.wait(patience(LONG_S))
    other.leave.set()


def test_nobody_new_passes_a_timing_that_waits(gpu: str) -> None:
    computing = Taking(gpu, False)
    assert computing.has.wait(patience(LONG_S))
    timing = Taking(gpu, True)
    time.sleep(0.1)
    late = Taking(gpu, False)
    assert not late.has.wait(0.1)
    computing.leave.set()
    assert timing.has.wait(patience(LONG_S))
    assert not late.has.is_set()
    timing.leave.set()
    assert late.has.wait(patience(LONG_S))
    late.leave.set()


def test_gpus_do_not_wait_for_each_other(gpu: str) -> None:
    with turn(gpu, alone=True), turn("beef", alone=True), turn("", alone=True), turn("", alone=True):
        pass


def test_stopped_while_waiting(gpu: str) -> None:
    with turn(gpu, alone=True), pytest.raises(Cancelled), turn(gpu, alone=False, cancelled=lambda: True):
        pass


def test_a_killed_process_holds_nothing(gpu: str) -> None:
    code = (
        "import time\nfrom cuda_agent.device.turn import turn\n"
        f"with turn({gpu!r}, alone=True):\n    print(1, flush=True)\n    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        other = Taking(gpu, False)
        assert not other.has.wait(0.1)
        process.kill()
        assert other.has.wait(patience(LONG_S))
        other.leave.set()


def test_a_temporary_folder_that_takes_no_file(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with turn(gpu, alone=True):
        pass


def test_a_job_waits_its_turn_and_its_deadline_does_not_run_meanwhile(gpu: str) -> None:
    program, ended = Program(), threading.Event()
    with Device("host", HostTransport()) as device:
        assert device.info.uuid == gpu
        job = Job([program.load(), program.launch("a")], 0.5 * patience(1))

        def work() -> None:
            assert device.run(job, program.blobs)[1]["ok"]
            ended.set()

        with turn(gpu, alone=True):
            worker = threading.Thread(target=work)
            worker.start()
            assert not ended.wait(2 * job.deadline_s)
        worker.join(patience(LONG_S))
        assert ended.is_set()


def test_only_a_job_that_times_is_alone(gpu: str) -> None:
    program = Program()
    fields = program.fields()
    timed = {"op": "time", "a": fields, "b": fields, "rounds": 1, "min_us": 1.0, "cold": False, "seed": 1}
    with Device("host", HostTransport()) as device, turn(gpu, alone=False):
        assert device.run(Job([program.load(), program.launch("a")], 20.0), program.blobs)[1]["ok"]
        ended = threading.Event()

        def work() -> None:
            with contextlib.suppress(Cancelled):  # the device is closed below
                device.run(Job([program.load(), timed], 60.0), program.blobs)
                ended.set()

        threading.Thread(target=work, daemon=True).start()
        assert not ended.wait(0.3)
