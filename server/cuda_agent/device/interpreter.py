"""Runs the steps of a job on a backend; the same code for cupy and numpy arrays of bytes.

A run is what one launch left: its buffers, each in an allocation of its own between two canaries,

    | canary | shift | buffer bytes | canary |

filled with words that are NaN as f16 (high half), f32 and f64 and negative as integers, and that differ from word to
word, so that a write beside the buffer is seen and a read beside it shows in the result. Runs stay until the job ends
(or `free`), so no launch gets memory where an earlier launch left its answer; freed memory is scrubbed first.
"""

from __future__ import annotations

import hashlib
import time as clock_time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cuda_agent.device import compare as numeric
from cuda_agent.device import masks
from cuda_agent.device.backend import Backend, OutOfMemory, configuration
from cuda_agent.device.jobs import CANARY, StepFailed
from cuda_agent.device.kept import Kept

ALIGN = 256  # what cudaMalloc promises
SMALL = 1 << 20  # bytes: moving fewer to the device costs less than looking at a copy kept there


class BlobCache(Protocol):
    def __getitem__(self, name: str) -> bytes: ...


@dataclass(slots=True)
class Placed:
    """One buffer of a run: `whole` holds canaries and data, `data` is a view."""

    whole: Any
    data: Any
    left: int  # bytes before the data
    salt: int  # of its canaries
    init: Mapping[str, Any]
    poison: Sequence[Sequence[Any]]


@dataclass(slots=True)
class Run:
    buffers: list[Placed]
    symbols: list[tuple[str, Any]] = field(default_factory=list)  # __device__ variables as the launch left them
    masks: dict[str, list[Any]] = field(default_factory=dict)
    differs: list[Any] | None = None  # masks of the bytes that are not the initial ones, once somebody asked
    writer: Callable[[int, int], dict[str, Any] | None] | None = None  # of a traced launch: who stored to a byte

    def array(self, number: int) -> Any:
        """Buffers come first, then the globals of the launch, in order."""
        if 0 <= number < len(self.buffers):
            return self.buffers[number].data
        if 0 <= number - len(self.buffers) < len(self.symbols):
            return self.symbols[number - len(self.buffers)][1]
        raise StepFailed(f"the run has no buffer {number}")


@dataclass(frozen=True, slots=True)
class Reply:
    result: dict[str, Any]
    payload: bytes = b""


