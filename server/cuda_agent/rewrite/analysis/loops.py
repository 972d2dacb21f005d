"""Loops that count up or down by any step, in their own words: start, bound and step as text, to be written out again.
(`induction.py` has the same as polynomials; `strided.py` loops shared by the lanes of a warp, block or grid.)"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import trips as analysis
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import strip_parens


@dataclass(frozen=True)
class Loop:
    """`for (v = start; v < bound; v += step)`, up or down, where nothing else changes v, step or bound."""

    node: Node
    variable: str
    type: str  # of the variable as declared in the loop; "" when it is declared before
    start: Node
    relation: str  # < <= > >=
    bound: Node
    step: str  # a positive amount
    update: Node
    body: Node

    @property
    def up(self) -> bool:
        return self.relation.startswith("<")


def counting(node: Node) -> Loop | None:
    """The loop as a counting one, None when it is none."""
    if node.type != "for_statement":
        return None
    condition, update, body = (node.child_by_field_name(f) for f in ("condition", "update", "body"))
    first = _first(node.child_by_field_name("initializer"))
    if first is None or condition is None or update is None or body is None:
        return None
    variable, start, type_ = first
    condition = strip_parens(condition)
    if condition.type != "binary_expression" or text(syntax.field(condition, "left")) != variable:
        return None
    relation, bound = text(syntax.field(condition, "operator")), syntax.field(condition, "right")
    step = _step(update, variable, up=relation.startswith("<"))
    if relation not in ("<", "<=", ">", ">=") or step is None:
        return None
    fixed = {variable} | syntax.identifiers(bound) | set(re.findall(r"[A-Za-z_]\w*", step))
    stored = {name for w in syntax.writes(body) if (name := _root(w.target)) is not None}
    if stored & fixed or syntax.uses(bound, variable) or any(f"&{name}" in squeeze(text(body)) for name in fixed):
        return None
    return Loop(node, variable, type_, start, relation, bound, step, update, body)


def _first(init: Node | None) -> tuple[str, Node, str] | None:
    """(variable, start, declared type) of a loop's initialiser."""
    if init is None:
        return None
    if init.type == "assignment_expression" and text(syntax.field(init, "operator")) == "=":
        left = syntax.field(init, "left")
        return (text(left), syntax.field(init, "right"), "") if left.type == "identifier" else None
    declarators = init.children_by_field_name("declarator")
    if init.type != "declaration" or len(declarators) != 1 or declarators[0].type != "init_declarator":
        return None
    name, start = declarators[0].child_by_field_name("declarator"), declarators[0].child_by_field_name("value")
    kind = init.child_by_field_name("type")
    if name is None or start is None or kind is None or name.type != "identifier":
        return None
    return text(name), start, text(kind)


def _step(update: Node, variable: str, up: bool) -> str | None:
    code = squeeze(text(update))
    sign = "+" if up else "-"
    if code in (f"{variable}{sign}{sign}", f"{sign}{sign}{variable}"):
        return "1"
    right = update.child_by_field_name("right")
    if update.type != "assignment_expression" or right is None or next(syntax.of_type(right, "call_expression"), None):
        return None
    operator, left = text(syntax.field(update, "operator")), text(syntax.field(update, "left"))
    if left != variable:
        return None
    if operator == f"{sign}=":
        return text(right) if not syntax.uses(right, variable) else None
    if operator == "=" and right.type == "binary_expression" and text(syntax.field(right, "operator")) == sign:
        one, other = syntax.field(right, "left"), syntax.field(right, "right")
        return text(other) if text(one) == variable and not syntax.uses(other, variable) else None
    return None


def _root(target: Node) -> str | None:
    found = next(syntax.of_type(target, "identifier"), None)
    return text(found) if found is not None else None


def declaration_of(context: Context, name: str) -> Node | None:
    """The one declaration of a local variable in the kernel; None when there are several or none."""
    found = [d for d in syntax.of_type(context.body, "declaration") if name in _names(d)]
    return found[0] if len(found) == 1 else None


def _names(declaration: Node) -> set[str]:
    return {
        text(one)
        for child in declaration.children_by_field_name("declarator")
        if (one := next(syntax.of_type(child, "identifier"), None)) is not None
    }


def type_of(context: Context, name: str) -> str | None:
    """The declared type of a plain local variable or parameter, without const, or of a member of a vector: float for
    `v.x` of a float3; None when it is none or not known."""
    if "." in name:
        match = re.fullmatch(r"(u?)(char|short|int|long|longlong|float|double)[1-4]", type_of(context, name[:-2]) or "")
        words = {"long": "long", "longlong": "long long"}
        return ("unsigned " if match[1] else "") + words.get(match[2], match[2]) if match is not None else None
    node = declaration_of(context, name)
    if node is None:
        found = next((p for p in context.kernel.params if p.name == name), None)
        return re.sub(r"\bconst\b", "", found.type).strip() if found is not None and not found.pointer else None
    for child in node.children_by_field_name("declarator"):
        one = child.child_by_field_name("declarator") if child.type == "init_declarator" else child
        if one is not None and one.type == "identifier" and text(one) == name:
            return text(syntax.field(node, "type"))
    return None


def integral(type_: str | None) -> bool:
    """Whether the type is one of integers; False when it is not known."""
    words = set((type_ or "float").split())
    return bool(words & {"int", "unsigned", "long", "short", "char", "bool", "size_t", "uint"}) or any(
        re.fullmatch(r"u?int\d+_t", w) for w in words
    )


def trips(context: Context, loop: Loop) -> int | None:
    """How many iterations the loop has in the captured launches, at most; None when unknown."""
    count = analysis.trips(context, loop.node)
    known = [analysis.evaluate(count, numbers) for numbers in context.numbers] if count is not None else []
    return max((n for n in known if n is not None), default=None)
