"""What a loop carries from one iteration to the next: sums, products, minima and maxima can be computed in parts and
combined; anything else keeps the loop in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.calls import effect, unknown
from cuda_agent.rewrite.loops import Loop
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import arguments, base, strip_parens

_EXTREMES = ("max", "fmaxf", "fmax", "min", "fminf", "fmin", "umax", "umin", "llmax", "llmin")
_FUSED = ("fma", "fmaf", "__fmaf_rn", "__fma_rn", "mad")
_NEUTRAL = {"+": "0", "*": "1", "|": "0", "^": "0", "||": "false", "&&": "true"}
_ROUNDED = ("+", "*")


@dataclass(frozen=True)
class Reduction:
    """`name` is folded over the loop by `op`: an operator, or the name of a minimum or maximum function."""

    name: str
    op: str
    loop: Loop

    @property
    def rounded(self) -> bool:
        """Whether another order may round otherwise (of floats)."""
        return self.op in _ROUNDED

    @property
    def neutral(self) -> str | None:
        """What every part but one starts from; None where the start value may be folded in several times."""
        return _NEUTRAL.get(self.op)

    def fold(self, other: str) -> str:
        """The statement that folds another part in."""
        if self.op in ("||", "&&"):
            return f"{self.name} = {self.name} {self.op} {other};"
        if self.op in ("+", "*", "|", "&", "^"):
            return f"{self.name} {self.op}= {other};"
        return f"{self.name} = {self.op}({self.name}, {other});"


@dataclass(frozen=True)
class _Fold:
    name: str
    op: str
    node: Node


def reductions(context: Context, loop: Loop) -> list[Reduction]:
    """Every variable of the kernel that the loop changes, as a reduction. RuleRefused when one is something else; a
    variable that each iteration sets before it reads it, and nothing reads later, is carried by nothing."""
    local = syntax.declared(loop.body)
    folds = list(_folds(loop.body))
    found: dict[str, str] = {}
    for write in syntax.writes(loop.body):
        root = base(write.target)
        name = text(root) if root.type == "identifier" else None
        if name is None or write.op == "init" or name in local or _is_store(context, write):
            continue
        if write.target.type != "identifier":
            raise RuleRefused(f"{text(write.target)} is carried from one iteration to the next")
        op = next((f.op for f in folds if f.name == name and syntax.span(f.node).holds(syntax.span(write.node))), None)
        if op is None and own(context, loop, name):
            continue
        if op is None or found.get(name, op) != op:
            raise RuleRefused(f"{name} is carried from one iteration to the next")
        found[name] = op
    for name in found:
        inside = [syntax.span(f.node) for f in folds if f.name == name]
        uses = [syntax.span(n) for n in syntax.of_type(loop.body, "identifier") if text(n) == name]
        if any(not any(fold.holds(use) for fold in inside) for use in uses):
            raise RuleRefused(f"{name} is read inside the loop that accumulates it")
        if syntax.uses(loop.bound, name) or syntax.uses(loop.start, name):
            raise RuleRefused(f"{name} bounds the loop that changes it")
    _check_calls(context, loop, local)
    return [Reduction(name, op, loop) for name, op in found.items()]


def _check_calls(context: Context, loop: Loop, local: set[str]) -> None:
    """A call may change a variable that it is given."""
    variables = {w.name for w in syntax.writes(context.body)} - local
    for name, call in unknown(context.module, loop.body):
        for argument in arguments(call):
            if text(argument).lstrip("&") in variables and (text(argument).startswith("&") or _scalar(argument)):
                raise RuleRefused(f"{name} may change {text(argument).lstrip('&')}")
    for call in syntax.of_type(loop.body, "call_expression"):
        said = effect(context.module, call)
        if said is not None and "arguments" in said:
            raise RuleRefused(said)


def _scalar(argument: Node) -> bool:
    return argument.type == "identifier"


def _is_store(context: Context, write: syntax.Write) -> bool:
    """Whether the write goes to memory that is not the thread's own."""
    if write.target.type == "identifier":
        return False
    root = text(base(write.target))
    if write.target.type == "field_expression" and "->" not in text(write.target) and "[" not in text(write.target):
        return False
    return not local_array(context, root)


