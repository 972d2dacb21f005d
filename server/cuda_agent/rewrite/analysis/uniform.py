"""Which values the threads of a warp, a block or the whole grid share, and which barriers only some threads reach.

A value varies with what it depends on: definitions, and the conditions and loops around them (names and polynomials
tell). Memory that the kernel writes, and results of calls, count as different in every thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tree_sitter import Node

from cuda_agent.rewrite.analysis import affine, aliasing, names
from cuda_agent.rewrite.analysis.names import HasKernel
from cuda_agent.rewrite.analysis.polynomial import OPERATIONS, Atom, Poly
from cuda_agent.source.tree import LOOPS, ancestors, callee, span, walk

Level = Literal["thread", "warp", "block", "grid"]
_ORDER: tuple[Level, ...] = ("thread", "warp", "block", "grid")
BARRIERS = ("__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or")
_THREAD = frozenset(f"threadIdx.{a}" for a in "xyz")
_BLOCK = frozenset(f"blockIdx.{a}" for a in "xyz")
WARP = 32


def level(where: HasKernel, node: Node, *, warp_rows: bool = False) -> Level:
    """The largest group of threads in which the expression has one value. `warp_rows`: blocks are known to be
    one-dimensional and whole warps, so that threadIdx.x / 32 is one value in a warp."""
    return of_poly(where, affine.of(where, node), warp_rows=warp_rows)


def of_poly(where: HasKernel, poly: Poly, *, warp_rows: bool = False) -> Level:
    scope = names.of(where)
    levels = [_atom(scope, atom, warp_rows) for atom in poly.atoms]
    return min(levels, key=_ORDER.index, default="grid")


def _atom(scope: names.Names, atom: Atom, warp_rows: bool) -> Level:
    if warp_rows and atom.op == "/" and atom.args[0] == Poly.symbol("threadIdx.x"):
        size = atom.args[1].value
        if size is not None and size % WARP == 0:
            return "warp"
    if atom.op in OPERATIONS:
        return min((of_poly(scope, a, warp_rows=warp_rows) for a in atom.args), key=_ORDER.index, default="grid")
    if atom.op == "load" and atom.args and not _unsteady(scope, atom.depends):
        return of_poly(scope, atom.args[0], warp_rows=warp_rows)  # of memory that is only read
    return of_names(scope, atom.depends)


def of_names(where: HasKernel, depends: frozenset[str]) -> Level:
    """The level of a value that depends on these names (`Poly.names`)."""
    scope = names.of(where)
    if depends & _THREAD or "call" in depends or ("memory" in depends and _unsteady(scope, depends)):
        return "thread"
    return "block" if depends & _BLOCK else "grid"


@lru_cache(maxsize=128)
def _written(scope: names.Names) -> frozenset[str] | None:
    found = aliasing.effects(scope)
    return None if found.unknown else found.written


def _unsteady(scope: names.Names, depends: frozenset[str]) -> bool:
    written = _written(scope)
    return written is None or bool(depends & written)


@dataclass(frozen=True)
class Barrier:
    """A barrier, and the conditions that decide whether a thread reaches it (also those of returns before it)."""

    node: Node
    conditions: tuple[Node, ...]
    level: Level  # "block" or "grid" where all threads of a block decide alike


def barriers(where: HasKernel, *, warp_rows: bool = False) -> list[Barrier]:
    scope = names.of(where)
    found = []
    for call in walk(scope.body, "call_expression"):
        if callee(call) in BARRIERS:
            conditions = deciding(scope, call)
            levels = [level(scope, c, warp_rows=warp_rows) for c in conditions]
            found.append(Barrier(call, tuple(conditions), min(levels, key=_ORDER.index, default="grid")))
    return found


def deciding(where: HasKernel, node: Node) -> list[Node]:
    """The conditions that decide whether a thread comes to the node: of the statements around it, and of those around
    a return, break or continue that may leave before."""
    scope = names.of(where)
    inside = span(scope.body)
    around = [
        a for a in ancestors(node, frozenset((*LOOPS, "if_statement", "switch_statement"))) if inside.holds(span(a))
    ]
    found = [c for a in around if (c := a.child_by_field_name("condition")) is not None]
    for leave in walk(scope.body, ("return_statement", "break_statement", "continue_statement")):
        loops = [a for a in around if a.type in LOOPS]
        before = leave.start_byte < node.start_byte or any(span(l).holds(span(leave)) for l in loops)
        left = next(ancestors(leave, LOOPS), None)
        matters = leave.type == "return_statement" or any(l == left for l in loops)
        if before and matters:
            for a in ancestors(leave, frozenset((*LOOPS, "if_statement", "switch_statement"))):
                condition = a.child_by_field_name("condition")
                if condition is not None and condition not in found and inside.holds(span(a)):
                    found.append(condition)
    return found


def reached_together(where: HasKernel, node: Node) -> bool:
    """All threads of a block come to the node, or none: a barrier may stand there."""
    return all(level(where, c) in ("block", "grid") for c in deciding(where, node))
