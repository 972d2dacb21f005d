"""G11, physics: no kernel is faster than memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cuda_agent.device import jobs
from cuda_agent.judge import numeric
from cuda_agent.judge.baseline import mask, need, poison_of
from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, not_run, passed
from cuda_agent.judge.timing import LaunchTime
from cuda_agent.model import GateResult
from cuda_agent.workload.elements import SIZES

SLACK = 0.9  # of the floor: peak bandwidth and event times are good to some per cent
SURPRISE = 10.0
SLICES = 16


class Physics:
    """With a cold L2 a launch takes at least the bytes that must move over the peak bandwidth: what it reads comes
    from memory (inputs, and elements that it changes), and what it writes beyond the L2's size is written back. This is
    the memory side of the roofline (Williams, Waterman, Patterson 2009). The side of arithmetic is left out: the
    operations that the original does are no floor, because a right rewrite may do fewer (a value hoisted, a sum shared,
    a power by squares), and what a function needs at least nobody can count; what it reads and writes it must move.
    Below 0.9 of that floor the number is held for a second look: which slices of each float input change the result
    when poisoned, so that a buffer read in part counts in part; if the time is still below, the measurement is wrong,
    whoever is to blame. A gain above 10 says what share of the peak each side reached. In the first look inputs count
    in full where the original moves them within the same bound."""

    id: ClassVar[str] = "G11"
    name: ClassVar[str] = "physics"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "gpu"

    def check(self, case: Case) -> GateResult:
        peak = case.device.info.memory_bandwidth_gbs
        if not peak:
            return not_run(self, f"the peak bandwidth of {case.device.info.name} is not known")
        words, data = [], []
        for launch in case.times.launches:
            index, timing = launch.index, launch.timing
            floor = original_floor(case, index)
            if timing.candidate_us < SLACK * floor.us and timing.original_us >= SLACK * floor.us:
                floor = memory_floor(case, index, _really_read(case, index), "as far as it changes the result")
            elif timing.candidate_us < SLACK * floor.us:
                floor = memory_floor(case, index, 0, "not counted: the original beats it too")
            data.append(
                {
                    "shape": launch.shape,
                    "floor_us": floor.us,
                    "candidate_us": timing.candidate_us,
                    "read": floor.read,
                    "written_back": floor.written_back,
                    "how": floor.how,
                }
            )
            if timing.candidate_us < SLACK * floor.us:
                return failed(
                    self,
                    f"{launch.shape}: {timing.candidate_us:.2f} µs is less than the {floor.us:.2f} µs that "
                    f"its bytes take at {peak:.0f} GB/s ({floor.words})",
                    launches=data,
                )
            words.append(_words(launch, floor))
        return passed(self, words[0], launches=data)


@dataclass(frozen=True, slots=True)
class Floor:
    """Least microseconds of one launch, and the bytes behind it."""

    us: float
    read: int
    written_back: int
    how: str  # what counts as read, when not all of it

    @property
    def words(self) -> str:
        how = f" {self.how}" if self.how else ""
        return f"{_bytes(self.read)} read{how}, {_bytes(self.written_back)} written back"


def memory_floor(case: Case, index: int, read: int, how: str = "") -> Floor:
    """Bytes over peak bandwidth: GB/s is 1,000 bytes a microsecond."""
    base, slots, info = case.baseline(index), case.slots(index), case.device.info
    written = sum(base.written[b] * SIZES[slot.dtype] for b, slot in enumerate(slots))
    back = max(0, written - info.l2_bytes)
    return Floor((read + back) / (info.memory_bandwidth_gbs * 1000), read, back, how)


def original_floor(case: Case, index: int) -> Floor:
    """The first look: inputs count in full, and so do elements that a launch changes."""
    return memory_floor(case, index, _inputs(case, index) + _read_and_written(case, index))


def _inputs(case: Case, index: int) -> int:
    """Bytes of the buffers that only const pointers reach."""
    slots, buffers = case.slots(index), case.launches[index].buffers
    return sum(buffers[b].size for b, slot in enumerate(slots) if not slot.writable)


def _read_and_written(case: Case, index: int) -> int:
    """Bytes of changed elements in buffers that are no pure outputs: their new value comes from the old one."""
    base, slots = case.baseline(index), case.slots(index)
    return sum(
        base.written[b] * SIZES[slots[b].dtype] for b in base.outputs if b < len(slots) and b not in base.poisoned
    )


def _really_read(case: Case, index: int) -> int:
    """Bytes of float inputs in slices that change the original's result when they are poisoned; other inputs count
    nothing."""
    base, slots, launch = case.baseline(index), case.slots(index), case.launches[index]
    poison = poison_of(case, index, base.poisoned, 0)
    entries = [
        {"buffer": b, "dtype": slots[b].dtype, **mask(b, base.poisoned, base.written)}
        for b in base.outputs
        if b < len(slots)
    ]
    steps = [
        *case.load_steps(candidate=False),
        case.original_launch("plain", index, poison=poison),
        jobs.changed_step("plain", "changed"),
        jobs.unpoisoned_step("plain", "written"),
    ]
    sizes = []
    for b, slot in enumerate(slots):
        if slot.writable or slot.dtype not in numeric.RULE:
            continue
        size, width = launch.buffers[b].size, SIZES[slot.dtype]
        step = max(width, -(-size // SLICES // width) * width)
        for start in range(0, size, step):
            end = min(size, start + step)
            pattern = poison_of(case, index, [b], 0)[b][0][2]
            steps += [
                case.original_launch("slice", index, poison={**poison, b: [(start, end, pattern)]}),
                jobs.compare_step("plain", "slice", entries),
                jobs.free_step("slice"),
            ]
            sizes.append(end - start)
    results = need(case.run(steps, deadline_s=case.options.deadline_s, tag="what is read"), "the second look failed")
    compared = [r["buffers"] for s, r in zip(steps, results, strict=True) if s["op"] == "compare"]
    return sum(size for size, rows in zip(sizes, compared, strict=True) if not all(row["equal"] for row in rows))


def _words(launch: LaunchTime, floor: Floor) -> str:
    timing = launch.timing
    if not floor.us:
        return f"{launch.shape}: no useful lower bound (only part of its buffers is read)"
    share = (
        f"{floor.us / timing.candidate_us * 100:.0f} % of peak bandwidth, the original "
        f"{floor.us / timing.original_us * 100:.0f} %"
    )
    if timing.ratio > SURPRISE:
        return f"{launch.shape}: {timing.ratio:.1f}× is possible, the original left that room: {share} ({floor.words})"
    return f"{launch.shape}: above the {floor.us:.2f} µs that its bytes take ({floor.words}): {share}"


def _bytes(count: float) -> str:
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count:.0f} B"
