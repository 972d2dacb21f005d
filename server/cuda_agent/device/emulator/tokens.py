"""C++ tokens of CUDA text, with macro bodies, for the translator.

The translator works on tokens and not on the syntax tree because launches and kernels also stand in macro bodies and
between `#if` branches, where a tree has no nodes. Offsets are character offsets into the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<space>(?:\s|\\\r?\n)+)
  | (?P<comment>//(?:[^\n\\]|\\(?:\r?\n|.))*|/\*.*?(?:\*/|\Z))
  | (?P<string>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"
      |(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"?|(?:u8|[uUL])?'(?:[^'\\\n]|\\.)*'?)
  | (?P<number>\.?[0-9](?:[eEpP][+-]|'(?=[0-9a-zA-Z])|[0-9a-zA-Z_.])*)
  | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
  | (?P<punct><<<|>>>|::|->|\.\.\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE_END = re.compile(r"(?:[^\n\\/]|\\\r?\n|\\.|/(?!\*)|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_DEFINE = re.compile(r"#(?:[ \t]|\\\r?\n)*define(?:[ \t]|\\\r?\n)+([A-Za-z_]\w*)(\((?:[^()]*)\))?")
OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = {")", "]", "}"}


@dataclass(frozen=True, slots=True)
class Token:
    """`kind`: word, number, string, punct, directive (a whole `#…` line), define (the head of a `#define`), end.

    `macro` numbers the macro body a token stands in, -1 for ordinary text.
    """

    kind: str
    text: str
    start: int
    end: int
    macro: int = -1


def tokenize(text: str) -> list[Token]:
    """Every token of `text` but spaces and comments; never fails, whatever the text holds."""
    tokens: list[Token] = []
    _scan(text, 0, len(text), -1, tokens)
    return tokens


def _scan(text: str, start: int, stop: int, macro: int, out: list[Token]) -> None:
    at, line_start = start, True
    macros = 0
    while at < stop:
        if line_start and macro < 0 and text[at] == "#":
            matched = _DIRECTIVE_END.match(text, at, stop)
            end = matched.end() if matched else stop
            head = _DEFINE.match(text, at, end)
            if head:
                out.append(Token("define", head.group(1), at, head.end()))
                _scan(text, head.end(), end, macros, out)
                out.append(Token("end", "", end, end))
                macros += 1
            else:
                out.append(Token("directive", text[at:end], at, end))
            at, line_start = max(end, at + 1), False
            continue
        found = _TOKEN.match(text, at, stop)
        if found is None:  # pragma: no cover - the last branch takes any character
            at += 1
            continue
        kind = found.lastgroup or "punct"
        if kind == "fence":
            kind = "string"
        piece = found.group()
        if kind == "space":
            line_start = line_start or "\n" in piece
        elif kind != "comment":
            out.append(Token(kind, piece, at, found.end(), macro))
            line_start = False
        at = found.end()


def match_brackets(tokens: list[Token]) -> dict[int, int]:
    """Index of the closing token for every opening one, and back.

    `#else` and `#elif` return to the depth at their `#if`, so branches that each open the same brace count once.
    """
    pairs: dict[int, int] = {}
    stack: list[int] = []
    saved: list[tuple[list[int], list[int] | None]] = []
    outer: list[int] = []
    for i, token in enumerate(tokens):
        if token.kind == "directive":
            word = re.match(r"#\s*(\w+)", token.text)
            name = word.group(1) if word else ""
            if name in ("if", "ifdef", "ifndef"):
                saved.append((list(stack), None))
            elif name in ("else", "elif") and saved:
                before, first = saved[-1]
                saved[-1] = (before, first if first is not None else list(stack))
                stack = list(before)
            elif name == "endif" and saved:
                _, first = saved.pop()
                stack = first if first is not None else stack
        elif token.kind == "define":
            outer, stack = stack, []
        elif token.kind == "end":
            stack = outer
        elif token.kind == "punct":
            if token.text in OPENING:
                stack.append(i)
            elif token.text in CLOSING:
                while stack and OPENING[tokens[stack[-1]].text] != token.text:
                    stack.pop()
                if stack:
                    opened = stack.pop()
                    pairs.setdefault(opened, i)
                    pairs[i] = opened
    return pairs


def skip_angles(tokens: list[Token], at: int, pairs: dict[int, int]) -> int | None:
    """Index after the `>` that closes the `<` at `at`; None when it is not a template argument list."""
    depth = 0
    i = at
    while i < len(tokens):
        text = tokens[i].text
        if tokens[i].kind == "punct":
            if text == "<":
                depth += 1
            elif text in (">", ">>>"):
                depth -= len(text)
                if depth <= 0:
                    return i + 1 if depth == 0 else None
            elif text in OPENING:
                if text == "{" and depth == 0:
                    return None
                i = pairs.get(i, len(tokens))
            elif text in (";", "}", ")", "]", "<<<"):
                return None
        elif tokens[i].kind in ("define", "end"):
            return None
        i += 1
    return None


def back_angles(tokens: list[Token], at: int, pairs: dict[int, int]) -> int | None:
    """Index of the `<` that opens the template argument list whose last token is at `at`."""
    depth = 0
    i = at
    while i >= 0:
        text = tokens[i].text
        if tokens[i].kind == "punct":
            if text in (">", ">>>"):
                depth += len(text)
            elif text == "<":
                depth -= 1
                if depth == 0:
                    return i
            elif text in CLOSING:
                i = pairs.get(i, 0)
            elif text in (";", "{", "(", "["):
                return None
        elif tokens[i].kind in ("define", "end"):
            return None
        i -= 1
    return None


def split_commas(tokens: list[Token], pairs: dict[int, int], start: int, stop: int) -> list[tuple[int, int]]:
    """Ranges of tokens between the commas of `tokens[start:stop]` that no bracket and no `<…>` encloses."""
    parts: list[tuple[int, int]] = []
    first = i = start
    while i < stop:
        text = tokens[i].text if tokens[i].kind == "punct" else ""
        if text in OPENING:
            i = pairs.get(i, i)
        elif text == "<" and i > start and tokens[i - 1].kind == "word":
            after = skip_angles(tokens, i, pairs)
            if after is not None and after <= stop:
                i = after
                continue
        elif text == ",":
            parts.append((first, i))
            first = i + 1
        i += 1
    if first < stop or parts:
        parts.append((first, stop))
    return parts
