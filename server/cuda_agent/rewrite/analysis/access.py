"""Every access of a kernel to memory: which array, which element, how neighbouring lanes and loop iterations lie.

The index is a polynomial. `neighbours.py` has accesses along one variable as text that can be written again,
`iterations.py` whether a loop's iterations meet in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from tree_sitter import Node

from cuda_agent.rewrite.analysis import affine, names, sizes, trips
from cuda_agent.rewrite.analysis.calls import HINTED_LOADS, HINTED_STORES
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.analysis.names import HasKernel
from cuda_agent.rewrite.analysis.places import Place
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.source.tree import LOOPS, ancestors, arguments, callee, field, is_written, masked, operator, walk

Kind = Literal["load", "store", "atomic"]
Space = Literal["global", "shared", "local"]
WARP = 32


@dataclass(frozen=True)
class Access:
    """One access in the text. `index` counts elements from where the array starts (a parameter: where it points)."""

    node: Node
    array: str
    kind: Kind
    space: Space
    index: Poly
    element: str
    loops: tuple[Induction | None, ...]  # around it, innermost first; None of a loop that does not count
    bytes: int | None  # of one element; None when its type is a template parameter or a struct

    @cached_property
    def counted(self) -> dict[str, Induction]:
        return {l.symbol: l for l in self.loops if l is not None}

    @cached_property
    def lane(self) -> Poly | None:
        """What the index grows by from one lane (threadIdx.x) to the next in the same iteration of every loop. None
        when it is not affine in it."""
        return self.at_start.stride("threadIdx.x")

    @cached_property
    def at_start(self) -> Poly:
        """The index in the first iteration of every loop around it."""
        return _expanded(self.index, self.counted)

    def stride(self, symbol: str) -> Poly | None:
        """Per thread axis or block axis: as `lane`. Per loop variable: what one iteration adds."""
        if symbol in self.counted:
            step = self.index.stride(symbol)
            return step * self.counted[symbol].step if step is not None else None
        return self.at_start.stride(symbol)

    @property
    def contiguous(self) -> tuple[str, ...]:
        """The loop variables and thread axes that walk the array element by element."""
        candidates = (*self.counted, "threadIdx.x", "threadIdx.y", "threadIdx.z")
        return tuple(s for s in candidates if (p := self.stride(s)) is not None and p.value in (1, -1))

    def lanes(self, numbers: Mapping[str, int]) -> tuple[int, ...] | None:
        """Element offsets of the first warp's lanes in the first iteration, from lane 0's, with the numbers of one
        launch (`trips.bindings`). None when they depend on values that are not known."""
        return lanes(self.at_start, numbers)


def lanes(index: Poly, numbers: Mapping[str, int]) -> tuple[int, ...] | None:
    """As `Access.lanes`, of any index."""
    bx, by, bz = numbers.get("blockDim.x", WARP), numbers.get("blockDim.y", 1), numbers.get("blockDim.z", 1)
    index = index.substitute({f"blockIdx.{a}": 0 for a in "xyz"} | dict(numbers))
    threads = [(t % bx, t // bx % by, t // (bx * by)) for t in range(min(WARP, bx * by * bz))]
    rest, steps = index, []
    for a in "xyz":
        step, rest = rest.split(f"threadIdx.{a}")
        steps.append(step.value if step is not None else None)
    if all(s is not None for s in steps):
        return tuple(sum((s or 0) * t for s, t in zip(steps, at, strict=True)) for at in threads)
    values: list[Poly] = []
    for thread in threads:
        at = {f"threadIdx.{a}": t for a, t in zip("xyz", thread, strict=True)}
        values.append(index.substitute(at))
        if any(a.depends & at.keys() for a in values[-1].atoms):
            return None  # a variable or a loaded value that differs from lane to lane, nobody knows how
    offsets = [(v - values[0]).value for v in values]
    known = [o for o in offsets if o is not None]
    return tuple(known) if len(known) == len(offsets) else None


@dataclass(frozen=True)
class Accesses:
    """`unknown` are the places where an array's address goes somewhere that is not followed: a helper function, a
    pointer that moves between arrays. There the list is not complete."""

    found: tuple[Access, ...]
    unknown: tuple[Node, ...]

    def __iter__(self) -> Iterator[Access]:
        return iter(self.found)

    def of(self, array: str) -> tuple[Access, ...]:
        return tuple(a for a in self.found if a.array == array)

    @property
    def globals(self) -> tuple[Access, ...]:
        return tuple(a for a in self.found if a.space == "global")


def of(where: HasKernel) -> Accesses:
    """The accesses of the kernel in text order."""
    return _of(names.of(where))


@lru_cache(maxsize=128)
def _of(scope: names.Names) -> Accesses:
    found: list[Access] = []
    unknown: list[Node] = []
    used: set[int] = set()
    for node in walk(scope.body, ("subscript_expression", "pointer_expression", "call_expression", "field_expression")):
        for target, kinds in _touched(scope, node):
            place = affine.place(scope, target) if target is node else affine.pointer(scope, target)
            if place is not None and place.inner and target is node:
                continue  # a row of an array: its element is subscripted further out
            if place is None:
                unknown.append(node)
                continue
            used.update(n.id for n in walk(target, "identifier"))
            found += [_access(scope, target, place, kind) for kind in kinds]
    unknown += _passed_on(scope)
    return Accesses(tuple(found), tuple(unknown))


def _touched(scope: names.Names, node: Node) -> Iterator[tuple[Node, tuple[Kind, ...]]]:
    """(what is accessed, how) at a node that may touch memory."""
    if node.type == "call_expression":
        name, given = callee(node) or "", arguments(node)
        if name in HINTED_LOADS and given:
            yield given[0], ("load",)
        elif name in HINTED_STORES and given:
            yield given[0], ("store",)
        elif "atomic" in name.lower() and given:
            yield given[0], ("atomic",)
        return
    above = node.parent
    if node.type == "field_expression":
        arrow = masked(node)[len(masked(field(node, "argument"))) :].lstrip().startswith("->")
        if not arrow or (above is not None and above.type == "call_expression"):
            return  # a.b is accessed where a is; a->f() is a method
    if node.type == "pointer_expression" and operator(node) != "*":
        return
    if node.type == "subscript_expression" and above is not None and above.type == "subscript_expression":
        row = above.child_by_field_name("argument") == node
        if row and (inner := affine.place(scope, node)) is not None and inner.inner:
            return
    top = node
    while above is not None and above.type in ("parenthesized_expression", "field_expression"):
        top, above = above, above.parent
    if above is not None and above.type == "pointer_expression" and operator(above) == "&":
        return  # an address, not an access
    if not is_written(top):
        yield node, ("load",)
    elif above is not None and above.type == "assignment_expression" and operator(above) == "=":
        yield node, ("store",)
    else:
        yield node, ("load", "store")


def _access(scope: names.Names, node: Node, place: Place, kind: Kind) -> Access:
    variable = scope.variable(place.base)
    space: Space = "global"
    if variable is not None and variable.is_array:
        space = "shared" if variable.shared else "local"
    size = sizes.size_of(place.element, scope.module)
    return Access(node, place.base, kind, space, place.index, place.element, loops_around(scope, node), size)


def loops_around(where: HasKernel, node: Node) -> tuple[Induction | None, ...]:
    """The loops around a node, innermost first; None for one that does not count."""
    return tuple(affine.induction(where, l) for l in ancestors(node, LOOPS) if names.iterates(l, node))


def _passed_on(scope: names.Names) -> Iterator[Node]:
    """Arguments of functions that are pointers into arrays."""
    for call in walk(scope.body, "call_expression"):
        name = callee(call) or ""
        if name in HINTED_LOADS | HINTED_STORES or "atomic" in name.lower() or name.endswith("_cast"):
            continue
        for given in arguments(call):
            if affine.pointer(scope, given) is not None:
                yield given


def _expanded(index: Poly, loops: Mapping[str, Induction]) -> Poly:
    """Loop variables replaced by their start values, inner loops first (an inner start may use an outer variable)."""
    for symbol, loop in loops.items():
        index = index.substitute({symbol: loop.start})
    return index


def strides(where: HasKernel, context_bindings: list[dict[str, int]], one: Access) -> list[int | None]:
    """Per captured launch: the distance in elements between lanes 0 and 1 when all lanes are equally far apart."""
    found: list[int | None] = []
    for numbers in context_bindings:
        lane = trips.evaluate(one.lane, numbers) if one.lane is not None else None
        if lane is None and (offsets := one.lanes(numbers)) is not None and len(offsets) > 1:
            steps = {b - a for a, b in itertools.pairwise(offsets)}
            lane = steps.pop() if len(steps) == 1 else None
        found.append(lane)
    return found
