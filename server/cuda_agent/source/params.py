"""Kernel parameters from a parameter list's text and tree."""

from __future__ import annotations

import re
from functools import lru_cache

from tree_sitter import Node

from cuda_agent.model import Param, Span
from cuda_agent.source.documents import Document, decode
from cuda_agent.source.lexical import split_commas, trim
from cuda_agent.source.tree import IDENTIFIERS

_RESTRICT = re.compile(r"restrict", re.IGNORECASE)
_QUALIFIER = re.compile(
    r"\b(?:const|volatile|struct|class|typename|enum|register|__grid_constant__|__align__\s*\([^)]*\))(?!\w)"
)
_RESTRICT_WORD = re.compile(r"\b\w*restrict\w*\b", re.IGNORECASE)
_NAME = re.compile(rb"([A-Za-z_$\x80-\xff][\w$\x80-\xff]*)\s*(?:\[[^\]]*\]\s*)*\Z")
_TYPE_WORDS = frozenset(
    b"void bool char short int long float double signed unsigned const volatile auto struct class enum typename "
    b"restrict __restrict__ __restrict".split()
)


def params(document: Document, code: bytes, span: Span, node: Node | None) -> tuple[Param, ...]:
    """The parameters between the parentheses at `span`. Token scanning decides where each one is; the tree, when it
    has a declaration there, says which part is the name."""
    result = []
    declarations = {}
    if node is not None:
        for child in node.named_children:
            if child.type in (
                "parameter_declaration",
                "optional_parameter_declaration",
                "variadic_parameter_declaration",
            ):
                declarations[child.start_byte] = child
    for part in split_commas(code, span, types=True):
        text = code[part.start : part.end]
        if part.start < part.end and text not in (b"void", b"..."):
            result.append(_param(document, code, part, declarations.get(part.start)))
    return tuple(result)


def _param(document: Document, code: bytes, whole: Span, node: Node | None) -> Param:
    bare = trim(code, Span(whole.start, _default(code, whole)))
    name = _name_from_tree(node, bare) if node is not None and not node.has_error else None
    if name is None:
        name = _name_from_tokens(code, bare)
    before = decode(code[bare.start : name.start])
    after = decode(code[name.end : bare.end])
    spelled = _tidy(before + " " + after if before[-1:].isalnum() and after[:1].isalnum() else before + after)
    element, pointer, const = _shape(before, after)
    return Param(
        name=document.slice(name),
        type=spelled,
        element=element,
        pointer=pointer,
        const=const,
        restrict=_RESTRICT.search(spelled) is not None and (pointer > 0 or "&" in spelled),
        span=whole,
        name_span=name,
    )


def _default(code: bytes, span: Span) -> int:
    """Where `= value` begins, or the end."""
    depth = 0
    for at in range(span.start, span.end):
        byte = code[at]
        depth += (byte in b"([{<") - (byte in b")]}>")
        if byte == 61 and depth == 0:
            return at
    return span.end


def _name_from_tree(node: Node, bare: Span) -> Span | None:
    current = node.child_by_field_name("declarator")
    while current is not None and current.type not in IDENTIFIERS:
        inner = current.child_by_field_name("declarator")
        if inner is None:
            inner = next((child for child in reversed(current.named_children) if _is_declarator(child)), None)
        if inner is None and current.type.startswith("abstract_"):
            return None
        current = inner
    if current is None or current.end_byte > bare.end:
        return None
    return Span(current.start_byte, current.end_byte)


def _is_declarator(node: Node) -> bool:
    return node.type in IDENTIFIERS or node.type.endswith("_declarator")


def _name_from_tokens(code: bytes, bare: Span) -> Span:
    """The last word, when there is a type in front of it; else an empty span at the end (an unnamed parameter)."""
    text = code[bare.start : bare.end]
    function = re.search(rb"\(\s*[*&]+\s*(?:const\s+)?(\w+)\s*(?:\[[^\]]*\]\s*)*\)", text)
    if function is not None:
        return Span(bare.start + function.start(1), bare.start + function.end(1))
    match = _NAME.search(text)
    if match is None or match[1] in _TYPE_WORDS:
        return Span(bare.end, bare.end)
    front = re.sub(rb"\b(?:const|volatile|struct|class|enum|typename)\b", b"", text[: match.start()]).strip()
    if not front or front.endswith(b"::"):
        return Span(bare.end, bare.end)
    return Span(bare.start + match.start(1), bare.start + match.end(1))


# The same few spellings come back in every kernel and with every keystroke.
@lru_cache(maxsize=4096)
def _shape(before: str, after: str) -> tuple[str, int, bool]:
    """(element, levels of indirection, const) from the declarator text around the name."""
    if "(" in after or before.rstrip().endswith(("(*", "(&", "(&&")) or _open_paren(before):
        # pointer to function, pointer or reference to array: one opaque value
        return _tidy(f"{before}{after}"), 0, False
    levels = _outside(before).split("*")
    arrays = re.findall(r"\[([^\]]*)\]", after)
    pointer = len(levels) - 1 + (1 if arrays else 0)
    # Qualifiers after the n-th star belong to that pointer; those of what it points to stand before it.
    pointee = levels if arrays else levels[:-1]
    const = re.search(r"\bconst\b", pointee[-1] if pointee else levels[0]) is not None
    element = _tidy(_without_qualifiers(before[: _first_star(before)]).replace("&", " "))
    return element + "".join(f"[{_tidy(extent)}]" for extent in arrays[1:]), pointer, const


def _outside(text: str) -> str:
    """The text without what is in template arguments and parentheses, so that stars in there do not count."""
    depth = 0
    result = []
    for char in text:
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            result.append(char)
            continue
    return "".join(result)


def _without_qualifiers(text: str) -> str:
    """The type without const, struct, typename, restrict …, those in template arguments kept."""
    first, last = text.find("<"), text.rfind(">")
    if first < 0 or last < first:
        first = last = len(text)
    front, inside, back = text[:first], text[first : last + 1], text[last + 1 :]
    front, back = (_RESTRICT_WORD.sub(" ", _QUALIFIER.sub(" ", part)) for part in (front, back))
    return front + inside + back


def _first_star(text: str) -> int:
    depth = 0
    for at, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "*" and depth == 0:
            return at
    return len(text)


def _open_paren(text: str) -> bool:
    return text.count("(") > text.count(")")


@lru_cache(maxsize=4096)
def _tidy(text: str) -> str:
    """One blank between words, none inside brackets' edges: `const float *__restrict__`, `void(*)(int, float)`."""
    text = " ".join(text.split())
    text = re.sub(r"\s+(?=[,\[\]()])|(?<=[\[(])\s+", "", text)
    text = re.sub(r",(?=\S)", ", ", text)
    return re.sub(r"(?<=[*&])\s+(?=[*&])", "", text).strip()
