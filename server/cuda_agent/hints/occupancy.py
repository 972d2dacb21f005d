"""Theoretical occupancy: how many blocks of a kernel one SM can hold, what limits that, and the next step.

The numbers are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", the
formulas those of `cuda_occupancy.h` in the CUDA Toolkit, against which the tests compare them. Occupancy says how many
warps may be resident, not how fast the kernel is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cuda_agent.errors import UsageError

WARP = 32
MAX_THREADS_PER_BLOCK = 1024
SUB_PARTITIONS = 4  # of an SM; warps and their registers are dealt out to these
REGISTER_UNIT = 256  # registers are given to a warp in multiples of this
Resource = Literal["registers", "shared", "warps", "blocks"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one SM of an architecture has. Sizes in bytes, registers of 32 bits."""

    arch: str
    warps: int  # resident warps
    blocks: int  # resident blocks
    shared: int  # shared memory of the SM
    shared_per_block: int  # the most one block may have, after opting in
    shared_unit: int  # shared memory is given to a block in multiples of this
    shared_reserved: int  # what CUDA keeps for itself in each block
    registers: int = 65536
    registers_per_block: int = 65536
    registers_per_thread: int = 255
    shared_default: int = 49152  # without opting in


def _row(arch: str, warps: int, blocks: int, shared_kib: int, reserved: int = 1024, unit: int = 128) -> Limits:
    shared = shared_kib << 10
    return Limits(arch, warps, blocks, shared, shared - reserved, unit, reserved)


_TABLE = {
    row.arch: row
    for row in (
        _row("sm_70", 64, 32, 96, 0, 256),
        _row("sm_72", 64, 32, 96, 0, 256),
        _row("sm_75", 32, 16, 64, 0, 256),
        _row("sm_80", 64, 32, 164),
        _row("sm_86", 48, 16, 100),
        _row("sm_87", 48, 16, 164),
        _row("sm_89", 48, 24, 100),
        _row("sm_90", 64, 32, 228),
        _row("sm_100", 64, 32, 228),
        _row("sm_103", 64, 32, 228),
        _row("sm_110", 48, 24, 228),
        _row("sm_120", 48, 24, 100),
        _row("sm_121", 48, 24, 100),
    )
}
ARCHITECTURES = tuple(_TABLE)


def limits(arch: str) -> Limits:
    """The limits of `sm_90` (or `sm_90a`). Raises UsageError for an architecture that is not in the table."""
    found = _TABLE.get(re.sub(r"[af]$", "", arch))
    if found is None:
        raise UsageError(f"The occupancy of {arch} is not known; known are {', '.join(_TABLE)}.")
    return found


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that one SM can hold at once. `blocks` 0: not even one fits, the launch fails."""

    threads: int  # of a block
    blocks: int
    warps: int
    max_warps: int
    by: dict[Resource, int]  # how many blocks each resource alone allows
    limiters: tuple[Resource, ...]  # those that allow no more than `blocks`

    @property
    def ratio(self) -> float:
        return self.warps / self.max_warps


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(sm: Limits, registers: int, shared: int, threads: int) -> Occupancy:
    """Occupancy of a kernel with `registers` a thread, `shared` bytes a block (static and dynamic), `threads` a block.

    Raises UsageError when `threads` is below 1.
    """
    if threads < 1:
        raise UsageError(f"A block of {threads} threads does not exist: give at least 1.")
    warps = -(-threads // WARP)
    too_big = threads > MAX_THREADS_PER_BLOCK
    by: dict[Resource, int] = {
        "registers": _by_registers(sm, registers, warps),
        "shared": _by_shared(sm, shared),
        "warps": 0 if too_big else sm.warps // warps,
        "blocks": sm.blocks,
    }
    blocks = min(by.values())
    limiters = tuple(resource for resource, allowed in by.items() if allowed == blocks)
    return Occupancy(threads, blocks, blocks * warps, sm.warps, by, limiters)


def registers_of_warp(registers: int) -> int:
    return round_up(max(registers, 1) * WARP, REGISTER_UNIT)


def _by_registers(sm: Limits, registers: int, warps: int) -> int:
    each = registers_of_warp(registers)
    # The hardware's check of a launch counts as if every sub-partition got its share of warps.
    if registers > sm.registers_per_thread or each * round_up(warps, SUB_PARTITIONS) > sm.registers_per_block:
        return 0
    return sm.registers // SUB_PARTITIONS // each * SUB_PARTITIONS // warps


def _by_shared(sm: Limits, shared: int) -> int:
    if shared > sm.shared_per_block:
        return 0
    each = round_up(shared + sm.shared_reserved, sm.shared_unit)
    return sm.shared // each if each else sm.blocks


def next_step(sm: Limits, registers: int, shared: int, threads: int) -> str | None:
    """The smallest change to what limits this kernel that lets one more block be resident, as a sentence.

    None when the SM is full, or when one resource's change alone does not help.
    """
    now = occupancy(sm, registers, shared, threads)
    if now.blocks == 0 or now.warps == now.max_warps or len(now.limiters) > 1:
        return None
    if now.limiters[0] == "blocks":
        return (
            f"An SM holds at most {sm.blocks} blocks: with more than {threads} threads each, more warps are resident."
        )
    if now.limiters[0] == "registers":
        for fewer in range(1, registers):
            blocks = occupancy(sm, registers - fewer, shared, threads).blocks
            if blocks > now.blocks:
                what = f"{_number(fewer)} register{'s' if fewer > 1 else ''} fewer a thread"
                return f"{what} ({registers} → {registers - fewer}) gives {_more(now.blocks, blocks)} an SM."
    if now.limiters[0] == "shared":
        # Only multiples of the allocation unit, less what CUDA reserves, can matter.
        for size in range(shared - shared % sm.shared_unit, -1, -sm.shared_unit):
            blocks = occupancy(sm, registers, size, threads).blocks
            if blocks > now.blocks:
                return f"{shared - size} bytes of shared memory fewer a block gives {_more(now.blocks, blocks)} an SM."
    return None


def _more(before: int, after: int) -> str:
    return "one more block" if after == before + 1 else f"{after - before} more blocks"


def _number(value: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    return words[value].capitalize() if value < len(words) else str(value)
