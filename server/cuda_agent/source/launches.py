"""Launch sites `name<…><<<grid, block, shared, stream>>>(args)`, on the token level: also in macros and broken code."""

from __future__ import annotations

import re

from tree_sitter import Node

from cuda_agent.model import LaunchSite, Span
from cuda_agent.source.documents import Document, decode
from cuda_agent.source.lexical import Lexed, blank, closing, lex, split_commas, trim
from cuda_agent.source.parse import Tree

_CONFIG = re.compile(rb"[(\[{)\]};]|>>>+")
_WORD_CHARS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$"


def launches(document: Document, tree: Tree) -> tuple[LaunchSite, ...]:
    """Every launch in the text, those in `#define` bodies included (their `function` is None)."""
    lexed = tree.lexed
    if b"<<<" not in lexed.data:
        return ()
    found = [site for site in _scan(document, lexed.code, tree) if site is not None]
    for directive in lexed.directives:
        if directive.keyword == "define" and lexed.data.find(b"<<<", directive.span.start, directive.span.end) >= 0:
            found += _in_macro(document, lexed, directive.span)
    return tuple(sorted(found, key=lambda site: site.span))


def _in_macro(document: Document, lexed: Lexed, span: Span) -> list[LaunchSite]:
    body = lexed.data[span.start : span.end].replace(b"#", b" ").replace(b"\\\n", b" \n").replace(b"\\\r\n", b" \r\n")
    inner = lex(body).code
    code = blank(lexed.data[: span.start]) + inner + blank(lexed.data[span.end :])
    return [site for site in _scan(document, code, None) if site is not None]


def _scan(document: Document, code: bytes, tree: Tree | None) -> list[LaunchSite | None]:
    return [_launch(document, code, match.start(), tree) for match in re.finditer(rb"<<<", code)]


def _launch(document: Document, code: bytes, at: int, tree: Tree | None) -> LaunchSite | None:
    callee = _callee(code, at)
    if callee is None:
        return None
    start, name, template = callee
    end = _config_end(code, at + 3)
    if end is None:
        return None
    config = Span(at + 3, end)
    parts = split_commas(code, config)
    after = trim(code, Span(end + 3, len(code))).start
    if code[after : after + 1] != b"(":
        return None
    close = closing(code, after)
    # a half-typed launch still has a name and a shape
    stop = close + 1 if close is not None else after + 1
    arguments = split_commas(code, Span(after + 1, close)) if close is not None else []
    empty = Span(config.end, config.end)
    grid = parts[0] if parts else empty
    block = parts[1] if len(parts) > 1 else empty
    shared = parts[2] if len(parts) > 2 else None
    return LaunchSite(
        kernel=name,
        template_args=tuple(document.slice(span) for span in template),
        grid=document.slice(grid),
        block=document.slice(block),
        shared=document.slice(shared) if shared is not None else None,
        stream=document.slice(parts[3]) if len(parts) > 3 else None,
        args=tuple(document.slice(span) for span in arguments),
        span=Span(start, stop),
        config_span=config,
        grid_span=grid,
        block_span=block,
        shared_span=shared,
        function=_function(document, tree, at) if tree is not None else None,
    )


def _callee(code: bytes, at: int) -> tuple[int, str, list[Span]] | None:
    """(start, name, template argument spans) of what stands before `<<<`, read backwards."""
    end = _back(code, at)
    template: list[Span] = []
    if code[end - 1 : end] == b">":
        open_ = _bracket_open(code, end - 1)
        if open_ is None:
            return None
        template = split_commas(code, Span(open_ + 1, end - 1), types=True)
        end = _back(code, open_)
    elif code[end - 1 : end] in (b")", b"]"):  # (condition ? a : b)<<<…>>>, NAME(x)<<<…>>>, table[i]<<<…>>>
        return _callee_expression(code, end)
    start = _qualified_start(code, end)
    if start == end:
        return None
    name = "".join(decode(code[start:end]).split()).replace("::template", "::").removeprefix("::")
    name = name.removeprefix("template")
    return _object_start(code, start), name, template


