"""Finding `__global__` function headers on the token level.

[template <…>] [qualifiers, attributes, macros] __global__ [the same] type name[<…>] ( params ) [macros] { or ;
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from cuda_agent.model import Span
from cuda_agent.source.lexical import Lexed, closing, split_commas

# Words the grammar knows in front of a function's name; any other word there is a macro.
QUALIFIERS = frozenset(
    b"static inline extern const constexpr consteval volatile unsigned signed long short void int float double char "
    b"bool auto typename struct class enum friend virtual explicit template alignas requires noexcept namespace "
    b"__global__ __device__ __host__ __forceinline__ __noinline__ __launch_bounds__ __attribute__ __attribute "
    b"__declspec".split()
)
# CUDA qualifiers that tree-sitter-cuda 0.21 does not know.
_UNKNOWN_CUDA = frozenset(
    b"__inline__ __inline __maxnreg__ __cluster_dims__ __block_size__ __nv_pure__ __restrict _Noreturn".split()
)
_WORD = re.compile(rb"[A-Za-z_$\x80-\xff][\w$\x80-\xff]*")
_TOKEN = re.compile(
    rb"(?P<word>[A-Za-z_$\x80-\xff][\w$\x80-\xff]*)|(?P<space>\s+)|(?P<scope>::)|(?P<other>.)", re.DOTALL
)
_BLANKS = re.compile(rb"\s*")
_ALIAS = re.compile(rb"#\s*define\s+(\w+)(?![\w(])(?:[^\n\r\\]|\\\s)*\b__global__\b(?![^\n\r]*[({;])")


@dataclass(frozen=True, slots=True)
class Header:
    """One `__global__` function as its tokens show it. Offsets are in the original text."""

    marker: int  # of `__global__`
    span: Span  # from the first token to the body's brace or the semicolon
    name: str
    scope: tuple[str, ...]  # spelled before the name: `a::b` of `void a::b::k()`
    name_span: Span  # without scope and template arguments
    specialised: Span | None  # `<int, 3>` of an explicit specialisation
    params: Span  # inside the parentheses
    body: int | None  # offset of `{`; None for a declaration
    launch_bounds: tuple[Span, ...] | None
    macros: tuple[Span, ...]  # what must be blanked for the grammar


def markers(lexed: Lexed) -> list[int]:
    """Offsets of `__global__` in code, and of this file's own macros that stand for it."""
    words = [b"__global__"]
    for directive in lexed.directives:
        if directive.keyword == "define":
            alias = _ALIAS.match(lexed.data, directive.span.start, directive.span.end)
            if alias:
                words.append(re.escape(alias[1]))
    return [match.start() for match in re.finditer(rb"\b(?:" + b"|".join(words) + rb")\b", lexed.code)]


def headers(lexed: Lexed) -> list[Header]:
    found = (header(lexed, marker) for marker in markers(lexed))
    result: list[Header] = []
    for item in found:
        # `__global__ static __global__` and the like: one function.
        if item is not None and not (result and result[-1].name_span == item.name_span):
            result.append(item)
    return result


@dataclass(slots=True)
class _Item:
    kind: str  # "word", "scope", "<>", "()", "[]", "other"
    span: Span


def header(lexed: Lexed, marker: int) -> Header | None:
    """The function header around the `__global__` at `marker`, or None when it is none (yet)."""
    code = lexed.code
    items, end = _items(code, marker)
    at = _params_index(code, items)
    if at is None:
        return None
    name_at = at - 1
    specialised = None
    if items[name_at].kind == "<>":
        specialised = items[name_at].span
        name_at -= 1
    if name_at < 0:
        return None
    name_item = items[name_at]
    first_of_name = name_at
    while first_of_name >= 2 and items[first_of_name - 1].kind == "scope":
        first_of_name -= 2
    start, before = _start(lexed, marker)
    macros = _macros(code, before)
    macros += _macros(code, items[:first_of_name], keep_type=True)
    macros += _macros(code, items[at + 1 :])
    if code[marker : marker + 10] != b"__global__":
        macros.append(Span(marker, _WORD.match(code, marker).end()))  # type: ignore[union-attr]
    params = items[at].span
    bounds = _bounds(code, before + items)
    name_span = name_item.span
    if name_item.kind == "()":  # NAME(suffix)(params): the name is made by a macro
        name_span = Span(items[name_at - 1].span.start, name_item.span.end)
    text = " ".join(lexed.data[name_span.start : name_span.end].decode("utf-8", "replace").split())
    return Header(
        marker,
        Span(start, end),
        text,
        tuple(_text(code, item) for item in items[first_of_name:name_at] if item.kind == "word"),
        name_span,
        specialised,
        Span(params.start + 1, params.end - 1),
        end if code[end : end + 1] == b"{" else None,
        bounds,
        tuple(macros),
    )


