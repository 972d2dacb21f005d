"""The cuda backend: cubins through the driver, memory and comparison through cupy, everything in one stream."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy

from cuda_agent import __version__, paths
from cuda_agent.device import driver
from cuda_agent.device.backend import Configuration, Launched, OutOfMemory
from cuda_agent.device.info import DeviceInfo, bandwidth_of, clock_of
from cuda_agent.device.jobs import StepFailed
from cuda_agent.device.kernels import CudaLaunch, CudaModule, guarded
from cuda_agent.errors import DeviceMissing

KEPT_BYTES = 64 << 20  # freed memory that stays with the worker between jobs: small jobs come many at a time
MEMORY_SHARE = 0.8  # of the free memory at start: others use the GPU too


class CudaBackend:
    """Owns the primary context of one GPU. Raises DeviceMissing."""

    keeps = True

    def __init__(self, index: int = 0) -> None:
        reason = driver.why_not()
        if reason is not None:
            raise DeviceMissing(reason)
        if index >= driver.count():
            raise DeviceMissing(f"there is no GPU {index}: the driver sees {driver.count()}")
        # Reductions that cupy compiles with CUB read its headers anew in every process: seconds. Those in its wheel do
        # not.
        os.environ["CUPY_ACCELERATORS"] = ""
        cupy = importlib.import_module("cupy")
        cupy._core.set_routine_accelerators(["cub"])
        try:
            cupy.cuda.Device(index).use()
            cupy.zeros(1, dtype=cupy.uint8)  # makes the context
        except Exception as error:  # cupy's errors are its own; each means that this GPU cannot be used
            raise DeviceMissing(f"cupy cannot use GPU {index}: {error}") from error
        self.xp: Any = cupy
        self.info = device_info(index)
        self.stream = int(cupy.cuda.Stream.null.ptr)
        self._modules: list[CudaModule] = []
        free, _ = cupy.cuda.runtime.memGetInfo()
        self._cap = int(MEMORY_SHARE * free)
        cupy.get_default_memory_pool().set_limit(size=self._cap)
        self._clock: Any = None

    def prepare_host(self, warm_up: Callable[[], None]) -> None:
        """Once per cupy and GPU on this host: compiles what cupy compiles on first use (seconds), and notes that it
        did."""
        mark = paths.cache_dir() / "cupy" / f"{self.xp.__version__}-{self.info.arch}-{__version__}"
        if mark.exists():
            return
        warm_up()
        assert self.clock is not None
        self.end_job()
        with contextlib.suppress(OSError):  # no cache folder: the next worker warms up again
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()

    # ------------------------------------------------------------ memory

    def alloc(self, size: int) -> Any:
        try:
            return self.xp.empty(size, dtype=self.xp.uint8)
        except self.xp.cuda.memory.OutOfMemoryError:
            raise OutOfMemory(size, self.free_memory()) from None

    def free_memory(self) -> int:
        """Bytes that this worker may still take: what its cap and the GPU leave."""
        pool = self.xp.get_default_memory_pool()
        free, _ = self.xp.cuda.runtime.memGetInfo()
        held = pool.total_bytes() - pool.used_bytes()
        return max(0, min(self._cap - int(pool.used_bytes()), int(free + held)))

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def upload(self, array: Any, data: bytes) -> None:
        if data:
            array.set(numpy.frombuffer(data, dtype=numpy.uint8))

    def download(self, array: Any) -> bytes:
        return bytes(array.get().data)

    def symbol(self, module: CudaModule, name: str) -> Any:
        address, size = module.symbol(name)
        memory = self.xp.cuda.UnownedMemory(address, size, module)
        return self.xp.ndarray((size,), dtype=self.xp.uint8, memptr=self.xp.cuda.MemoryPointer(memory, 0))

    # ------------------------------------------------------------ modules and launches

    def load(self, kind: str, data: bytes) -> CudaModule:
        if kind != "cubin":
            raise StepFailed(f"a GPU loads cubins, this binary is for the {kind}", unsupported=True)
        module = CudaModule(data)
        self._modules.append(module)
        return module

    def launch(self, module: CudaModule, configuration: Configuration) -> Launched:
        prepared = CudaLaunch(module, configuration, self.stream)
        self.synchronize()
        started = time.perf_counter()
        prepared()
        self.synchronize()
        return Launched(time.perf_counter() - started)

    def synchronize(self) -> None:
        guarded("cuCtxSynchronize")

    def end_job(self) -> None:
        self.synchronize()
        for module in self._modules:
            module.unload()
        self._modules.clear()
        if self._clock is not None:
            self._clock.release()
        pool = self.xp.get_default_memory_pool()
        if pool.free_bytes() > KEPT_BYTES:
            pool.free_all_blocks()

    @property
    def clock(self) -> Any:
        if self._clock is None:
            from cuda_agent.device.cuda_clock import CudaClock

            self._clock = CudaClock(self)
        return self._clock


def device_info(index: int) -> DeviceInfo:
    """From the driver's attributes. Raises DriverError."""
    read: Callable[[str], int] = lru_cache(None)(lambda name: driver.attribute(index, name))
    name = driver.device_name(index)
    return DeviceInfo(
        name=name,
        kind="cuda",
        arch=f"sm_{read('major')}{read('minor')}",
        sms=read("sms"),
        memory_bandwidth_gbs=bandwidth_of(name, read("memory_clock_khz"), read("bus_bits")),
        memory_bytes=driver.total_memory(index),
        l2_bytes=read("l2_bytes"),
        clock_mhz=read("clock_khz") / 1000 or clock_of(name),
        shared_per_block=read("shared_per_block"),
        shared_per_block_optin=read("shared_per_block_optin") or read("shared_per_block"),
        shared_per_sm=read("shared_per_sm"),
        registers_per_block=read("registers_per_block"),
        registers_per_sm=read("registers_per_sm"),
        threads_per_block=read("threads_per_block"),
        threads_per_sm=read("threads_per_sm"),
        blocks_per_sm=read("blocks_per_sm") or 32,
        warp_size=read("warp_size"),
        driver=driver.version(),
        index=index,
        uuid=driver.uuid(index),
    )
