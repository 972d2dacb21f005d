"""What earlier searches found, by content: verdicts of single candidates, and whole answers.

A key holds everything a result depends on, the text of this program too, so that nothing in here can become wrong. A
search that was stopped is resumed by asking again: every candidate judged before answers at once. What is not decided
is never kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cuda_agent
from cuda_agent import cache
from cuda_agent.device import Device, sanitizer
from cuda_agent.errors import ToolMissing
from cuda_agent.judge import JudgeOptions
from cuda_agent.model import Arg, Binary, Build, Candidate, Verdict, Workload

ENOUGH, LAST = 2, 6  # verdicts whose seconds say something, and that are remembered
LEAST_S = 2.0  # of a verdict's part that is the same for all kernels: compute-sanitizer alone takes so long
ALIGNED = 256  # bytes: what allocations are aligned to
SOURCES = (".py", ".md", ".h", ".hpp", ".cpp", ".cu", ".S")


@lru_cache(1)
def program() -> str:
    """One hash over this package's own files."""
    root = Path(cuda_agent.__file__).parent
    state = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in SOURCES:
            state.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


@dataclass(frozen=True)
class Memory:
    """Of one kernel's searches on one device. `fresh` ignores what is there and replaces it."""

    device: Device
    build: Build
    workload: Workload
    original: str
    options: JudgeOptions
    fresh: bool = False
    store: Callable[[], cache.Cache] = cache.default

    @property
    def usable(self) -> bool:
        """A whole program's run depends on more than can be named in a key."""
        return not self.options.in_program

    # ------------------------------------------------------------ verdicts

    def verdict(self, key: str) -> Verdict | None:
        found = None if self.fresh or not self.usable else self.store().get(key)
        return found if isinstance(found, Verdict) else None

    def keep(self, key: str, verdict: Verdict) -> None:
        if self.usable and verdict.status != "undecided":
            self.store().set(key, verdict)

    def key(self, kind: str, candidate: Candidate, original: Binary, binary: Binary) -> str:
        """`kind`: quick or full."""
        launch = (*candidate.launch.grid, *candidate.launch.block, candidate.launch.shared)
        what = (candidate.text, candidate.numeric, candidate.origin, launch, original.sha256, binary.sha256)
        return self._key(f"verdict-{kind}", what)

    # ------------------------------------------------------------ answers

    def answer(self, asked: tuple[object, ...], original: Binary) -> str:
        """The key of a whole search's outcome: `asked` is what may be spent and on whose proposals."""
        return self._key("search", (asked, original.sha256))

    def outcome(self, key: str, kind: type[Any]) -> Any:
        found = None if self.fresh or not self.usable else self.store().get(key)
        return found if isinstance(found, kind) else None

    def keep_outcome(self, key: str, outcome: Any) -> None:
        if self.usable:
            self.store().set(key, outcome)

    # ------------------------------------------------------------ seconds

    def seconds(self, of: str) -> float | None:
        """How long something took here on these inputs."""
        found = self.store().get(self._key("seconds", of))
        return found if isinstance(found, float) else None

    def keep_seconds(self, of: str, seconds: float) -> None:
        self.store().set(self._key("seconds", of), seconds)

    def fixed_seconds(self, otherwise: float) -> float:
        """The part of a full verdict on this device that does not depend on the kernel: the longest of the last few,
        a fifth more; `otherwise` while fewer than `ENOUGH` are known."""
        known = self._known_fixed()
        return 1.2 * max(known) if len(known) >= ENOUGH else otherwise

    def keep_fixed_seconds(self, seconds: float) -> None:
        self.store().set(self._fixed, (*self._known_fixed(), max(LEAST_S, seconds))[-LAST:])

    def _known_fixed(self) -> tuple[float, ...]:
        found = self.store().get(self._fixed)
        return found if isinstance(found, tuple) else ()

    @property
    def _fixed(self) -> str:
        options = sorted(f"{name}={value!r}" for name, value in asdict(self.options).items() if name != "allow")
        return self.store().key("seconds", ("fixed", program(), self.device.identity, _checker(self.device), options))

    def _key(self, kind: str, parts: object) -> str:
        tolerance = sorted(self.workload.tolerance.items())
        about = (
            str(self.build.file),
            self.build.flags,
            self.original,
            inputs(self.workload),
            _varied(self.workload),
            self.workload.origin,
            self.workload.device,
        )
        options = sorted(f"{name}={value!r}" for name, value in asdict(self.options).items() if name != "allow")
        allow = sorted(self.options.allow)
        where = (self.device.identity, _checker(self.device))
        return self.store().key(kind, (program(), where, about, tolerance, options, allow, parts))


@lru_cache(4)
def _found() -> str:
    try:
        return sanitizer.find().version
    except ToolMissing:
        return ""


def _checker(device: Device) -> str:
    """G7's verdict on a GPU depends on whether there is a compute-sanitizer."""
    return "" if device.kind == "emulator" else _found()


def inputs(workload: Workload, after: bool = True) -> tuple[object, ...]:
    """The launches and the bytes they start from, and those that the program saw `after` them. Where a buffer lay does
    not count, only how it was aligned: the same program run again has the same inputs."""
    return tuple(
        (
            launch.mangled,
            (*launch.grid, *launch.block, launch.shared, launch.seq),
            tuple(
                (arg.offset, _plain(arg), tuple((p.at, p.buffer, p.offset) for p in arg.pointers))
                for arg in launch.args
            ),
            tuple((b.address % ALIGNED, b.size, b.before, (b.after or ()) if after else ()) for b in launch.buffers),
            launch.globals,
        )
        for launch in workload.launches
    )


def _varied(workload: Workload) -> object:
    """What is known of the scalars and shapes of launches that are not in the workload; pointers change from run to
    run."""
    first = workload.launches[0].args if workload.launches else ()
    scalars = {i for i, arg in enumerate(first) if not arg.pointers}
    varied = workload.varied is not None and sorted(workload.varied & scalars)
    shapes = sorted({(*one.grid, *one.block, one.shared) for one in workload.shapes or ()})
    return varied, shapes, workload.ended


def _plain(arg: Arg) -> bytes:
    """An argument's bytes without the addresses in it."""
    data = bytearray(arg.data)
    for pointer in arg.pointers:
        data[pointer.at : pointer.at + 8] = bytes(8)
    return bytes(data)