def _text(code: bytes, item: _Item) -> str:
    return code[item.span.start : item.span.end].decode("utf-8", "replace")


def _items(code: bytes, marker: int) -> tuple[list[_Item], int]:
    """Tokens and bracket groups from `marker` to the `{`, `;` or whatever else ends a header, and where that is."""
    items: list[_Item] = []
    at = marker
    while at < len(code):
        match = _TOKEN.match(code, at)
        assert match is not None  # the last branch takes any byte
        byte = code[at]
        if match.lastgroup == "space":
            at = match.end()
            continue
        if byte in b"{;}=" or (items and match[0] in (b"__global__", b"template")):
            break
        if byte in b"([":
            close = closing(code, at)
            if close is None:
                break
            items.append(_Item("()" if byte == 40 else "[]", Span(at, close + 1)))
            at = close + 1
        elif byte == 60:
            close = _angle(code, at)
            if close is None:
                break
            items.append(_Item("<>", Span(at, close)))
            at = close
        else:
            items.append(_Item(match.lastgroup or "other", Span(*match.span())))
            at = match.end()
    return items, at


def _angle(code: bytes, start: int) -> int | None:
    """End of the `<…>` that starts at `start`."""
    depth = 0
    at = start
    while at < len(code):
        byte = code[at]
        if byte == 60:
            depth += 1
        elif byte == 62:
            depth -= 1
            if depth == 0:
                return at + 1
        elif byte in b"([{":
            close = closing(code, at)
            if close is None:
                return None
            at = close
        elif byte in b";})]":
            return None
        at += 1
    return None


_TAKES_PARENS = frozenset(
    b"__launch_bounds__ __attribute__ __attribute __declspec alignas noexcept requires decltype explicit __align__ "
    b"__maxnreg__ __cluster_dims__ __block_size__".split()
)


def _params_index(code: bytes, items: list[_Item]) -> int | None:
    """Which item is the parameter list: the last parenthesis group whose owner is a name and not a known qualifier.
    Macros with arguments in front of it (`BOUNDS(256) k(…)`) are told by what follows them; a macro name
    (`NAME(x)(…)`) by the group that follows at once."""
    found = None
    for at, item in enumerate(items):
        if item.kind != "()" or at == 0:
            continue
        owner = items[at - 1]
        if owner.kind == "word" and code[owner.span.start : owner.span.end] in _TAKES_PARENS:
            continue
        if owner.kind in ("word", "<>"):
            # `k(int n) MACRO(256) {` against `void BOUNDS(256) k(int n) {`: the one that reads like parameters.
            if found is not None and (_declares(code, items[found]) or not _declares(code, item)):
                continue
            found = at
        elif owner.kind == "()" and found == at - 1:
            found = at
    return found


_DECLARES = re.compile(rb"\(\s*(?:void\s*)?\)|\(\s*[\w:]+(?:<[^;{}]*>)?[\s*&]+[\w]")


def _declares(code: bytes, item: _Item) -> bool:
    """Whether a parenthesis group reads like a parameter list: empty, or a type and a name."""
    return _DECLARES.match(code, item.span.start, item.span.end) is not None