def _qualified_start(code: bytes, end: int) -> int:
    """Start of the name `a::b<int>::c` that ends at `end`."""
    start = _word_start(code, end)
    while start < end:
        before = _back(code, start)
        if code[before - 8 : before] == b"template":
            before = _back(code, before - 8)
        if code[before - 2 : before] != b"::":
            return start
        scope_end = _back(code, before - 2)
        if code[scope_end - 1 : scope_end] == b">":
            scope_end = _back(code, _bracket_open(code, scope_end - 1) or scope_end)
        scope = _word_start(code, scope_end)
        if scope == scope_end or code[scope:scope_end] in (b"return", b"else"):
            return before - 2
        start = scope
    return start


def _object_start(code: bytes, start: int) -> int:
    """Where `this->k` or `object.template k` begins."""
    before = _back(code, start)
    if code[before - 8 : before] == b"template":
        before = _back(code, before - 8)
    arrow = 2 if code[before - 2 : before] == b"->" else 1 if code[before - 1 : before] == b"." else 0
    if not arrow:
        return start
    end = _back(code, before - arrow)
    word = _word_start(code, end)
    return word if word < end else start


def _back(code: bytes, at: int) -> int:
    """`at` moved back over blanks."""
    while at > 0 and code[at - 1] in b" \t\r\n":
        at -= 1
    return at


def _word_start(code: bytes, end: int) -> int:
    while end > 0 and code[end - 1] in _WORD_CHARS:
        end -= 1
    return end


def _callee_expression(code: bytes, end: int) -> tuple[int, str, list[Span]] | None:
    """A launch of what an expression gives: everything in front of it that belongs to brackets and the word before."""
    at = end
    while code[at - 1 : at] in (b")", b"]"):
        open_ = _bracket_open(code, at - 1)
        if open_ is None:
            return None
        at = _word_start(code, open_)
    return at, " ".join(decode(code[at:end]).split()), []


def _bracket_open(code: bytes, close: int) -> int | None:
    """Offset of the bracket that the one at `close` closes, read backwards to the start of the statement at most."""
    opener = b"([{<"[b")]}>".index(code[close])]
    depth = 0
    at = close
    while at >= 0:
        byte = code[at]
        if byte == code[close] and not (byte == 62 and code[at - 1 : at] == b"-"):
            depth += 1
        elif byte == opener:
            depth -= 1
            if depth == 0:
                return at
        elif byte in b";{}" or (byte in b"([" and code[close] == 62):
            return None
        elif byte in b")]" and code[close] == 62:
            inner = _bracket_open(code, at)
            if inner is None:
                return None
            at = inner
        at -= 1
    return None


def _config_end(code: bytes, start: int) -> int | None:
    """Offset of the `>>>` that ends the configuration: the first one outside brackets, or None when a `;` comes
    first."""
    depth = 0
    for match in _CONFIG.finditer(code, start):
        text = match[0]
        if text in (b"(", b"[", b"{"):
            depth += 1
        elif text in (b")", b"]", b"}"):
            depth -= 1
            if depth < 0:
                return None
        elif text == b";":
            return None
        elif depth == 0:
            return match.end() - 3  # `f<int>>>>`: the last three
    return None


def _function(document: Document, tree: Tree, at: int) -> str | None:
    """Name of the function definition around an offset, lambdas passed over."""
    node: Node | None = tree.root_node.descendant_for_byte_range(at, at)
    outer: Node | None = None
    while node is not None:
        if node.type == "function_definition":
            outer = node
            break
        node = node.parent
    if outer is None:
        return None
    declarator = outer.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator") or next(
            (child for child in declarator.named_children if child.type.endswith("declarator")), None
        )
    name = declarator.child_by_field_name("declarator") if declarator is not None else None
    return " ".join(decode(document.data[name.start_byte : name.end_byte]).split()) if name is not None else None
