"""What limits this kernel? One launch, what is known of it, and the machine: the thing that holds it back most.

Each cause that is seen says by how much it alone may slow the kernel (its factor, an estimate), and the largest one is
the answer. Factors and their sources: idle multiprocessors and resident warps from the launch shape and the occupancy
(`occupancy.py`); sectors, shared-memory passes, lanes and atomics from the emulator's counts of the same launch (CUDA
C++ Best Practices Guide, "Coalesced Access to Global Memory" and "Shared Memory and Memory Banks"). With a measured
time the headroom is what the roofline leaves (Williams, Waterman, Patterson 2009): time over the time that the bytes
take which must move, or that a launch takes at all. Operations are not counted: what nothing else explains is called
`issue`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cuda_agent.hints.occupancy import SUB_PARTITIONS, WARP, Limits, Occupancy, occupancy
from cuda_agent.model import Dim3, Facts, Launch

Kind = Literal["bandwidth", "latency", "issue", "atomics", "divergence", "shared conflicts", "uncoalesced"]

SECTOR = 32  # bytes; global memory is moved in these
FULL = 0.8  # of the peak bandwidth: a copy reaches about nine tenths, and bytes that must move are a lower bound
SHORTEST_US = 2.5  # an empty launch takes about 2 µs on current GPUs
SEEN = 1.25  # a factor below this explains nothing
ENOUGH_WARPS = 16  # resident on an SM: with fewer, independent instructions must hide the latency of memory
SOME_ATOMICS = 0.02  # of the accesses to memory: fewer explain nothing, one a block least of all
ALWAYS = 1.02  # more than all the bytes in that time: the estimate of the bytes is wrong


@dataclass(frozen=True, slots=True)
class Machine:
    """What of a GPU matters here. GB/s are 10^9 bytes a second."""

    sms: int
    bandwidth_gbs: float  # peak; 0 when it is not known
    l2_bytes: int
    clock_mhz: float  # of the SMs; 0 when it is not known
    sm: Limits


@dataclass(frozen=True, slots=True)
class Work:
    """What is known of one launch."""

    grid: Dim3
    block: Dim3
    shared: int = 0  # dynamic, bytes
    facts: Facts | None = None
    read: int = 0  # bytes that must come from memory; 0 with `written`: not known
    written: int = 0  # bytes that it writes
    us: float | None = None  # measured, microseconds
    counts: Mapping[str, float] = field(default_factory=dict)  # the emulator's, of the whole launch
    atomics: bool = False  # the text has atomic operations

    @property
    def bytes(self) -> int:
        return self.read + self.written

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        return math.prod(self.block)


@dataclass(frozen=True, slots=True)
class Limiter:
    """`text` is a sentence without its full stop. `headroom`: how many times faster the kernel could be without this,
    1.0 when nothing is left; an estimate unless `measured`."""

    kind: Kind
    text: str
    headroom: float
    measured: bool = False
    share: float | None = None  # of the peak bandwidth that the launch reaches, when it was measured

    @property
    def left(self) -> str:
        """What is left when a search stops."""
        if self.headroom < SEEN and self.measured:
            return f"{self.text}: nothing left to gain here"
        if self.kind == "bandwidth":
            return self.text
        times = f"{self.headroom:.1f}" if self.headroom < 10 else f"{self.headroom:.0f}"
        return f"{self.text}; up to {times}× {'' if self.measured else 'may be '}left"


def sentence(found: Limiter) -> str:
    """For the hover."""
    if found.kind == "bandwidth" and not found.measured:
        return f"Nothing is seen that holds it back: {found.text}."
    return f"Limited by {found.kind}: {found.text}."


def limiter(work: Work, machine: Machine) -> Limiter | None:
    """The largest of the causes that are seen. None when too little is known to say anything."""
    share = reached(work, machine)
    if share is not None and share >= FULL:
        return Limiter("bandwidth", f"at {min(share, 1):.0%} of memory bandwidth", 1 / min(share, 1), True, share)
    if work.us is not None and work.us < SHORTEST_US:
        return Limiter("latency", f"{work.us:.1f} µs is about as short as a launch can be", 1.0, True, share)
    measured, headroom, at = False, 0.0, ""
    if share is not None and work.us is not None:
        floor = share * work.us
        measured, headroom = True, work.us / max(floor, SHORTEST_US)
        at = f"at {share:.0%} of memory bandwidth" if floor > SHORTEST_US else ""
    found = max(_causes(work, machine), key=lambda cause: cause[0], default=None)
    if found is not None:
        factor, kind, text = found
        return Limiter(kind, text + (f" ({at})" if at else ""), headroom or factor, measured, share)
    if measured:
        kind = "atomics" if work.atomics and _share(work.counts) >= SOME_ATOMICS else "issue"
        why = "atomics" if kind == "atomics" else "instructions, or waiting for their results,"
        return Limiter(kind, f"{at}{': ' if at else ''}{why} limit it", headroom, measured, share)
    if work.bytes and machine.bandwidth_gbs:
        return Limiter("bandwidth", _floor_text(work, machine), 1.0)
    return None


def reached(work: Work, machine: Machine) -> float | None:
    """The share of the peak bandwidth at which the bytes that must move were moved. Where all of them in that time
    are more than the peak, what the L2 cache may have kept of the written ones is left out. None when nothing is
    known, or when that is still more: then the estimate of the bytes is wrong."""
    if not machine.bandwidth_gbs or not work.us or not work.bytes:
        return None
    for count in (work.bytes, work.read + max(0, work.written - machine.l2_bytes)):
        share = _us(count, machine) / work.us
        if 0 < share <= ALWAYS:
            return share
    return None


def _share(counts: Mapping[str, float]) -> float:
    """The share of the accesses to global memory that are atomics; 1 where nothing was counted."""
    requests = counts.get("requests", 0)
    return counts.get("atomics", 0) / requests if requests else 1.0


def _us(count: int, machine: Machine) -> float:
    """Microseconds that bytes take at the peak bandwidth: GB/s is 1,000 bytes a microsecond."""
    return count / (machine.bandwidth_gbs * 1000)


def _floor_text(work: Work, machine: Machine) -> str:
    amount = next((f"{work.bytes / size:.3g} {unit}" for size, unit in _UNITS if work.bytes >= size), f"{work.bytes} B")
    least = _us(work.bytes, machine)
    if least < SHORTEST_US:
        return f"it moves {amount}, which takes no longer than a launch does; not measured yet"
    return f"{amount} take at least {least:.3g} µs at {machine.bandwidth_gbs:,.0f} GB/s; not measured yet"


_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


# ---------------------------------------------------------------- causes


def _causes(work: Work, machine: Machine) -> Iterator[tuple[float, Kind, str]]:
    for factor, kind, text in (
        *_of_shape(work, machine),
        *_of_instructions(work, machine),
        *_of_counts(work.counts),
    ):
        if factor >= SEEN:
            yield factor, kind, text


def _of_shape(work: Work, machine: Machine) -> Iterator[tuple[float, Kind, str]]:
    if machine.sms:
        much = "most" if work.blocks * 2 < machine.sms else "part"
        blocks = f"{work.blocks:,} block{'' if work.blocks == 1 else 's'}"
        yield machine.sms / max(1, work.blocks), "latency", f"{blocks} on {machine.sms} SMs: {much} of the GPU is idle"
    resident = _resident(work, machine)
    if resident is None:
        return
    warps, of = resident
    bound = " and ".join(of.limiters) if warps == of.warps else "the grid"
    text = f"{warps} of {of.max_warps} warps on an SM, bound by {bound}: too few to hide the latency of memory"
    yield ENOUGH_WARPS / warps, "latency", text


def _resident(work: Work, machine: Machine) -> tuple[int, Occupancy] | None:
    """Warps that a busy SM holds at once, by its occupancy and by how many blocks there are; None when not known."""
    if work.facts is None or not work.facts.registers or not work.threads:
        return None
    full = occupancy(machine.sm, work.facts.registers, work.facts.shared_bytes + work.shared, work.threads)
    if not full.blocks or not machine.sms:
        return None
    blocks = min(full.blocks, -(-work.blocks // machine.sms))
    return blocks * -(-work.threads // WARP), full


def _of_instructions(work: Work, machine: Machine) -> Iterator[tuple[float, Kind, str]]:
    """Instructions a memory access, in the text of the kernel (loops count once), against the machine's balance: what
    its four schedulers an SM issue while 128 bytes, a coalesced access of a warp, come from memory."""
    accesses = sum(line.loads + line.stores for line in work.facts.lines) if work.facts is not None else 0
    if work.facts is None or not accesses or not machine.bandwidth_gbs or not machine.clock_mhz:
        return
    balance = machine.sms * SUB_PARTITIONS * machine.clock_mhz * 1e6 / (machine.bandwidth_gbs * 1e9 / (4 * WARP))
    each = work.facts.instructions / accesses
    text = f"{each:.0f} instructions for each access to memory, where {balance:.0f} keep up with its bandwidth"
    yield each / balance, "issue", text


def _of_counts(counts: Mapping[str, float]) -> Iterator[tuple[float, Kind, str]]:
    """Causes in the emulator's counts. A request is one access of a warp."""
    requests, shared = counts.get("requests", 0), counts.get("shared_requests", 0)
    if requests and counts.get("bytes"):
        each, needed = counts["sectors"] / requests, counts["bytes"] / SECTOR / requests
        text = f"a warp's access moves {each:.1f} sectors of {SECTOR} bytes where {max(1, needed):.1f} would hold it"
        yield each / max(1.0, needed), "uncoalesced", text
    if requests and counts.get("atomics"):
        share = counts["atomics"] / requests
        yield 1 / max(1 - share, 1 / WARP), "atomics", f"{share:.0%} of the accesses to memory are atomics"
    if shared and counts.get("bank_conflicts"):
        passes, conflicts = counts["wavefronts"], counts["bank_conflicts"]
        text = f"shared memory takes {passes / (passes - conflicts):.1f} passes an access: bank conflicts"
        yield passes / (passes - conflicts), "shared conflicts", text
    if counts.get("lanes"):
        lanes = counts["lanes"] / (requests + shared)
        yield WARP / lanes, "divergence", f"{lanes:.0f} of {WARP} lanes of a warp are active on average"


