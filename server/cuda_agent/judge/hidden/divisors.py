"""Sizes at which a kernel divides an integer by zero. C leaves that undefined: a CPU traps, a GPU goes on with some
number, and nothing that follows says anything about a rewrite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tree_sitter import Node

from cuda_agent.judge.launch_text import Integers
from cuda_agent.model import Kernel
from cuda_agent.source.declared import declared
from cuda_agent.source.symbols import Module
from cuda_agent.source.tree import masked, operator, walk

_SIGNS = ("/", "%", "/=", "%=")
_MEMORY = ("subscript_expression", "pointer_expression", "call_expression")  # of a type that is not looked up
_INDICES = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim"})


class Divisors:
    """The integer divisors of one kernel's own body."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self._module = module
        self._integers = Integers(module)
        body = module.root.descendant_for_byte_range(kernel.body.start, kernel.body.end)
        self._found = list(self._divisions(body)) if body is not None else []

    def zero(self, values: Mapping[str, int]) -> str | None:
        """The first division by zero where the kernel's integer parameters have these values, in words; None where
        there is none that the text shows."""
        for division, divisor in self._found:
            if self._integers.value(divisor, division.start_byte, values) == 0:
                return f"line {division.start_point.row + 1}, `{' '.join(masked(division).split())}`"
        return None

    def _divisions(self, body: Node) -> Iterator[tuple[Node, str]]:
        for node in walk(body, ("binary_expression", "assignment_expression")):
            left, right = (node.child_by_field_name(side) for side in ("left", "right"))
            if left is None or right is None or (sign := operator(node)) not in _SIGNS:
                continue
            if sign.startswith("%") or self._whole(left):
                yield node, masked(right)

    def _whole(self, node: Node) -> bool:
        """Every name in it is known to be an integer. (A float divided by an integer zero is infinite, not undefined;
        an integer divided by a float is read as no integer at all.)"""
        names = [name for name in walk(node, "identifier") if masked(name) not in _INDICES]
        numbers = [masked(number) for number in walk(node, "number_literal")]
        return (
            not any(walk(node, _MEMORY))
            and all(self._integers.value(number, 0, {}) is not None for number in numbers)
            and all(declared(self._module, masked(name), name.start_byte).kind == "integer" for name in names)
        )
