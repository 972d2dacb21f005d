"""Cubins through the driver: loading one, looking up its kernels and globals, launching with captured arguments.

A launch takes the captured parameter values one by one; before it runs, the offsets and sizes that the module
declares for the kernel are compared with the captured ones, so that bytes never land in the wrong parameter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from cuda_agent.device import driver
from cuda_agent.device.backend import Configuration, DeviceFault
from cuda_agent.device.driver import DriverError
from cuda_agent.device.jobs import StepFailed


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
        self._data = data

    @cached_property
    def kernels(self) -> Sequence[str]:
        """Mangled names."""
        if not (driver.has("cuModuleEnumerateFunctions") and driver.has("cuFuncGetName")):  # drivers before 12.4
            from cuda_agent.toolchain import cubin

            return sorted(cubin.read(self._data))
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
