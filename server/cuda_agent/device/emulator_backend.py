"""The emulator backend: shared objects run on this machine's cores by `emulator/native.py`, memory and comparison by
numpy.

The limits (shared bytes, threads, SMs) are those of a chosen GPU. It never gives a time: `clock` is None.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from cuda_agent.device.backend import Clock, Configuration, Launched, NoMoreMappings, OutOfMemory
from cuda_agent.device.info import GPUS, DeviceInfo
from cuda_agent.device.jobs import StepFailed
from cuda_agent.errors import CudaAgentError, DeviceMissing

ALIGN = 256
MEMORY_SHARE = 0.6  # of this machine's memory
UNSUPPORTED = "unsupported"
NO_STACKS = "out of memory"  # how the runtime's error begins where the system gives no stacks
NOT_MAPPED = ("failed to map segment", "annot allocate memory")  # the dynamic linker's words for the same


class EmulatorModule:
    """A loaded shared object with the names of its kernels."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.parameters = {k.mangled: list(zip(k.offsets, k.sizes, strict=True)) for k in native.kernels()}
        self.kernels: Sequence[str] = sorted(self.parameters)
        self.launches = 0


class EmulatorBackend:
    xp: Any = numpy
    keeps = False
    clock: Clock | None = None

    def __init__(self, gpu: str = "h200") -> None:
        """Raises DeviceMissing when the emulator's runtime cannot be had on this machine."""
        try:
            from cuda_agent.device.emulator import native
        except (ImportError, CudaAgentError) as error:
            raise DeviceMissing(f"the emulator cannot run here: {error}") from error
        self._native: Any = native
        self.info: DeviceInfo = dataclasses.replace(GPUS[gpu], kind="emulator", name=f"emulator ({GPUS[gpu].name})")
        self._cap = int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        self._taken = 0
        self._modules: list[EmulatorModule] = []

    # ------------------------------------------------------------ memory

    def prepare_host(self, warm_up: Callable[[], None]) -> None:
        """numpy has nothing to compile."""

    def alloc(self, size: int) -> Any:
        if size > self.free_memory():
            raise OutOfMemory(size, self.free_memory())
        try:
            raw = numpy.empty(size + ALIGN, dtype=numpy.uint8)
        except MemoryError:
            raise OutOfMemory(size, self.free_memory()) from None
        self._taken += size
        weakref.finalize(raw, self._give_back, size)  # views keep `raw` alive
        start = -raw.ctypes.data % ALIGN
        return raw[start : start + size]

    def _give_back(self, size: int) -> None:
        self._taken -= size

    def free_memory(self) -> int:
        return max(0, self._cap - self._taken)

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def upload(self, array: Any, data: bytes) -> None:
        array[:] = numpy.frombuffer(data, dtype=numpy.uint8)

    def download(self, array: Any) -> bytes:
        return bytes(array.tobytes())

    def symbol(self, module: EmulatorModule, name: str) -> Any:
        for symbol in module.native.globals():
            if symbol.mangled == name:
                memory = (ctypes.c_uint8 * symbol.size).from_address(symbol.address)
                return numpy.ctypeslib.as_array(memory)
        raise StepFailed(f"the binary has no global {name}")

    # ------------------------------------------------------------ modules and launches

    def load(self, kind: str, data: bytes) -> EmulatorModule:
        if kind != "emulator":
            raise StepFailed(f"the emulator loads shared objects, this binary is a {kind}", unsupported=True)
        try:
            module = EmulatorModule(self._native.Module.load(data))
        except (OSError, CudaAgentError) as error:
            if any(words in str(error) for words in NOT_MAPPED):
                raise NoMoreMappings(str(error)) from error
            raise StepFailed(f"the binary does not load: {error}") from error
        self._modules.append(module)
        return module

    def launch(self, module: EmulatorModule, configuration: Configuration) -> Launched:
        c = configuration
        if c.kernel not in module.kernels:
            raise StepFailed(f"the binary has no kernel {c.kernel}; it has {', '.join(module.kernels) or 'none'}")
        self._check_limits(c)
        given, declared = [(at, len(data)) for at, data in c.args], module.parameters[c.kernel]
        if given != declared:
            raise StepFailed(
                f"kernel {c.kernel} takes other parameters than were captured: it declares (offset, size) {declared}, "
                f"the launch has {given}"
            )
        module.launches += 1
        try:
            outcome = module.native.launch(
                c.kernel,
                c.grid,
                c.block,
                c.shared,
                parameter_block(c.args),
                regions=[(region.address, region.size) for region in c.regions],
                unwritten=[(at, *each) for at, region in enumerate(c.regions) for each in region.unknown],
                trace=c.trace,
                seed=c.seed,
                guard=c.guard,
            )
        except CudaAgentError as error:
            raise StepFailed(str(error)) from error
        kept = ("findings", "traffic", "written", "notes") if c.trace else ()
        traced = {name: jsonable(getattr(outcome, name)) for name in kept}
        if outcome.error:
            self._failed(c.kernel, outcome.error, traced)
        return Launched(outcome.seconds, traced, self._writer(module) if c.trace else None)

    @staticmethod
    def _writer(module: EmulatorModule) -> Callable[[int, int], dict[str, Any] | None]:
        """The module knows the writers of its last launch only."""
        number = module.launches

        def of(buffer: int, at: int) -> dict[str, Any] | None:
            return module.native.writer(buffer, at) if module.launches == number else None

        return of

    @staticmethod
    def _failed(kernel: str, error: str, traced: dict[str, Any]) -> None:
        if error.startswith(UNSUPPORTED):
            what = error.removeprefix(UNSUPPORTED).strip(" :")
            raise StepFailed(f"the emulator cannot run {kernel}: {what}", unsupported=True)
        if error.startswith(NO_STACKS):
            raise NoMoreMappings(error.removeprefix(NO_STACKS).strip(" :"))
        raise StepFailed(f"kernel {kernel} failed: {error}", data={"fault": True, **traced})

    def _check_limits(self, c: Configuration) -> None:
        """What cudaLaunchKernel would refuse on the chosen GPU."""
        threads = c.block[0] * c.block[1] * c.block[2]
        if min(*c.grid, *c.block) < 1 or threads > self.info.threads_per_block or c.block[2] > 64:
            raise StepFailed(f"the launch was refused: grid {c.grid} with block {c.block} ({threads} threads a block)")
        if c.grid[0] >= 1 << 31 or max(c.grid[1:]) > 65535:
            raise StepFailed(f"the launch was refused: grid {c.grid} is too large")
        if c.shared > self.info.shared_per_block_optin:
            most = self.info.shared_per_block_optin
            raise StepFailed(f"the launch was refused: {c.shared:,} bytes of shared memory, the GPU has {most:,}")

    def end_job(self) -> None:
        for module in self._modules:
            with contextlib.suppress(OSError):  # a library that will not unload is only kept
                module.native.close()
        self._modules.clear()


def parameter_block(args: Sequence[tuple[int, bytes]]) -> bytes:
    """The arguments at their offsets, gaps zero."""
    block = bytearray(max((offset + len(data) for offset, data in args), default=0))
    for offset, data in args:
        block[offset : offset + len(data)] = data
    return bytes(block)


def jsonable(value: Any) -> Any:
    """Dataclasses, tuples and integer keys as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    return value
