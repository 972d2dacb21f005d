"""What a loop carries from one iteration to the next: sums, products, minima and maxima can be computed in parts and
combined; anything else keeps the loop in order. (Trees over an array of the block: `trees.py`.)"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import names
from cuda_agent.rewrite.analysis.calls import effect, unknown
from cuda_agent.rewrite.analysis.loops import Loop, type_of
from cuda_agent.rewrite.analysis.reduction import folds as folds_of
from cuda_agent.rewrite.analysis.reduction import variable_of
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import arguments, base

_NEUTRAL = {"+": "0", "*": "1", "|": "0", "^": "0", "||": "false", "&&": "true"}
_ROUNDED = ("+", "*")


@dataclass(frozen=True)
class Reduction:
    """`name` is folded over the loop by `op`: an operator, or the name of a minimum or maximum function."""

    name: str
    op: str
    loop: Loop

    @property
    def variable(self) -> str:
        """What is declared: `v` for the member `v.x`."""
        return self.name.partition(".")[0]

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


def reductions(context: Context, loop: Loop) -> list[Reduction]:
    """Every variable of the kernel that the loop changes, as a reduction. RuleRefused when one is something else; a
    variable that each iteration sets before it reads it, and nothing reads later, is carried by nothing."""
    local = syntax.declared(loop.body)
    folds = list(folds_of(loop.body))
    found: dict[str, str] = {}
    for write in syntax.writes(loop.body):
        root = base(write.target)
        name = text(root) if root.type == "identifier" else None
        if name is None or write.op == "init" or name in local or _is_store(context, write):
            continue
        if write.target.type != "identifier":
            name = variable_of(write.target) or ""
            if type_of(context, name) is None:
                raise RuleRefused(f"{text(write.target)} is carried from one iteration to the next")
        op = next((f.op for f in folds if f.name == name and syntax.span(f.node).holds(syntax.span(write.node))), None)
        if op is None and name == text(write.target) and own(context, loop, name):
            continue
        if op is None or found.get(name, op) != op:
            raise RuleRefused(f"{name} is carried from one iteration to the next")
        found[name] = op
    for name in dict.fromkeys(n.partition(".")[0] for n in found):
        inside = [syntax.span(f.node) for f in folds if f.name.partition(".")[0] == name]
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
    for name, call in unknown(context, loop.body):
        for argument in arguments(call):
            if text(argument).lstrip("&") in variables and (text(argument).startswith("&") or _scalar(argument)):
                raise RuleRefused(f"{name} may change {text(argument).lstrip('&')}")
    for call in syntax.of_type(loop.body, "call_expression"):
        said = effect(context, call)
        if said is not None and ("arguments" in said or " may " in said):
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
    return any(v.name == name and v.is_array and not v.shared and v.param is None for v in names.of(context).variables)


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


# ---------------------------------------------------------------- start values


def starts_neutral(context: Context, reduction: Reduction) -> bool:
    """Whether the variable holds the fold's neutral value when the loop starts, as the text says."""
    start = reduction.loop.node.start_byte
    before = [w for w in syntax.writes(context.body) if w.node.start_byte < start and _sets(w, reduction)]
    if not before or before[-1].op not in ("init", "=") or before[-1].value is None or reduction.neutral is None:
        return False
    last = before[-1]
    assert last.value is not None
    if not _dominates(last.node, reduction.loop.node):
        return False
    zero, one = r"-?0(?:\.0*)?[fFuUlL]*", r"1(?:\.0*)?[fFuUlL]*"
    literal = {"0": rf"{zero}|false", "1": one}.get(reduction.neutral, reduction.neutral)
    form = rf"(?:{literal})|[\w:<>]+\((?:{literal})\)|\([\w:]+\)(?:{literal})"
    code = squeeze(text(last.value))
    if variable_of(last.target) != reduction.name:  # all members at once
        match = re.fullmatch(r"(?:make_\w+|\w+\d)?[({](.*)[)}]", code)
        return match is not None and all(re.fullmatch(form, one) for one in match[1].split(","))
    return re.fullmatch(form, code) is not None


def _sets(write: syntax.Write, reduction: Reduction) -> bool:
    return variable_of(write.target) in (reduction.name, reduction.variable)


def _dominates(node: Node, later: Node) -> bool:
    """Whether the expression's statement stands in a block that holds the later node: it is run before it."""
    statement = syntax.enclosing_statement(node)
    above = statement.parent
    return above is not None and above.start_byte <= later.start_byte and later.end_byte <= above.end_byte


__all__ = ["Reduction", "dead_after", "local_array", "own", "reductions", "starts_neutral"]
