"""The job language: what a client asks of a worker, built from model objects. The table of steps is in
docs/architecture.md.

Every helper returns plain JSON. A step names blobs by sha256; `Device.run` sends those that the worker lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cuda_agent.model import Arg, Binary, Launch

Step = dict[str, Any]
CANARY = 4096  # bytes on each side of a buffer


@dataclass(frozen=True, slots=True)
class Job:
    """Steps that run one after another in one worker, and the seconds they may take together (the sending of blobs is
    not counted). `tag` goes into messages. `trusted`: sha256 of binaries that are never quarantined: the original
    kernel, which may well fault on an input that we made up."""

    steps: Sequence[Step]
    deadline_s: float = 60.0
    tag: str = ""
    trusted: frozenset[str] = frozenset()


class Blobs(Protocol):
    """What `bundle.BlobStore` offers."""

    def get(self, names: tuple[str, ...]) -> bytes: ...


class BlobSource(Mapping[str, Any]):
    """The blobs of a job: single chunks read lazily from a store, and bytes held in memory (binaries, made-up
    inputs)."""

    def __init__(self, store: Blobs | None = None, held: Mapping[str, bytes] | None = None) -> None:
        self._store = store
        self._held = dict(held or {})

    def add(self, name: str, data: bytes) -> BlobSource:
        self._held[name] = data
        return self

    def add_binary(self, *binaries: Binary) -> BlobSource:
        for binary in binaries:
            self._held[binary.sha256] = binary.data
        return self

    def __getitem__(self, name: str) -> bytes:
        if name in self._held:
            return self._held[name]
        if self._store is None:
            raise KeyError(name)
        return self._store.get((name,))

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


# ---------------------------------------------------------------- steps


def load_step(binary: Binary, module: str | None = None) -> Step:
    """`module` is the name that later steps use; by default the binary's sha256."""
    return {"op": "load", "module": module or binary.sha256, "kind": binary.kind, "blob": binary.sha256}


def arg_json(arg: Arg) -> dict[str, Any]:
    return {
        "offset": arg.offset,
        "hex": arg.data.hex(),
        "pointers": [[p.at, p.buffer, p.offset] for p in arg.pointers],
    }


def launch_fields(
    module: str,
    launch: Launch,
    *,
    kernel: str | None = None,
    grid: Sequence[int] | None = None,
    block: Sequence[int] | None = None,
    shared: int | None = None,
    args: Sequence[Arg] | None = None,
    inits: Mapping[int, Mapping[str, Any]] | None = None,
    poison: Mapping[int, Sequence[tuple[int, int, str]]] | None = None,
) -> Step:
    """The fields that `launch` and `time` share. `kernel` is the mangled name in this module (a candidate's differs
    when a parameter's type changed); grid, block, shared and args default to the captured ones. `inits` replaces the
    initial bytes of a buffer, `poison` overwrites (start, end, hex pattern) ranges of it before the launch."""
    inits, poison = inits or {}, poison or {}
    buffers = [
        {
            "size": buffer.size,
            "init": dict(inits.get(i, {"blobs": list(buffer.before)})),
            "poison": [list(p) for p in poison.get(i, ())],
        }
        for i, buffer in enumerate(launch.buffers)
    ]
    return {
        "module": module,
        "kernel": kernel or launch.mangled,
        "grid": list(grid or launch.grid),
        "block": list(block or launch.block),
        "shared": launch.shared if shared is None else shared,
        "args": [arg_json(a) for a in (launch.args if args is None else args)],
        "buffers": buffers,
        "globals": [[symbol, {"blobs": list(names)}] for symbol, names in launch.globals],
    }


def launch_step(
    run: str, module: str, launch: Launch, *, canary: int = CANARY, shift: int = 0, trace: bool = False, **fields: Any
) -> Step:
    """Launch and keep the buffers as `run`. Further keywords are those of `launch_fields`."""
    step = launch_fields(module, launch, **fields)
    return {"op": "launch", "run": run, **step, "canary": canary, "shift": shift, "trace": trace}


def compare_step(
    a: str, b: str, buffers: Iterable[Mapping[str, Any]], tolerance: Mapping[str, float] | None = None
) -> Step:
    """`a` is the reference (expected), `b` the run under test (got)."""
    step: Step = {"op": "compare", "a": a, "b": b, "buffers": [dict(x) for x in buffers]}
    if tolerance is not None:
        step["tolerance"] = dict(tolerance)
    return step


