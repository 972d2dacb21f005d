"""A same-length view of the text with only code in it, and the few token scans that need no tree.

The syntax tree loses its way at macros and at conditionals that split an expression. What a kernel header or a launch
looks like survives that on the level of tokens, so finding them starts here and the tree fills in the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cuda_agent.model import Span

# Every branch starts with a literal, one of / " ' #, and no group: the regex engine then skips to them at full speed.
_NOISE = re.compile(
    rb"""//(?:[^\n\r\\]+|\\(?:\r\n|[\s\S]|\Z))*
    |/\*[\s\S]*?(?:\*/|\Z)
    |"(?<=R")(?P<delimiter>[^()\\\s]{0,16})\([\s\S]*?(?:\)(?P=delimiter)"|\Z)
    |"(?:[^"\\\n\r]+|\\(?:\r\n|[\s\S]|\Z))*(?:"|(?=[\n\r])|\Z)
    |'(?<![0-9a-fA-F]')(?:[^'\\\n\r]+|\\[^\n\r])*(?:'|(?=[\n\r])|\Z)
    |\#(?:[^\n\r\\/]+|\\(?:\r\n|[\s\S]|\Z)|//(?:[^\n\r\\]+|\\(?:\r\n|[\s\S]|\Z))*|/\*[\s\S]*?(?:\*/|\Z)|/)*
    """,
    re.VERBOSE,
)
_KEYWORD = re.compile(rb"#\s*(\w*)")
_ZERO = re.compile(rb"#\s*if\s+(?:0|false|FALSE)\s*(?://.*|/\*.*)?$", re.DOTALL)
_BLANK = bytes(byte if byte in b"\n\r" else 32 for byte in range(256))
_SEPARATOR = re.compile(rb"[()\[\]{}<>,]")
_PAIR = {ord("("): re.compile(rb"[()]"), ord("["): re.compile(rb"[\[\]]"), ord("{"): re.compile(rb"[{}]")}


def blank(data: bytes) -> bytes:
    """Spaces of the same length; line endings stay."""
    return data.translate(_BLANK)


@dataclass(frozen=True, slots=True)
class Directive:
    keyword: str  # "if", "else", "define" …
    span: Span  # with continuation lines, without the line ending


@dataclass(frozen=True, slots=True)
class Conditional:
    """One `#if … #endif`. `branches` are the texts between its directives, in order."""

    directives: tuple[Directive, ...]
    branches: tuple[Span, ...]

    @property
    def span(self) -> Span:
        return Span(self.directives[0].span.start, self.directives[-1].span.end)


@dataclass(frozen=True, slots=True)
class Lexed:
    """`code` has the length of `data`; comments, directives, the inside of literals and `#if 0` parts are spaces."""

    data: bytes
    code: bytes
    directives: tuple[Directive, ...]
    conditionals: tuple[Conditional, ...]
    dead: tuple[Span, ...]  # `#if 0` parts


def lex(data: bytes) -> Lexed:
    directives: list[Directive] = []

    def replace(match: re.Match[bytes]) -> bytes:
        text = match[0]
        first = text[:1]
        if first == b"#":
            line = data[
                max(data.rfind(b"\n", 0, match.start()), data.rfind(b"\r", 0, match.start())) + 1 : match.start()
            ]
            if line.strip() and not line.strip().endswith(b"*/"):
                return text  # a stray # inside a line: not a directive
            keyword = _KEYWORD.match(text)
            directives.append(Directive(keyword[1].decode("ascii", "replace") if keyword else "", Span(*match.span())))
        elif first in b"\"'" and match["delimiter"] is None and len(text) > 1 and text.endswith(first):
            return first + blank(text[1:-1]) + first
        return blank(text)

    code = _NOISE.sub(replace, data)
    conditionals = _conditionals(directives, len(data))
    dead = tuple(span for conditional in conditionals for span in _dead(data, conditional))
    if dead:
        code = cut(code, dead)
    return Lexed(data, code, tuple(directives), conditionals, dead)


def cut(data: bytes, spans: tuple[Span, ...] | list[Span]) -> bytes:
    """`data` with the spans blanked; they may nest or overlap."""
    result = bytearray(data)
    for span in spans:
        result[span.start : span.end] = blank(data[span.start : span.end])
    return bytes(result)


def _conditionals(directives: list[Directive], size: int) -> tuple[Conditional, ...]:
    open_: list[list[Directive]] = []
    result: list[Conditional] = []

    def close(parts: list[Directive], end: int) -> None:
        starts = [part.span.end for part in parts if part.keyword != "endif"]
        ends = [part.span.start for part in parts[1:]]
        ends += [end] * (len(starts) - len(ends))
        result.append(Conditional(tuple(parts), tuple(Span(a, b) for a, b in zip(starts, ends, strict=True))))

    for directive in directives:
        if directive.keyword in ("if", "ifdef", "ifndef"):
            open_.append([directive])
        elif directive.keyword in ("else", "elif", "elifdef", "elifndef") and open_:
            open_[-1].append(directive)
        elif directive.keyword == "endif" and open_:
            parts = open_.pop()
            parts.append(directive)
            close(parts, directive.span.start)
    for parts in open_:
        close(parts, size)
    return tuple(sorted(result, key=lambda conditional: conditional.span))


def _dead(data: bytes, conditional: Conditional) -> list[Span]:
    first = conditional.directives[0]
    if first.keyword != "if" or not _ZERO.match(data[first.span.start : first.span.end]):
        return []
    return [conditional.branches[0]]


def closing(code: bytes, start: int, end: int | None = None) -> int | None:
    """Offset of the bracket that closes the one at `start`, or None. Other kinds inside may be unbalanced."""
    opener = code[start]
    depth = 0
    for match in _PAIR[opener].finditer(code, start, len(code) if end is None else end):
        depth += 1 if code[match.start()] == opener else -1
        if depth == 0:
            return match.start()
    return None


def split_commas(code: bytes, span: Span, *, types: bool = False) -> list[Span]:
    """Spans between the commas outside any bracket, blanks trimmed; template argument lists are told from comparisons
    by their closing `>` before any bracket closes."""
    parts: list[Span] = []
    depth = angle = 0
    start = span.start
    for match in _SEPARATOR.finditer(code, span.start, span.end):
        at = match.start()
        byte = code[at]
        if byte in b"([{":
            depth += 1
        elif byte in b")]}":
            depth -= 1
        elif depth:
            continue
        elif byte == 60 and _closes_template(code, at, span.end, types):
            angle += 1
        elif byte == 62 and angle:
            angle -= 1
        elif byte == 44 and angle == 0:
            parts.append(trim(code, Span(start, at)))
            start = at + 1
    last = trim(code, Span(start, span.end))
    if parts or last.start < last.end:
        parts.append(last)
    return parts


_TEMPLATE = re.compile(rb"<[\w\s:.,*&<>\[\]()+-]*>\s*(?:[({:>,]|\Z)")
_TEMPLATE_TYPE = re.compile(rb"<[\w\s:.,*&<>\[\]()+-]*>")


def _closes_template(code: bytes, at: int, end: int, types: bool) -> bool:
    """Whether the `<` at `at` opens template arguments. Among types it does whenever a `>` follows."""
    before = code[at - 1 : at]
    pattern = _TEMPLATE_TYPE if types else _TEMPLATE
    return (before.isalnum() or before == b"_") and pattern.match(code, at, end) is not None


def trim(code: bytes, span: Span) -> Span:
    """The span without blanks at its ends (empty when there is nothing else)."""
    text = code[span.start : span.end]
    lead = len(text) - len(text.lstrip())
    if lead == len(text):
        return Span(span.start, span.start)
    return Span(span.start + lead, span.end - (len(text) - len(text.rstrip())))
