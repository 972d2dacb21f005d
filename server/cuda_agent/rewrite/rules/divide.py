"""# 14 · divide: integer division and remainder by a size

A division by a number that the compiler does not know is 20 to 25 instructions, of 64 bits a call.

Before (a plane of `width` × `height` that wraps around):

    int x = i % width;
    int y = i / width;
    int right = y * width + (x + 1) % width;
    int left = y * width + (width + x - 1) % width;

After (wrap):

    int right = y * width + (x + 1 == width ? 0 : x + 1);
    int left = y * width + (x == 0 ? width - 1 : x - 1);

After (shift), where `width` was a power of two in every captured launch:

    int x = modulo(i, width);
    int y = quotient(i, width);

with

    // A power of two divides by a shift; the test is the same for all threads.
    __device__ __forceinline__ int quotient(int n, int d)
    {
        return (d & (d - 1)) == 0 ? n >> (__ffs(d) - 1) : n / d;
    }

*wrap*: legal where `0 ≤ x < width` is known: `x` is a remainder by `width` or guarded by it (proved). Where only
`x ≥ 0` is known the remainder stays for the values that need it: `x + 1 < width ? x + 1 : (x + 1) % width` (proved).
*shift*: exact for every `n ≥ 0` and every `d` (proved), where `n` is made of thread and block indices, of unsigned
variables and of parameters that were never negative (captured). Bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import helpers, layout, syntax
from cuda_agent.rewrite.analysis.arithmetic import INTEGERS, Type
from cuda_agent.rewrite.analysis.scalars import Scalars
from cuda_agent.rewrite.launches import paren
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import ancestors, operator, strip_parens
from cuda_agent.source.tree import field as child

_NAMES = {"/": "quotient", "%": "modulo"}
_SPELLED: dict[Type, str] = {"int": "int", "unsigned": "unsigned", "int64": "long long", "uint64": "unsigned long long"}
_OPERATORS = ("binary_expression", "unary_expression", "cast_expression", "conditional_expression")


@dataclass(frozen=True)
class Division:
    """`left / right`, `left % right`, `left /= right` or `left %= right`, of integers."""

    node: Node
    sign: str
    left: Node
    right: Node
    type: Type


@dataclass
class Plan:
    """What may be done in one kernel: new texts of remainders that wrap, and divisions that may be shifts."""

    wraps: dict[int, str] = field(default_factory=dict)
    shifts: dict[int, Division] = field(default_factory=dict)


class Divide(Rule):
    name = "divide"
    number = 14

    def sites(self, context: Context) -> Iterator[Site]:
        scalars = Scalars(context)
        found = [d for d in _divisions(scalars) if scalars.uniform(d.right)]
        if not found:
            return
        plan = Plan()
        for d in found:
            if (new := _wrapped(scalars, d)) is not None:
                plan.wraps[d.node.id] = new
            elif _shifts(scalars, d):
                plan.shifts[d.node.id] = d
        if not plan.wraps and not plan.shifts:
            raise RuleRefused("no divisor is a power of two in every launch, and no remainder wraps around by one")
        nodes = {"scalars": scalars, "found": found}
        for by, chosen in (
            ("wrap+shift", plan),
            ("wrap", Plan(wraps=plan.wraps)),
            ("shift", Plan(shifts=plan.shifts)),
        ):
            if bool(chosen.wraps) == ("wrap" in by) and bool(chosen.shifts) == ("shift" in by):
                yield Site(self.name, syntax.span(found[0].node), {"by": by}, {**nodes, "plan": chosen})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        scalars: Scalars = site.nodes["scalars"]
        plan: Plan = site.nodes["plan"]
        writer = _Writer(context, plan)
        edits = []
        end = -1
        for d in site.nodes["found"]:
            if d.node.start_byte >= end and writer.replaces(d.node):  # the outermost of nested ones
                edits.append(Edit(syntax.span(d.node), writer.text(d.node)))
                end = d.node.end_byte
        if writer.helpers:
            edits.append(helpers.above_kernel(context, list(writer.functions())))
        known = [Assumption(f"{name} is never negative", "captured") for name in sorted(scalars.assumed)]
        exact = Assumption("what is divided is made of thread indices and sizes: it is never negative", "proved")
        return Rewrite(tuple(edits), assumptions=(*known, exact))


def _divisions(scalars: Scalars) -> Iterator[Division]:
    """Every integer division by something that is not a literal, in the order of the text."""
    for node in syntax.of_type(scalars.context.body, "binary_expression", "assignment_expression"):
        sign, left, right = operator(node), child(node, "left"), child(node, "right")
        if sign not in ("/", "%", "/=", "%=") or left is None or right is None:
            continue
        types = scalars.types.of(left), scalars.types.of(right)
        if not set(types) <= INTEGERS:
            continue
        kind = scalars.types.of(node) if node.type == "binary_expression" else types[0]
        if kind in _SPELLED and (
            node.type == "binary_expression" or (types[0] == types[1] and left.type == "identifier")
        ):
            yield Division(node, sign[0], left, right, kind)


# ---------------------------------------------------------------- shifts


def _shifts(scalars: Scalars, d: Division) -> bool:
    """The divisor was a power of two in every launch, and the dividend is never negative."""
    values = scalars.values(d.right)
    if not values or any(v <= 0 or v & (v - 1) for v in values):
        return False
    return d.type in ("unsigned", "uint64") or scalars.nonnegative(d.left)


class _Writer:
    """New texts of divisions, and the device functions they call."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context = context
        self._plan = plan
        self.helpers: dict[tuple[str, Type], str] = {}

    def replaces(self, node: Node) -> bool:
        return node.id in self._plan.wraps or node.id in self._plan.shifts

    def text(self, node: Node) -> str:
        """The expression with every chosen division in it replaced."""
        if node.id in self._plan.wraps:
            return self._plan.wraps[node.id]
        if node.id in self._plan.shifts:
            d = self._plan.shifts[node.id]
            left, right = self.text(strip_parens(d.left)), self.text(strip_parens(d.right))
            call = f"{self._helper(d)}({left}, {right})"
            return f"{text(d.left)} = {call}" if node.type == "assignment_expression" else call
        out, at = "", node.start_byte
        for part in node.children:
            out += self._context.slice(Span(at, part.start_byte)) + self.text(part)
            at = part.end_byte
        return out + self._context.slice(Span(at, node.end_byte))

    def _helper(self, d: Division) -> str:
        key = d.sign, d.type
        if key not in self.helpers:
            suffix = "" if all(kind == d.type for _, kind in self.helpers) else "_" + _SPELLED[d.type].replace(" ", "_")
            self.helpers[key] = self._context.unused(_NAMES[d.sign] + suffix)
        return self.helpers[key]

    def functions(self) -> Iterator[list[str]]:
        step = layout.unit(self._context)
        comment = "// a power of two divides by a shift; which it is, is the same for all threads"
        for (sign, kind), name in self.helpers.items():
            spelled = _SPELLED[kind]
            bit = "__ffsll" if "long" in spelled else "__ffs"
            shift = f"n >> ({bit}(d) - 1)" if sign == "/" else "n & (d - 1)"
            yield [
                *([comment] if name == next(iter(self.helpers.values())) else []),
                f"__device__ __forceinline__ {spelled} {name}({spelled} n, {spelled} d)",
                "{",
                f"{step}return (d & (d - 1)) == 0 ? {shift} : n {sign} d;",
                "}",
            ]


