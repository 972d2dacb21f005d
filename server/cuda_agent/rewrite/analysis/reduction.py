"""Variables that fold a loop: sums, products, minima and maxima, which may be computed in any order."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.syntax import CountedLoop, squeeze, text

_MAXIMA = {"max", "fmaxf", "fmax", "min", "fminf", "fmin"}


@dataclass(frozen=True)
class Reduction:
    """`name` is folded over the loop by `op`: "+", "*" or the name of a minimum or maximum function."""

    name: str
    op: str
    loop: CountedLoop


def reductions(loop: CountedLoop) -> list[Reduction]:
    """Every outer variable that the loop changes, as a reduction; RuleRefused when one is something else."""
    local = syntax.declared(loop.body)
    found: dict[str, str] = {}
    for write in syntax.writes(loop.body):
        name = write.name
        if name is None or name in local or name == loop.variable or write.op == "init":
            continue
        op = operation(write)
        if op is None or found.get(name, op) != op:
            raise RuleRefused(f"{name} is carried from one element of the row to the next")
        found[name] = op
    for name in found:
        reads = [n for n in syntax.of_type(loop.body, "identifier") if text(n) == name]
        folds = [w for w in syntax.writes(loop.body) if w.name == name]
        own = sum(sum(1 for n in syntax.of_type(w.node, "identifier") if text(n) == name) for w in folds)
        if len(reads) != own:
            raise RuleRefused(f"{name} is read inside the loop that accumulates it")
        if syntax.uses(loop.bound, name):
            raise RuleRefused(f"{name} bounds the loop that changes it")
    return [Reduction(name, op, loop) for name, op in found.items()]


def operation(write: syntax.Write) -> str | None:
    """The reduction that one assignment makes, None when it is none: `s += e`, `s = s + e`, `m = max(m, e)`, `m = m <
    e ? e : m`."""
    name, value = write.name, write.value
    if value is None or name is None:
        return "+" if write.op == "++" else None
    if write.op in ("+=", "-=") and not syntax.uses(value, name):
        return "+"
    if write.op == "*=" and not syntax.uses(value, name):
        return "*"
    if write.op != "=":
        return None
    if value.type == "binary_expression":
        operator = value.child_by_field_name("operator")
        left, right = syntax.field(value, "left"), syntax.field(value, "right")
        if operator is not None and text(operator) in "+*":
            for one, other in ((left, right), (right, left)):
                if text(one) == name and not syntax.uses(other, name):
                    return text(operator)
    if value.type == "call_expression":
        function = text(syntax.field(value, "function")).removeprefix("::").removeprefix("std::")
        arguments = syntax.field(value, "arguments").named_children
        if function in _MAXIMA and len(arguments) == 2:
            hits = [text(a) == name for a in arguments]
            others = [a for a, hit in zip(arguments, hits, strict=True) if not hit]
            if sum(hits) == 1 and not syntax.uses(others[0], name):
                return function
    return _ternary(name, value)


def _ternary(name: str, value: Node) -> str | None:
    while value.type == "parenthesized_expression" and value.named_child_count == 1:
        value = value.named_children[0]
    if value.type != "conditional_expression":
        return None
    code = squeeze(text(value)).replace("(", "").replace(")", "")
    n = re.escape(name)
    for pattern, op in (
        (rf"{n}<(.+)\?\1:{n}", "max"),
        (rf"(.+)>{n}\?\1:{n}", "max"),
        (rf"{n}>(.+)\?{n}:\1", "max"),
        (rf"{n}>(.+)\?\1:{n}", "min"),
        (rf"(.+)<{n}\?\1:{n}", "min"),
        (rf"{n}<(.+)\?{n}:\1", "min"),
    ):
        if re.fullmatch(pattern, code):
            return op
    return None


def needs_partial(body: Node, reduction: Reduction) -> bool:
    """A sum must start from 0 (a product from 1), else every lane would add the start value again."""
    if reduction.op not in "+*":
        return False
    neutral = (
        r"0(\.0*)?f?|\w+\(0(\.0*)?f?\)|\(\w+\)0(\.0*)?f?" if reduction.op == "+" else r"1(\.0*)?f?|\w+\(1(\.0*)?f?\)"
    )
    before = [
        w
        for w in syntax.writes(body)
        if w.name == reduction.name and w.node.start_byte < reduction.loop.node.start_byte
    ]
    if not before:
        return True
    last = before[-1]
    return last.op not in ("init", "=") or last.value is None or not re.fullmatch(neutral, squeeze(text(last.value)))
