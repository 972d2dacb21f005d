"""One statement that folds an element of an array into another element or into a variable: `a[t] += a[t + s]`.
(`reduction.py` has statements that fold any value into a variable; `trees.py` the loops made of these.)"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import strip_parens

_MAXIMA = re.compile(r"(?:::|std::)?(f?max|f?min|fmaxf|fminf|fmax|fmin)")
_ASSOCIATIVE = ("+", "*", "&", "|", "^")


@dataclass(frozen=True)
class Fold:
    """`array[t] = array[t] op array[t + s]`. `op` is an operator's sign or the name of a maximum or minimum function.
    `register`: a variable of each thread that holds the same value as its element, as in `a[t] = v = v + a[t + s]`."""

    array: str
    op: str
    register: str | None = None

    def line(self, name: str, other: str) -> str:
        """The statement that folds `other` into the variable `name`."""
        return f"{name} {self.op}= {other};" if self.op in _ASSOCIATIVE else f"{name} = {self.op}({name}, {other});"

    @property
    def noun(self) -> str:
        if self.op in _ASSOCIATIVE:
            return {"+": "sum", "*": "product"}.get(self.op, "bits")
        return "largest" if "max" in self.op else "smallest"


def plain(statement: Node) -> syntax.Write | None:
    """The assignment that a statement consists of."""
    if statement.type != "expression_statement" or statement.named_child_count != 1:
        return None
    node = statement.named_children[0]
    if node.type != "assignment_expression":
        return None
    return next(syntax.writes(node))


def fold(steps: list[Node], t: str, others: set[str]) -> tuple[Fold | None, int]:
    """The fold at the head of these statements, and how many of them it takes."""
    first = steps[0]
    if first.type == "if_statement":  # if (a[t + s] > a[t]) a[t] = a[t + s];
        return _conditional(first, t, others), 1
    w = plain(first)
    if w is None or w.value is None:
        return None, 0
    if w.target.type == "subscript_expression":
        array = element(w.target, {t})
        if array is None:
            return None, 0
        mine = squeeze(text(w.target))
        inner = strip_parens(w.value)
        if w.op == "=" and inner.type == "assignment_expression":  # a[t] = v = v + a[t + s];
            nested = next(syntax.writes(inner))
            op = operation(nested, squeeze(text(nested.target)), array, others)
            register = text(nested.target)
            known = op is not None and re.fullmatch(r"\w+(\.\w+)?", register)
            return (Fold(array, op, register) if op is not None and known else None), 1
        op = operation(w, mine, array, others)
        return (Fold(array, op) if op is not None else None), 1
    if len(steps) > 1 and w.name is not None:  # v += a[t + s]; a[t] = v;
        after = plain(steps[1])
        if after is None or after.op != "=" or after.value is None or squeeze(text(after.value)) != w.name:
            return None, 0
        array = element(after.target, {t})
        op = operation(w, w.name, array, others) if array is not None else None
        return (Fold(array, op, w.name) if array is not None and op is not None else None), 2
    return None, 0


def element(node: Node, indices: set[str]) -> str | None:
    """The array of `a[i]` where i is one of these; None for anything else."""
    for array, index, n in syntax.subscripts(node):
        if n == node and re.fullmatch(r"\w+", array) and squeeze(text(strip_parens(index))) in indices:
            return array
    return None


def operation(w: syntax.Write, mine: str, array: str, others: set[str]) -> str | None:
    """The operation by which `w` folds an element of `array` at one of `others` into `mine`; None when it is none."""
    value = strip_parens(w.value) if w.value is not None else None
    if value is None:
        return None
    if len(w.op) == 2 and w.op[0] in _ASSOCIATIVE:
        return w.op[0] if element(value, others) == array else None
    if w.op != "=":
        return None
    if value.type == "binary_expression":
        sign = text(syntax.field(value, "operator"))
        pair = (syntax.field(value, "left"), syntax.field(value, "right"))
        return sign if sign in _ASSOCIATIVE and _folds_pair(pair, mine, array, others) else None
    if value.type == "call_expression":
        function = text(syntax.field(value, "function"))
        arguments = [n for n in syntax.field(value, "arguments").named_children if n.type != "comment"]
        if _MAXIMA.fullmatch(function) and len(arguments) == 2:
            return function if _folds_pair((arguments[0], arguments[1]), mine, array, others) else None
        return None
    if value.type == "conditional_expression":
        return _choice(value, mine, array, others)
    return None


def _folds_pair(pair: tuple[Node, Node], mine: str, array: str, others: set[str]) -> bool:
    return any(
        squeeze(text(strip_parens(a))) == mine and element(strip_parens(b), others) == array
        for a, b in (pair, pair[::-1])
    )


def _choice(value: Node, mine: str, array: str, others: set[str]) -> str | None:
    """`m > e ? m : e` and its like."""
    test = strip_parens(syntax.field(value, "condition"))
    taken, left_out = (strip_parens(syntax.field(value, f)) for f in ("consequence", "alternative"))
    if test.type != "binary_expression" or not _folds_pair((taken, left_out), mine, array, others):
        return None
    left, right = (squeeze(text(strip_parens(syntax.field(test, f)))) for f in ("left", "right"))
    if {left, right} != {squeeze(text(taken)), squeeze(text(left_out))}:
        return None
    sign = text(syntax.field(test, "operator"))
    if sign not in ("<", ">", "<=", ">="):
        return None
    return "max" if (sign[0] == ">") == (left == squeeze(text(taken))) else "min"


def _conditional(node: Node, t: str, others: set[str]) -> Fold | None:
    if node.child_by_field_name("alternative") is not None:
        return None
    inside = syntax.statements(syntax.field(node, "consequence"))
    w = plain(inside[0]) if len(inside) == 1 else None
    test = strip_parens(syntax.field(node, "condition"))
    if w is None or w.op != "=" or w.value is None or test.type != "binary_expression":
        return None
    array = element(w.target, {t})
    if array is None or element(strip_parens(w.value), others) != array:
        return None
    left, right = (squeeze(text(strip_parens(syntax.field(test, f)))) for f in ("left", "right"))
    new, old = squeeze(text(w.value)), squeeze(text(w.target))
    sign = text(syntax.field(test, "operator"))
    if {left, right} != {new, old} or sign not in ("<", ">", "<=", ">="):
        return None
    return Fold(array, "max" if (sign[0] == ">") == (left == new) else "min")
