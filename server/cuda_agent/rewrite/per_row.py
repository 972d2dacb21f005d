"""The body of a kernel in which one thread does the work of several blocks: of the threads with its own place there."""

from __future__ import annotations

from collections.abc import Mapping

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.merged import Merged, in_parens
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import walk


class PerRow(Merged):
    """Blocks along `axis` become fewer: each does `rows` of them, `step` threads wide. `fills` are shared arrays that
    assignments fill: the thread axis along which their rows lie, or "" for those that all rows share."""

    pragmas = ("#pragma unroll",)

    def __init__(
        self, context: Context, axis: str, rows: int, step: int, fills: Mapping[str, str], counters: str
    ) -> None:
        super().__init__(context, axis, rows, rows * step)
        self.fills = fills
        self.r = next((n for n in counters if context.unused_here(n) == n), context.unused_here(counters[0]))

    def _fill_axis(self, node: Node) -> str | None:
        """Of an assignment that fills a shared array: the thread axis along which its rows lie; None of others."""
        write = next(iter(syntax.writes(node)), None) if node.type == "expression_statement" else None
        if write is None or write.target.type != "subscript_expression":
            return None
        return self.fills.get(text(next(syntax.of_type(write.target, "identifier"))))

    def _done_once(self, node: Node) -> bool:
        return self._fill_axis(node) == ""

    def _extents(self, own: str) -> str:
        return f"{own}[{self.rows}]"

    def _spelled_extent(self, node: Node) -> str:
        return self.context.slice(syntax.span(node))  # blocks keep their size

    def _pieces(self, node: Node, row: str | None) -> list[tuple[Node, str]]:
        axis, own = self._fill_axis(node), self.thread
        self.thread = f"threadIdx.{axis}" if axis else own  # a tile may be filled by the mirrored thread
        try:
            return [
                (at, new)
                for n in walk(node, ("field_expression", "identifier"))
                for at, new in self._piece(n, node, row, axis)
            ]
        finally:
            self.thread = own

    def _piece(self, n: Node, node: Node, row: str | None, axis: str | None) -> list[tuple[Node, str]]:
        code = squeeze(text(n))
        if n.type == "field_expression":
            if code == f"blockIdx.{self.axis}":
                factor = _product(n)
                return [(factor, f"{self.context.slice(syntax.span(factor))} * {self.rows}")]
            shifted = code == self.thread and row is not None
            return [(n, in_parens(n, f"{code} + {row} * {self.step}"))] if shifted else []
        v = self.scope.resolve(code, n.start_byte)
        if v is None or v.param is not None or (row is None and v.symbol not in self.arrays):
            return []
        even = self._even(v)
        if row is None or (axis is not None and even is None and not v.shared and not self._uniform(v)):
            raise RuleRefused(f"{v.name} differs from row to row where a tile is filled")
        if v.symbol in self.arrays:
            cell = _cell(n)
            return [(cell, f"{self.context.slice(syntax.span(cell))}[{row}]")]
        if v.start < node.start_byte and not self._uniform(v) and even not in (None, "0"):
            return [(n, in_parens(n, f"{code} + {self._distance(row, even)}"))]
        return []

    def _distance(self, row: str, even: str | None) -> str:
        return f"{row} * {self.step}" if even == "1" else f"{row} * {self.step} * {even}"


def _product(node: Node) -> Node:
    """The product that the block's index is a factor of, or the index itself."""
    above = node.parent
    sign = above.child_by_field_name("operator") if above is not None else None
    return above if above is not None and sign is not None and text(sign) == "*" else node


def _cell(node: Node) -> Node:
    """The variable's subscript, where it is an array already."""
    above = node.parent
    while above is not None and above.type == "subscript_expression" and above.child_by_field_name("argument") == node:
        node, above = above, above.parent
    return node
