"""What a device must offer so that the interpreter can run jobs on it: memory, modules, launches, and timing where it
can."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cuda_agent.device.info import DeviceInfo
from cuda_agent.device.jobs import CANARY, relocate


class OutOfMemory(Exception):
    """An allocation did not fit. `asked` and `free` in bytes."""

    def __init__(self, asked: int, free: int) -> None:
        super().__init__(f"{asked:,} bytes asked, {free:,} free")


class NoMoreMappings(OutOfMemory):
    """The process may map no more memory, however much is free."""

    def __init__(self, sentence: str) -> None:
        Exception.__init__(self, sentence)


class DeviceFault(Exception):
    """The device reported an error that outlives the launch (an illegal address …): the process must end."""


@dataclass(frozen=True, slots=True)
class Region:
    """One buffer of a run, as the kernel may touch it. `known` is False where the bytes were only poisoned (ranges)."""

    address: int
    size: int
    unknown: tuple[tuple[int, int], ...] = ()  # byte ranges with no initial value


@dataclass(frozen=True, slots=True)
class Configuration:
    """One launch. `args` are (offset in the parameter block, relocated bytes)."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: tuple[tuple[int, bytes], ...]
    regions: tuple[Region, ...]
    trace: bool = False
    guard: int = 0  # bytes beside each region that belong to nobody: an access there does no harm
    seed: int = 0  # permutes the order of threads where the device can


def configuration(step: Mapping[str, Any], addresses: Sequence[int], trace: bool = False) -> Configuration:
    """Of a `launch` step's fields whose buffers lie at these addresses."""
    return Configuration(
        kernel=step["kernel"],
        grid=_dim3(step["grid"]),
        block=_dim3(step["block"]),
        shared=int(step.get("shared", 0)),
        args=tuple(
            (int(a["offset"]), relocate(bytes.fromhex(a["hex"]), a.get("pointers", ()), addresses))
            for a in step["args"]
        ),
        regions=tuple(
            Region(address, int(spec["size"]), tuple((int(s), int(e)) for s, e, _ in spec.get("poison", ())))
            for address, spec in zip(addresses, step["buffers"], strict=True)
        ),
        trace=trace,
        guard=int(step.get("canary", CANARY)),
        seed=int(step.get("seed", 0)),
    )


def _dim3(value: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (int(v) for v in value)
    return x, y, z


@dataclass(slots=True)
class Launched:
    seconds: float
    traced: dict[str, Any] = field(default_factory=dict)  # traffic, findings, written
    # After a traced launch: (buffer, byte) → {block, thread, line} of the last store there, None when there was none
    # or it is no longer known.
    writer: Callable[[int, int], dict[str, Any] | None] | None = None


class Module(Protocol):
    kernels: Sequence[str]  # mangled names


class Prepared(Protocol):
    """A launch whose arguments are already packed."""

    def __call__(self) -> None: ...


class Backend(Protocol):
    """`xp` is numpy or cupy; every array below is a contiguous uint8 array of it."""

    xp: Any
    info: DeviceInfo
    keeps: bool  # a copy kept here from job to job saves something: the memory is not the host's (`kept.py`)

    def prepare_host(self, warm_up: Callable[[], None]) -> None:
        """Called once before the first job; calls `warm_up` where first uses are slow."""

    def load(self, kind: str, data: bytes) -> Any:
        """Raises StepFailed when the bytes cannot be loaded here."""

    def alloc(self, size: int) -> Any:
        """`size` uninitialised bytes, 256-byte aligned. Raises OutOfMemory."""

    def free_memory(self) -> int: ...
    def address(self, array: Any) -> int: ...
    def upload(self, array: Any, data: bytes) -> None: ...
    def download(self, array: Any) -> bytes: ...
    def symbol(self, module: Any, name: str) -> Any:
        """The bytes of a __device__ or __constant__ variable, as an array. Raises StepFailed when there is none."""

    def launch(self, module: Any, configuration: Configuration) -> Launched:
        """Run to the end. Raises StepFailed (refused, unsupported) or DeviceFault."""

    def end_job(self) -> None:
        """Give freed memory back to the device."""

    @property
    def clock(self) -> Clock | None:
        """None where time means nothing."""


class Clock(Protocol):
    """Device-side timing, used by timing.py. Everything is queued in one stream."""

    def prepare(self, module: Any, configuration: Configuration) -> Prepared: ...
    def flush(self) -> None:
        """Reset persisting L2 lines and evict L2, so that the next kernel reads memory."""

    def copy(self, to: Any, source: Any) -> None: ...
    def sample(self, launches: Sequence[Prepared]) -> Sample:
        """Run the launches back to back; microseconds for one of them, and the SM clock beside it."""

    def limits(self) -> Sequence[str]:
        """Why the clocks are held down at this moment: "thermal", "power brake", "power cap" …; empty when nothing
        does, or where it is not known."""

    def synchronize(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    us: float  # one launch
    clock_mhz: float | None
    late: bool = False  # the GPU reached the timed window before the host had queued all of it
