"""Will this launch fail? Registers × threads, shared bytes, block and grid dimensions against an architecture's limits.

Rules: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the register check is the one in
`cuda_occupancy.h`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cuda_agent.hints.occupancy import MAX_THREADS_PER_BLOCK, SUB_PARTITIONS, WARP, Limits, registers_of_warp, round_up
from cuda_agent.model import Dim3, Facts

_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a launch fails, and cudaError as the runtime names it."""

    text: str
    error: str


def check(
    facts: Facts,
    sm: Limits,
    block: Dim3,
    *,
    grid: Dim3 | None = None,
    dynamic_shared: int = 0,
    max_threads: int | None = None,
) -> tuple[Problem, ...]:
    """Everything that makes this launch fail on `sm`; empty when it fits. `max_threads` is `__launch_bounds__`'s first.

    Sizes in bytes. Dynamic shared memory above 48 KiB is no problem here by itself: see `needs_opt_in`.
    """
    threads = block[0] * block[1] * block[2]
    found = _dimensions(block, grid)
    if threads > MAX_THREADS_PER_BLOCK:
        found.append(Problem(f"A block has at most {MAX_THREADS_PER_BLOCK} threads; this one has {threads}.", _VALUE))
    elif max_threads is not None and threads > max_threads:
        text = f"The kernel is built for at most {max_threads} threads a block; this launch has {threads}."
        found.append(Problem(text, _VALUE))
    elif threads > 0:
        found += _registers(facts, sm, threads)
    shared = facts.shared_bytes + dynamic_shared
    if shared > sm.shared_per_block:
        parts = f"{facts.shared_bytes} static and {dynamic_shared} dynamic"
        text = f"{shared} bytes of shared memory a block ({parts}); {sm.arch} has {sm.shared_per_block}."
        found.append(Problem(text, _VALUE))
    return tuple(found)


_VALUE = "cudaErrorInvalidValue"
_RESOURCES = "cudaErrorLaunchOutOfResources"
_CONFIGURATION = "cudaErrorInvalidConfiguration"


def _dimensions(block: Dim3, grid: Dim3 | None) -> list[Problem]:
    found = []
    for name, dims, highest in (("block", block, _BLOCK), ("grid", grid, _GRID)):
        for axis, size, limit in zip("xyz", dims or (1, 1, 1), highest, strict=True):
            if not 1 <= size <= limit:
                text = f"The {name}'s {axis} is {size}; it goes from 1 to {limit}."
                found.append(Problem(text, _CONFIGURATION))
    return found


def _registers(facts: Facts, sm: Limits, threads: int) -> list[Problem]:
    needed = _needed(facts.registers, threads)
    if needed <= sm.registers_per_block:
        return []
    per_thread = max_registers(sm, threads)
    text = (
        f"{facts.registers} registers × {threads} threads need {needed} registers a block; {sm.arch} has "
        f"{sm.registers_per_block}. At most {per_thread} a thread fit (`__launch_bounds__({threads})`)."
    )
    return [Problem(text, _RESOURCES)]


def max_registers(sm: Limits, threads: int) -> int:
    """The most registers a thread may have so that one block of `threads` fits."""
    fitting = (r for r in range(1, sm.registers_per_thread + 1) if _needed(r, threads) <= sm.registers_per_block)
    return max(fitting, default=0)


def _needed(registers: int, threads: int) -> int:
    """Registers of a block as the launch check counts them: warps rounded up to the sub-partitions."""
    return registers_of_warp(registers) * round_up(round_up(threads, WARP) // WARP, SUB_PARTITIONS)


def needs_opt_in(facts: Facts, sm: Limits, dynamic_shared: int) -> bool:
    """Whether the program must raise cudaFuncAttributeMaxDynamicSharedMemorySize before this launch."""
    return sm.shared_default < facts.shared_bytes + dynamic_shared <= sm.shared_per_block


def dims(text: str) -> Dim3 | None:
    """The launch dimension that a text spells with literals: `256`, `dim3(16, 16)`, `{8, 8, 1}`; else None."""
    numbers = re.fullmatch(r"\s*(?:dim3\s*[({]|\{)?\s*([\d\s,'uUlL*]+?)\s*[)}]?\s*", text)
    if numbers is None:
        return None
    sizes = []
    for part in numbers[1].split(","):
        factors = [re.sub(r"['uUlL\s]", "", factor) for factor in part.split("*")]
        if not all(factor.isdigit() for factor in factors):
            return None
        size = 1
        for factor in factors:
            size *= int(factor)
        sizes.append(size)
    if len(sizes) > 3:
        return None
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
