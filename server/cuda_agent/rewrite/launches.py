"""Edits of launch sites: new grid and block texts that say the same as a `LaunchMap`, in the file's own words."""

from __future__ import annotations

import re
from collections.abc import Callable

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit, LaunchSite
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context, with_launch

AxisText = Callable[[str], str]


def sites_of(context: Context) -> tuple[LaunchSite, ...]:
    """The launch sites of the kernel. RuleRefused when there is none in this file: the launch shape cannot be
    edited."""
    if not context.sites:
        raise RuleRefused(
            f"{context.kernel.name} is launched outside this file: its launch shape cannot be changed here"
        )
    return context.sites


def axes(context: Context, expression: str) -> tuple[str, str, str]:
    """Texts of the x, y and z extents of a grid or block expression: of an integer (n, 1, 1), of a dim3 its
    fields."""
    code = expression.strip()
    constructor = re.fullmatch(r"dim3\s*[({](.*)[)}]", code, re.S)
    if constructor:
        parts = split_arguments(constructor.group(1))
        if 1 <= len(parts) <= 3:
            padded = [*parts, "1", "1"][:3]
            return padded[0], padded[1], padded[2]
    if re.fullmatch(r"[A-Za-z_]\w*", code):
        declared = _declaration(context, code)
        if declared is not None:
            kind, count = declared
            if kind == "dim3":
                return f"{code}.x", f"{code}.y" if count > 1 else "1", f"{code}.z" if count > 2 else "1"
            if kind == "int":
                return code, "1", "1"
    elif not re.search(r"[A-Za-z_]\w*\s*\(", code):
        return code, "1", "1"  # arithmetic of integers
    return f"dim3({code}).x", f"dim3({code}).y", f"dim3({code}).z"


def block_axes(context: Context, expression: str) -> tuple[str, str, str]:
    """As `axes`, but a dim3 that is declared once and never changed stands for the texts it was declared with."""
    code = expression.strip()
    found = (
        re.findall(rf"\bdim3\s+{re.escape(code)}\s*[({{]([^;]*?)[)}}]\s*;", context.text) if code.isidentifier() else []
    )
    changed = code.isidentifier() and re.search(rf"\b{re.escape(code)}\s*(?:\.\s*[xyz]\s*)?=[^=]", context.text)
    return axes(context, f"dim3({found[0]})") if len(found) == 1 and not changed else axes(context, expression)


def split_arguments(code: str) -> list[str]:
    """Top-level commas."""
    parts, depth, current = [], 0, ""
    for c in code:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += c
    return [*parts, current.strip()] if current.strip() else parts


_INTEGER = (
    r"(?:(?:static|const|constexpr|unsigned|signed|long)\s+)*"
    r"(?:unsigned|signed|int|size_t|long|std::size_t|u?int\d+_t|short)"
)


def _declaration(context: Context, name: str) -> tuple[str, int] | None:
    """How a variable is declared: ("dim3", arguments given) or ("int", 1); None when unknown or declared in several
    ways."""
    text = context.text
    found: set[tuple[str, int]] = set()
    others = r"(?:\w+\s*(?:\([^;]*?\)|\{[^;]*?\})?\s*,\s*)*"
    for match in re.finditer(rf"\bdim3\s+{others}{name}\b\s*(?:=\s*dim3\s*)?", text):
        found.add(("dim3", _argument_count(text, match.end())))
    if re.search(rf"\b{_INTEGER}\s+{name}\b", text) or re.search(rf"#\s*define\s+{name}\s+\(?\d+", text):
        found.add(("int", 1))
    return found.pop() if len(found) == 1 else None


def _argument_count(text: str, at: int) -> int:
    """How many arguments the constructor call at `at` has; 3 when there is none to read, so that no axis is lost."""
    if text[at : at + 1] not in ("(", "{"):
        return 3
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] in "([{") - (text[end] in ")]}")
        if depth == 0:
            return len(split_arguments(text[at + 1 : end])) or 3
    return 3


def paren(code: str) -> str:
    """The text, in parentheses when it is more than one term."""
    simple = re.fullmatch(r"[\w.]+(?:\([^()]*\)(?:\.\w+)?)?", code) or (
        code.startswith("(") and code.endswith(")") and syntax._balanced(code[1:-1])
    )
    return code if simple else f"({code})"


def times(code: str, k: int) -> str:
    if code.strip().isdigit():
        return str(int(code) * k)
    return f"{paren(code)} * {k}"


def over(code: str, k: int) -> str:
    """Rounded up."""
    if code.strip().isdigit():
        return str(-(-int(code) // k))
    return f"({code} + {k - 1}) / {k}"


def dims(parts: tuple[str, str, str]) -> str:
    """The shortest spelling of an extent: an integer when y and z are 1."""
    if parts[1:] == ("1", "1"):
        return parts[0]
    return f"dim3({', '.join(parts if parts[2] != '1' else parts[:2])})"


def change(
    context: Context,
    grid: tuple[AxisText, AxisText, AxisText] | None = None,
    block: str | None = None,
) -> tuple[Edit, ...]:
    """Rewrites every launch site: each axis of the grid by its function, the block by a fixed text."""
    edits: list[Edit] = []
    for site in sites_of(context):
        new_grid = None
        if grid is not None:
            x, y, z = axes(context, site.grid)
            new_grid = dims((grid[0](x), grid[1](y), grid[2](z)))
        edits += with_launch(site, new_grid, block)
    return tuple(edits)


def same(code: str) -> str:
    return code
