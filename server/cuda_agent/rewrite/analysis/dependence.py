"""What the value of a variable may depend on, through definitions, conditions and the loops around its writes."""

from __future__ import annotations

import re

from tree_sitter import Node

from cuda_agent.rewrite.analysis.inline import At, call_effect
from cuda_agent.rewrite.analysis.names import Names, Variable
from cuda_agent.source.tree import LOOPS, ancestors, masked, statements, walk

AXES = tuple(f"{b}.{a}" for b in ("threadIdx", "blockIdx", "blockDim", "gridDim") for a in "xyz")
READS = frozenset(("identifier", "field_expression", "subscript_expression", "pointer_expression", "call_expression"))
_BUILTINS = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim"))
_DECISIONS = frozenset((*LOOPS, "if_statement", "conditional_expression", "switch_statement"))


class Dependence:
    """Of the variables and expressions of one kernel. "memory" and "call" stand for loads and calls."""

    def __init__(self, scope: Names) -> None:
        self.names = scope
        self.module = scope.module
        self._uses: dict[int, tuple[frozenset[str], tuple[Variable, ...]]] = {}
        self._leaves: dict[int, tuple[Node, ...]] = {}
        self._depends: dict[str, frozenset[str]] = {}

    def depends(self, variable: Variable) -> frozenset[str]:
        """Everything that any value of the variable may depend on, through definitions, conditions and loops around
        its writes."""
        if variable.symbol not in self._depends:
            self._depends[variable.symbol] = frozenset(self._closure(variable))
        return self._depends[variable.symbol]

    def _closure(self, variable: Variable) -> set[str]:
        on: set[str] = set()
        seen = {variable.symbol}
        todo = [variable]
        while todo:
            one = todo.pop()
            on.add(one.symbol)
            if one.escapes:
                on.add("call")
            for source in self._sources(one):
                plain, variables = self.used(source)
                on |= plain
                todo += [v for v in variables if v.symbol not in seen]
                seen |= {v.symbol for v in variables}
        return on

    def used(self, node: Node) -> tuple[frozenset[str], tuple[Variable, ...]]:
        """(names, variables) that an expression reads; "memory" and "call" are names here."""
        if node.id not in self._uses:
            plain: set[str] = set()
            variables: list[Variable] = []
            for n in walk(node, READS):
                spelled = masked(n)
                if n.type == "field_expression":
                    if (axis := re.sub(r"\s+", "", spelled)) in AXES:
                        plain.add(axis)
                elif n.type == "call_expression":
                    plain |= call_effect(self.module, n)
                elif n.type != "identifier":
                    plain.add("memory")
                elif (found := self.names.resolve(spelled, n.start_byte)) is not None:
                    variables.append(found)
                elif spelled not in _BUILTINS:
                    plain.add(spelled)
            self._uses[node.id] = frozenset(plain), tuple(variables)
        return self._uses[node.id]

    def _sources(self, variable: Variable) -> list[Node]:
        """The values written to a variable and the conditions under which they are."""
        found: dict[int, Node] = {}
        for w in variable.writes:
            if w.value is not None:
                found[w.value.id] = w.value
            for above in ancestors(w.node, _DECISIONS):
                condition = above.child_by_field_name("condition")
                if condition is None or above.start_byte < variable.scope.start_byte:
                    continue
                if w.op == "init" and variable.scope.start_byte >= above.start_byte and above.type != "for_statement":
                    continue  # declared inside: it only exists where the condition held
                found |= {c.id: c for c in (condition, *self._leaving(above))}
        return list(found.values())

    def _leaving(self, node: Node) -> tuple[Node, ...]:
        """Conditions below the node under which a loop or the kernel is left."""
        if node.id not in self._leaves:
            ifs = (n for n in walk(node, "if_statement") if _leaves(n))
            self._leaves[node.id] = tuple(c for n in ifs if (c := n.child_by_field_name("condition")) is not None)
        return self._leaves[node.id]

    def used_in_macro(self, n: Node, at: At) -> frozenset[str]:
        spelled = re.sub(r"\s+", "", masked(n))
        if n.type == "call_expression":
            return frozenset(call_effect(self.module, n))
        if n.type == "field_expression":
            return frozenset({spelled} & set(AXES))
        if n.type != "identifier":
            return frozenset({"memory"})
        if spelled in at.values:
            return at.values[spelled].names
        found = self.names.resolve(spelled, at.node.start_byte)
        if found is not None:
            return self.depends(found) | {found.symbol}
        return frozenset({spelled} - _BUILTINS)


def _leaves(node: Node) -> bool:
    consequence = node.child_by_field_name("consequence")
    return consequence is not None and any(
        s.type in ("break_statement", "return_statement", "continue_statement") for s in statements(consequence)
    )
