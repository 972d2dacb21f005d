"""The variable that a `for` loop counts with, its start and step as polynomials. (`loops.py` has the same as text.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import names
from cuda_agent.rewrite.analysis.names import Names, Variable
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.analysis.sizes import counts
from cuda_agent.source.tree import field, masked, operator, strip_parens


@dataclass(frozen=True)
class Induction:
    """`for (v = start; v relation bound; v += step)`, v not written elsewhere in the loop."""

    variable: Variable
    loop: Node
    start: Poly
    step: Poly
    condition: Node | None

    @property
    def symbol(self) -> str:
        """The variable's name in polynomials inside the loop."""
        return self.variable.symbol


class Inductions:
    """The loops of one kernel; `poly` reads an expression of it."""

    def __init__(self, scope: Names, poly: Callable[[Node], Poly]) -> None:
        self.names, self.poly = scope, poly
        self._found: dict[int, Induction | None] = {}

    def of(self, loop: Node) -> Induction | None:
        if loop.id not in self._found:
            self._found[loop.id] = None  # a loop whose own step depends on its variable
            self._found[loop.id] = self._counted(loop)
        return self._found[loop.id]

    def _counted(self, loop: Node) -> Induction | None:
        if loop.type != "for_statement":
            return None
        update = loop.child_by_field_name("update")
        first = loop.child_by_field_name("initializer")
        if update is None or first is None:
            return None
        changes = [w for w in syntax.writes(update) if w.target.type == "identifier"]
        for change in changes:
            variable = self.names.resolve(masked(change.target), change.target.start_byte)
            if variable is None or variable.escapes or variable.pointer or not counts(variable):
                continue
            inside = [w for w in variable.writes if names.iterates(loop, w.node)]
            step = self._step(variable, change)
            starts = [
                w for w in syntax.writes(first) if w.target.type == "identifier" and masked(w.target) == variable.name
            ]
            if [w.node for w in inside] != [change.node] or step is None or len(starts) != 1 or starts[0].value is None:
                continue
            if step.depends(variable.symbol):
                continue
            value = starts[0].value
            if value.type in ("argument_list", "initializer_list") and value.named_child_count == 1:
                value = value.named_children[0]
            return Induction(variable, loop, self.poly(value), step, loop.child_by_field_name("condition"))
        return None

    def _step(self, variable: Variable, change: syntax.Write) -> Poly | None:
        if change.op in ("++", "--"):
            return Poly.constant(1 if change.op == "++" else -1)
        if change.value is None:
            return None
        if change.op in ("+=", "-="):
            by = self.poly(change.value)
            return by if change.op == "+=" else -by
        value = strip_parens(change.value)
        if change.op != "=" or value.type != "binary_expression" or operator(value) not in "+-":
            return None
        left, right = field(value, "left"), field(value, "right")
        if left is None or right is None:
            return None
        if masked(left) == variable.name:
            by = self.poly(right)
            return by if operator(value) == "+" else -by
        if masked(right) == variable.name and operator(value) == "+":
            return self.poly(left)
        return None
