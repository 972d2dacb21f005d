"""What a capture is asked for and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cuda_agent import config, errors
from cuda_agent.errors import CaptureError
from cuda_agent.model import Dim3

Event = Mapping[str, Any]
"""`type` says which: `launch` {kernel, seq, mangled, demangled, grid, block, shared, bytes, skipped}, `output` {text},
`note` {text}, `seen` {kernel, seen}, `bundle` {kernel, path, launches}."""
OnEvent = Callable[[Event], None]
Cancelled = Callable[[], bool]


def _first() -> int:
    return config.current().capture_launches


def _cap() -> int:
    return config.current().capture_limit_mb << 20


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Defaults are the person's settings."""

    device: str = "auto"  # "cuda", "cuda:N", "emulator"; "auto" takes a GPU when there is one
    kernel: str | None = None  # regular expression searched in the demangled name
    first: int = field(default_factory=_first)  # launches kept a kernel (and instantiation, and process)
    select: Literal["first", "smallest", "largest"] = "first"
    cap: int = field(default_factory=_cap)  # bytes a launch
    stop: bool | None = None  # end the program once everything wanted is recorded; None: only on the emulator
    timeout: float | None = None  # seconds for the program; None: no limit
    into: Path | None = None  # folder for the bundles; None: `<cwd>/.cuda-agent/captures`, in place of earlier ones
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of our own, for the program


@dataclass(frozen=True, slots=True)
class KernelSummary:
    kernel: str  # qualified name without template arguments
    launches: int  # seen
    recorded: int
    grid: Dim3 | None  # of the first recorded launch
    block: Dim3 | None
    bytes: int  # of all recorded launches, before they are compressed
    skipped: tuple[tuple[str, int], ...]  # (why, how many)
    wanted: bool  # passed the kernel filter
    bundle: Path | None


@dataclass(frozen=True, slots=True)
class CaptureReport:
    command: tuple[str, ...]
    cwd: Path
    device: str  # where the launches ran: "NVIDIA H200", "emulator"; "" when none was recorded
    exit_code: int  # the program's; negative: killed by that signal
    kernels: tuple[KernelSummary, ...]
    builds: int  # compiler commands recorded
    notes: tuple[str, ...]
    seconds: float
    stopped: bool  # the recorder ended the program early
    cancelled: bool
    output: str  # the end of what the program printed

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def recorded(self) -> int:
        return sum(kernel.recorded for kernel in self.kernels)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["command"] = list(self.command)
        data["cwd"] = str(self.cwd)
        for kernel in data["kernels"]:
            kernel["bundle"] = str(kernel["bundle"]) if kernel["bundle"] else None
            kernel["skipped"] = [{"why": why, "launches": count} for why, count in kernel["skipped"]]
        return data | {"launches": self.launches, "recorded": self.recorded}


class NothingCaptured(CaptureError):
    """The program ran and no launch was recorded; `report` has what was seen."""

    def __init__(self, message: str, report: CaptureReport) -> None:
        super().__init__(message)
        self.report = report


def judged(report: CaptureReport, device: str, timeout: float | None) -> CaptureReport:
    """The report, or the error that it amounts to. `timeout`: seconds after which the program was stopped.

    Raises NothingCaptured or, when the person stopped a run that recorded nothing, Cancelled.
    """
    reasons = [why for kernel in report.kernels for why, _ in kernel.skipped]
    full = next((why for why in reasons if "No space left" in why or "quota" in why), None)
    ended = _ended(report.exit_code) if timeout is None else f"was stopped after {timeout:g} s"
    if report.recorded:
        notes = [*report.notes]
        if timeout is not None or (report.exit_code != 0 and not report.cancelled):
            notes.append(f"the program {ended}; the launches before that are kept")
        if full:
            notes.append(f"the disk is full: {full}")
        return replace(report, notes=tuple(notes))
    if full:
        raise NothingCaptured(
            f"The disk is full, nothing was captured: {full}. Free some space or lower --cap.", report
        )
    if report.cancelled:
        raise errors.Cancelled("Stopped; no launch was recorded before that.")
    if timeout is not None or report.exit_code != 0:
        tail = "\n".join(report.output.splitlines()[-15:])
        raise NothingCaptured(f"The program {ended} and no launch was recorded.\n{tail}", report)
    raise NothingCaptured(_why_nothing(report, device), report)


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _why_nothing(report: CaptureReport, device: str) -> str:
    if report.notes and not report.kernels:
        return "Nothing was captured: " + "; ".join(report.notes) + "."
    if not report.kernels:
        how = (
            "built with the emulator's nvcc"
            if device == "emulator"
            else "started through a container or a setuid program"
        )
        hint = f"Does it launch kernels on this device? It must be {how if device == 'emulator' else 'a CUDA program'}."
        return f"The program ended well and launched no kernel that could be seen. {hint}"
    seen = [
        f"{kernel.kernel}: {kernel.launches} launches, "
        + (", ".join(f"{why} ({n})" for why, n in kernel.skipped) or ("" if kernel.wanted else "not asked for"))
        for kernel in report.kernels
    ]
    return "No launch was recorded. " + "; ".join(seen) + "."
