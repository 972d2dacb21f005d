"""What a name in host code stands for: a macro's body, or the initialiser of a variable that is never changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tree_sitter import Node

from cuda_agent.model import Span
from cuda_agent.source.documents import decode
from cuda_agent.source.parse import parser
from cuda_agent.source.symbols import Module
from cuda_agent.source.tree import assignments, enclosing, name_of, strip_parens, uses, walk

Kind = Literal["dim3", "integer", "float", "unknown"]
_DECLARATIONS = ("declaration", "parameter_declaration", "optional_parameter_declaration")
_SCOPES = ("compound_statement", "for_statement", "function_definition", "translation_unit", "declaration_list")
_WORDS: dict[Kind, frozenset[str]] = {
    "dim3": frozenset({"dim3", "uint3"}),
    "float": frozenset({"float", "double", "half", "__half"}),
    "integer": frozenset({"int", "unsigned", "signed", "long", "short", "char", "size_t", "bool"}),
}


class Declared(NamedTuple):
    kind: Kind
    value: Node | None  # an expression of a tree of its own; None when the text does not say
    at: int  # offset where the value was taken


def declared(module: Module, name: str, at: int) -> Declared:
    """What `name` means at the offset `at`: the innermost declaration before it. The value is left out when several
    could be meant, or when anything in the function changes the variable or takes its address."""
    if (body := _macro(module, name)) is not None:
        return Declared("unknown", expression(body), at)
    visible = [(_scope(node), node) for node in _declarations(module, name) if node.start_byte < at]
    visible = [(scope, node) for scope, node in visible if scope.start_byte <= at < scope.end_byte]
    if not visible:
        return Declared("unknown", None, at)
    scope, node = max(visible, key=lambda pair: (pair[0].start_byte, pair[1].start_byte))
    kind = kind_of(_text(node.child_by_field_name("type")))
    alone = sum(other == scope for other, _ in visible) == 1
    if node.type != "declaration" or not alone or changes(module, name, at):
        return Declared(kind, None, at)
    value = _initialiser(module, node, name, kind)
    return Declared(kind, expression(value) if value else None, node.start_byte)


def changes(module: Module, name: str, at: int) -> bool:
    """Whether the function around `at` writes to the variable after its declaration, or takes its address."""
    node = module.root.descendant_for_byte_range(at, at)
    around = (enclosing(node, "function_definition") if node is not None else None) or module.root
    written = any(found.type != "init_declarator" for found in assignments(around, name))
    return written or any(
        use.parent is not None and use.parent.type == "pointer_expression" and _text(use.parent).startswith("&")
        for use in uses(around, name)
    )


def kind_of(type_: str) -> Kind:
    words = set(re.findall(r"\w+", type_))
    return next((kind for kind, known in _WORDS.items() if words & known or _sized(words, kind)), "unknown")


def expression(text: str) -> Node:
    """The text as an expression, in a tree of its own; the root of that tree when it is none."""
    root = parser().parse(f"int _ = ({text}\n);".encode("utf-8", "surrogateescape")).root_node
    value = next((node.child_by_field_name("value") for node in walk(root, "init_declarator")), None)
    return root if value is None or root.has_error else strip_parens(value)


def constructed(node: Node) -> list[Node] | None:
    """The arguments of `dim3(…)` or `dim3{…}`; None for anything else."""
    parts = {"call_expression": ("function", "arguments"), "compound_literal_expression": ("type", "value")}
    if node.type not in parts:
        return None
    name, given = (node.child_by_field_name(part) for part in parts[node.type])
    if _text(name) != "dim3" or given is None:
        return None
    return [one for one in given.named_children if one.type != "comment"]


def _sized(words: set[str], kind: Kind) -> bool:
    return kind == "integer" and any(re.fullmatch(r"u?int\d+_t", word) for word in words)


def _declarations(module: Module, name: str) -> Iterator[Node]:
    for node in walk(module.root, _DECLARATIONS):
        if any(name_of(one) == name for one in node.children_by_field_name("declarator")):
            yield node


def _scope(node: Node) -> Node:
    found = enclosing(node, _SCOPES)
    while found is not None and found.type == "compound_statement" and node.type != "declaration":
        found = enclosing(found, _SCOPES)
    root = node
    while found is None and root.parent is not None:
        root = root.parent
    return found if found is not None else root


def _macro(module: Module, name: str) -> str | None:
    """The body of an object-like macro that is defined once."""
    data, bodies = module.document.data, []
    for directive in module.tree.lexed.directives:
        if directive.keyword == "define":
            line = decode(data[directive.span.start : directive.span.end]).replace("\\\n", " ")
            if match := re.match(rf"#\s*define\s+{re.escape(name)}(?:\s+(.*))?$", line, re.S):
                bodies.append(re.sub(r"//.*|/\*.*?\*/", " ", match[1] or "", flags=re.S).strip())
    return bodies[0] if len(bodies) == 1 and bodies[0] else None


def _initialiser(module: Module, node: Node, name: str, kind: Kind) -> str | None:
    """The text of the value: `dim3 g(a, b)` and `dim3 g = {a, b}` give `dim3(a, b)` and `dim3{a, b}`."""
    one = next(d for d in node.children_by_field_name("declarator") if name_of(d) == name)
    start = next(found.end_byte for found in walk(one, "identifier") if _text(found) == name)
    rest = module.document.slice(Span(start, one.end_byte)).strip()
    if not rest:
        return "dim3(1, 1, 1)" if kind == "dim3" else None
    if rest.startswith("["):
        return None
    rest = rest.removeprefix("=").strip()
    if kind == "dim3":
        return f"dim3{rest}" if rest[:1] in "({" else rest
    return rest.strip("{}") if rest.startswith("{") else rest


def _text(node: Node | None) -> str:
    return decode(node.text or b"") if node is not None else ""
