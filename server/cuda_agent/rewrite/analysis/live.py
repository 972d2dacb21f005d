"""Which launches have a statement at all: a branch on template arguments goes one way in each instantiation, and the
compiler drops the other with the shared memory that is declared in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import blocks
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import strip_parens

_LITERAL = re.compile(r"(0|[1-9]\d*)[uUlL]*")
_ARGUMENT = re.compile(r"(?:\((?:\w+::)*\w+\))?(\d+)[ul]*")  # as the demangler spells it: 4, 4u, (Kind)1
_TRUTH = {"true": 1, "false": 0}


def reached(context: Context, node: Node) -> tuple[bool, ...]:
    """For each of `context.launched` whether it may come to the node. False only where the condition of an `if` around
    compares nothing but template arguments, literals and enumerators of this text, and says that it does not."""
    if not context.kernel.span.holds(context.kernel.body):  # the arguments are those of another template
        return (True,) * len(context.launched)
    named = {**_enumerators(context), **_TRUTH}
    return tuple(_comes(context, node, named | _numbers(made)) for _, made in blocks.shapes(context))


def _comes(context: Context, node: Node, known: Mapping[str, int]) -> bool:
    inside = node
    while inside.parent is not None and inside != context.body:
        above = inside.parent
        if above.type == "if_statement":
            condition = syntax.field(above, "condition")
            plain = condition.child_by_field_name("initializer") is None
            value = _value(condition.child_by_field_name("value") or condition, known) if plain else None
            if value is not None and inside == above.child_by_field_name("alternative" if value else "consequence"):
                return False
        inside = above
    return True


def _numbers(templates: Mapping[str, str]) -> dict[str, int]:
    """The template arguments that are integers, truth values or enumerators, and not negative: comparisons then mean
    the same whatever the types."""
    found = {name: int(match[1]) for name, one in templates.items() if (match := _ARGUMENT.fullmatch(one))}
    return found | {name: _TRUTH[one] for name, one in templates.items() if one in _TRUTH}


def _enumerators(context: Context) -> dict[str, int]:
    """Enumerators that are numbered by their order or by plain literals, as they are spelled outside their scope. Where
    a directive stands between them it decides what the order is."""
    found: dict[str, set[int | None]] = {}
    directives = [d.span.start for d in context.module.tree.lexed.directives]
    for one in syntax.of_type(context.module.root, "enum_specifier"):
        body, name = one.child_by_field_name("body"), one.child_by_field_name("name")
        scoped = re.match(r"enum\s+(class|struct)\b", text(one)) is not None
        following: int | None = None if any(at in syntax.span(one) for at in directives) else 0
        for enumerator in syntax.of_type(body, "enumerator") if body is not None else ():
            given = enumerator.child_by_field_name("value")
            if given is not None:
                following = _value(given, {})
            spelled = text(syntax.field(enumerator, "name"))
            for key in (f"{text(name)}::{spelled}" if name is not None else "", "" if scoped else spelled):
                found.setdefault(key, set()).add(following)
            following = following + 1 if following is not None else None
    hidden = syntax.declared(context.body) | {p.name for p in context.kernel.params} | {""}
    sure = {key: next(iter(values)) for key, values in found.items() if len(values) == 1 and key not in hidden}
    return {key: value for key, value in sure.items() if value is not None}


def _value(node: Node, known: Mapping[str, int]) -> int | None:
    """The condition's value; None where something else than `known` and literals decides it."""
    node = strip_parens(node)
    if node.type == "number_literal":
        literal = _LITERAL.fullmatch(text(node))
        return int(literal[1]) if literal else None
    if node.type == "unary_expression" and text(node).startswith("!"):
        negated = _value(syntax.field(node, "argument"), known)
        return None if negated is None else int(not negated)
    if node.type != "binary_expression":
        return known.get(squeeze(text(node)))
    left, right = (_value(syntax.field(node, side), known) for side in ("left", "right"))
    sign = text(syntax.field(node, "operator"))
    if sign in ("&&", "||"):
        decisive = 0 if sign == "&&" else 1
        if decisive in (_truth(left), _truth(right)):
            return decisive
        return None if left is None or right is None else 1 - decisive
    if left is None or right is None:
        return None
    compared = {"==": left == right, "!=": left != right, "<": left < right, "<=": left <= right}
    compared |= {">": left > right, ">=": left >= right}
    return int(compared[sign]) if sign in compared else None


def _truth(value: int | None) -> int | None:
    return None if value is None else int(bool(value))