def _start(lexed: Lexed, marker: int) -> tuple[int, list[_Item]]:
    """Where the definition begins, and the tokens in front of `__global__` back to something that cannot be a macro."""
    code = lexed.code
    boundary = max(code.rfind(byte, 0, marker) for byte in (b";", b"{", b"}")) + 1
    template = code.rfind(b"template", boundary, marker)
    if (
        template < 0
        and code[boundary - 1 : boundary] == b"}"
        and b"template" in code[max(0, boundary - 2000) : boundary]
    ):
        # a template header with braces in a default argument
        boundary = _template_before(code, boundary, marker) or boundary
    at = boundary
    items: list[_Item] = []
    while at < marker:
        match = _TOKEN.match(code, at, marker)
        assert match is not None
        byte = code[at]
        end = match.end()
        kind = match.lastgroup or "other"
        if kind == "space":
            at = end
            continue
        if byte in b"([":
            close = closing(code, at, marker)
            kind, end = ("()" if byte == 40 else "[]"), (close + 1 if close is not None else end)
        elif byte == 60:
            kind, end = "<>", _angle(code, at) or end
        elif byte == 34:
            close = code.find(b'"', at + 1, marker)
            kind, end = "string", (close + 1 if close >= 0 else end)
        items.append(_Item(kind, Span(at, min(end, marker))))
        at = end
    run = first = len(items)
    for index in range(len(items) - 1, -1, -1):
        if items[index].kind in ("other", "scope"):
            break
        run = index
        if first == index + 1 and _belongs(lexed, items, index, marker):
            first = index
    return (items[first].span.start if first < len(items) else marker), items[run:]


def _template_before(code: bytes, boundary: int, marker: int) -> int | None:
    at = code.rfind(b"template", max(0, boundary - 2000), boundary)
    angle = _BLANKS.match(code, at + 8).end()  # type: ignore[union-attr]
    if code[angle : angle + 1] != b"<":
        return None
    end = _angle(code, angle)
    return at if end is not None and boundary < end <= marker else None


def _belongs(lexed: Lexed, items: list[_Item], index: int, marker: int) -> bool:
    """Whether the token in front of a header is part of it: known words always, macros when the next token is on their
    line."""
    code = lexed.code
    item = items[index]
    text = code[item.span.start : item.span.end]
    after = items[index + 1].span.start if index + 1 < len(items) else marker
    if item.kind == "word":
        if text in QUALIFIERS or text in _UNKNOWN_CUDA:
            return True
    elif item.kind == "string":
        return index > 0 and code[items[index - 1].span.start : items[index - 1].span.end] == b"extern"
    elif item.kind == "<>":
        return index > 0 and items[index - 1].kind == "word"
    elif item.kind == "[]":
        return text.startswith(b"[[")
    elif item.kind != "()":
        return False
    else:
        owner = items[index - 1] if index > 0 and items[index - 1].kind == "word" else None
        if owner is None:
            return False
        if code[owner.span.start : owner.span.end] in _TAKES_PARENS:
            return True
    gap = lexed.data[item.span.end : after]
    return b"\n" not in gap and b"\r" not in gap


def _macros(code: bytes, items: list[_Item], keep_type: bool = False) -> list[Span]:
    """Spans of what the grammar does not know. With `keep_type` one unknown word is the return type when no known one
    is."""
    result: list[Span] = []
    words = [code[item.span.start : item.span.end] for item in items]
    spare = keep_type and not any(word in (b"void", b"auto", b"int") for word in words)
    for index in range(len(items) - 1, -1, -1):
        item, text = items[index], words[index]
        if item.kind != "word" or text in QUALIFIERS:
            continue
        if index > 0 and (items[index - 1].kind == "scope" or words[index - 1] in (b"typename", b"requires")):
            continue
        following = items[index + 1].kind if index + 1 < len(items) else ""
        if following in ("scope", "<>"):
            continue
        if spare and text not in _UNKNOWN_CUDA and following != "()":
            spare = False
            continue
        end = items[index + 1].span.end if following == "()" else item.span.end
        result.append(Span(item.span.start, end))
    return result


def _bounds(code: bytes, items: list[_Item]) -> tuple[Span, ...] | None:
    for item, group in pairwise(items):
        if group.kind == "()" and code[item.span.start : item.span.end] == b"__launch_bounds__":
            return tuple(split_commas(code, Span(group.span.start + 1, group.span.end - 1)))
    return None
