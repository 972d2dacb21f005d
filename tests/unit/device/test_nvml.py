"""Why the clocks are held down, with NVML's C functions in Python."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_agent.device import driver, nvml


def test_words() -> None:
    assert nvml.words(0) == ()
    assert nvml.words(0x1 | 0x2 | 0x10) == ()  # idle, a person's clocks, sync boost
    assert nvml.words(0x4 | 0x40) == ("power cap", "hardware thermal")
    assert nvml.words(0x80) == ("power brake",)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One GPU whose reasons are `mask`; each function answers `code`."""
    state = SimpleNamespace(mask=0, code=0, known=True)

    def reasons(handle: Any, mask: Any) -> int:
        mask._obj.value = state.mask
        return state.code

    state.nvmlDeviceGetCurrentClocksThrottleReasons = reasons
    state.nvmlDeviceGetHandleByPciBusId_v2 = lambda bus, handle: 0 if state.known else 6
    monkeypatch.setattr(nvml, "_library", lambda: state)
    monkeypatch.setattr(driver, "library", lambda: SimpleNamespace(cuDeviceGetPCIBusId=lambda bus, size, index: 0))
    return state


def test_reasons_now(library: Any) -> None:
    gpu = nvml.Gpu(0)
    assert gpu.missing is None
    assert gpu.reasons() == ()
    library.mask = 0x20
    assert gpu.reasons() == ("thermal",)


def test_a_refusal_is_told_once_and_for_all(library: Any) -> None:
    library.code = 3
    gpu = nvml.Gpu(0)
    assert gpu.missing == "NVML refuses (error 3)"
    assert gpu.reasons() == ()


def test_an_unknown_gpu_and_an_old_library(library: Any) -> None:
    library.known = False
    assert nvml.Gpu(0).missing == "NVML does not know this GPU"
    del library.nvmlDeviceGetCurrentClocksThrottleReasons
    assert nvml.Gpu(0).missing == "this NVML tells no clock reasons"


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise OSError("no such file")

    nvml._library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert nvml.Gpu(0).missing == "libnvidia-ml.so.1 is not found"
