"""The CUDA clock over a driver of Python functions: is what was timed only the GPU's time, and at which clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from cuda_agent.device import cuda_clock, driver, nvml
from cuda_agent.device.cuda_clock import NOT_READY, CudaClock
from cuda_agent.device.info import GPUS


class Array(numpy.ndarray):  # type: ignore[type-arg]
    def get(self) -> Any:
        return self


class Gpu:
    """Notes what is queued; a spin runs at `mhz`, and the first event has happened where `ready` says so."""

    info = GPUS["h200"]
    stream = 0

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.ready: list[bool] = []
        self.mhz = [1980.0]
        self.reasons: list[tuple[str, ...]] = []
        self.asked = 0
        self.xp = SimpleNamespace(
            zeros=lambda n, dtype: numpy.zeros(n, dtype).view(Array),
            uint64=int,
            RawModule=lambda code: SimpleNamespace(get_function=lambda name: getattr(self, name)),
        )

    def spin(self, grid: Any, block: Any, args: Any) -> None:
        ns, out = args
        mhz = self.mhz.pop() if len(self.mhz) > 1 else self.mhz[0]
        out[0], out[1] = round(ns * mhz / 1000), ns
        self.queue.append(("spin", ns / 1000))

    def read_all(self, *_: Any) -> None:
        self.queue.append("read")

    def alloc(self, size: int) -> Any:
        return numpy.zeros(1, numpy.uint8)

    def address(self, array: Any) -> int:
        return 0

    def synchronize(self) -> None:
        self.queue.append("synchronize")

    # the driver's functions

    def cuEventCreate(self, *_: Any) -> int:
        return 0

    def cuEventRecord(self, *_: Any) -> int:
        self.queue.append("event")
        return 0

    def cuEventQuery(self, *_: Any) -> int:
        self.queue.append("query")
        return 0 if self.ready and self.ready.pop(0) else NOT_READY

    def cuEventElapsedTime(self, ms: Any, *_: Any) -> int:
        ms._obj.value = 0.2
        return 0

    def cuCtxResetPersistingL2Cache(self) -> int:
        self.queue.append("reset")
        return 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(driver, "library", lambda: made)

    def reasons() -> tuple[str, ...]:
        made.asked += 1
        return made.reasons.pop(0) if made.reasons else ()

    monkeypatch.setattr(nvml, "Gpu", lambda index: SimpleNamespace(missing=None, reasons=reasons))
    return made


def test_a_sample_is_between_two_spins(gpu: Gpu) -> None:
    clock = CudaClock(gpu)
    gpu.mhz = [1900.0, 1980.0]  # popped from the end: before, then after
    sample = clock.sample([lambda: gpu.queue.append("launch")] * 4)
    assert [what if isinstance(what, str) else what[0] for what in gpu.queue] == [
        "spin", "event", *["launch"] * 4, "event", "query", "spin", "synchronize"]  # fmt: skip
    assert sample.us == pytest.approx(50.0)  # 200 us for four
    assert sample.clock_mhz == pytest.approx(1940.0, rel=1e-3)
    assert not sample.late


def test_a_late_host_gets_longer_spins(gpu: Gpu) -> None:
    clock = CudaClock(gpu)
    gpu.ready = [True, True, False, True]
    late = [clock.sample([lambda: None]).late for _ in range(5)]
    assert late == [True, True, False, True, False]
    leads = [us for what in gpu.queue if isinstance(what, tuple) for us in what[1:]][::2]
    assert [lead / leads[0] for lead in leads] == [1, 2, 4, 4, 8]
    gpu.ready = [True] * 20
    for _ in range(20):
        clock.sample([lambda: None])
    assert gpu.queue[-6] == ("spin", leads[0] * cuda_clock.MAX_LEAD)


def test_a_flush_resets_persisting_lines_first(gpu: Gpu) -> None:
    CudaClock(gpu).flush()
    assert gpu.queue == ["reset", "read"]


def test_nvml_is_asked_now_and_then(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(cuda_clock.time, "monotonic", lambda: now[0])
    clock = CudaClock(gpu)
    gpu.reasons = [("thermal",), ()]
    assert [clock.limits() for _ in range(3)] == [("thermal",)] * 3
    now[0] += 0.06
    assert clock.limits() == ()
    assert gpu.asked == 2


def test_without_nvrtc_there_is_no_clock_and_lateness_is_not_known(gpu: Gpu) -> None:
    def refuse(code: str) -> None:
        raise RuntimeError("no NVRTC here")

    gpu.xp.RawModule = refuse
    clock = CudaClock(gpu)
    sample = clock.sample([lambda: None])
    assert sample.clock_mhz is None
    assert not sample.late
    assert "no NVRTC here" in clock.notes[0]
