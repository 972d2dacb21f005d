"""One hidden case, and the order in which cases are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, TypeVar, get_args

from cuda_agent.model import Launch
from cuda_agent.workload.elements import ElementType
from cuda_agent.workload.launch_map import Shape

Kind = Literal["pointer", "value", "size", "surplus"]  # surplus: more blocks than the size asks for
KINDS: tuple[Kind, ...] = get_args(Kind)
CHEAP_BITS = 17  # what costs fewer units than 2^17 is as good as free
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trial:
    """One hidden case: a launch for the original, and the shape in which the candidate runs it."""

    name: str
    index: int  # of the recorded launch it comes from
    launch: Launch
    shape: Shape
    kind: Kind = "size"
    family: str = ""  # "" for the recorded values
    redrawn: tuple[tuple[int, ElementType], ...] = ()  # buffers that get values of the family, when its turn comes

    @property
    def cost(self) -> int:
        return cost(self.launch)


def cost(launch: Launch) -> int:
    """Threads and bytes, for the order."""
    shape = Shape(launch.grid, launch.block, 0)
    return shape.threads * shape.blocks * 8 + launch.held_bytes


@dataclass(frozen=True, slots=True)
class LeftOut:
    name: str
    why: str

    def to_json(self) -> dict[str, str]:
        return {"case": self.name, "why": self.why}


def interleaved(trials: Iterable[Trial]) -> list[Trial]:
    """A trial of every kind in turn, so that whatever the time allows covers all kinds. Those of a kind: cheap ones
    first, by factors of eight; then the recorded launches in turn; then as given."""
    lists: dict[Kind, list[tuple[int, int, Trial]]] = {kind: [] for kind in KINDS}
    seen: Counter[tuple[Kind, int]] = Counter()
    for trial in trials:
        dear = max(0, trial.cost.bit_length() - CHEAP_BITS + 2) // 3
        lists[trial.kind].append((dear, seen[trial.kind, trial.index], trial))
        seen[trial.kind, trial.index] += 1
    return in_turn(*([one[2] for one in sorted(rows, key=lambda row: row[:2])] for rows in lists.values()))


def in_turn(*lists: Iterable[T]) -> list[T]:
    """The first of every list, then the second of every list, and so on."""
    turns = zip_longest(*([(one,) for one in row] for row in lists), fillvalue=())
    return [one for turn in turns for cell in turn for one in cell]
