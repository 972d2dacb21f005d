"""Which statements only find places, and are made once for a group of neighbouring elements; the others compute."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.groups import ALWAYS, OPAQUE, Groups, Value
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import name_of

_WHOLE = frozenset(("int", "unsigned", "unsigned int", "long", "long long", "size_t", "int64_t", "uint32_t", "auto"))
_WHOLE_LIKE = re.compile(r"(?i)u?int\d*(_t)?|.*(index|idx|size).*|unsigned long( long)?|uint")


@dataclass
class Split:
    """Statements in two parts: those that find places, made once for a group, and those that compute."""

    once: list[Node] = field(default_factory=list)
    each: list[Node] = field(default_factory=list)
    known: dict[str, Value] = field(default_factory=dict)


def split(groups: Groups, index: str, parts: list[Node]) -> Split:
    """The statements of these parts along the variable `index`. RuleRefused when an index changes after it was used."""
    made = Split(known={index: Value(1, multiple=ALWAYS)})
    for statement in (s for part in parts for s in syntax.statements(part)):
        known = finds_places(groups, statement, made.known)
        if known is None:
            made.each.append(statement)
            for write in syntax.writes(statement):
                name = name_of(write.target) if write.target.type != "subscript_expression" else None
                if name is not None:
                    made.known[name] = OPAQUE
            continue
        changed = {w.name for w in syntax.writes(statement) if w.op != "init" and w.name is not None}
        if any(syntax.identifiers(e) & changed for e in made.each):
            raise RuleRefused("an index changes after it was used")
        made.once.append(statement)
        made.known = known
    return made


def finds_places(groups: Groups, statement: Node, known: dict[str, Value]) -> dict[str, Value] | None:
    """The names' values after a statement that only finds places; None when it does more."""
    result = dict(known)
    if statement.type == "declaration":
        whole = text(syntax.field(statement, "type"))
        for declarator in statement.children_by_field_name("declarator"):
            name = name_of(declarator)
            value = declarator.child_by_field_name("value")
            if name is None or next(syntax.of_type(declarator, "array_declarator"), None):
                return None
            result[name] = groups.value(value, known) if value is not None else OPAQUE
            pointer = next(syntax.of_type(declarator, "pointer_declarator"), None) is not None
            fits = pointer or whole in _WHOLE or _WHOLE_LIKE.fullmatch(whole)
            if value is not None and (result[name].stride is None or (result[name].stride and not fits)):
                return None
            if value is not None and result[name].same and not fits and _loads(value):
                return None  # a number that the elements share: computed where it is used
        return result
    if statement.type == "expression_statement" and statement.named_child_count == 1:
        return _assigned(groups, statement.named_children[0], result)
    if statement.type == "if_statement":
        condition = groups.value(syntax.field(statement, "condition"), known)
        if not condition.same:
            return None
        branches = [statement.child_by_field_name("consequence"), statement.child_by_field_name("alternative")]
        first, second = (_branch(groups, b, dict(known)) for b in branches)
        if first is None or second is None:
            return None
        for name in first.keys() | second.keys():
            one, other = first.get(name, OPAQUE), second.get(name, OPAQUE)
            both = one if one == other else groups.merged(one, other)
            result[name] = Value(both.stride, (*both.required, *condition.required), both.multiple)
        return result
    return None


def _branch(groups: Groups, branch: Node | None, known: dict[str, Value]) -> dict[str, Value] | None:
    if branch is None:
        return known
    inner = branch.named_children[-1] if branch.type == "else_clause" else branch
    current: dict[str, Value] | None = known
    for statement in syntax.statements(inner):
        current = finds_places(groups, statement, current) if current is not None else None
    return current


def _assigned(groups: Groups, node: Node, known: dict[str, Value]) -> dict[str, Value] | None:
    if node.type != "assignment_expression":
        return None
    target, op = syntax.field(node, "left"), text(syntax.field(node, "operator"))
    if target.type != "identifier" or op not in ("=", "+=", "-="):
        return None
    value = groups.value(syntax.field(node, "right"), known)
    if op != "=":
        value = groups.binary(op[0], groups.value(target, known), value)
    if value.stride is None:
        return None
    known[text(target)] = value
    return known


def _loads(node: Node) -> bool:
    return next(syntax.of_type(node, "subscript_expression"), None) is not None