class Interpreter:
    """One per worker; `begin` and `end` bracket a job. `at` is told which binary is about to run."""

    def __init__(self, backend: Backend, blobs: BlobCache, at: Callable[[str | None], None] = lambda _: None) -> None:
        self.backend = backend
        self.xp = backend.xp
        self.blobs = blobs
        self.at = at
        self.modules: dict[str, Any] = {}
        self.digests: dict[str, str] = {}  # module name → sha256 of its binary
        self.runs: dict[str, Run] = {}
        self._loaded: dict[str, Any] = {}  # binaries loaded in this job, by sha256
        self.kept = Kept(backend)
        self.uploaded = 0  # bytes of buffers moved to the device so far
        self._constants: dict[object, Any] = {}  # small arrays that steps need again and again

    # ------------------------------------------------------------ jobs

    def end(self) -> None:
        """Drop everything that belongs to the job."""
        for name in list(self.runs):
            self._scrub(self.runs.pop(name))
        self.modules.clear()
        self.digests.clear()
        self._loaded.clear()
        self._constants.clear()
        self.kept.end_job()
        self.backend.end_job()

    def warm_up(self) -> None:
        """Use every array operation once, on small data: on a GPU each is compiled on its first use ever (cupy keeps
        them on disk), which must not count against the deadline of somebody's job."""
        spec = {"size": 64, "init": {"fill": "0102"}, "poison": [[0, 32, "0000c0ff"]]}
        placed = self.place(spec, 256, 0)
        run = Run([placed])
        placed.whole[:8] = 0
        self.damage(run)
        mask = placed.data != self.initial(placed)
        self._extents([(mask | mask) & mask])
        other = self.place({**spec, "poison": [[0, 16, "00000100"]]}, 256, 0)
        bool((placed.data != other.data).any())
        for dtype in numeric.DTYPES:
            for part in (None, [[0, 32]]):
                selected = numeric.select(self.xp, 64, dtype, part, mask if part else None, bool(part))
                tolerance = {"rel": 1e-6, "scaled": 1e-6, "abs": 0.0, "ulp": 1}
                numeric.compare(self.xp, placed.data, other.data, dtype, selected=selected, tolerance=tolerance)
        self.kept.put("warm up", placed.data)
        self.kept.launched("")
        self.kept.look()
        self.kept.fill("warm up", other.data)
        self.kept.clear()
        self.end()

    def step(self, step: Mapping[str, Any]) -> Reply:
        """Do one step. A step that cannot be done answers {"ok": false}; DeviceFault goes through."""
        reply = self._done(step)
        if damaged := self.kept.damage():
            reply.result["damaged"] = damaged
        return reply

    def _done(self, step: Mapping[str, Any]) -> Reply:
        handler = getattr(self, f"_op_{step.get('op')}", None)
        try:
            if handler is None:
                raise StepFailed(f"this worker knows no step {step.get('op')!r}; it may be of another version")
            reply: Reply = handler(step)
            return Reply({"ok": True, **reply.result}, reply.payload)
        except OutOfMemory as error:
            return Reply(
                {"ok": False, "out_of_memory": True, "error": f"out of device memory in {step['op']}: {error}"}
            )
        except StepFailed as error:
            failure = {"ok": False, "error": error.sentence, **error.data}
            return Reply({**failure, "unsupported": True} if error.unsupported else failure)
        except KeyError as error:
            return Reply({"ok": False, "error": f"step {step['op']} lacks the field or names nothing known: {error}"})

    # ------------------------------------------------------------ memory

    def alloc(self, size: int) -> Any:
        """Memory of the device; copies kept from earlier make room where it is short. Raises OutOfMemory."""
        try:
            return self.backend.alloc(size)
        except OutOfMemory:
            if not self.kept.clear():
                raise
            return self.backend.alloc(size)

    def begin(self, target: Any, init: Mapping[str, Any], poison: Sequence[Sequence[Any]]) -> None:
        """The buffer as a launch finds it. What is poisoned whole needs no initial bytes."""
        if not any(start <= 0 and end >= target.size for start, end, _ in poison):
            self.fill(target, init)
        self.poison(target, poison)

    def fill(self, target: Any, init: Mapping[str, Any]) -> None:
        """Put the initial bytes into `target` (uint8, exactly the buffer)."""
        if "blobs" in init:
            self._fill_blobs(target, tuple(init["blobs"]))
        elif "fill" in init:
            self.pattern(target, bytes.fromhex(init["fill"]), 0)
        elif "run" in init:
            source = self.run(init["run"]).array(init["buffer"])
            if source.size != target.size:
                raise StepFailed(
                    f"run {init['run']} buffer {init['buffer']} has {source.size} bytes, not {target.size}"
                )
            target[:] = source
        elif "values" in init:
            self._fill_values(target, init)
        else:
            raise StepFailed("a buffer's init must be blobs, run, fill or values")

    def _fill_values(self, target: Any, init: Mapping[str, Any]) -> None:
        """Elements of `dtype` made from another init: perturbed first, then written as float64 (`widen`)."""
        key = ("values", repr(sorted(init.items())))
        if not self.kept.fill(key, target):
            self._make_values(target, init)
            self.kept.put(key, target)

    def _make_values(self, target: Any, init: Mapping[str, Any]) -> None:
        dtype, widen = init["dtype"], bool(init.get("widen"))
        width = numeric.DTYPES[dtype][0]
        narrow = self.alloc(int(target.size) * width // 8 if widen else int(target.size))
        self.fill(narrow, init["values"])
        if init.get("change") is not None:
            narrow[:] = numeric.perturbed(self.xp, narrow, dtype, init["change"], int(init.get("seed", 0)))
        if not widen:
            target[:] = narrow
            return
        wide = numeric.values(self.xp, numeric.elements(self.xp, narrow, dtype), dtype)
        target[: 8 * wide.size] = wide.view("uint8")

    def _fill_blobs(self, target: Any, names: tuple[str, ...], keep: bool = True) -> None:
        """From the copy kept on the device when there is one."""
        large = self.backend.keeps and target.size >= SMALL
        if large and self.kept.fill(names, target):
            return
        self._upload(target, names)
        if large and keep:
            self.kept.put(names, target)

    def _upload(self, target: Any, names: Sequence[str]) -> None:
        """Chunk by chunk: joined they would be a second copy on the host."""
        chunks = [self.blobs[name] for name in names]
        recorded = sum(map(len, chunks))
        if recorded != target.size:
            raise StepFailed(f"the recorded bytes are {recorded}, the buffer has {target.size}")
        at = 0
        for chunk in chunks:
            self.backend.upload(target[at : at + len(chunk)], chunk)
            at += len(chunk)
        self.uploaded += at

    def pattern(self, target: Any, pattern: bytes, start: int) -> None:
        """Repeat `pattern` over `target`, as if it began at byte `start` of the buffer."""
        if not pattern:
            raise StepFailed("an empty fill pattern")
        if target.size == 0:
            return
        turned = pattern[start % len(pattern) :] + pattern[: start % len(pattern)]
        if len(set(turned)) == 1:
            target[:] = turned[0]
            return
        unit = self._constant(turned, lambda: self.xp.asarray(bytearray(turned), dtype=self.xp.uint8))
        repeats = target.size // unit.size
        if repeats:
            target[: repeats * unit.size].reshape(repeats, unit.size)[:] = unit
        target[repeats * unit.size :] = unit[: target.size - repeats * unit.size]

    def poison(self, target: Any, poison: Sequence[Sequence[Any]]) -> None:
        """Ranges are (start, end, hex); a range's pattern begins at its start."""
        for start, end, pattern in poison:
            self.pattern(target[start:end], bytes.fromhex(pattern), 0)

    def canary(self, size: int, salt: int = 0) -> Any:
        """`size` bytes of words 0xFFFC0101 | hash(i): NaN in every float type, negative as an int, each one different,
        and different for each `salt`: a kernel that copies beyond its arrays must not copy one canary onto an equal
        one."""
        return self._constant((size, salt), lambda: self._make_canary(size, salt))

    def _constant(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once a job."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def _make_canary(self, size: int, salt: int) -> Any:
        i = self.xp.arange(salt << 12, (salt << 12) + (size + 3) // 4, dtype=self.xp.uint32)
        words = (i * self.xp.uint32(2654435761) >> self.xp.uint32(14)) | self.xp.uint32(0xFFFC0101)
        return words.view(self.xp.uint8)[:size]

    def place(self, spec: Mapping[str, Any], canary: int, shift: int, salt: int = 0) -> Placed:
        size = int(spec["size"])
        left = -(-canary // ALIGN) * ALIGN + shift
        whole = self.alloc(left + size + canary)
        if left:  # without canaries the buffer is the whole allocation: a checker of accesses knows its ends
            whole[:left] = self.canary(left, salt)
        if canary:
            whole[left + size :] = self.canary(canary, salt)
        placed = Placed(whole, whole[left : left + size], left, salt, spec["init"], spec.get("poison", ()))
        if "run" in placed.init:  # its bytes may change later: keep them for `changed`
            kept = self.alloc(size)
            self.fill(kept, placed.init)
            placed.init = {"array": kept}
            placed.data[:] = kept
            self.poison(placed.data, placed.poison)
        else:
            self.begin(placed.data, placed.init, placed.poison)
        return placed

    def initial(self, placed: Placed) -> Any:
        """The buffer's bytes before the launch, made again."""
        fresh = self.alloc(int(placed.data.size))
        if "array" in placed.init:
            fresh[:] = placed.init["array"]
            self.poison(fresh, placed.poison)
        else:
            self.begin(fresh, placed.init, placed.poison)
        return fresh

    def _scrub(self, run: Run) -> None:
        for placed in run.buffers:
            placed.whole[:] = 0xFF

    # ------------------------------------------------------------ names

    def run(self, name: str) -> Run:
        if name not in self.runs:
            raise StepFailed(f"there is no run {name!r}: its launch failed or was never asked for")
        return self.runs[name]

    def module(self, name: str) -> Any:
        if name not in self.modules:
            raise StepFailed(f"there is no module {name!r}: its load failed or was never asked for")
        return self.modules[name]

    def set_globals(self, step: Mapping[str, Any]) -> None:
        for symbol, init in step.get("globals", ()):
            self.fill(self.backend.symbol(self.module(step["module"]), symbol), init)

    # ------------------------------------------------------------ steps

    def _op_load(self, step: Mapping[str, Any]) -> Reply:
        digest = step["blob"]
        if digest not in self._loaded:
            self.at(digest)
            self._loaded[digest] = self.backend.load(step["kind"], self.blobs[digest])
        module = self._loaded[digest]
        self.modules[step["module"]] = module
        self.digests[step["module"]] = digest
        return Reply({"kernels": list(module.kernels)})

    def _op_launch(self, step: Mapping[str, Any]) -> Reply:
        module = self.module(step["module"])
        canary = int(step.get("canary", CANARY))
        shift = int(step.get("shift", 0))
        placed = [self.place(spec, canary, shift, number) for number, spec in enumerate(step["buffers"])]
        self.set_globals(step)
        addresses = [self.backend.address(p.data) for p in placed]
        self.at(self.digests[step["module"]])
        try:
            launched = self.backend.launch(module, configuration(step, addresses, trace=bool(step.get("trace"))))
        finally:
            self.kept.launched(self.digests[step["module"]])
        self.kept.look()
        self.at(None)
        run = Run(placed, writer=launched.writer)
        for symbol, _ in step.get("globals", ()):
            run.symbols.append((symbol, self._copy(self.backend.symbol(module, symbol))))
        self.runs[step["run"]] = run
        return Reply({"canaries": self.damage(run), "seconds": launched.seconds, **launched.traced})

    def _copy(self, array: Any) -> Any:
        kept = self.alloc(int(array.size))
        kept[:] = array
        return kept

    def damage(self, run: Run) -> list[dict[str, Any]]:
        """Canary bytes that changed: `at` counts from the buffer's first byte (negative before it), `was` is what
        lies there."""
        sides = []
        for number, placed in enumerate(run.buffers):
            end = placed.left + int(placed.data.size)
            sides += [(number, "before", 0, placed.left), (number, "after", end, int(placed.whole.size))]
        if not sides:
            return []
        # All at once: every look at the device's answer waits for the device.
        now = self.xp.concatenate([run.buffers[number].whole[start:stop] for number, _, start, stop in sides])
        sizes = tuple((stop - start, run.buffers[number].salt) for number, _, start, stop in sides)
        whole = self._constant(sizes, lambda: self.xp.concatenate([self.canary(*one) for one in sizes]))
        bad = now != whole
        if not bool(bad.any()):
            return []
        found = []
        base = 0
        for number, side, start, stop in sides:
            where = self.xp.flatnonzero(bad[base : base + stop - start])
            base += stop - start
            if where.size:
                placed = run.buffers[number]
                # nearest to the buffer: the last one before it, the first one after it
                at = start + int(where[-1] if side == "before" else where[0])
                was = self.backend.download(self.xp.array(placed.whole[at : min(at + 8, stop)])).hex()
                position = at - placed.left
                found.append({"buffer": number, "side": side, "at": position, "was": was, "bytes": int(where.size)})
        return found

    def _op_compare(self, step: Mapping[str, Any]) -> Reply:
        expected, got = self.run(step["a"]), self.run(step["b"])
        return Reply({"buffers": [self.compare_one(expected, got, entry, step) for entry in step["buffers"]]})

    def compare_one(self, a: Run, b: Run, entry: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, Any]:
        number, dtype = int(entry["buffer"]), entry.get("dtype", "bytes")
        got = b.array(number)
        if "expected" in entry:
            expected = self.alloc(int(got.size))
            if "blobs" in entry["expected"]:  # they may be the program's own result: not kept
                self._fill_blobs(expected, tuple(entry["expected"]["blobs"]), keep=False)
            else:
                self.fill(expected, entry["expected"])
        else:
            expected = a.array(number)
        if expected.size != got.size:
            raise StepFailed(f"buffer {number} has {expected.size} bytes in one run and {got.size} in the other")
        mask = None
        if entry.get("mask") is not None:
            mask = self.mask_of(a, entry["mask"], number)
        selected = numeric.select(self.xp, int(got.size), dtype, entry.get("ranges"), mask, bool(entry.get("invert")))
        tolerance = entry.get("tolerance", step.get("tolerance"))
        how = {"selected": selected, "tolerance": tolerance, "brief": bool(entry.get("brief"))}
        result = numeric.compare(self.xp, expected, got, dtype, **how)
        wrong = result["first"]
        if b.writer is not None and wrong is not None and number < len(b.buffers):
            result["writer"] = b.writer(number, wrong["index"] * numeric.DTYPES.get(dtype, (1, ""))[0])
        if "expected" in entry:
            expected[:] = 0xFF  # no later launch may find it in freed memory
        return {"buffer": number, **result}

    def _op_error(self, step: Mapping[str, Any]) -> Reply:
        """How far runs lie from one whose float buffers hold float64 (see `compare.error`)."""
        exact = self.run(step["exact"])
        rows = []
        for entry in step["buffers"]:
            number, dtype = int(entry["buffer"]), entry["dtype"]
            for name in step["runs"]:
                wide, narrow = exact.array(number), self.run(name).array(number)
                if wide.size * numeric.DTYPES[dtype][0] != 8 * narrow.size:
                    raise StepFailed(f"buffer {number} has {wide.size} bytes of f64 and {narrow.size} of {dtype}")
                mask = self.mask_of(self.run(name), entry["mask"], number) if entry.get("mask") is not None else None
                selected = numeric.select(self.xp, int(narrow.size), dtype, None, mask, False)
                found = numeric.error(self.xp, wide, narrow, dtype, selected=selected)
                rows.append({"buffer": number, "run": name, **found})
        return Reply({"buffers": rows})

    def mask_of(self, first: Run, name: str, number: int) -> Any:
        """The bool-per-byte mask of that name, of `first` when it has one, else of whichever run keeps it."""
        for run in (first, *self.runs.values()):
            if name in run.masks and number < len(run.masks[name]):
                return run.masks[name][number]
        raise StepFailed(f"there is no mask {name!r} for buffer {number}")

    def _op_changed(self, step: Mapping[str, Any]) -> Reply:
        run = self.run(step["run"])
        return self._keep_masks(step, run, list(self._differs(run)))

    def _differs(self, run: Run) -> list[Any]:
        """Masks of the bytes that are not the initial ones; no run changes after its launch."""
        if run.differs is None:
            run.differs = [placed.data != self.initial(placed) for placed in run.buffers]
        return run.differs

    def _op_unpoisoned(self, step: Mapping[str, Any]) -> Reply:
        """Where a poisoned byte no longer holds its poison. Bytes that were never poisoned are not in the mask."""
        run = self.run(step["run"])
        found = []
        for placed, differs in zip(run.buffers, self._differs(run), strict=True):
            poisoned = self.xp.zeros(int(placed.data.size), dtype=bool)
            for start, end, _ in placed.poison:
                poisoned[start:end] = differs[start:end]
            found.append(poisoned)
        return self._keep_masks(step, run, found)

    def _keep_masks(self, step: Mapping[str, Any], run: Run, found: list[Any]) -> Reply:
        """`join` ("or", "and") combines with the mask of that name, also one that another run keeps."""
        name = step.get("mask")
        if step.get("join") and name is not None:
            old = next((r.masks[name] for r in self.runs.values() if name in r.masks), None)
            if old is not None and [m.size for m in old] == [m.size for m in found]:
                found = [m | o if step["join"] == "or" else m & o for m, o in zip(found, old, strict=True)]
        if name is not None:
            for other in self.runs.values():
                other.masks.pop(name, None)
            run.masks[name] = found
        return Reply({"buffers": self._extents(found)})

    def _extents(self, found: Sequence[Any]) -> list[dict[str, Any]]:
        """How many bytes of each mask are true, the first and the last."""
        extents = []
        for number, (count, first, last) in enumerate(masks.extents(self.xp, found)):
            extent = {"buffer": number, "bytes": count}
            extents.append({**extent, "first": first, "last": last} if count else extent)
        return extents

    def _op_hash(self, step: Mapping[str, Any]) -> Reply:
        run = self.run(step["run"])
        digests = [hashlib.sha256(self.backend.download(p.data)).hexdigest() for p in run.buffers]
        symbols = {name: hashlib.sha256(self.backend.download(array)).hexdigest() for name, array in run.symbols}
        return Reply({"buffers": digests, "globals": symbols})

    def _op_fetch(self, step: Mapping[str, Any]) -> Reply:
        array = self.run(step["run"]).array(int(step["buffer"]))
        end = step.get("end")
        part = array[int(step.get("start") or 0) : int(array.size if end is None else end)]
        return Reply({"size": int(part.size)}, self.backend.download(part))

    def _op_free(self, step: Mapping[str, Any]) -> Reply:
        self._scrub(self.run(step["run"]))
        del self.runs[step["run"]]
        return Reply({})

    def _op_time(self, step: Mapping[str, Any]) -> Reply:
        from cuda_agent.device import timing

        if self.backend.clock is None:
            raise StepFailed("the emulator does not measure time")
        try:
            result = timing.Timer(self, self.backend.clock, step, clock_time.monotonic).run()
        finally:
            self.kept.launched(*(self.digests[step[side]["module"]] for side in "ab"))
        self.kept.look()
        return Reply(result)
