"""Edits of launch sites: new grid and block texts that say the same as a `LaunchMap`, in the file's own words."""

from __future__ import annotations

import re
from collections.abc import Callable

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit, LaunchMap, LaunchSite
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context, with_launch
from cuda_agent.rewrite.syntax import text
from cuda_agent.source import declared
from cuda_agent.source.tree import strip_parens, walk

AxisText = Callable[[str], str]


def sites_of(context: Context) -> tuple[LaunchSite, ...]:
    """The launch sites of the kernel. RuleRefused when there is none in this file: the launch shape cannot be
    edited."""
    if not context.sites:
        raise RuleRefused(
            f"{context.kernel.name} is launched outside this file: its launch shape cannot be changed here"
        )
    if context.module.other_uses(context.kernel):
        raise RuleRefused(f"{context.kernel.name} is also launched through its address: not every launch can be edited")
    others = [k for k in context.module.kernels if k.name == context.kernel.name and k.span != context.kernel.span]
    if any(k.qualified_name.startswith(f"{context.kernel.qualified_name}<") for k in others):
        raise RuleRefused(
            f"the launch of {context.kernel.name} may also start its specialisation, which stays as it is"
        )
    return context.sites


def check_one_block(context: Context) -> None:
    """RuleRefused when the launches of this file differ in block or template arguments: a size of the block that was
    seen in some launches may then not be that of all."""
    said = {(syntax.squeeze(site.block), tuple(map(syntax.squeeze, site.template_args))) for site in context.sites}
    if len(said) > 1:
        raise RuleRefused("the launches in this file have different blocks or template arguments")


def axes(context: Context, expression: str, at: int) -> tuple[str, str, str]:
    """Texts of the x, y and z extents of a grid or block expression at the offset `at`: of an integer (n, 1, 1), of a
    dim3 its fields, of `dim3(…)` its arguments."""
    code = expression.strip()
    node = strip_parens(declared.expression(code))
    parts = declared.constructed(node)
    if parts is not None and (len(parts) != 1 or _integer(context, parts[0], at)):
        return _padded(parts)
    if node.type == "identifier":
        found = declared.declared(context.module, code, at)
        given = declared.constructed(found.value) if found.value is not None else None
        if found.kind == "dim3":
            count = 3 if given is None else len(given)
            if given is not None and count == 1 and not _integer(context, given[0], found.at):
                count = 3  # a copy of another dim3
            return f"{code}.x", f"{code}.y" if count > 1 else "1", f"{code}.z" if count > 2 else "1"
        if found.kind == "integer" or (found.value is not None and found.value.type == "number_literal"):
            return code, "1", "1"
    elif _integer(context, node, at):
        return code, "1", "1"
    return f"dim3({code}).x", f"dim3({code}).y", f"dim3({code}).z"


def block_axes(context: Context, expression: str, at: int) -> tuple[str, str, str]:
    """As `axes`, but a dim3 that is declared once and never changed stands for the texts it was declared with, where
    these still mean the same."""
    found = declared.declared(context.module, expression.strip(), at) if expression.strip().isidentifier() else None
    if found is not None and found.kind == "dim3" and found.value is not None and _still(context, found, at):
        return axes(context, text(found.value), at)
    return axes(context, expression, at)


def _still(context: Context, found: declared.Declared, at: int) -> bool:
    """Whether no variable of a declared value was changed between the declaration and the launch at `at`."""
    assert found.value is not None
    names = {text(node) for node in walk(found.value, "identifier")}
    then, now = ([declared.version(context.module, name, place, at) for name in names] for place in (found.at, at))
    return then == now


def check_bound(context: Context, threads: int) -> None:
    """RuleRefused where `__launch_bounds__` may forbid blocks of so many threads."""
    bound = context.kernel.launch_bounds
    if bound and not (bound[0].isdigit() and int(bound[0]) >= threads):
        raise RuleRefused(f"__launch_bounds__({bound[0]}) may forbid blocks of {threads} threads")


def width(context: Context, site: LaunchSite) -> str:
    """The text of a block's x extent: what it was declared with, or `block.x` where that says nothing."""
    declared_x = block_axes(context, site.block, site.span.start)[0]
    return axes(context, site.block, site.span.start)[0] if "dim3" in declared_x else declared_x


def _padded(parts: list[Node]) -> tuple[str, str, str]:
    x, y, z = ([text(part) for part in parts] + ["1", "1", "1"])[:3]
    return x, y, z


def _integer(context: Context, node: Node, at: int) -> bool:
    """Whether the expression is surely an integer, not a dim3: a literal, arithmetic, a member of a dim3."""
    node = strip_parens(node)
    if node.type == "identifier":
        return declared.declared(context.module, text(node), at).kind == "integer"
    return node.type in ("number_literal", "binary_expression", "unary_expression", "cast_expression") or (
        node.type == "field_expression" and text(node).endswith((".x", ".y", ".z"))
    )


def paren(code: str) -> str:
    """The text, in parentheses when it is more than one term."""
    simple = re.fullmatch(r"[\w.]+(?:\([^()]*\)(?:\.\w+)?)?", code) or (
        code.startswith("(") and code.endswith(")") and syntax.balanced(code[1:-1])
    )
    return code if simple else f"({code})"


def times(code: str, k: int) -> str:
    if code.strip().isdigit():
        return str(int(code) * k)
    return f"{paren(code)} * {k}"


def over(code: str, k: int) -> str:
    """Rounded up."""
    if k == 1:
        return code
    if code.strip().isdigit():
        return str(-(-int(code) // k))
    return f"({code} + {k - 1}) / {k}"


def regrid(context: Context, site: LaunchSite, grid: str, block: str, new: int) -> str:
    """Text for ceil(grid · block / new), short where the text says that one block is a multiple of the other."""
    old = int(block) if block.isdigit() else _constant(context, block, site.span.start)
    if old == new:
        return grid
    if old is not None and old % new == 0:
        return times(grid, old // new)
    if old is not None and new % old == 0:
        return over(grid, new // old)
    return over(f"{paren(grid)} * {paren(block)}", new)


def _constant(context: Context, code: str, at: int) -> int | None:
    """The value of a name that stands for a number."""
    value = declared.declared(context.module, code, at).value if code.isidentifier() else None
    return int(text(value)) if value is not None and text(value).isdigit() else None


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
            x, y, z = axes(context, site.grid, site.span.start)
            new_grid = dims((grid[0](x), grid[1](y), grid[2](z)))
        edits += with_launch(site, new_grid, block)
    return tuple(edits)


def fewer_blocks(context: Context, k: int) -> tuple[tuple[Edit, ...], LaunchMap]:
    """Every launch with 1/k of its blocks along x, rounded up: a thread does the work of k."""
    return change(context, (lambda x: over(x, k), same, same)), LaunchMap(grid=(f"ceil_div(gx, {k})", "gy", "gz"))


def same(code: str) -> str:
    return code
