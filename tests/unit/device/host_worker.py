"""A worker whose device is this host: a module is Python text with functions over memory addresses, run in the
worker's process.

It goes through the real worker, protocol, interpreter and client; only the backend is small. A kernel takes (config,
*raw argument bytes).
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy

from cuda_agent.device import worker
from cuda_agent.device.backend import Configuration, DeviceFault, Launched, OutOfMemory, Sample
from cuda_agent.device.info import GPUS
from cuda_agent.device.jobs import StepFailed

LIMIT = 256 << 20


class HostModule:
    def __init__(self, text: str) -> None:
        self.space: dict[str, Any] = {
            "ctypes": ctypes,
            "numpy": numpy,
            "time": time,
            "DeviceFault": DeviceFault,
            "StepFailed": StepFailed,
        }
        exec(text, self.space)
        self.kernels = sorted(k for k, v in self.space.items() if isinstance(v, types.FunctionType))
        self.symbols = {k: v for k, v in self.space.items() if isinstance(v, bytearray)}


class HostClock:
    """Time is what the kernel adds to `spent`: exact, so that tests can tell what was in the window."""

    notes: Sequence[str] = ("host clock",)

    def __init__(self) -> None:
        self.log: list[str] = []

    def prepare(self, module: HostModule, configuration: Configuration) -> Any:
        return lambda: module.space[configuration.kernel](configuration, *(data for _, data in configuration.args))

    def flush(self) -> None:
        self.log.append("flush")

    def copy(self, to: Any, source: Any) -> None:
        to[:] = source

    def synchronize(self) -> None: ...

    def limits(self) -> Sequence[str]:
        return ()

    def sample(self, launches: Sequence[Any]) -> Sample:
        spent = sum(launch() or 0.0 for launch in launches)
        return Sample(spent / len(launches), 1500.0)


class HostBackend:
    xp: Any = numpy
    info = replace(GPUS["h200"], uuid=os.environ.get("HOST_GPU", ""))
    keeps = True

    def __init__(self) -> None:
        self.clock: Any = HostClock()
        self.taken = 0

    def prepare_host(self, warm_up: Callable[[], None]) -> None:
        warm_up()

    def load(self, kind: str, data: bytes) -> HostModule:
        if kind == "unsupported":
            raise StepFailed("this device cannot run textures", unsupported=True)
        return HostModule(data.decode())

    def alloc(self, size: int) -> Any:
        if self.taken + size > LIMIT:
            raise OutOfMemory(size, self.free_memory())
        self.taken += size
        raw = numpy.empty(size + 256, dtype=numpy.uint8)
        start = -raw.ctypes.data % 256
        return raw[start : start + size]

    def free_memory(self) -> int:
        return LIMIT - self.taken

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def upload(self, array: Any, data: bytes) -> None:
        array[:] = numpy.frombuffer(data, dtype=numpy.uint8)

    def download(self, array: Any) -> bytes:
        return bytes(array.tobytes())

    def symbol(self, module: HostModule, name: str) -> Any:
        if name not in module.symbols:
            raise StepFailed(f"no global {name}")
        return numpy.frombuffer(module.symbols[name], dtype=numpy.uint8)

    def launch(self, module: HostModule, configuration: Configuration) -> Launched:
        if configuration.kernel not in module.kernels:
            raise StepFailed(f"the binary has no kernel {configuration.kernel}")
        started = time.perf_counter()
        module.space[configuration.kernel](configuration, *(data for _, data in configuration.args))
        return Launched(time.perf_counter() - started)

    def end_job(self) -> None:
        self.taken = 0


if __name__ == "__main__":
    worker.open_backend = lambda device: HostBackend()  # type: ignore[assignment]
    sys.exit(worker.main())
