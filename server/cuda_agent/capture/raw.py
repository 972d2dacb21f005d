"""The raw record (docs/architecture.md) as Python sees it: followed while the program runs, then made into bundles."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.capture.report import KernelSummary
from cuda_agent.errors import CaptureError
from cuda_agent.model import Arg, Buffer, Dim3, Launch, Launched, Pointer, Workload
from cuda_agent.toolchain import names
from cuda_agent.workload import bundle

# A program started many times over (a shell loop) gives the first launches of every process; enough is enough.
_PROCESSES = 4


@dataclass(slots=True)
class RawLaunch:
    """One line with data; `why` is set when this launch is not to be used."""

    data: Mapping[str, Any]
    why: str | None = None

    @property
    def kernel(self) -> str:
        return names.kernel_name(str(self.data["mangled"]))

    @property
    def bytes(self) -> int:
        return sum(int(buffer["size"]) for buffer in self.data.get("buffers", ()))


@dataclass(slots=True)
class Follower:
    """Reads `launches.jsonl` as it grows. `poll` gives the new launches; the rest accumulates here."""

    folder: Path
    launches: dict[tuple[int, int], RawLaunch] = field(default_factory=dict)
    seen: dict[tuple[int, str], int] = field(default_factory=dict)  # by (process, mangled name)
    wanted: dict[str, bool] = field(default_factory=dict)  # by mangled name
    changed: dict[str, set[int] | None] = field(default_factory=dict)  # parameters, by mangled name; None: not told
    first: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)  # parameters of each process's first launch
    shapes: dict[str, set[Launched]] = field(default_factory=dict)  # of all launches, by kernel
    notes: list[str] = field(default_factory=list)
    stopped: bool = False
    _at: int = 0

    def poll(self) -> list[RawLaunch]:
        """The launches written since the last call. Raises CaptureError when the record cannot be read."""
        path = self.folder / "launches.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CaptureError(f"Cannot read {path}: {error.strerror or error}.") from error
        whole = data[: data.rfind(b"\n") + 1]  # a line that is being written is read next time
        self._at += len(whole)
        return [launch for line in whole.splitlines() if (launch := self._take(line))]

    def _take(self, line: bytes) -> RawLaunch | None:
        try:
            entry = json.loads(line)
        except ValueError:
            # Only a full disk tears a line in the middle; the recorder has said so on the program's stderr.
            self._note("a line of the record is torn (is the disk full?): that launch is lost")
            return None
        if "note" in entry:
            self._note(str(entry["note"]))
        elif "stopped" in entry:
            self.stopped = True
        elif "seen" in entry:
            key = (int(entry["pid"]), str(entry["mangled"]))
            self.seen[key] = max(self.seen.get(key, 0), int(entry["seen"]))
            self.wanted[str(entry["mangled"])] = bool(entry["wanted"])
            self._take_parameters(str(entry["mangled"]), entry)
            self._take_shapes(str(entry["mangled"]), entry["shapes"])
        elif "dropped" in entry:
            self.launches.pop((int(entry["pid"]), int(entry["dropped"])), None)
        else:
            launch = RawLaunch(entry, entry.get("skipped"))
            launch.why = launch.why or unresolved(entry)
            self.launches[int(entry["pid"]), int(entry["seq"])] = launch
            return launch
        return None

    def _take_parameters(self, mangled: str, entry: Mapping[str, Any]) -> None:
        changed = self.changed.setdefault(mangled, set())
        if changed is None or entry["varied"] is None:
            self.changed[mangled] = None
        else:
            changed.update(entry["varied"])
        if "first" in entry:
            self.first.setdefault(mangled, set()).add(tuple(entry["first"]))

    def _take_shapes(self, mangled: str, shapes: Sequence[Sequence[int]]) -> None:
        known = self.shapes.setdefault(names.kernel_name(mangled), set())
        known.update(Launched(mangled, _dim3(one[:3]), _dim3(one[3:6]), int(one[6])) for one in shapes)

    def varied(self) -> dict[str, frozenset[int] | None]:
        """By kernel: positions of the parameters whose bytes were not the same in all launches, instantiations and
        processes, pointers among them; None where the record does not tell them of every launch."""
        found: dict[str, frozenset[int] | None] = {}
        first: dict[str, set[tuple[str, ...]]] = {}
        for mangled, changed in self.changed.items():
            kernel = names.kernel_name(mangled)
            first.setdefault(kernel, set()).update(self.first.get(mangled, ()))
            before = found.get(kernel, frozenset())
            found[kernel] = None if changed is None or before is None else before | changed
        for kernel, launches in first.items():
            # Instantiations may differ in their parameters: what one of them lacks is not the same in all.
            columns = enumerate(itertools.zip_longest(*launches))
            differ = {position for position, values in columns if len(set(values)) > 1}
            if (known := found[kernel]) is not None:
                found[kernel] = known | differ
        return found

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def summaries(self, bundles: Mapping[str, Path]) -> tuple[KernelSummary, ...]:
        """One line a kernel, in the order first seen."""
        by_kernel: dict[str, list[RawLaunch]] = {}
        seen: Counter[str] = Counter()
        wanted: dict[str, bool] = {}
        for (_, mangled), count in self.seen.items():
            kernel = names.kernel_name(mangled)
            seen[kernel] += count
            wanted[kernel] = wanted.get(kernel, False) or self.wanted[mangled]
            by_kernel.setdefault(kernel, [])
        for launch in self.launches.values():
            by_kernel.setdefault(launch.kernel, []).append(launch)
        return tuple(
            _summary(kernel, launches, seen[kernel], wanted.get(kernel, True), bundles.get(kernel))
            for kernel, launches in by_kernel.items()
        )


def _summary(kernel: str, launches: Sequence[RawLaunch], seen: int, wanted: bool, path: Path | None) -> KernelSummary:
    good = [launch for launch in launches if launch.why is None]
    first = good[0].data if good else launches[0].data if launches else None
    return KernelSummary(
        kernel=kernel,
        launches=max(seen, len(launches)),
        recorded=len(good),
        grid=_dim3(first["grid"]) if first else None,
        block=_dim3(first["block"]) if first else None,
        bytes=sum(launch.bytes for launch in good),
        skipped=tuple(Counter(launch.why for launch in launches if launch.why).most_common()),
        wanted=wanted,
        bundle=path,
    )


def unresolved(entry: Mapping[str, Any]) -> str | None:
    """Why a recorded launch cannot be replayed: a pointer parameter that is not null and leads to no allocation."""
    types = names.param_types(str(entry["mangled"]))
    args = entry.get("args", ())
    for number, (type_, arg) in enumerate(zip(types, args, strict=False)) if len(types) == len(args) else ():
        value = int.from_bytes(bytes.fromhex(arg["hex"]), "little")
        if type_.rstrip().endswith("*") and len(arg["hex"]) == 16 and value and not arg["pointers"]:
            return f"argument {number} ({type_}) points to no device allocation"
    return None


def convert(
    follower: Follower,
    captures: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    first: int,
    ended: bool,
) -> Iterator[Workload]:
    """Saves one bundle a kernel under `captures`; a kernel's earlier bundle is replaced. `ended`: the program did not
    come to its own end. Raises WorkloadError."""
    groups: dict[str, list[RawLaunch]] = {}
    counts: Counter[str] = Counter()
    for (_, _), launch in sorted(follower.launches.items(), key=lambda item: item[0][1]):
        if launch.why is not None:
            continue
        mangled = str(launch.data["mangled"])
        counts[mangled] += 1
        if counts[mangled] > first * _PROCESSES:
            launch.why = "enough launches of it were recorded in the program's other processes"
            continue
        groups.setdefault(launch.kernel, []).append(launch)
    seen = {summary.kernel: summary.launches for summary in follower.summaries({})}
    varied = follower.varied()
    for kernel, launches in groups.items():
        folder = captures / bundle.safe_name(kernel)
        store = bundle.BlobStore(folder / "blobs")
        workload = Workload(
            kernel=kernel,
            origin="captured",
            launches=tuple(
                _launch(launch.data, number, follower.folder, store) for number, launch in enumerate(launches)
            ),
            root=folder,
            blobs=store.path,
            device=str(launches[0].data["device"]),
            command=tuple(command),
            environment=dict(environment),
            seen=seen[kernel],
            varied=varied.get(kernel),
            shapes=frozenset(follower.shapes.get(kernel, ())),
            ended=ended,
        )
        saved = bundle.save(folder, workload)
        bundle.prune(folder, saved)
        yield saved


def _launch(entry: Mapping[str, Any], number: int, raw: Path, store: bundle.BlobStore) -> Launch:
    mangled = str(entry["mangled"])
    blobs: dict[str, tuple[str, ...]] = {}

    def stored(name: str) -> tuple[str, ...]:
        if name not in blobs:
            blobs[name] = store.put_file(raw / name)
        return blobs[name]

    args = tuple(
        Arg(int(arg["offset"]), bytes.fromhex(arg["hex"]), tuple(Pointer(*map(int, p)) for p in arg["pointers"]))
        for arg in entry["args"]
    )
    buffers = tuple(
        Buffer(
            address=int(buffer["address"]),
            size=int(buffer["size"]),
            before=stored(buffer["before"]),
            after=stored(buffer["after"]) if buffer["after"] else None,
            written=None if buffer["written"] is None else tuple((int(s), int(e)) for s, e in buffer["written"]),
        )
        for buffer in entry["buffers"]
    )
    return Launch(
        mangled=mangled,
        demangled=names.demangle(mangled),
        grid=_dim3(entry["grid"]),
        block=_dim3(entry["block"]),
        shared=int(entry["shared"]),
        args=args,
        buffers=buffers,
        seq=int(entry["seq"]),
        globals=tuple((str(symbol), stored(name)) for symbol, name in entry.get("globals", ())),
    )


def _dim3(value: Any) -> Dim3:
    x, y, z = (int(v) for v in value)
    return x, y, z
