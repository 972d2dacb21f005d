"""The cuda backend: cubins through the driver, memory and comparison through cupy, everything in one stream.

A launch takes the captured parameter values one by one; before it runs, the offsets and sizes that the module
declares for the kernel are compared with the captured ones, so that bytes never land in the wrong parameter.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy

from cuda_agent import __version__, paths
from cuda_agent.device import driver
from cuda_agent.device.backend import Configuration, DeviceFault, Launched, OutOfMemory
from cuda_agent.device.driver import DriverError
from cuda_agent.device.info import DeviceInfo, bandwidth_of, clock_of
from cuda_agent.device.jobs import StepFailed
from cuda_agent.errors import DeviceMissing

MEMORY_SHARE = 0.8  # of the free memory at start: others use the GPU too


def guarded(call: str, *args: Any) -> None:
    """A driver call inside a job: harmless refusals become StepFailed, anything else ends the worker."""
    try:
        driver.call(call, *args)
    except DriverError as error:
        if error.fatal:
            raise DeviceFault(str(error)) from error
        raise StepFailed(f"the driver refused it: {error}") from error


class CudaModule:
    """A loaded cubin. Kernel handles are looked up once."""

    def __init__(self, data: bytes) -> None:
        self._handle = ctypes.c_void_p()
        try:
            guarded("cuModuleLoadData", ctypes.byref(self._handle), data)
        except StepFailed as failure:
            raise StepFailed(f"the binary does not load on this GPU: {failure.sentence}") from failure
        self._functions: dict[str, ctypes.c_void_p] = {}
        self.kernels = self._names(data)

    def _names(self, data: bytes) -> Sequence[str]:
        if not (driver.has("cuModuleEnumerateFunctions") and driver.has("cuFuncGetName")):  # drivers before 12.4
            from cuda_agent.toolchain import cubin

            return sorted(cubin.read(data))
        number = ctypes.c_uint()
        guarded("cuModuleGetFunctionCount", ctypes.byref(number), self._handle)
        handles = (ctypes.c_void_p * number.value)()
        guarded("cuModuleEnumerateFunctions", handles, number, self._handle)
        names = []
        for handle in handles:
            name = ctypes.c_char_p()
            guarded("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(handle))
            names.append((name.value or b"").decode())
        return sorted(names)

    def function(self, kernel: str) -> ctypes.c_void_p:
        if kernel not in self._functions:
            handle = ctypes.c_void_p()
            code = driver.library().cuModuleGetFunction(ctypes.byref(handle), self._handle, kernel.encode())
            if code == driver.NOT_FOUND:
                raise StepFailed(f"the binary has no kernel {kernel}; it has {', '.join(self.kernels) or 'none'}")
            if code != driver.SUCCESS:
                raise StepFailed(f"kernel {kernel}: {driver.describe(code)[1]}")
            self._functions[kernel] = handle
        return self._functions[kernel]

    def symbol(self, name: str) -> tuple[int, int]:
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        code = driver.library().cuModuleGetGlobal_v2(
            ctypes.byref(address), ctypes.byref(size), self._handle, name.encode()
        )
        if code != driver.SUCCESS:
            raise StepFailed(f"the binary has no global {name}: {driver.describe(code)[1]}")
        return address.value, size.value

    def unload(self) -> None:
        guarded("cuModuleUnload", self._handle)


class CudaLaunch:
    """One launch with its arguments packed; calling it only queues it."""

    def __init__(self, module: CudaModule, configuration: Configuration, stream: int) -> None:
        c = configuration
        self._function = module.function(c.kernel)
        check_parameters(self._function, c)
        allow_shared(self._function, c)
        self._buffers = [ctypes.create_string_buffer(data, len(data)) for _, data in c.args]
        self._params = (ctypes.c_void_p * max(1, len(c.args)))(*(ctypes.addressof(b) for b in self._buffers))
        self._arguments = (
            self._function,
            *(ctypes.c_uint(n) for n in (*c.grid, *c.block, c.shared)),
            ctypes.c_void_p(stream),
            self._params,
            None,
        )
        self._launch = driver.library().cuLaunchKernel

    def __call__(self) -> None:
        code = self._launch(*self._arguments)
        if code != driver.SUCCESS:
            error = DriverError("cuLaunchKernel", code)
            if error.fatal:
                raise DeviceFault(str(error))
            raise StepFailed(f"the launch was refused: {error}")


def check_parameters(function: ctypes.c_void_p, c: Configuration) -> None:
    """Raises StepFailed unless the kernel declares exactly the captured parameters (offsets and sizes)."""
    if not driver.has("cuFuncGetParamInfo"):  # drivers before 12.4 cannot tell
        return
    declared: list[tuple[int, int]] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while (
        driver.library().cuFuncGetParamInfo(
            function, ctypes.c_size_t(len(declared)), ctypes.byref(offset), ctypes.byref(size)
        )
        == driver.SUCCESS
    ):
        declared.append((offset.value, size.value))
    given = [(at, len(data)) for at, data in c.args]
    if declared != given:
        raise StepFailed(
            f"kernel {c.kernel} takes other parameters than were captured: it declares (offset, size) {declared}, "
            f"the launch has {given}"
        )


def allow_shared(function: ctypes.c_void_p, c: Configuration) -> None:
    """Above 48 KiB dynamic shared memory must be asked for, as the program itself must."""
    if c.shared <= 48 * 1024:
        return
    code = driver.library().cuFuncSetAttribute(function, driver.FUNC_MAX_DYNAMIC_SHARED, ctypes.c_int(c.shared))
    if code != driver.SUCCESS:
        raise StepFailed(f"kernel {c.kernel} cannot have {c.shared:,} bytes of shared memory on this GPU")


class CudaBackend:
    """Owns the primary context of one GPU. Raises DeviceMissing."""

    def __init__(self, index: int = 0) -> None:
        reason = driver.why_not()
        if reason is not None:
            raise DeviceMissing(reason)
        if index >= driver.count():
            raise DeviceMissing(f"there is no GPU {index}: the driver sees {driver.count()}")
        # cupy's CUB reductions read their headers anew in every process before they find their cached kernels: seconds.
        os.environ["CUPY_ACCELERATORS"] = ""
        cupy = importlib.import_module("cupy")
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
        self._plain = False

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

    def plain_memory(self) -> None:
        self.xp.cuda.set_allocator(None)
        self._plain = True

    def alloc(self, size: int) -> Any:
        if self._plain and size > self.free_memory():  # cudaMalloc would fail with another error
            raise OutOfMemory(size, self.free_memory())
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
        self.xp.get_default_memory_pool().free_all_blocks()

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
    )