# ---------------------------------------------------------------- wraps


def _wrapped(scalars: Scalars, d: Division) -> str | None:
    """`(x + 1) % n` or `(n + x - 1) % n` without the remainder, where x is a variable that is never negative."""
    if d.sign != "%" or d.node.type != "binary_expression":
        return None
    size = text(d.right)
    terms = [(sign, text(n), n) for sign, n in syntax.additive_terms(d.left)]
    full = [t for t in terms if t[0] == 1 and squeeze(t[1]) == squeeze(size)]
    ones = [t for t in terms if t[1] == "1"]
    rest = [t for t in terms if t not in full and t not in ones]
    if len(ones) != 1 or len(rest) != 1 or len(full) > 1 or len(terms) != len(full) + 2:
        return None
    (sign, x, node), up = rest[0], ones[0][0] == 1
    if sign != 1 or node.type != "identifier" or (not up and not full) or scalars.types.of(node) != d.type:
        return None
    if scalars.types.of(d.right) != d.type or not scalars.nonnegative(node):
        return None
    size = paren(size)
    if _below(scalars, node, d):
        new = f"{x} + 1 == {size} ? 0 : {x} + 1" if up else f"{x} == 0 ? {size} - 1 : {x} - 1"
    elif up:
        new = f"{x} + 1 < {size} ? {x} + 1 : {text(d.node)}"
    else:
        new = f"{x} > 0 && {x} <= {size} ? {x} - 1 : {text(d.node)}"
    parent = d.node.parent
    return f"({new})" if parent is not None and parent.type in _OPERATORS else new


