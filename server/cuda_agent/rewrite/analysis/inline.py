"""What the file puts in place of a kernel's names: macros, constants, functions that only return an expression."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Node

from cuda_agent.model import Span
from cuda_agent.rewrite.analysis import names
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.source import declared
from cuda_agent.source.documents import decode
from cuda_agent.source.symbols import Module
from cuda_agent.source.tree import arguments, callee, enclosing, masked, walk

_NUMBER = re.compile(r"(0[xX][0-9a-fA-F']+|0[bB][01']+|[0-9][0-9']*)[uUlLzZ]*")


@dataclass(frozen=True)
class At:
    """Where an expression of another tree (a macro body, a function's result) stands in the kernel, with its
    arguments."""

    node: Node
    values: Mapping[str, Poly]


def integer(literal: str) -> int | None:
    """The value of an integer literal, which the grammar gives its sign; None of a float."""
    match = _NUMBER.fullmatch(literal.removeprefix("-"))
    if match is None:
        return None
    digits = match[1].replace("'", "")
    value = int(digits, 8) if re.fullmatch(r"0[0-7]+", digits) else int(digits, 0)
    return -value if literal.startswith("-") else value


@lru_cache(maxsize=2048)
def constant(module: Module, name: str, at: int) -> Node | None:
    """The expression that an object-like macro or a constant of the file stands for, in a tree of its own."""
    found = declared.declared(module, name, at)
    if (
        found.value is None
        or found.value.type == "translation_unit"
        or name in {masked(n) for n in walk(found.value, "identifier")}
    ):
        return None
    macro = re.search(
        rb"^[ \t]*#[ \t]*define[ \t]+" + re.escape(name.encode("utf-8", "surrogateescape")) + rb"\b",
        module.document.data,
        re.M,
    )
    if macro is None and found.kind != "integer":
        return None
    if macro is None:
        around = module.root.descendant_for_byte_range(found.at, found.at)
        declaration = (
            around
            if around is not None and around.type == "declaration"
            else (enclosing(around, "declaration") if around is not None else None)
        )
        words = masked(declaration)[:200] if declaration is not None else ""
        if not re.search(r"\bconst(expr)?\b", words):
            return None  # a global that host code may set
    return found.value


@lru_cache(maxsize=2048)
def inline_body(module: Module, name: str, count: int) -> tuple[tuple[str, ...], Node] | None:
    """(parameters, expression) of a macro with arguments, or of a function of the file that only returns an
    expression; None when there is none, several, or another number of arguments."""
    if not name:
        return None
    word = re.escape(name.encode("utf-8", "surrogateescape"))
    bodies: list[tuple[tuple[str, ...], str]] = []
    for directive in module.tree.lexed.directives:
        if directive.keyword == "define":
            line = decode(module.document.data[directive.span.start : directive.span.end]).replace("\\\n", " ")
            match = re.match(rf"#\s*define\s+{re.escape(name)}\(([\w\s,]*)\)(.*)$", line, re.S)
            if match:
                text = re.sub(r"//.*|/\*.*?\*/", " ", match[2], flags=re.S).strip()
                bodies.append((tuple(p.strip() for p in match[1].split(",") if p.strip()), text))
    function = re.compile(rb"(?<![\w.>:])" + word + rb"\s*\(([^(){};]*)\)\s*\{\s*return\b([^;{}]*);\s*\}")
    for found in function.finditer(module.tree.lexed.code):
        names_ = [re.search(r"(\w+)\s*(?:=.*)?$", p.strip()) for p in decode(found[1]).split(",") if p.strip()]
        bodies.append((tuple(p[1] for p in names_ if p), module.document.slice(Span(*found.span(2))).strip()))
    if len(bodies) != 1 or len(bodies[0][0]) != count:
        return None
    parameters, code = bodies[0]
    for p in parameters:  # `(i) + (j)` reads as a cast without the macro's arguments
        code = re.sub(rf"(?<![\w)\]])(\s*)\(\s*{p}\s*\)", rf"\1{p}", code)
    value = declared.expression(code)
    if value.type == "translation_unit" or re.search(r"(?<![=!<>])=(?!=)|\+\+|--", bodies[0][1]):
        return None
    return parameters, value


@lru_cache(maxsize=2048)
def global_array(module: Module, name: str) -> str | None:
    """The element type of a `__device__` or `__constant__` array of the file."""
    word = re.escape(name.encode("utf-8", "surrogateescape"))
    found = re.search(rb"__(?:device|constant)__[^;{}()]*?([\w:]+)\s+" + word + rb"\s*\[", module.tree.lexed.code)
    return decode(found[1]) if found else None


def call_effect(module: Module, call: Node) -> set[str]:
    """What a call's result depends on besides its arguments."""
    name = callee(call) or ""
    pure = names._BY_VALUE.fullmatch(name) and not name.startswith(("__", "atomic"))
    return set() if pure or inline_body(module, name, len(arguments(call))) else {"call"}
