"""How often the loops of a kernel run: as a polynomial, and as a number for the captured launches.

trips = max(0, ⌈(bound − start) / step⌉) for `<`; `<=`, `>`, `>=` and `!=` follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tree_sitter import Node

from cuda_agent.model import Workload
from cuda_agent.rewrite.analysis import affine
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.analysis.names import HasKernel
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.analysis.sizes import counts
from cuda_agent.source.tree import ancestors, field, operator, strip_parens
from cuda_agent.workload.launch_map import Shape

_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


def trips(where: HasKernel, loop: Node) -> Poly | None:
    """How often the loop's body runs when nothing leaves it early. None when it is not a counted `for`."""
    counted = affine.induction(where, loop)
    return of_induction(where, counted) if counted is not None else _started_before(where, loop)


def _started_before(where: HasKernel, loop: Node) -> Poly | None:
    """Of `for (; v < bound; v++)` whose variable was declared with its start in the same block, and changes nowhere
    else."""
    condition, update = loop.child_by_field_name("condition"), loop.child_by_field_name("update")
    if loop.type != "for_statement" or loop.child_by_field_name("initializer") is not None or condition is None:
        return None
    if condition.type != "binary_expression" or operator(condition) not in ("<", "<="):
        return None
    left, right = field(condition, "left"), field(condition, "right")
    v = affine.variable(where, left) if left is not None and left.type == "identifier" else None
    if v is None or right is None or v.escapes or v.pointer or not counts(v) or len(v.writes) != 2:
        return None
    first, change = v.writes
    declaration = next(ancestors(first.node, {"declaration"}), None)
    if first.op != "init" or change.op != "++" or change.node != update or first.value is None:
        return None
    bound = affine.of(where, right)
    if declaration is None or declaration.parent != loop.parent or bound.depends(v.symbol):
        return None
    count = bound - affine.of(where, first.value) + (1 if operator(condition) == "<=" else 0)
    return Poly.constant(max(0, count.value)) if count.value is not None else Poly.operation("max", count, Poly())


def of_induction(where: HasKernel, counted: Induction) -> Poly | None:
    found = limit(where, counted)
    if found is None:
        return None
    relation, bound = found
    step, distance = counted.step, bound - counted.start
    if relation in (">", ">="):
        step, distance = -step, -distance
    if relation in ("<=", ">="):
        distance = distance + 1
    if step.value is not None and step.value <= 0:
        return None
    whole = Poly.operation("/", distance + step - 1, step)
    if whole.value is not None:
        return Poly.constant(max(0, whole.value))
    return Poly.operation("max", whole, Poly())


def limit(where: HasKernel, counted: Induction) -> tuple[str, Poly] | None:
    """(relation, bound) of `variable relation bound`. None for any other condition."""
    node = strip_parens(counted.condition) if counted.condition is not None else None
    if node is None or node.type != "binary_expression" or operator(node) not in _MIRRORED:
        return None
    left, right = field(node, "left"), field(node, "right")
    if left is None or right is None:
        return None
    relation = operator(node)
    difference = affine.of(where, right) - affine.of(where, left)
    coefficient, rest = difference.split(counted.symbol)
    if coefficient is None or coefficient.value not in (1, -1):
        return None
    # right − left = bound − v for `v < bound`, v − bound for `bound > v`
    bound = rest if coefficient.value == -1 else -rest
    relation = relation if coefficient.value == -1 else _MIRRORED[relation]
    if bound.depends(counted.symbol):
        return None
    if relation == "!=":
        if counted.step.value not in (1, -1):
            return None
        relation = "<" if counted.step.value == 1 else ">"
    return relation, bound


def most(where: HasKernel, loop: Node, numbers: Sequence[Mapping[str, int]]) -> float:
    """The most iterations that one of these launches (`bindings`) makes; infinite where that is not known."""
    count = trips(where, loop)
    values = [evaluate(count, n) if count is not None else None for n in numbers or ({},)]
    return max(math.inf if v is None else v for v in values)


def bindings(where: HasKernel, workload: Workload | None, shapes: tuple[Shape, ...]) -> list[dict[str, int]]:
    """Per captured launch: the numbers that are known of it, blockDim and gridDim and the integer arguments."""
    found: list[dict[str, int]] = []
    for one, shape in zip(workload.launches if workload else (), shapes, strict=True):
        numbers = extents(shape)
        for parameter, argument in zip(where.kernel.params, one.args, strict=False):
            if parameter.pointer or argument.pointers or len(argument.data) not in (1, 2, 4, 8):
                continue
            if parameter.element in ("float", "double", "half", "__half"):
                continue
            unsigned = "unsigned" in parameter.element or parameter.element.startswith(("u", "size_t", "bool"))
            numbers[parameter.name] = int.from_bytes(argument.data, "little", signed=not unsigned)
        found.append(numbers)
    return found


def extents(shape: Shape) -> dict[str, int]:
    """blockDim and gridDim."""
    block, grid = (zip("xyz", sizes, strict=True) for sizes in (shape.block, shape.grid))
    return {f"blockDim.{a}": n for a, n in block} | {f"gridDim.{a}": n for a, n in grid}


def evaluate(poly: Poly, numbers: Mapping[str, int]) -> int | None:
    """The number, when everything in it is known."""
    try:
        return poly.evaluate(numbers)
    except (KeyError, ZeroDivisionError, ValueError):
        return None
