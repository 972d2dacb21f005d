"""What a hover, a lens or a hint says. Each sentence states what was counted; none says what made a kernel slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cuda_agent.hints.launch import Problem
from cuda_agent.hints.occupancy import Limits, Occupancy, next_step, occupancy
from cuda_agent.model import Facts

Category = Literal["registers", "spills", "occupancy", "launch"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """`line` is 1-based in the file; None: it belongs to the kernel as a whole."""

    category: Category
    text: str
    line: int | None = None


def short(facts: Facts) -> str:
    """One phrase for a lens or an inlay hint: `40 registers · 4 KiB shared · 128 B spilled`."""
    parts = [_count(facts.registers, "register")]
    if facts.shared_bytes:
        parts.append(f"{size(facts.shared_bytes)} shared")
    spilled = max(facts.spill_stores, facts.spill_loads)
    if spilled:
        parts.append(f"{size(spilled)} spilled")
    elif facts.stack_bytes:
        parts.append(f"{size(facts.stack_bytes)} stack")
    return " · ".join(parts)


def of_facts(facts: Facts, before: Facts | None = None) -> list[Sentence]:
    """Registers, shared memory, stack and spills, with the change since `before` (the last build, or HEAD)."""
    texts: list[Sentence] = []
    registers = f"{_count(facts.registers, 'register')} a thread{_change(before, facts, 'registers')}"
    registers += f", {_count(facts.instructions, 'instruction')}{_change(before, facts, 'instructions')}."
    texts.append(Sentence("registers", registers))
    if facts.shared_bytes or (before and before.shared_bytes):
        was = _change(before, facts, "shared_bytes")
        texts.append(Sentence("occupancy", f"{size(facts.shared_bytes)} of static shared memory a block{was}."))
    texts += _spills(facts, before)
    return texts


def _spills(facts: Facts, before: Facts | None) -> list[Sentence]:
    texts: list[Sentence] = []
    if facts.spill_stores or facts.spill_loads:
        was = _change(before, facts, "spill_loads")
        text = f"{size(facts.spill_stores)} of spill stores and {size(facts.spill_loads)} of spill loads{was}."
        texts.append(Sentence("spills", text))
    elif before and (before.spill_stores or before.spill_loads):
        texts.append(Sentence("spills", f"No spills; {size(before.spill_loads)} of spill loads before."))
    elif facts.stack_bytes:
        text = f"{size(facts.stack_bytes)} of stack a thread: an array or a call that is not in registers."
        texts.append(Sentence("spills", text))
    for line in facts.lines:
        if line.local:
            text = f"{_count(line.local, 'access')} to local memory (stack or spills) on this line."
            texts.append(Sentence("spills", text, line.line))
    return texts


def of_occupancy(facts: Facts, sm: Limits, threads: int, dynamic_shared: int = 0) -> list[Sentence]:
    """Occupancy for blocks of `threads`, what it is bound by, and the next step, if there is one."""
    shared = facts.shared_bytes + dynamic_shared
    now = occupancy(sm, facts.registers, shared, threads)
    if now.blocks == 0:
        return []  # `of_launch` says why
    texts = [Sentence("occupancy", occupancy_text(now, sm))]
    step = next_step(sm, facts.registers, shared, threads)
    if step:
        texts.append(Sentence("occupancy", step))
    return texts


_BOUND = {
    "registers": "registers",
    "shared": "shared memory",
    "warps": "the number of warps an SM holds",
    "blocks": "the number of blocks an SM holds",
}


def occupancy_text(now: Occupancy, sm: Limits) -> str:
    bound = " and ".join(_BOUND[resource] for resource in now.limiters)
    blocks = f"{_count(now.blocks, 'block')} of {now.threads} threads"
    return (
        f"Theoretical occupancy {now.ratio:.0%} on {sm.arch}: {blocks} an SM, {now.warps} of {now.max_warps} warps; "
        f"bound by {bound}."
    )


def of_launch(problems: Sequence[Problem]) -> list[Sentence]:
    """Why a launch will fail."""
    return [Sentence("launch", f"This launch fails with {problem.error}: {problem.text}") for problem in problems]


def size(count: int) -> str:
    """`96 B`, `4 KiB`, `1.5 MiB`."""
    if count < 1024:
        return f"{count} B"
    scaled, unit = (count / 1024, "KiB") if count < 1 << 20 else (count / (1 << 20), "MiB")
    return f"{scaled:.1f}".removesuffix(".0") + f" {unit}"


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def _change(before: Facts | None, facts: Facts, name: str) -> str:
    if before is None or getattr(before, name) == getattr(facts, name):
        return ""
    was, now = getattr(before, name), getattr(facts, name)
    return f" ({now - was:+,} from {was:,})"
