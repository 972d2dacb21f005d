"""# 19 · fast-math: the hardware's own approximations

`expf`, `powf` or a division of floats are sequences of instructions that are right to the last bit or two. The special
function unit answers in one instruction, with an error of a few ulp for arguments of ordinary size, and a larger one
for very large arguments.

Before: `y[i] = expf(x[i]) / (1.0f + expf(x[i]));` · After: `y[i] = __fdividef(__expf(x[i]), 1.0f + __expf(x[i]));`

Off unless the setting `fastMath` allows it. Then the judge lets a float32 result differ by 1e-5 of the output's largest
magnitude, and names the class "fast-math".

Legal when: the setting allows it (your word); operands and arguments are float by the text (proved); for `__fdividef`:
no divisor is above 2^126, else the quotient would be 0 (assumed).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent import config
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.arithmetic import Types
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import strip_parens

# CUDA C++ Programming Guide, "Intrinsic Functions", table of float functions; all take and give float.
_FUNCTIONS = {
    **{f"{name}f": f"__{name}f" for name in ("exp", "exp10", "log", "log2", "log10", "pow", "sin", "cos", "tan")},
    "sincosf": "__sincosf",
}
# The same by the names that C++ overloads for float.
_OVERLOADED = {name.removesuffix("f"): fast for name, fast in _FUNCTIONS.items() if name != "sincosf"}


class FastMath(Rule):
    name = "fast-math"
    number = 19

    def sites(self, context: Context) -> Iterator[Site]:
        if not config.current().fast_math:
            return
        types = Types(context.kernel, context.body)
        functions = list(_calls(context, types))
        divisions = list(_divisions(context, types))
        if functions and divisions:
            yield self._site(context, "all", functions, divisions)
        if functions:
            yield self._site(context, "functions", functions, [])
        if divisions:
            yield self._site(context, "division", [], divisions)

    def _site(self, context: Context, of: str, functions: list[Node], divisions: list[Node]) -> Site:
        nodes = {"functions": functions, "divisions": divisions}
        return Site(self.name, context.kernel.name_span, {"of": of}, nodes)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        edits = []
        for function in site.nodes["functions"]:
            name = text(function)
            edits.append(Edit(syntax.span(function), _FUNCTIONS.get(name) or _OVERLOADED[_plain(name)]))
        for division in site.nodes["divisions"]:
            edits += _fdividef(division)
        assumptions = [Assumption("approximate float arithmetic is wanted: the setting fastMath is on", "assumed")]
        if site.nodes["divisions"]:
            assumptions.append(Assumption("no divisor is larger than 2^126", "assumed"))
        return Rewrite(tuple(edits), assumptions=tuple(assumptions), numeric="fast-math")


def _plain(name: str) -> str:
    return name.removeprefix("::").removeprefix("std::")


def _calls(context: Context, types: Types) -> Iterator[Node]:
    """The names of the called functions that have an approximate twin."""
    own = definitions(context.module)
    vectors = re.search(r"\b(float|double)[234]\b", text(context.body))  # for which a header may overload expf
    for name, call in syntax.calls(context.body):
        if name in own:
            continue
        arguments = [n for n in syntax.field(call, "arguments").named_children if n.type != "comment"]
        kinds = {types.of(a) for a in arguments}
        if (name in _FUNCTIONS and not (vectors and "unknown" in kinds)) or (
            _plain(name) in _OVERLOADED and kinds == {"float"}
        ):
            yield syntax.field(call, "function")


def _divisions(context: Context, types: Types) -> Iterator[Node]:
    """`a / b` of two floats, where b is no constant; outermost only, so that the edits do not overlap."""
    found: list[Node] = []
    for n in syntax.of_type(context.body, "binary_expression"):
        if text(syntax.field(n, "operator")) != "/" or any(_inside(n, f) for f in found):
            continue
        right = syntax.field(n, "right")
        constant = strip_parens(right).type == "number_literal"
        if not constant and types.of(syntax.field(n, "left")) == "float" == types.of(right):
            found.append(n)
    yield from found


def _inside(node: Node, around: Node) -> bool:
    return around.start_byte <= node.start_byte and node.end_byte <= around.end_byte


def _fdividef(division: Node) -> list[Edit]:
    """`a / b` → `__fdividef(a, b)`, as edits around the operands, which may be edited themselves."""
    left, right = syntax.field(division, "left"), syntax.field(division, "right")
    operator = syntax.field(division, "operator")
    start, end = division.start_byte, division.end_byte
    bare = strip_parens(right)
    edits = [Edit(Span(start, start), "__fdividef(")]
    edits.append(Edit(Span(left.end_byte, operator.end_byte), ","))
    if bare != right and bare.parent == right:  # the call's own parentheses do
        edits.append(Edit(Span(right.start_byte, bare.start_byte), ""))
        edits.append(Edit(Span(bare.end_byte, right.end_byte), ""))
    edits.append(Edit(Span(end, end), ")"))
    return edits
