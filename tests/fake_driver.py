"""Stands for libcuda where there is no GPU: memory is the host's, a module is Python text, a kernel takes (config, *raw
argument bytes) as in tests/unit/device/host_worker.py. Parameters named n or count have 4 bytes, others 8.

As a program it is `cuda_agent.device.bare` over this driver.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import sys
import time
import types
from typing import Any

import numpy

from cuda_agent.device import bare, driver
from cuda_agent.device.backend import DeviceFault

ERRORS = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    200: ("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    716: ("CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"),
    719: ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
}
MEMORY = 1 << 30


class FakeDriver:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.allocated: dict[int, Any] = {}  # address → the memory
        self._objects: list[Any] = [None]  # handles are places in it
        self._fault = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and not name.startswith("cuGetError"):
            self.calls.append(name)
        return super().__getattribute__(name)

    def _handle(self, thing: Any) -> int:
        self._objects.append(thing)
        return len(self._objects) - 1

    def cuGetErrorName(self, code: int, out: Any) -> int:
        out._obj.value = ERRORS[code][0].encode()
        return 0

    def cuGetErrorString(self, code: int, out: Any) -> int:
        out._obj.value = ERRORS[code][1].encode()
        return 0

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return 0 if index == 0 else 101

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:
        context._obj.value = self._handle("context")
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: ctypes.c_int) -> int:
        return 0

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:
        assert self._objects[context.value or 0] == "context"
        return 0

    def cuCtxSynchronize(self) -> int:
        return self._fault

    # ------------------------------------------------------------ memory

    def cuMemAlloc_v2(self, address: Any, size: ctypes.c_size_t) -> int:
        if size.value == 0:
            return 1
        if size.value > MEMORY:
            return 2
        memory = ctypes.create_string_buffer(b"\xcd" * size.value, size.value)
        address._obj.value = ctypes.addressof(memory)
        self.allocated[address._obj.value] = memory
        return 0

    def cuMemcpyHtoD_v2(self, to: ctypes.c_uint64, data: bytes, size: ctypes.c_size_t) -> int:
        assert len(data) == size.value
        ctypes.memmove(to.value, data, size.value)
        return 0

    # ------------------------------------------------------------ modules

    def cuModuleLoadData(self, module: Any, data: bytes) -> int:
        space: dict[str, Any] = {"ctypes": ctypes, "numpy": numpy, "time": time, "DeviceFault": DeviceFault}
        try:
            exec(data.decode(), space)
        except SyntaxError:
            return 200
        module._obj.value = self._handle(space)
        return 0

    def _kernels(self, module: ctypes.c_void_p) -> dict[str, types.FunctionType]:
        space = self._objects[module.value or 0]
        return {name: thing for name, thing in space.items() if isinstance(thing, types.FunctionType)}

    def cuModuleGetFunctionCount(self, number: Any, module: ctypes.c_void_p) -> int:
        number._obj.value = len(self._kernels(module))
        return 0

    def cuModuleEnumerateFunctions(self, handles: Any, number: ctypes.c_uint, module: ctypes.c_void_p) -> int:
        for at, kernel in enumerate(self._kernels(module).values()):
            handles[at] = self._handle(kernel)
        return 0

    def cuFuncGetName(self, name: Any, function: ctypes.c_void_p) -> int:
        name._obj.value = self._objects[function.value or 0].__name__.encode()
        return 0

    def cuModuleGetFunction(self, function: Any, module: ctypes.c_void_p, name: bytes) -> int:
        kernel = self._kernels(module).get(name.decode())
        if kernel is None:
            return 500
        function._obj.value = self._handle(kernel)
        return 0

    def cuModuleGetGlobal_v2(self, address: Any, size: Any, module: ctypes.c_void_p, name: bytes) -> int:
        found = self._objects[module.value or 0].get(name.decode())
        if not isinstance(found, bytearray):
            return 500
        address._obj.value = ctypes.addressof((ctypes.c_char * len(found)).from_buffer(found))
        size._obj.value = len(found)
        return 0

    # ------------------------------------------------------------ launches

    def _sizes(self, function: ctypes.c_void_p) -> list[int]:
        _, *names = inspect.signature(self._objects[function.value or 0]).parameters
        return [4 if name in ("n", "count") else 8 for name in names]

    def cuFuncGetParamInfo(self, function: ctypes.c_void_p, index: ctypes.c_size_t, offset: Any, size: Any) -> int:
        sizes = self._sizes(function)
        if index.value >= len(sizes):
            return 1
        offset._obj.value, size._obj.value = sum(sizes[: index.value]), sizes[index.value]
        return 0

    def cuLaunchKernel(self, function: ctypes.c_void_p, *rest: Any) -> int:
        *extents, shared, _, parameters, _ = rest
        raw = [ctypes.string_at(parameters[at], size) for at, size in enumerate(self._sizes(function))]
        grid, block = ([extent.value for extent in part] for part in (extents[:3], extents[3:]))
        config = types.SimpleNamespace(grid=tuple(grid), block=tuple(block), shared=shared.value)
        try:
            self._objects[function.value or 0](config, *raw)
        except DeviceFault as fault:  # as on a GPU, whoever waits for the launch learns of it
            named = re.match(r"\w+", str(fault))
            self._fault = next((code for code, (name, _) in ERRORS.items() if named and name == named[0]), 719)
        return 0


if __name__ == "__main__":
    fake = FakeDriver()
    driver.library = lambda: fake  # type: ignore[assignment, return-value]
    sys.exit(bare.main(sys.argv[1:]))
