"""Offsets and aliases of pointer arguments, only such as the program itself shows: a launch site that passes `x + k` or
the same array twice, or a captured launch whose pointers lie so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cuda_agent.judge.case import Case
from cuda_agent.judge.hidden.extents import element_size
from cuda_agent.model import Launch, Pointer
from cuda_agent.toolchain import names

_VECTOR = 16  # bytes of the widest load: alignment beyond it changes nothing


@dataclass(frozen=True, slots=True)
class Flat:
    """One argument that is a plain pointer."""

    name: str
    argument: int  # index into Launch.args
    size: int  # bytes of the element
    pointer: Pointer


def flat(case: Case, launch: Launch) -> list[Flat | None]:
    """A parameter each; None for scalars, structs and null pointers. Empty where arguments and parameters do not
    pair."""
    params = case.kernel.params
    types = names.param_types(launch.mangled) or tuple(param.type for param in params)
    order = sorted(range(len(launch.args)), key=lambda at: launch.args[at].offset)
    if not len(order) == len(types) == len(params):
        return []
    found: list[Flat | None] = []
    for at, type_, param in zip(order, types, params, strict=True):
        arg, size = launch.args[at], element_size(type_)
        plain = size is not None and len(arg.pointers) == 1 and len(arg.data) == 8
        found.append(Flat(param.name, at, size or 1, arg.pointers[0]) if plain else None)
    return found


def offsets(case: Case, launch: Launch) -> Iterator[tuple[str, Launch]]:
    """The launch with one pointer, then all such pointers, moved by one element."""
    movable = [one for position, one in enumerate(flat(case, launch)) if one and _moves(case, launch, position, one)]
    for one in movable:
        yield f"{one.name} offset by one element", _moved(launch, [one])
    if len(movable) > 1:
        yield f"{', '.join(one.name for one in movable)} offset by one element", _moved(launch, movable)


def _moves(case: Case, launch: Launch, position: int, one: Flat) -> bool:
    if one.size >= _VECTOR:
        return False
    for site in case.module.launches_of(case.kernel):
        text = site.args[position] if position < len(site.args) else ""
        if re.search(r"\w\s*[+-]\s*\w|&\s*\w+\s*\[", text):
            return True
    here = one.pointer.offset % _VECTOR
    others = (_at(case, other, position) for other in case.workload.launches)
    return any(other is not None and other.pointer.offset % _VECTOR != here for other in others)


def _at(case: Case, launch: Launch, position: int) -> Flat | None:
    found = flat(case, launch)
    return found[position] if position < len(found) else None


def _moved(launch: Launch, pointers: list[Flat]) -> Launch:
    args = list(launch.args)
    for one in pointers:
        moved = replace(one.pointer, offset=one.pointer.offset + one.size)
        args[one.argument] = replace(args[one.argument], pointers=(moved,))
    return replace(launch, args=tuple(args))


def aliases(case: Case, launch: Launch, poisoned: frozenset[int]) -> Iterator[tuple[str, Launch]]:
    """The launch with two pointers of one element type at the same place, that of an input where one is."""
    found = flat(case, launch)
    for j, second in enumerate(found):
        for i, first in enumerate(found[:j]):
            if first is None or second is None or first.pointer.buffer == second.pointer.buffer:
                continue
            if first.size == second.size and _meet(case, i, j):
                keep, move = (second, first) if first.pointer.buffer in poisoned else (first, second)
                args = list(launch.args)
                args[move.argument] = replace(args[move.argument], pointers=(keep.pointer,))
                yield f"{first.name} and {second.name} the same array", replace(launch, args=tuple(args))


def _meet(case: Case, i: int, j: int) -> bool:
    """Whether the program passes the same array as both parameters somewhere."""
    for site in case.module.launches_of(case.kernel):
        texts = [re.sub(r"\s", "", site.args[position]) for position in (i, j) if position < len(site.args)]
        if len(texts) == 2 and texts[0] == texts[1] and texts[0] not in ("nullptr", "NULL", "0"):
            return True
    for launch in case.workload.launches:
        first, second = _at(case, launch, i), _at(case, launch, j)
        if (
            first
            and second
            and (first.pointer.buffer, first.pointer.offset)
            == (
                second.pointer.buffer,
                second.pointer.offset,
            )
        ):
            return True
    return False