# ---------------------------------------------------------------- from a capture


def moved(launch: Launch) -> tuple[int, int]:
    """Bytes that a launch reads and writes, as its capture shows them: buffers it left alone were read, of the others
    what changed was written. An estimate: a buffer may be read in part, or read and written, and chunks are 64 KiB or
    4 MiB."""
    read, written = 0, 0
    for buffer in launch.buffers:
        if buffer.after is None or buffer.after == buffer.before or not buffer.before:
            read += buffer.size
            continue
        chunk = -(-buffer.size // len(buffer.before))
        changed = sum(a != b for a, b in zip(buffer.before, buffer.after, strict=False))
        written += min(buffer.size, changed * chunk)
    return read, written


# ---------------------------------------------------------------- what to try

# Numbers of the rules' catalogue, most promising first; a rule that is not here keeps its place behind these.
RULES: Mapping[Kind, tuple[int, ...]] = {
    "bandwidth": (6, 8, 9, 17, 7, 16, 1, 15),
    "latency": (3, 2, 12, 1, 6, 9, 17, 16, 7, 13, 10),
    "issue": (14, 6, 16, 15, 9, 11, 12, 18, 7, 8, 10),
    "atomics": (13, 12, 3, 1),
    "divergence": (2, 4, 3, 1, 12, 6),
    "shared conflicts": (5, 12, 4, 18),
    "uncoalesced": (4, 2, 5, 16, 6, 1),
}
