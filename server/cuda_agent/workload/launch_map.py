"""Launch shapes of a candidate: evaluate, compose and fit `LaunchMap` expressions.

An expression is C-like integer arithmetic over gx gy gz bx by bz shared with + - * / % ( ), max, min and ceil_div.
Division truncates as in C; all values are non-negative.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import NamedTuple

from cuda_agent.errors import WorkloadError
from cuda_agent.model import Dim3, Launch, Launched, LaunchMap, Workload

_NAMES = ("gx", "gy", "gz", "bx", "by", "bz", "shared")


class Shape(NamedTuple):
    """One launch shape: blocks, threads a block, dynamic shared bytes."""

    grid: Dim3
    block: Dim3
    shared: int

    @classmethod
    def of(cls, launch: Launch | Launched) -> Shape:
        return cls(launch.grid, launch.block, launch.shared)

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def text(self) -> str:
        return f"<<<{_dims(self.grid)}, {_dims(self.block)}{f', {self.shared}' if self.shared else ''}>>>"


def _dims(d: Dim3) -> str:
    used = d if d[2] != 1 else d[:2] if d[1] != 1 else d[:1]
    return str(used[0]) if len(used) == 1 else "(" + ", ".join(map(str, used)) + ")"


def evaluate(expression: str, values: Mapping[str, int]) -> int:
    """The value of one expression. WorkloadError for anything but integer arithmetic over the known names."""
    try:
        tree = ast.parse(expression.replace("/", "//"), mode="eval")
        return _value(tree.body, values)
    except (SyntaxError, KeyError, ZeroDivisionError, TypeError) as error:
        raise WorkloadError(f"launch shape {expression!r} cannot be evaluated: {error}") from error


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, values), _value(right, values)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
                case ast.Mod():
                    return a % b
        case ast.Call(func=ast.Name(id=name), args=args):
            numbers = [_value(arg, values) for arg in args]
            if name == "ceil_div" and len(numbers) == 2:
                return -(-numbers[0] // numbers[1])
            if name in ("max", "min"):
                return max(numbers) if name == "max" else min(numbers)
    raise TypeError(f"{ast.dump(node)} is not integer arithmetic")


def apply(launch_map: LaunchMap, grid: Dim3, block: Dim3, shared: int) -> Shape:
    """The candidate's shape for one captured shape."""
    values = dict(zip(_NAMES, (*grid, *block, shared), strict=True))
    g = tuple(evaluate(e, values) for e in launch_map.grid)
    b = tuple(evaluate(e, values) for e in launch_map.block)
    return Shape((g[0], g[1], g[2]), (b[0], b[1], b[2]), evaluate(launch_map.shared, values))


def unrecorded(workload: Workload, mapping: LaunchMap) -> tuple[Launched, ...]:
    """The shapes, as a candidate launches them, of launches that were seen and that no recorded launch has; each once,
    in the order of the original's."""
    recorded = {Launched(x.mangled, x.grid, x.block, x.shared) for x in workload.launches}
    others = sorted((workload.shapes or frozenset()) - recorded, key=astuple)
    return tuple(Launched(x.mangled, *apply(mapping, x.grid, x.block, x.shared)) for x in others)


def compose(outer: LaunchMap, inner: LaunchMap) -> LaunchMap:
    """First `inner`, then `outer`, as one map over the captured shape."""
    inner_of = dict(zip(_NAMES, (*inner.grid, *inner.block, inner.shared), strict=True))

    def put(expression: str) -> str:
        def one(match: re.Match[str]) -> str:
            text = inner_of.get(match.group(), match.group())
            return text if text.isidentifier() or text.isdigit() else f"({text})"

        return re.sub(r"[A-Za-z_]\w*", one, expression)

    g, b = [put(e) for e in outer.grid], [put(e) for e in outer.block]
    return LaunchMap((g[0], g[1], g[2]), (b[0], b[1], b[2]), put(outer.shared))


def fit(pairs: Sequence[tuple[Shape, Shape]]) -> LaunchMap:
    """The simplest map that takes every captured shape to the shape the candidate's own program launched.

    Raises WorkloadError when none of the usual forms (same, constant, multiple, fraction, all threads over a new
    block, blocks that share one where none is left over) fits.
    """
    grid = [_fit_one([(a, b.grid[axis]) for a, b in pairs], f"g{'xyz'[axis]}", axis) for axis in range(3)]
    block = [_fit_one([(a, b.block[axis]) for a, b in pairs], f"b{'xyz'[axis]}", axis) for axis in range(3)]
    shared = _fit_one([(a, b.shared) for a, b in pairs], "shared", 0)
    return LaunchMap((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), shared, seen=True)


def shared_out(extent: str, k: int) -> str:
    """k where the extent is a multiple of it, else 1: how many old blocks share a new one if none may be left over."""
    return f"(1 + {k - 1} * (1 - min({extent} % {k}, 1)))"


def _shared(extent: str, k: int, least: int) -> tuple[str, str]:
    """Blocks that are shared out so, and the threads of one."""
    return f"{extent} / {shared_out(extent, k)}", f"{least} * {shared_out(extent, k)}"


def _fit_one(pairs: Sequence[tuple[Shape, int]], same: str, axis: int) -> str:
    values = [dict(zip(_NAMES, (*a.grid, *a.block, a.shared), strict=True)) for a, _ in pairs]
    wanted = [b for _, b in pairs]
    threads = f"g{'xyz'[axis]} * b{'xyz'[axis]}"
    forms = [same, str(wanted[0])]
    for k in range(2, 1025):
        forms += [f"{same} * {k}", f"ceil_div({same}, {k})", f"ceil_div({threads}, {k})", f"{threads} * {k}"]
    forms += [form for k in (2, 4, 8, 16, 32) for form in _shared(f"g{'xyz'[axis]}", k, min(wanted))]
    for form in [*forms, threads]:
        if all(evaluate(form, v) == w for v, w in zip(values, wanted, strict=True)):
            return form
    raise WorkloadError(
        f"the candidate's launches ({wanted[:4]}…) do not follow from the original's by a simple rule:"
        " capture one launch"
    )
