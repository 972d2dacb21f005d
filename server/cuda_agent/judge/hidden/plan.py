"""The list of hidden cases for one judgement, in the order in which they are tried. Nothing runs here.

Sizes vary one at a time, the others at a base: the recorded value where the launch is small, else a few blocks' worth.
Every size is tried with the blocks that the program would launch and, where a guard makes that harmless, with more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from cuda_agent.judge.case import Case
from cuda_agent.judge.hidden.divisors import Divisors
from cuda_agent.judge.hidden.extents import Extents, Refused, contents, hold
from cuda_agent.judge.hidden.families import BYTES, FAMILIES, FLOATS, NAMES, NOT_FINITE, ORDERS, redraw
from cuda_agent.judge.hidden.integer_data import data_parameters
from cuda_agent.judge.hidden.pointers import aliases, offsets
from cuda_agent.judge.hidden.scalars import hidden_values, integers, sizes, with_values
from cuda_agent.judge.hidden.shapes import Shapes
from cuda_agent.judge.hidden.trial import Kind, LeftOut, Trial, in_turn, interleaved
from cuda_agent.model import Buffer, Launch, LaunchMap
from cuda_agent.workload.elements import ElementType
from cuda_agent.workload.launch_map import Shape, unrecorded

SMALL_BYTES, SMALL_THREADS = 1 << 18, 1 << 13  # a launch this small is its own base
BASE = {1: 1024, 2: 128, 3: 32}  # a size of a larger launch becomes this, by how many sizes there are
MOST_BYTES = 256 << 20  # of all buffers of a hidden launch
GROW_BYTES = 4 << 20  # of a recorded launch whose sizes are doubled; a larger one grows from its base only
SHAPES = 4  # of launches that were not recorded
SURPLUS = 1  # blocks more than the sizes ask for


@dataclass(slots=True)
class Plan:
    trials: list[Trial] = field(default_factory=list)
    bases: list[Trial] = field(default_factory=list)  # every instantiation at its small sizes, with the recorded values
    instead: list[Trial] = field(default_factory=list)  # values at recorded sizes, if the base lets none be tried
    left_out: list[LeftOut] = field(default_factory=list)
    held: dict[str, bytes] = field(default_factory=dict)  # made-up blobs
    notes: list[str] = field(default_factory=list)


def make(case: Case) -> Plan:
    """Cases from the smallest recorded launch of every instantiation."""
    plan = Plan()
    smallest: dict[str, int] = {}
    for index, launch in enumerate(case.launches):
        best = smallest.setdefault(launch.mangled, index)
        if launch.held_bytes < case.launches[best].held_bytes:
            smallest[launch.mangled] = index
    for index in smallest.values():
        _Maker(case, index, plan).make()
    plan.trials = interleaved(plan.trials)
    return plan


def drawn(case: Case, trial: Trial, held: MutableMapping[str, bytes]) -> Trial:
    """The trial with the values of its family."""
    buffers = list(trial.launch.buffers)
    for b, dtype in trial.redrawn:
        data = redraw(contents(case, held, buffers[b]), dtype, trial.family, case.options.seed + b)
        buffers[b] = Buffer(buffers[b].address, len(data), (hold(held, data),), None)
    return replace(trial, launch=replace(trial.launch, buffers=tuple(buffers)))


class _Maker:
    def __init__(self, case: Case, index: int, plan: Plan) -> None:
        self.case, self.index, self.plan = case, index, plan
        self.launch = case.launches[index]
        self.scalars = integers(self.launch, case.kernel)
        self.sizes = sizes(case.module, case.kernel, self.scalars)
        self.shapes = Shapes(case, index, self.scalars)
        self.extents = Extents(case, index, self.scalars)
        self.divisors = Divisors(case.module, case.kernel)
        self.seen: set[tuple[Launch, Shape]] = set()
        self.base: dict[str, int] = self._base()

    def make(self) -> None:
        if not self.sizes:
            self.plan.notes.append("no integer argument bounds a guard or a loop: sizes were not varied")
        base = self._sized(self.base)
        if base is None and self.base:
            self.base, base = {}, self._sized({})
        if base is not None:
            self.plan.bases.append(base)
            self.plan.trials += self._values(base)
            if self.base and (recorded := self._trial(self._name({}), {}, self.shapes.captured)) is not None:
                self.plan.instead += self._values(recorded)
        for values in self._size_cases():
            self._sized(values)
        self._other_shapes()
        if base is not None:  # the plainest of all comes last
            self.plan.trials.remove(base)
            self.plan.trials.append(base)
        self._pointers()

    # ------------------------------------------------------------ sizes

    @property
    def _surplus_values(self) -> set[int]:
        """Sizes that are also tried with more blocks than they need: a few tell as much as all."""
        return {0, 1, 33, self.shapes.captured.threads + 1}

    def _base(self) -> dict[str, int]:
        """Values of the sizes that are not being varied, where they differ from the recorded ones."""
        threads = self.shapes.captured.threads * self.shapes.captured.blocks
        if self.launch.held_bytes <= SMALL_BYTES and threads <= SMALL_THREADS:
            return {}
        cap = BASE.get(len(self.sizes), 16)
        return {size.name: cap for size in self.sizes if size.value > cap}

    def _size_cases(self) -> Iterator[dict[str, int]]:
        """One size at a time in turn, then all of them equal."""
        block = self.shapes.captured.block
        lists = [[(size, value) for value in hidden_values(size, block)] for size in self.sizes]
        for turn in range(max(map(len, lists), default=0)):
            for values in lists:
                if turn < len(values):
                    size, value = values[turn]
                    yield self.base | {size.name: value}
        for value in (33, 1) if len(self.sizes) > 1 else ():
            yield {size.name: min(value, size.value) for size in self.sizes}
        for size in self.sizes:
            yield self.base | {size.name: 2 * self.base.get(size.name, size.value) + 1}
            if size.name in self.base and self.launch.held_bytes <= GROW_BYTES:
                yield self.base | {size.name: 2 * size.value + 1}

    def _sized(self, values: Mapping[str, int]) -> Trial | None:
        """Adds the cases of these sizes; gives the one with the program's own number of blocks, or the only one."""
        changed = {name: value for name, value in values.items() if value != self.scalars[name].value}
        grows = any(value > self.scalars[name].value for name, value in changed.items())
        name = self._name(changed)
        own = self.shapes.original(changed) if changed else self.shapes.captured
        if own is None:
            if grows:
                self._leave(name, "how many blocks the program would launch cannot be read from its text")
                return None
            return self._add(f"{name}, recorded grid", changed, self.shapes.captured, mapped=True)
        made = None
        if min(own.grid) > 0:
            made = self._add(name, changed, own)
        else:
            self._leave(name, "the program would launch no block")
        if (
            changed
            and self.case.kernel.guards
            and not grows
            and self._surplus_values.issuperset(
                value for name, value in changed.items() if value != self.base.get(name)
            )
        ):
            most = self.shapes.captured.grid
            more = [max(have, min(most[axis], have + SURPLUS)) for axis, have in enumerate(own.grid)]
            surplus = Shape((more[0], more[1], more[2]), own.block, own.shared)
            if surplus != own and min(more) > 0:
                self._add(f"{name}, more blocks than needed", changed, surplus, kind="surplus")
        return made

    def _add(self, name: str, values: Mapping[str, int], shape: Shape, **how: Any) -> Trial | None:
        """Makes the trial and takes it into the plan."""
        trial = self._trial(name, values, shape, **how)
        if trial is not None and (trial.launch, trial.shape) not in self.seen:
            self.seen.add((trial.launch, trial.shape))
            self.plan.trials.append(trial)
        return trial

    def _trial(
        self,
        name: str,
        values: Mapping[str, int],
        shape: Shape,
        *,
        kind: Kind = "size",
        mapped: bool = False,
        pointed: Launch | None = None,
    ) -> Trial | None:
        if values and (where := self.divisors.zero({n: s.value for n, s in self.scalars.items()} | dict(values))):
            self._leave(name, f"the original itself divides by zero there ({where})")
            return None
        if not values and shape == self.shapes.captured:
            theirs: Shape | None = self.case.shape(self.index)
        elif mapped:
            theirs = self.shapes.mapped(shape)
        else:
            theirs = self.shapes.surplus(values, shape) if kind == "surplus" else self.shapes.candidate(values, shape)
        if theirs is None and kind == "surplus":
            self._leave("more blocks than needed", "original and candidate are launched by different words")
            return None
        if theirs is None:
            self._leave(name, "how the candidate would be launched there cannot be read from its text")
            return None
        launch = with_values(pointed or self.launch, self.scalars, values)
        launch = replace(launch, grid=shape.grid, block=shape.block, shared=shape.shared)
        try:
            launch = self.extents.fit(launch, values, self.plan.held, MOST_BYTES)
        except Refused as error:
            self._leave(name, str(error))
            return None
        return Trial(name, self.index, launch, theirs, kind)

    def _leave(self, name: str, why: str) -> None:
        if (left := LeftOut(name, why)) not in self.plan.left_out:
            self.plan.left_out.append(left)

    def _name(self, values: Mapping[str, int]) -> str:
        if not values:
            return f"sizes as recorded {self.case.launch_name(self.index)}"
        return ", ".join(
            f"{name} = {value:,} (captured {self.scalars[name].value:,})" for name, value in values.items()
        )

    def _other_shapes(self) -> None:
        """The recorded arguments in the shapes of launches that were not recorded, where all launches had the same but
        for addresses."""
        work = self.case.workload
        scalars = {position for position, arg in enumerate(self.launch.args) if not arg.pointers}
        if work.varied is None or work.varied & scalars:
            return
        others = [one for one in unrecorded(work, LaunchMap()) if one.mangled == self.launch.mangled]
        for one in others[:SHAPES]:
            shape = Shape.of(one)
            self._add(f"arguments as recorded, launched as {shape.text()}", {}, shape, mapped=True)

    # ------------------------------------------------------------ pointers

    def _pointers(self) -> None:
        """Offsets and aliases, at sizes one below the recorded ones: an array moved by one element then still fits."""
        values = self.base | {size.name: size.value - 1 for size in self.sizes if size.name not in self.base}
        shape = self.shapes.original(values) if values else self.shapes.captured
        poisoned = self.case.baseline(self.index).poisoned
        aliased, moved = aliases(self.case, self.launch, poisoned), offsets(self.case, self.launch)
        for what, launch in in_turn(aliased, moved):
            name = f"{what}, {self._name(values)}"
            if shape is None or min(shape.grid) < 1:
                self._add(name, values, self.shapes.captured, kind="pointer", mapped=True, pointed=launch)
            else:
                self._add(name, values, shape, kind="pointer", pointed=launch)

    # ------------------------------------------------------------ values

    def _values(self, base: Trial) -> list[Trial]:
        """One case a value family, on the base; integers that are data are put in another order, bytes become any."""
        found = []
        floats, whole = self._inputs(base)
        if not floats and not whole:
            note = "no data are read that may be redrawn: values were not varied"
            self.plan.notes += [note] * (note not in self.plan.notes)
        small = [(b, dtype) for b, dtype in whole if dtype in ("i8", "u8")]
        for family in NAMES:
            if family in NOT_FINITE and self.case.candidate.numeric == "fast-math":
                continue
            redrawn = (
                *(floats if family in FAMILIES else ()),
                *(whole if family in ORDERS else ()),
                *(small if family in BYTES else ()),
            )
            if redrawn:
                name = f"{base.name}, values: {family}"
                found.append(replace(base, name=name, kind="value", family=family, redrawn=redrawn))
        return found

    def _inputs(self, base: Trial) -> tuple[list[tuple[int, ElementType]], list[tuple[int, ElementType]]]:
        """Buffers that the kernel may read and that hold floats; and those of integers that are no indices."""
        poisoned = self.case.baseline(self.index).poisoned
        data = data_parameters(self.case.module, self.case.kernel)
        slots = [
            (b, slot)
            for b, slot in enumerate(self.case.slots(self.index))
            if b not in poisoned and base.launch.buffers[b].size
        ]
        floats = [(b, slot.dtype) for b, slot in slots if slot.dtype in FLOATS]
        whole = [(b, slot.dtype) for b, slot in slots if slot.dtype[0] in "iu" and slot.name in data]
        return floats, whole