def local_array(context: Context, name: str) -> bool:
    """Whether the name is an array in a thread's own memory."""
    for declaration in syntax.of_type(context.body, "declaration"):
        if "__shared__" in text(declaration):
            continue
        for array in syntax.of_type(declaration, "array_declarator"):
            one = array.child_by_field_name("declarator")
            if one is not None and text(one) == name:
                return True
    return False


def own(context: Context, loop: Loop, name: str) -> bool:
    """Whether every iteration sets the variable before it reads it, and no later code reads what the last one left."""
    first = next((n for n in syntax.of_type(loop.body, "identifier") if text(n) == name), None)
    write = _plain_write(first) if first is not None else None
    return write is not None and _always(write, loop.body) and dead_after(context, loop, name)


def dead_after(context: Context, loop: Loop, name: str) -> bool:
    """Whether code after the loop never reads the variable before it sets it again."""
    after = (n for n in syntax.of_type(context.body, "identifier") if n.start_byte >= loop.node.end_byte)
    first = next((n for n in after if text(n) == name), None)
    if first is None:
        return True
    write, block = _plain_write(first), loop.node.parent
    while write is not None and block is not None and block.end_byte <= context.body.end_byte:
        if _always(write, block):
            return True
        block = block.parent
    return False


def _plain_write(node: Node) -> Node | None:
    """The assignment `name = value` whose target the identifier is, where the value does not hold the name."""
    above = node.parent
    if above is None or above.type != "assignment_expression" or above.child_by_field_name("left") != node:
        return None
    plain = text(syntax.field(above, "operator")) == "=" and not syntax.uses(syntax.field(above, "right"), text(node))
    return above if plain else None


def _always(node: Node, block: Node) -> bool:
    """Whether the expression is evaluated whenever the block is: a statement of it, or a loop's initialiser there."""
    above = node.parent
    if above is not None and above.type == "for_statement" and above.child_by_field_name("initializer") == node:
        return above.parent == block or above == block
    return above is not None and above.type == "expression_statement" and (above.parent == block or above == block)


# ---------------------------------------------------------------- folds


def _folds(body: Node) -> Iterator[_Fold]:
    """Statements that fold a value into a variable. The node holds every mention of the variable there."""
    for node in syntax.of_type(body, "if_statement"):
        if (found := _conditional(node)) is not None:
            yield found
    for write in syntax.writes(body):
        if write.name is not None and (op := _operation(write)) is not None:
            yield _Fold(write.name, op, write.node)


def _conditional(node: Node) -> _Fold | None:
    """`if (e > m) m = e;`"""
    if node.child_by_field_name("alternative") is not None:
        return None
    condition = strip_parens(syntax.field(node, "condition"))
    inside = syntax.statements(syntax.field(node, "consequence"))
    if condition.type != "binary_expression" or len(inside) != 1 or inside[0].type != "expression_statement":
        return None
    write = next(syntax.writes(inside[0]), None)
    if write is None or write.name is None or write.op != "=" or write.value is None:
        return None
    sides = [squeeze(text(strip_parens(syntax.field(condition, side)))) for side in ("left", "right")]
    value, relation = squeeze(text(strip_parens(write.value))), text(syntax.field(condition, "operator"))
    if relation not in ("<", "<=", ">", ">=") or sorted(sides) != sorted((value, write.name)):
        return None
    if syntax.uses(write.value, write.name) or next(syntax.of_type(write.value, "update_expression"), None):
        return None
    larger = relation[0] == ">"
    return _Fold(write.name, "max" if (sides[0] == value) == larger else "min", node)


