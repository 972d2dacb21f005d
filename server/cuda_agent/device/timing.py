"""The `time` step: two launches, A and B, in one process on one GPU, in fair order, on fresh and cold data.

A round is A B B A or B A A B; of two rounds one is each, in an order drawn from the seed. Its four samples take two
groups of buffer sets in the order P Q P Q, so that each side is timed once on P and once on Q, and no sample finds the
addresses of the one before it: over two rounds neither place nor address can favour a side. The next two rounds take
the next groups of K complete sets. Before each sample, outside the timed window, what launches write is restored from
pristine copies, globals are set, persisting lines reset and L2 evicted. Kernels shorter than `min_us` are timed in
batches, one buffer set for each launch of a batch, so that no launch sees data that an earlier one of the batch left.
Outputs of random timed samples are compared with the reference run. A sample that the host queued too late, and the
first one after a comparison (the GPU stood idle meanwhile), is taken again. Raw samples go back; statistics are the
judge's.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.device import compare as numeric
from cuda_agent.device import masks
from cuda_agent.device.backend import Clock, OutOfMemory, Prepared, Sample, configuration
from cuda_agent.device.jobs import StepFailed

ALIGN = 256
MEMORY_SHARE = 0.5  # of what is free when timing starts
MAX_SETS = 256
MAX_BATCH = 128
CHECK_SHARE = 0.25  # of rounds have one sample's output compared
WARM_SAMPLES = 7
MIN_ROUNDS = 3
PLAIN = 5.0  # times `min_us`: so long a launch fills the window alone, whatever one alone carries of the window's cost
TRIES = 4  # at one sample that the host queues too late


@dataclass(slots=True)
class Side:
    """One of the two launches with its arguments packed for every buffer set."""

    name: str
    step: Mapping[str, Any]
    module: Any
    digest: str
    launches: list[Prepared] = field(default_factory=list)
    sets: list[list[Any]] = field(default_factory=list)
    pristine: list[Any] = field(default_factory=list)
    written: list[int] = field(default_factory=list)  # buffers that the launch changes
    repeatable: bool = False  # a second launch on the same buffers leaves the same bytes
    symbols: list[tuple[Any, Any]] = field(default_factory=list)  # (variable in the module, its bytes)


class Timer:
    def __init__(self, interpreter: Any, clock: Clock, step: Mapping[str, Any], now: Callable[[], float]) -> None:
        self.interpreter = interpreter
        self.backend = interpreter.backend
        self.clock = clock
        self.step = step
        self.now = now
        self.cold = bool(step.get("cold", True))
        self.min_us = float(step.get("min_us", 20.0))
        self.seed = int(step.get("seed", 0))
        self.random = random.Random(self.seed)
        self.checks: list[dict[str, Any]] = []
        self.check = step.get("check")
        self.checking = 0.0  # seconds spent on comparing outputs: not charged to the budget
        self.idle = False  # the GPU stood idle since the last sample

    # ------------------------------------------------------------ whole

    def run(self) -> dict[str, Any]:
        began = self.now()
        a, b = self._side("a"), self._side("b")
        sets = self._make_sets(a, b)
        self._find_written(a, b)
        batch = self._batch(a, b, sets)
        samples, order, limits = self._rounds(a, b, batch, sets)
        warm = self._warm(a, b, batch) if self.step.get("warm", True) else None
        self.interpreter.at(None)
        return {
            "samples": samples,
            "order": order,
            "rounds": len(order),
            "batch": batch,
            "sets": sets,
            "working_set": self._bytes(a.step),
            "cold": self.cold,
            "checked": self._checked(),
            "warm": warm,
            "late": sum(bool(sample.get("late")) for sample in samples),
            "limits": limits,
            "seconds": self.now() - began,
            "notes": list(getattr(self.clock, "notes", [])),
        }

    # ------------------------------------------------------------ buffers

    def _side(self, name: str) -> Side:
        step = self.step[name]
        module = self.interpreter.module(step["module"])
        side = Side(name, step, module, self.interpreter.digests[step["module"]])
        for symbol, init in step.get("globals", ()):
            variable = self.backend.symbol(module, symbol)
            kept = self.interpreter.alloc(int(variable.size))
            self.interpreter.fill(kept, init)
            side.symbols.append((variable, kept))
        return side

    @staticmethod
    def _bytes(step: Mapping[str, Any]) -> int:
        return sum(-(-max(1, int(spec["size"])) // ALIGN) * ALIGN for spec in step["buffers"])

    def _make_sets(self, a: Side, b: Side) -> int:
        """Buffer sets, shared by both sides when they start from the same bytes (so that neither has better addresses).
        Their number makes the sets together twice the L2 (at least 2, at most MAX_SETS, within the memory share)."""
        shared = a.step["buffers"] == b.step["buffers"]
        each = self._bytes(a.step) + (0 if shared else self._bytes(b.step))
        wanted = min(MAX_SETS, max(2, -(-2 * int(self.backend.info.l2_bytes) // each), self._batch_wish(each)))
        sets = min(wanted, self._room(each))
        if sets < wanted and self.interpreter.kept.clear():
            sets = min(wanted, self._room(each))
        if sets < 2:
            raise OutOfMemory(3 * each, self.backend.free_memory())
        self._allocate(a, sets)
        if shared:
            b.pristine, b.sets = a.pristine, a.sets
        else:
            self._allocate(b, sets)
        for side in (a, b):
            for buffers in side.sets:
                addresses = [self.backend.address(x) for x in buffers]
                side.launches.append(self.clock.prepare(side.module, configuration(side.step, addresses)))
        return sets

    def _room(self, each: int) -> int:
        """For how many buffer sets there is memory, beside the pristine copies."""
        return int(MEMORY_SHARE * self.backend.free_memory()) // each - 1

    @staticmethod
    def _batch_wish(each: int) -> int:
        """Small working sets belong to short kernels, which are timed in batches of one set a launch."""
        return 64 if each <= (1 << 20) else (16 if each <= (16 << 20) else 2)

    def _allocate(self, side: Side, sets: int) -> None:
        for spec in side.step["buffers"]:
            pristine = self.interpreter.alloc(int(spec["size"]))
            self.interpreter.begin(pristine, spec["init"], spec.get("poison", ()))
            side.pristine.append(pristine)
        for _ in range(sets):
            buffers = [self.interpreter.alloc(int(p.size)) for p in side.pristine]
            for buffer, pristine in zip(buffers, side.pristine, strict=True):
                self.clock.copy(buffer, pristine)
            side.sets.append(buffers)

    def _find_written(self, a: Side, b: Side) -> None:
        """Run each side twice on set 0: warms the code, and shows which buffers must be restored between samples. A
        buffer that one side writes is restored for both."""
        written: set[int] = set()
        for side in (a, b):
            self._restore(side, [0, 1], everything=True)
            self._at(side)
            for number in (1, 0, 0):
                side.launches[number]()
            self.clock.synchronize()
            side.repeatable = True
            for i, pristine in enumerate(side.pristine):
                if masks.differ(self.backend.xp, side.sets[1][i], pristine):
                    written.add(i)
                    side.repeatable &= not masks.differ(self.backend.xp, side.sets[0][i], side.sets[1][i])
            self._restore(side, [0, 1], everything=True)
        a.written, b.written = sorted(written), sorted(written)

    def _restore(self, side: Side, numbers: Sequence[int], everything: bool = False) -> None:
        for number in numbers:
            for i in range(len(side.pristine)) if everything else side.written:
                self.clock.copy(side.sets[number][i], side.pristine[i])
        for variable, kept in side.symbols:
            self.clock.copy(variable, kept)

    def _at(self, side: Side) -> None:
        self.interpreter.at(side.digest)

    # ------------------------------------------------------------ samples

    def _batch(self, a: Side, b: Side, sets: int) -> int:
        """Launches in one timed window, the same for both sides: enough for the quicker one to fill `min_us`. Unless
        one is plainly enough the estimate is made on a few in a row: a single one carries the window's own cost."""
        if min(self._sample(side, [0]).us for side in (a, b)) >= PLAIN * self.min_us:
            return 1
        few = [i % sets for i in range(min(4, sets))]
        quick = min(self._sample(side, few).us for _ in range(3) for side in (a, b))
        return max(1, min(MAX_BATCH, sets, math.ceil(self.min_us / max(quick, 0.5))))

    def _sample(self, side: Side, numbers: Sequence[int]) -> Sample:
        for _ in range(TRIES):
            self._restore(side, numbers)
            if self.cold:
                self.clock.flush()
            self._at(side)
            sample = self.clock.sample([side.launches[n] for n in numbers])
            if not sample.late:
                break
        return sample

    def _rounds(
        self, a: Side, b: Side, batch: int, sets: int
    ) -> tuple[list[dict[str, Any]], list[str], dict[str, int]]:
        """Samples in the order they were taken, the pattern of every round, and why the clocks were held down in how
        many rounds."""
        samples: list[dict[str, Any]] = []
        order: list[str] = []
        limits: Counter[str] = Counter()
        wanted, budget = int(self.step.get("rounds", 25)), self.step.get("budget_s")
        cursor = self.random.randrange(sets)
        self._round(a, b, "abba", self._groups(cursor, batch, sets), None)  # clocks and caches settle: not kept
        started, self.checking = self.now(), 0.0
        while len(order) < wanted:
            if len(order) % 2 == 0:
                patterns = self.random.sample(("abba", "baab"), 2)
                groups = self._groups(cursor, batch, sets)
                cursor = (cursor + 2 * batch) % sets
            pattern = patterns[len(order) % 2]
            check = self.random.randrange(4) if not order or self.random.random() < CHECK_SHARE else None
            for place, sample in enumerate(self._round(a, b, pattern, groups, check, 4 * len(order))):
                mhz = sample.clock_mhz
                samples.append(
                    {
                        "side": pattern[place],
                        "us": sample.us,
                        "clock_mhz": mhz,
                        "cycles": None if mhz is None else sample.us * mhz,
                        "batch": batch,
                        "round": len(order),
                        "set": groups[place][0],
                        **({"late": True} if sample.late else {}),
                    }
                )
            order.append(pattern)
            limits.update(self.clock.limits())
            if self._given_up(samples, len(order)):
                break
            if (
                budget is not None
                and len(order) >= min(MIN_ROUNDS, wanted)
                and self.now() - started - self.checking >= float(budget)
            ):
                break
        for side in (a, b):  # both sides at least once, whatever was drawn
            self._sample(side, [0])
            self._check(side, 0, len(samples))
        return samples, order, dict(limits)

    def _given_up(self, samples: Sequence[Mapping[str, Any]], rounds: int) -> bool:
        """Whether B lost by far in every one of so many rounds that more would only say it again, or all said the same
        ratio: so it is with kernels of milliseconds, where a round costs most."""
        rule = self.step.get("give_up")
        if rule is None or rounds != int(rule["rounds"]):
            return False
        best: dict[tuple[int, str], float] = {}
        for sample in samples:
            if sample.get("late"):
                return False
            key = sample["round"], sample["side"]
            best[key] = min(best.get(key, math.inf), sample["us"])
        ratios = [best[number, "a"] / best[number, "b"] for number in range(rounds)]
        spread = max(ratios) / min(ratios) - 1
        return max(ratios) < float(rule["below"]) or spread <= float(rule.get("spread", -1))

    @staticmethod
    def _groups(cursor: int, batch: int, sets: int) -> list[list[int]]:
        """P Q P Q: the sets of a round's four samples. P and Q are disjoint where there are enough sets."""
        p, q = ([(cursor + start + i) % sets for i in range(batch)] for start in (0, batch))
        return [p, q, p, q]

    def _round(
        self,
        a: Side,
        b: Side,
        pattern: str,
        groups: Sequence[Sequence[int]],
        check: int | None,
        first: int = 0,
    ) -> list[Sample]:
        taken: list[Sample] = []
        for place, name in enumerate(pattern):
            side = a if name == "a" else b
            if self.idle:
                self._sample(side, groups[place])
                self.idle = False
            taken.append(self._sample(side, groups[place]))
            if place == check:
                self._check(side, self.random.choice(groups[place]), first + place)
        return taken

    def _warm(self, a: Side, b: Side, batch: int) -> dict[str, float]:
        """Median microseconds when the same buffers were just used: no flush, and an untimed pass before each sample.
        A launch that changes its own inputs goes over the batch's sets, restored; any other repeats on set 0."""
        times: dict[str, list[float]] = {"a": [], "b": []}
        for turn in range(WARM_SAMPLES):
            for side in (a, b) if turn % 2 == 0 else (b, a):
                numbers = [0] * batch if side.repeatable else list(range(batch))
                self._restore(side, [] if side.repeatable else numbers)
                self._at(side)
                for number in numbers[: 1 if side.repeatable else batch]:
                    side.launches[number]()
                if not side.repeatable:
                    self._restore(side, numbers)
                times[side.name].append(self.clock.sample([side.launches[n] for n in numbers]).us)
        return {f"{name}_us": statistics.median(us) for name, us in times.items()}

    # ------------------------------------------------------------ outputs of timed samples

    def _check(self, side: Side, number: int, iteration: int) -> None:
        if not self.check:
            return
        began = self.now()
        reference = self.interpreter.run(self.check["run"])
        for entry in self.check["buffers"]:
            i = int(entry["buffer"])
            got, expected = side.sets[number][i], reference.array(i)
            if got.size != expected.size:
                raise StepFailed(f"check: buffer {i} has {expected.size} bytes in the reference, {got.size} here")
            mask = None if entry.get("mask") is None else self.interpreter.mask_of(reference, entry["mask"], i)
            selected = numeric.select(
                self.backend.xp, int(got.size), entry.get("dtype", "bytes"), entry.get("ranges"), mask, False
            )
            tolerance = entry.get("tolerance", self.check.get("tolerance"))
            how = {"selected": selected, "tolerance": tolerance, "brief": True}
            found = numeric.compare(self.backend.xp, expected, got, entry.get("dtype", "bytes"), **how)
            self.checks.append({"side": side.name, "iteration": iteration, "set": number, "buffer": i, **found})
        self.checking += self.now() - began
        self.idle = True

    def _checked(self) -> dict[str, Any] | None:
        """`equal`: every compared output was bit-equal; `within`: all inside the tolerance (the same, without one)."""
        if not self.checks:
            return None
        within = [c.get("within", c["equal"]) for c in self.checks]
        bad = [c for c, ok in zip(self.checks, within, strict=True) if not ok]
        return {
            "iteration": (bad or self.checks)[0]["iteration"],
            "count": len({(c["side"], c["iteration"]) for c in self.checks}),
            "equal": all(c["equal"] for c in self.checks),
            "within": all(within),
            "failures": bad[:4],
        }
