"""The namespaces, classes and `extern "C"` blocks around a place.

The tree knows, unless the place lies in an ERROR: then the braces are counted on the tokens, with the first branch of
each conditional only, so that a `#if` with one brace too many does not end a namespace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.model import Span
from cuda_agent.source.documents import decode
from cuda_agent.source.lexical import Lexed, cut
from cuda_agent.source.parse import Tree

_NAMED = ("namespace_definition", "class_specifier", "struct_specifier")
_BRACE = re.compile(rb"[{};]")
_HEAD = re.compile(
    rb"(?:\b(?P<kind>namespace|struct|class)\b(?:\s|\[\[[^\]]*\]\]|alignas\s*\([^)]*\))*(?P<name>[\w:\s]*?)\s*"
    rb"(?:final\s*)?(?:(?<!:):(?!:)[^{}();]*)?|(?P<c>\bextern\s*\"[^\"]*\"\s*))\Z"
)


@dataclass(frozen=True, slots=True)
class Scope:
    names: tuple[str, ...]  # outermost first; unnamed ones are left out
    extern_c: bool


def scope(tree: Tree, offset: int) -> Scope:
    names: list[str] = []
    extern_c: bool | None = None
    node: Node | None = tree.root_node.descendant_for_byte_range(offset, offset)
    while node is not None:
        if node.type == "ERROR":
            return _by_tokens(tree.lexed, offset)
        if node.type == "linkage_specification" and extern_c is None:
            value = node.child_by_field_name("value")
            extern_c = value is not None and value.text == b'"C"'
        if node.type in _NAMED:
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None and body.start_byte <= offset:
                names = _parts(decode(tree.lexed.code[name.start_byte : name.end_byte])) + names
        node = node.parent
    return Scope(tuple(names), extern_c or False)


def _parts(name: str) -> list[str]:
    return [part.strip().removeprefix("inline ") for part in name.split("::") if part.strip()]


def _by_tokens(lexed: Lexed, offset: int) -> Scope:
    code = lexed.code
    if lexed.conditionals:
        code = cut(
            code, [branch for item in lexed.conditionals for branch in item.branches[1:] if offset not in branch]
        )
    open_: list[tuple[list[str], bool | None]] = []
    since = 0
    for match in _BRACE.finditer(code, 0, offset):
        if match[0] == b"{":
            open_.append(_head(lexed, code, Span(since, match.start())))
        elif match[0] == b"}" and open_:
            open_.pop()
        since = match.end()
    names = [name for parts, _ in open_ for name in parts]
    linkage = [extern_c for _, extern_c in open_ if extern_c is not None]
    return Scope(tuple(names), bool(linkage and linkage[-1]))


def _head(lexed: Lexed, code: bytes, before: Span) -> tuple[list[str], bool | None]:
    """(names, whether it sets C linkage) of the scope whose brace ends `before`."""
    match = _HEAD.search(code, max(before.start, before.end - 400), before.end)
    if match is None:
        return [], None
    if match["c"] is not None:
        return [], b'"C"' in lexed.data[match.start() : match.end()]
    return _parts(decode(match["name"])), None
