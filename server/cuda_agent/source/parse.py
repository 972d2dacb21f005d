"""The syntax tree: tree-sitter-cuda over a masked copy of the text.

The grammar does not know macros between `__global__` and a kernel's name, `__restrict`, `__grid_constant__` and a few
more. They are replaced by spaces of the same length before parsing, so the tree's offsets are the text's. `#if 0`
parts are comments in all but name and are blanked too. Nothing else is touched: a tree with errors says so.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser
from tree_sitter import Range as _Range
from tree_sitter import Tree as _Tree

from cuda_agent.model import Span
from cuda_agent.source.documents import Document
from cuda_agent.source.headers import Header, headers
from cuda_agent.source.lexical import Lexed, cut, lex

LANGUAGE = Language(tree_sitter_cuda.language())
_local = threading.local()  # a Parser is not safe to share between threads

_WORDS = re.compile(
    rb"\b(?:__restrict|__grid_constant__|__inline__|__inline|__align__\s*\(\s*\w+\s*\)|__extension__|__volatile__"
    rb"|__nv_pure__|__maxnreg__\s*\(\s*\w+\s*\))(?=\W)"
)
_POINTER_MACRO = re.compile(rb"[*&]\s*(?:const\s+|volatile\s+)*([A-Za-z_]\w*)\s+(?:const\s+)?[A-Za-z_]\w*\s*[,)=\[]")
_CR = re.compile(rb"\r(?!\n)")
_KNOWN_AFTER_STAR = frozenset((b"const", b"volatile", b"__restrict__", b"restrict"))


@dataclass(frozen=True)
class Tree:
    """A tree-sitter tree with what it was made from."""

    tree: _Tree
    source: bytes  # the masked text, same length as the document's
    lexed: Lexed
    headers: tuple[Header, ...]

    @property
    def root_node(self) -> Node:
        return self.tree.root_node


def parser() -> Parser:
    """This thread's parser."""
    if not hasattr(_local, "parser"):
        _local.parser = Parser(LANGUAGE)
    result: Parser = _local.parser
    return result


def parse(document: Document, previous: Tree | None = None) -> Tree:
    """Parse the whole document. With `previous`, the tree of any earlier text of the same file, only what differs is
    parsed again. Never raises on any text."""
    data = document.data
    lexed = lex(data)
    found = tuple(headers(lexed))
    source = mask(lexed, found)
    old = _edited(previous, source) if previous is not None else None
    return Tree(parser().parse(source, old) if old is not None else parser().parse(source), source, lexed, found)


def parse_part(source: bytes, span: Span) -> Node:
    """The root of a tree of `span` alone; offsets stay those of `source`. For what the whole tree could not hold."""
    text = source[: span.start]
    start = (text.count(b"\n"), len(text) - 1 - text.rfind(b"\n"))
    inside = source[span.start : span.end]
    rows = inside.count(b"\n")
    end = (start[0] + rows, len(inside) - 1 - inside.rfind(b"\n") if rows else start[1] + len(inside))
    part = Parser(LANGUAGE, included_ranges=[_Range(start, end, span.start, span.end)])
    return part.parse(source).root_node


def mask(lexed: Lexed, found: tuple[Header, ...]) -> bytes:
    """The text the grammar sees."""
    data, code = lexed.data, lexed.code
    spans = list(lexed.dead)
    for header in found:
        spans += header.macros
        spans += _pointer_macros(code, header.params)
    spans += (Span(*match.span()) for match in _WORDS.finditer(code))
    if data.startswith(b"\xef\xbb\xbf"):
        spans.append(Span(0, 3))
    result = cut(data, spans) if spans else data
    # tree-sitter takes a NUL for the end of the text, and only \n for the end of a line.
    result = result.replace(b"\0", b" ")
    return _CR.sub(b"\n", result) if b"\r" in result else result


def other_branches(lexed: Lexed, within: Span, at: int) -> list[Span]:
    """What to blank so that each conditional that begins in `within` has one branch left, the one with `at` or the
    first: its other branches and its directives."""
    spans: list[Span] = []
    for conditional in lexed.conditionals:
        if within.start <= conditional.span.start < within.end:
            chosen = next((branch for branch in conditional.branches if at in branch), conditional.branches[0])
            spans += (directive.span for directive in conditional.directives)
            spans += (branch for branch in conditional.branches if branch is not chosen)
    return spans


def _pointer_macros(code: bytes, params: Span) -> list[Span]:
    """`float * RESTRICT x`: an unknown word between the star and the name."""
    result = []
    for match in _POINTER_MACRO.finditer(code, params.start, params.end + 1):
        if match[1] not in _KNOWN_AFTER_STAR:
            result.append(Span(*match.span(1)))
    return result


def _edited(previous: Tree, source: bytes) -> _Tree | None:
    """The previous tree moved to the new text: one edit from the first byte that differs to the last."""
    old = previous.source
    if old == source:
        return previous.tree.copy()
    head = common_prefix(old, source)
    tail = min(common_suffix(old, source), min(len(old), len(source)) - head)
    tree = previous.tree.copy()
    tree.edit(
        head,
        len(old) - tail,
        len(source) - tail,
        _point(old, head),
        _point(old, len(old) - tail),
        _point(source, len(source) - tail),
    )
    return tree


def _point(data: bytes, offset: int) -> tuple[int, int]:
    return data.count(b"\n", 0, offset), offset - 1 - data.rfind(b"\n", 0, offset)


def common_prefix(a: bytes, b: bytes) -> int:
    """Length of the common start, by bisection on slices (slices compare at memory speed)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(a: bytes, b: bytes) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle :] == b[len(b) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low