def compare_after_step(run: str, launch: Launch, dtypes: Sequence[str], **fields: Any) -> Step:
    """Compare a run with the bytes that the program itself left (`Buffer.after`), where they were recorded."""
    buffers = [
        {"buffer": i, "dtype": dtypes[i], "expected": {"blobs": list(b.after)}}
        for i, b in enumerate(launch.buffers)
        if b.after is not None
    ]
    return compare_step(run, run, buffers, **fields)


def error_step(exact: str, runs: Sequence[str], buffers: Iterable[Mapping[str, Any]]) -> Step:
    """How far the float elements of `runs` lie from those of `exact`, whose buffers hold as many float64."""
    return {"op": "error", "exact": exact, "runs": list(runs), "buffers": [dict(x) for x in buffers]}


def values_init(
    init: Mapping[str, Any], dtype: str, *, change: str | None = None, seed: int = 0, widen: bool = False
) -> dict[str, Any]:
    """An `init` whose elements of `dtype` are those of another one, perturbed (`change`: "last-bit" or "random", see
    `compare.perturbed`) and, with `widen`, as float64."""
    return {"values": dict(init), "dtype": dtype, "change": change, "seed": seed, "widen": widen}


def changed_step(run: str, mask: str | None = None, join: str | None = None) -> Step:
    return _mask_step("changed", run, mask, join)


def unpoisoned_step(run: str, mask: str | None = None, join: str | None = None) -> Step:
    return _mask_step("unpoisoned", run, mask, join)


def _mask_step(op: str, run: str, mask: str | None, join: str | None) -> Step:
    step: Step = {"op": op, "run": run}
    if mask is not None:
        step["mask"] = mask
    if join is not None:
        step["join"] = join
    return step


def hash_step(run: str) -> Step:
    return {"op": "hash", "run": run}


def fetch_step(run: str, buffer: int, start: int = 0, end: int | None = None) -> Step:
    return {"op": "fetch", "run": run, "buffer": buffer, "start": start, "end": end}


def free_step(run: str) -> Step:
    return {"op": "free", "run": run}


def time_step(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    *,
    rounds: int = 25,
    min_us: float = 20.0,
    cold: bool = True,
    seed: int = 0,
    budget_s: float | None = None,
    check: Mapping[str, Any] | None = None,
    warm: bool = True,
    give_up: Mapping[str, float] | None = None,
) -> Step:
    """`a` and `b` are `launch_fields`. Rounds end at `rounds` or after `budget_s` seconds, whichever comes first, or
    with `give_up` {rounds, below, spread} after so many, when in each of them B was slower than A / below, or when
    their ratios are no further apart than `spread` (relative). `warm`: with a warm L2, too."""
    step: Step = {
        "op": "time",
        "a": dict(a),
        "b": dict(b),
        "rounds": rounds,
        "min_us": min_us,
        "cold": cold,
        "seed": seed,
    }
    if not warm:
        step["warm"] = False
    if give_up is not None:
        step["give_up"] = dict(give_up)
    if budget_s is not None:
        step["budget_s"] = budget_s
    if check is not None:
        step["check"] = dict(check)
    return step


def relocate(data: bytes, pointers: Iterable[Sequence[int]], address: Sequence[int]) -> bytes:
    """The argument's bytes with the 8 bytes at `at` replaced by address[buffer] + offset, for each (at, buffer,
    offset)."""
    out = bytearray(data)
    for at, buffer, offset in pointers:
        out[at : at + 8] = ((address[buffer] + offset) % (1 << 64)).to_bytes(8, "little")
    return bytes(out)


def blob_names(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every blob that the steps name, in order of first use."""
    names: dict[str, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if key == "blob":
                    names.setdefault(inner)
                elif key == "blobs":
                    names.update(dict.fromkeys(inner))
                else:
                    visit(inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                visit(inner)

    for step in steps:
        visit(step)
    return list(names)


def module_blobs(steps: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Module name → sha256 of the binary that `load` puts there."""
    return {step["module"]: step["blob"] for step in steps if step.get("op") == "load"}


@dataclass(slots=True)
class StepFailed(Exception):
    """A step could not be done and the worker lives on: its result is {"ok": false, "error": sentence}."""

    sentence: str
    unsupported: bool = False  # the device cannot run this kernel at all (Device.run raises Unsupported)
    data: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence
