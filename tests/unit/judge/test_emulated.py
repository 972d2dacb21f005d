"""G7 on a GPU asks the emulator too. The GPU is a stand-in whose machine code is right whatever the CUDA text says; the
emulator compiles and runs that text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent.device import open_device
from cuda_agent.device.client import Device
from cuda_agent.judge import JudgeOptions, emulated
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g07_races_and_memory import RacesAndMemory
from cuda_agent.model import Arg, GateResult, Launch, Workload

from .conftest import build, candidate, source, workload

pytestmark = pytest.mark.usefixtures("emulator")  # there is a compiler
MACHINE = "b[:] = 2 * a + 1\nreturn 100.0"
RIGHT = "b[i] = 2 * a[i] + 1;"
RACE = "b[i] = 2 * a[i] + 1; if (i > 0) b[i - 1] = 2 * a[i - 1] + 1;"
MASK = "float v = __shfl_down_sync(0x0000ffffu, a[i], 1); b[i] = 2 * (i < 0 ? v : a[i]) + 1;"
# Right while thread 32 is the first to count behind the barrier: so the scheduler has it unless it shuffles.
ORDER = (
    "__shared__ int s; if (i == 0) s = 0; __syncthreads(); if (atomicAdd(&s, 1) == 0 && i != 32) __trap(); "
    "b[i] = 2 * a[i] + 1;"
)


@pytest.fixture(autouse=True)
def emulator_beside(monkeypatch: pytest.MonkeyPatch, no_emulator_beside_the_host: None) -> None:
    monkeypatch.setattr(emulated, "open_device", open_device)


def asked(
    device: Device, folder: Path, body: str, *, original: str = RIGHT, work: Workload | None = None,
    options: JudgeOptions | None = None, launch: str = "axpy<<<1, 64>>>(nullptr, nullptr, 64)",
) -> GateResult:  # fmt: skip
    def text(machine: str, body: str) -> str:
        return source(machine, body).replace("axpy<<<1, 64>>>(nullptr, nullptr, 64)", launch)

    before = text(MACHINE, original)
    made = candidate(text(MACHINE.replace("100.0", "50.0"), body), before)
    return RacesAndMemory().check(Case(device, build(folder), work or workload(folder), before, made, options=options))


def test_a_clean_kernel(device: Device, tmp_path: Path) -> None:
    result = asked(device, tmp_path, "b[i] = 1 + 2 * a[i];")
    assert result.detail.endswith("; the emulator's checkers find nothing on launch <<<1, 64>>>")
    assert result.data["emulator"] == {
        "status": "clean", "why": "", "case": "launch <<<1, 64>>>", "original_shows": []
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (RACE, "global-race at line 4 (b)"),
        (MASK, "lane 16 calls a shuffle with mask 0x0000ffff, which does not name it"),
        ("__shared__ float s[64]; b[i] = 2 * a[i] + 1 + 0.0f * s[i];", "uninitialised at line 4"),
        ("float v = 2 * a[i] + 1; if (b[i] != v) b[i] = v;", "uninitialised at line 4 (b)"),
        ("b[i] = 2 * a[i] + 1 + 0.0f * a[i + 1];", "out-of-bounds at line 4 (a)"),
    ],
)
def test_what_a_gpu_forgives_fails(device: Device, tmp_path: Path, body: str, says: str) -> None:
    result = asked(device, tmp_path, body)
    assert result.status == "fail", result.detail
    assert result.detail.startswith("on the emulator, launch <<<1, 64>>>: ")
    assert says in result.detail
    assert result.data["emulator"]["status"] == "worse"


def test_threads_run_in_several_orders(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(device, tmp_path, ORDER).status == "fail"
    monkeypatch.setattr(emulated, "SEEDS", 1)
    assert asked(device, tmp_path, ORDER).status != "fail"


def test_the_originals_own_race_is_the_programs(device: Device, tmp_path: Path) -> None:
    result = asked(device, tmp_path, RACE.replace("i > 0", "0 < i"), original=RACE)
    assert result.status != "fail"
    assert result.detail.endswith(
        "the emulator's checkers find nothing new on launch <<<1, 64>>> (global-race is the original's own)"
    )


@pytest.mark.parametrize(
    ("body", "original", "why"),
    [
        ('asm volatile(""); b[i] = 2 * a[i] + 1;', RIGHT, "inline PTX"),
        (RIGHT + " ", 'asm volatile(""); b[i] = 2 * a[i] + 1;', "inline PTX"),
        ("b[i] = 2 * a[i] + 1; typedef nothing here;", RIGHT, "g++ refused x.cu"),
        ("b[i] = i == 63 ? ((int)a[i] / (n - 64)) : 2 * a[i] + 1;", RIGHT, "integer division by zero"),
    ],
)
def test_what_it_cannot_build_or_run_is_said(
    device: Device, tmp_path: Path, body: str, original: str, why: str
) -> None:
    result = asked(device, tmp_path, body, original=original)
    assert result.status != "fail"
    assert "; the emulator's checkers were not asked: " in result.detail
    assert why in result.detail
    assert result.data["emulator"]["status"] == "not run"


def test_it_may_be_left_out(device: Device, tmp_path: Path) -> None:
    result = asked(device, tmp_path, RACE, options=JudgeOptions(emulator_s=0))
    assert result.status != "fail"
    assert "the emulator's checkers were not asked" in result.detail


def large(folder: Path, count: int) -> Workload:
    """One launch over `count` elements."""
    return workload(folder, values=tuple(float(i % 7) for i in range(count)))


def wide(work: Workload, threads: int) -> Workload:
    made: tuple[Launch, ...] = tuple(
        replace(one, grid=(-(-threads // 64), 1, 1), args=(*one.args[:2], Arg(16, threads.to_bytes(4, "little"))))
        for one in work.launches
    )
    return replace(work, launches=made)


def test_a_large_launch_is_derived_from(device: Device, tmp_path: Path) -> None:
    """The race is between blocks; of 300,000 elements a few thousand show it."""
    count = 300_000
    work = wide(large(tmp_path, count), count)
    site = f"int n = {count}; axpy<<<(n + 63) / 64, 64>>>(nullptr, nullptr, n)"
    result = asked(device, tmp_path, RACE, work=work, launch=site)
    assert result.status == "fail", result.detail
    assert result.detail.startswith("on the emulator, n = 1,024 (captured 300,000): global-race")
