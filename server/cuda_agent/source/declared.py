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
from cuda_agent.source.tree import (
    LOOPS,
    ancestors,
    callee,
    enclosing,
    masked,
    name_of,
    operator,
    strip_parens,
    target,
    target_name,
    walk,
)

Kind = Literal["dim3", "integer", "float", "unknown"]
_DECLARATIONS = ("declaration", "parameter_declaration", "optional_parameter_declaration")
_SCOPES = ("compound_statement", "for_statement", "function_definition", "translation_unit", "declaration_list")
_BY_VALUE = {"dim3", "min", "max", "printf", "fprintf", "ceil", "malloc", "atoi", "sizeof"}
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
    if bodies := _macros(module, name):
        values = [expression(body) for body in bodies]
        numbers = all(value.type == "number_literal" for value in values)
        return Declared("integer" if numbers else "unknown", values[0] if len(values) == 1 else None, at)
    visible = [(_scope(node), node) for node in _declarations(module, name) if node.start_byte < at]
    visible = [(scope, node) for scope, node in visible if scope.start_byte <= at < scope.end_byte]
    if not visible:
        return Declared("unknown", None, at)
    scope, node = max(visible, key=lambda pair: (pair[0].start_byte, pair[1].start_byte))
    kind = kind_of(masked(node.child_by_field_name("type")))
    alone = sum(other == scope for other, _ in visible) == 1
    if node.type != "declaration" or not alone or (not _constant(node) and _changes(module, name, scope)):
        return Declared(kind, None, at)
    value = _initialiser(module, node, name, kind)
    return Declared(kind, expression(value) if value else None, node.start_byte)


def _constant(declaration: Node) -> bool:
    return any(
        masked(child) in ("const", "constexpr") for child in declaration.children if child.type == "type_qualifier"
    )


def _changes(module: Module, name: str, within: Node) -> list[Node]:
    """What may change the variable after its declaration."""
    return [use for use in _uses(module, name, Span(within.start_byte, within.end_byte)) if _written(use, name)]


def _written(use: Node, name: str) -> bool:
    """Assigned, read into, its address taken, or passed to a function that may take a reference."""
    above = use.parent
    if above is None:
        return False
    if above.type == "pointer_expression":
        return masked(above).startswith("&")
    if above.type == "binary_expression" and above.child_by_field_name("right") == use and operator(above) == ">>":
        return True
    if above.type == "argument_list" and above.parent is not None and above.parent.type == "call_expression":
        return not _by_value(above.parent)
    for assignment in ancestors(use, ("assignment_expression", "update_expression")):
        written = target(assignment)
        if written is not None and written.start_byte <= use.start_byte < written.end_byte:
            return target_name(assignment) == name
    return False


def _by_value(call: Node) -> bool:
    name = callee(call) or ""
    return name in _BY_VALUE or name.startswith(("cuda", "static_cast")) or "<<<" in masked(call)


def _uses(module: Module, name: str, within: Span) -> Iterator[Node]:
    """Identifiers of that name, found in the text first: walking a long file's tree takes a second."""
    word = re.compile(rb"(?<!\w)" + re.escape(name.encode("utf-8", "surrogateescape")) + rb"(?!\w)")
    for match in word.finditer(module.tree.source, within.start, within.end):
        node = module.root.descendant_for_byte_range(*match.span())
        if node is not None and node.type == "identifier":
            yield node


def version(module: Module, name: str, at: int, site: int) -> str:
    """Tells the variable's value at `at` from that at `site`, later in the same function: equal texts mean that nothing
    in between changes it. Counts instead of offsets, so that it is the same in an edited text."""
    node = module.root.descendant_for_byte_range(site, site)
    around = (enclosing(node, "function_definition") if node is not None else None) or module.root
    found = _changes(module, name, around)
    before = sum(write.start_byte < at for write in found)
    again = any(
        loop.start_byte <= site < loop.end_byte and not loop.start_byte <= at < loop.end_byte
        for write in found
        for loop in ancestors(write, LOOPS)
    )
    return f"{before}{' before the loop' if again else ''}"


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
    if masked(name) != "dim3" or given is None:
        return None
    return [one for one in given.named_children if one.type != "comment"]


def _sized(words: set[str], kind: Kind) -> bool:
    return kind == "integer" and any(re.fullmatch(r"u?int\d+_t", word) for word in words)


def _declarations(module: Module, name: str) -> Iterator[Node]:
    for use in _uses(module, name, Span(0, len(module.tree.source))):
        found = enclosing(use, _DECLARATIONS)
        if found is not None and any(_names(one, use) for one in found.children_by_field_name("declarator")):
            yield found


def _names(declarator: Node, use: Node) -> bool:
    """Whether `use` is the name that is declared, not part of its initialiser."""
    current: Node | None = use
    while current is not None and current != declarator:
        above = current.parent
        if above is None or above.child_by_field_name("declarator") not in (current, None):
            return False
        current = above
    return current == declarator


def _scope(node: Node) -> Node:
    found = next(ancestors(node, _SCOPES), None)
    if found is not None and found.type == "compound_statement" and node.type != "declaration":
        found = next(ancestors(found, _SCOPES), None)
    return found if found is not None else node


def _macros(module: Module, name: str) -> list[str]:
    """The bodies with which an object-like macro is defined."""
    data, bodies = module.document.data, []
    for directive in module.tree.lexed.directives:
        if directive.keyword == "define":
            line = decode(data[directive.span.start : directive.span.end]).replace("\\\n", " ")
            if match := re.match(rf"#\s*define\s+{re.escape(name)}(?:\s+(.*))?$", line, re.S):
                bodies.append(re.sub(r"//.*|/\*.*?\*/", " ", match[1] or "", flags=re.S).strip())
    return bodies


def _initialiser(module: Module, node: Node, name: str, kind: Kind) -> str | None:
    """The text of the value: `dim3 g(a, b)` and `dim3 g = {a, b}` give `dim3(a, b)` and `dim3{a, b}`."""
    one = next(d for d in node.children_by_field_name("declarator") if name_of(d) == name)
    start = next(found.end_byte for found in walk(one, "identifier") if masked(found) == name)
    rest = module.document.slice(Span(start, one.end_byte)).strip()
    if not rest:
        return "dim3(1, 1, 1)" if kind == "dim3" else None
    if rest.startswith("["):
        return None
    rest = rest.removeprefix("=").strip()
    if kind == "dim3":
        return f"dim3{rest}" if rest[:1] in "({" else rest
    return rest.strip("{}") if rest.startswith("{") else rest