def _operation(write: syntax.Write) -> str | None:
    """The fold that one assignment makes, None when it is none: `s += e`, `s = s + e`, `m = max(m, e)`, `m = m < e ?
    e : m`, `s = fma(a, b, s)`."""
    name, value = write.name, write.value
    if name is None:
        return None
    if value is None:
        return "+" if write.op in ("++", "--") else None
    if write.op in ("+=", "-=", "*=", "|=", "&=", "^=") and not syntax.uses(value, name):
        return "+" if write.op == "-=" else write.op[0]
    return _assigned(name, strip_parens(value)) if write.op == "=" else None


def _assigned(name: str, value: Node) -> str | None:
    if value.type == "binary_expression":
        if [s for s, n in syntax.additive_terms(value) if text(n) == name] == [1] and _once(name, value):
            return "+"
        operator = text(syntax.field(value, "operator"))
        left, right = syntax.field(value, "left"), syntax.field(value, "right")
        alone = name in (text(left), text(right)) and _once(name, value)
        return operator if alone and operator in ("*", "|", "&", "^", "||", "&&") else None
    if value.type == "call_expression":
        function = text(syntax.field(value, "function")).removeprefix("::").removeprefix("std::")
        given = arguments(value)
        if function in _EXTREMES and len(given) == 2 and name in (text(a) for a in given) and _once(name, value):
            return function
        if function in _FUSED and len(given) == 3 and text(given[2]) == name and _once(name, value):
            return "+"
        return None
    return _ternary(name, value)


def _once(name: str, value: Node) -> bool:
    return sum(text(n) == name for n in syntax.of_type(value, "identifier")) == 1


def _ternary(name: str, value: Node) -> str | None:
    if value.type != "conditional_expression":
        return None
    code = squeeze(text(value)).replace("(", "").replace(")", "")
    n = re.escape(name)
    for pattern, op in (
        (rf"{n}<=?(.+)\?\1:{n}", "max"),
        (rf"(.+)>=?{n}\?\1:{n}", "max"),
        (rf"{n}>=?(.+)\?{n}:\1", "max"),
        (rf"(.+)<=?{n}\?{n}:\1", "max"),
        (rf"{n}>=?(.+)\?\1:{n}", "min"),
        (rf"(.+)<=?{n}\?\1:{n}", "min"),
        (rf"{n}<=?(.+)\?{n}:\1", "min"),
        (rf"(.+)>=?{n}\?{n}:\1", "min"),
    ):
        match = re.fullmatch(pattern, code)
        if match and not re.search(rf"\b{n}\b", match[1]):
            return op
    return None


# ---------------------------------------------------------------- start values


def starts_neutral(context: Context, reduction: Reduction) -> bool:
    """Whether the variable holds the fold's neutral value when the loop starts, as the text says."""
    before = [
        w
        for w in syntax.writes(context.body)
        if w.name == reduction.name and w.node.start_byte < reduction.loop.node.start_byte
    ]
    if not before or before[-1].op not in ("init", "=") or before[-1].value is None or reduction.neutral is None:
        return False
    last = before[-1]
    assert last.value is not None
    if not _dominates(last.node, reduction.loop.node):
        return False
    zero, one = r"-?0(?:\.0*)?[fFuUlL]*", r"1(?:\.0*)?[fFuUlL]*"
    literal = {"0": rf"{zero}|false", "1": one}.get(reduction.neutral, reduction.neutral)
    form = rf"(?:{literal})|[\w:<>]+\((?:{literal})\)|\([\w:]+\)(?:{literal})"
    return re.fullmatch(form, squeeze(text(last.value))) is not None


def _dominates(node: Node, later: Node) -> bool:
    """Whether the expression's statement stands in a block that holds the later node: it is run before it."""
    statement = syntax.enclosing_statement(node)
    above = statement.parent
    return above is not None and above.start_byte <= later.start_byte and later.end_byte <= above.end_byte


__all__ = ["Reduction", "dead_after", "local_array", "own", "reductions", "starts_neutral"]
