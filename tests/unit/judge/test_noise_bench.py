"""tests/bench/noise_gpu.py on the simulated GPU: what it would print on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import noise_gpu
from cuda_agent.errors import DeviceError
from simulated import SimulatedDevice, Weather

from .conftest import assemble, build, source, workload

LOAD = """/*machine
def work(c, out, steps):
    return 1.5 + number(steps) / 450
*/"""
KERNEL = source("b[:] = 2 * a + 1\nreturn 51.0")


def device(**weather: float) -> SimulatedDevice:
    return SimulatedDevice(Weather(**weather), 1, assemble)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", noise_gpu.SLOWDOWNS_US)
def test_two_per_cent_more_work_is_seen(tmp_path: Path, target: float) -> None:
    gpu = device(noise=0.003)
    row = noise_gpu.slowdown(gpu, gpu.compile(build(tmp_path), LOAD), target, 10, budget_s=60)
    assert row.labels["SLOWER"] >= 9, row
    assert row.us == pytest.approx(target, rel=0.01)
    assert row.late == 0
    assert not row.limits


def test_a_kernel_against_itself(tmp_path: Path) -> None:
    gpu = device(noise=0.003, address=0.02)
    binary = gpu.compile(build(tmp_path), KERNEL)
    row = noise_gpu.noise(gpu, "axpy", workload(tmp_path), binary, 10, budget_s=60)
    assert set(row.labels) <= {"SAME", "AMBIGUOUS"}
    assert sum(row.labels.values()) == len(row.ratios) == 10
    assert 0 < row.floor < 0.01
    assert 0 < row.widest < 0.02
    assert row.set > 0.01 > row.place  # what addresses do is seen, and does no harm
    assert row.rounds == [30] * 10


def test_all_rows_come_as_they_are_made_within_their_time(tmp_path: Path) -> None:
    gpu = device()
    binary = gpu.compile(build(tmp_path), KERNEL)
    ready = [
        noise_gpu.Ready("axpy", [workload(tmp_path)], binary),
        noise_gpu.Ready("broken", note="capture failed: no make"),
        noise_gpu.Ready("late", [workload(tmp_path)], binary),
    ]
    rows: list[noise_gpu.Row] = []
    times = iter([40.0, 40.0, 40.0, 0.0])
    noise_gpu.measure(gpu, ready, gpu.compile(build(tmp_path), LOAD), 2, lambda: next(times), rows.append)
    assert [row.program for row in rows] == ["broken", "(a loop)", "(a loop)", "axpy", "late"]
    assert rows[0].notes == ["capture failed: no make"]
    assert rows[-1].notes == ["no time left"]
    assert all(len(row.cells()) == len(noise_gpu.HEADINGS) for row in rows)
    assert rows[3].cells()[0] == "axpy"


def test_a_gpu_that_refuses_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = device()
    binary = gpu.compile(build(tmp_path), KERNEL)

    def refuse(*_: object) -> None:
        raise DeviceError("the worker died")

    monkeypatch.setattr(gpu, "run", refuse)
    row = noise_gpu.noise(gpu, "axpy", workload(tmp_path), binary, 2, 1.0)
    assert row.notes == ["the worker died"]
    assert "the worker died" in noise_gpu.line(row.cells())