def _below(scalars: Scalars, x: Node, d: Division) -> bool:
    """Whether the text says that x is less than the divisor: x is a remainder by it, or it is asked before."""
    name, size = text(x), squeeze(text(strip_parens(d.right)))
    writes = scalars.writes.get(name, [])
    if name in scalars.addressed:
        return False
    if len(writes) == 1 and writes[0].value is not None:
        value = strip_parens(writes[0].value)
        divisor = child(value, "right") if value.type == "binary_expression" and operator(value) == "%" else None
        if divisor is not None and squeeze(text(strip_parens(divisor))) == size:
            return scalars.nonnegative(d.right)  # of a negative size the remainder goes beyond it
    inside = next(
        (n for n in ancestors(d.node, ("for_statement",)) if _asks(child(n, "condition"), "&&", name, size)), None
    )
    if inside is not None:
        body = child(inside, "body")
        return (
            body is not None
            and body.start_byte <= d.node.start_byte
            and not any(w.name == name for w in syntax.writes(body))
        )
    if len(writes) > 1:
        return False
    if any(_holds(n, d.node, name, size) for n in ancestors(d.node, ("if_statement",))):
        return True
    return any(
        _leaves(n, name, size) for n in syntax.statements(scalars.context.body) if n.end_byte <= d.node.start_byte
    )


def _asks(condition: Node | None, joined: str, name: str, size: str, sign: str = "<") -> bool:
    """Whether `name < size` is one of the terms of `a && b && …` (or of `a || b || …`)."""
    if condition is None:
        return False
    node = strip_parens(condition)
    if node.type == "condition_clause":
        node = strip_parens(child(node, "value") or node)
    if node.type == "binary_expression" and operator(node) == joined:
        return any(_asks(child(node, side), joined, name, size, sign) for side in ("left", "right"))
    return squeeze(text(node)) == f"{name}{sign}{size}"


def _holds(statement: Node, at: Node, name: str, size: str) -> bool:
    """`at` is in the branch that is taken only where `name < size`."""
    taken = child(statement, "consequence")
    return (
        taken is not None
        and taken.start_byte <= at.start_byte < taken.end_byte
        and _asks(child(statement, "condition"), "&&", name, size)
    )


def _leaves(statement: Node, name: str, size: str) -> bool:
    """`if (name >= size …) return;`"""
    if statement.type != "if_statement" or child(statement, "alternative") is not None:
        return False
    taken = child(statement, "consequence")
    return (
        taken is not None
        and squeeze(text(taken)) in ("return;", "{return;}")
        and _asks(child(statement, "condition"), "||", name, size, ">=")
    )
