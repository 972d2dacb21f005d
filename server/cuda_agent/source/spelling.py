"""One spelling for the template arguments that C++ lets people spell in many ways: `half` and `__half`, `unsigned` and
`unsigned int`, `const float *` and `float const*`, `3u` and `(unsigned int)3`."""

from __future__ import annotations

import re

from cuda_agent.model import Span
from cuda_agent.source import lexical

# What the headers of CUDA and the C library name so; on Linux, where `int64_t` is `long`.
_ALIASES = {
    **{f"{sign}int{bits}_t": f"{sign and 'unsigned '}{name}" for sign in ("", "u") for bits, name in
       ((16, "short"), (32, "int"), (64, "long"))},
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    **dict.fromkeys(("size_t", "uintptr_t", "ulong"), "unsigned long"),
    **dict.fromkeys(("ssize_t", "ptrdiff_t", "intptr_t"), "long"),
    "uchar": "unsigned char",
    "ushort": "unsigned short",
    "uint": "unsigned int",
    **{name: f"__{name}" for name in ("half", "half2", "nv_bfloat16", "nv_bfloat162")},
    "true": "1",
    "false": "0",
}  # fmt: skip
_BUILTIN = frozenset(("signed", "unsigned", "short", "long", "int", "char", "double"))
_CV = frozenset(("const", "volatile"))
_ELABORATED = frozenset(("typename", "struct", "class", "enum", "union"))
_TOKEN = re.compile(r"\w+|::|[^\w\s]")
_INTEGER = re.compile(r"(0[xX][\da-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)[uUlL]*")
_CAST = re.compile(
    r"(^|[<,])\s*\(\s*(?:(?:bool|signed|unsigned|short|long|int|char)\b\s*)+\)\s*(?=-?\w)(?!const|volatile)"
)
_CHARACTER = re.compile(r"'([^'\\])'")


def arguments(listed: str) -> tuple[str, ...]:
    """Each of a list of template arguments in its one spelling: `half, (int)3` → `("__half", "3")`."""
    data = listed.encode("utf-8", "surrogateescape")
    parts = lexical.split_commas(data, Span(0, len(data)), types=True)
    return tuple(argument(data[part.start : part.end].decode("utf-8", "surrogateescape")) for part in parts)


def argument(text: str) -> str:
    """The argument, a type or a value, in its one spelling. What is neither, or no whole one, loses its blanks only."""
    text = _CHARACTER.sub(lambda match: str(ord(match[1])), _CAST.sub(r"\1", text))
    tokens = _TOKEN.findall(text.replace("std::", ""))
    try:
        found, end = _argument(tokens, 0)
    except IndexError:  # `a < b` opens no list of arguments
        end = -1
    return found if end == len(tokens) else "".join(tokens)


def _argument(tokens: list[str], at: int) -> tuple[str, int]:
    """From `at` to the `,` or `>` that ends it. IndexError where a list of arguments does not end."""
    out = ""
    while at < len(tokens) and tokens[at] not in (",", ">"):
        if tokens[at] == "::" or re.match(r"\w", tokens[at]):
            part, at = _specifiers(tokens, at)
        else:
            part, at = tokens[at], at + 1
        out += part
    return out, at


def _specifiers(tokens: list[str], at: int) -> tuple[str, int]:
    """Words side by side, among them one type or value, and `const` on either side of it, which comes to stand last."""
    words: list[str] = []
    cv: set[str] = set()
    while at < len(tokens) and (tokens[at] in ("::", "<") or re.match(r"\w", tokens[at])):
        token = tokens[at]
        at += 1
        if token in _CV:
            cv.add(token)
        elif token == "<":
            inner, closing = [], token
            while closing != ">":
                one, at = _argument(tokens, at)
                inner.append(one)
                closing, at = tokens[at], at + 1
            words.append(f"<{','.join(inner)}>")
        elif token not in _ELABORATED and (token != "::" or words):
            words += _ALIASES.get(token, _number(token)).split()
    return " ".join((_type(words), *sorted(cv))).strip(), at


def _number(word: str) -> str:
    match = _INTEGER.fullmatch(word)
    octal = re.fullmatch(r"0[0-7]+", word.rstrip("uUlL"))
    return str(int(match[1], 8 if octal else 0)) if match else word


def _type(words: list[str]) -> str:
    """`long unsigned int` → `unsigned long`; other words as they are."""
    if not words or not _BUILTIN.issuperset(words):
        return "".join(words)
    sign = "unsigned " if "unsigned" in words else ""
    if "char" in words:
        return f"{sign or ('signed ' if 'signed' in words else '')}char"
    size = next((word for word in ("short", "long") if word in words), "")
    if "double" in words:
        return f"{size} double".strip()
    return sign + (" ".join([size] * words.count(size)) if size else "int")
