"""Turns on one GPU: a timing is alone, the rest share, nobody waits for ever, and a dead process holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.device import client
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


def test_a_shared_turn_becomes_one_alone(gpu: str) -> None:
    """It lets go meanwhile: two that wait for each other would wait for ever."""
    other = Taking(gpu, False)
    assert other.has.wait(patience(LONG_S))
    began, alone = threading.Event(), threading.Event()

    def time_something() -> None:
        with turn(gpu, alone=False) as be_alone:
            began.set()
            be_alone()
            alone.set()

    for _ in range(2):
        threading.Thread(target=time_something, daemon=True).start()
    assert began.wait(patience(LONG_S))
    assert not alone.wait(0.1)
    other.leave.set()
    assert alone.wait(patience(LONG_S))
    with turn(gpu, alone=True):
        pass


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
        assert device.waited > job.deadline_s


def test_only_the_timing_of_a_job_is_alone(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before it is done while others share the GPU, and the deadline stands still while it waits."""
    program = Program()
    fields = program.fields()
    timed = {"op": "time", "a": fields, "b": fields, "rounds": 1, "min_us": 1.0, "cold": False, "seed": 1}
    launched, ended = threading.Event(), threading.Event()
    with Device("host", HostTransport()) as device:
        assert device.run(Job([program.load(), program.launch("a")], 20.0), program.blobs)[1]["ok"]
        job = Job([program.load(), program.launch("a"), timed], 0.5 * patience(1))
        plain = client._Conversation._result

        def seen(self: client._Conversation, *arguments: Any) -> None:
            plain(self, *arguments)
            if len(self.results) == 2:
                launched.set()

        monkeypatch.setattr(client._Conversation, "_result", seen)

        def work() -> None:
            assert all(result["ok"] for result in device.run(job, program.blobs))
            ended.set()

        worker = threading.Thread(target=work, daemon=True)
        with turn(gpu, alone=False):
            worker.start()
            assert launched.wait(patience(LONG_S))
            assert not ended.wait(2 * job.deadline_s)
        worker.join(patience(LONG_S))
        assert ended.is_set()
        assert device.waited > job.deadline_s
