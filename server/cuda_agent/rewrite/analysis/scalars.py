"""Scalar parameters inside a kernel: which variables they alone decide, what these were in the capture, and what cannot
be negative."""

from __future__ import annotations

from functools import cached_property

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import blocks
from cuda_agent.rewrite.analysis.arithmetic import INTEGERS, Types
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import Write, text
from cuda_agent.source.tree import field, operator, strip_parens


class Scalars:
    """What is known of one kernel's integer variables."""

    def __init__(self, context: Context, *, instantiated: bool = False) -> None:
        """`instantiated`: template types count as what they were in every captured launch. Other instantiations of the
        same text may have others."""
        self.context = context
        self.types = Types(context.kernel, context.body, _template_types(context) if instantiated else {})
        self.params = {
            p.name: p for p in context.kernel.params if not p.pointer and self.types.name(p.name) in INTEGERS
        }
        self.assumed: set[str] = set()  # parameters that `nonnegative` took from the capture

    @cached_property
    def writes(self) -> dict[str, list[Write]]:
        """Variable → its writes in the order of the text, its declaration with a value included."""
        found: dict[str, list[Write]] = {}
        for write in syntax.writes(self.context.body):
            if write.name is not None:
                found.setdefault(write.name, []).append(write)
        return found

    @cached_property
    def addressed(self) -> frozenset[str]:
        """Variables that something else may write: `&x` anywhere, or handed to a function that may take a reference."""
        taken = [n for n in syntax.of_type(self.context.body, "pointer_expression") if text(n).startswith("&")]
        found = {name for n in taken for name in syntax.identifiers(n)}
        for name, call in syntax.calls(self.context.body):
            if name in _BY_VALUE or name.startswith(("__", "atomic", "static_cast", "make_")):
                continue
            arguments = field(call, "arguments")
            plain = arguments.named_children if arguments is not None else []
            found |= {text(n) for n in plain if n.type == "identifier"}
        return frozenset(found)

    @cached_property
    def sources(self) -> dict[str, frozenset[str]]:
        """Variable → the integer parameters it is computed from: of parameters that are not written, and of locals that
        hold nothing else but constants of the file or the template."""
        body = self.context.body
        found = {name: frozenset((name,)) for name in self.params if name not in self.writes}
        varying = {
            *self.writes,
            *syntax.declared(body),
            *syntax.BUILTINS,
            *(p.name for p in self.context.kernel.params),
        }
        for name, writes in self.writes.items():  # a local is set before it is used
            value = writes[0].value
            if len(writes) != 1 or value is None or next(syntax.of_type(value, "call_expression"), None):
                continue
            used = syntax.identifiers(value) & (varying | found.keys())
            if writes[0].op in ("=", "init") and used and used <= found.keys():
                found[name] = frozenset().union(*(found[one] for one in used))
        return found

    def behind(self, node: Node) -> frozenset[str]:
        """The parameters that alone decide on some variable in the expression."""
        return frozenset().union(*(self.sources.get(name, frozenset()) for name in syntax.identifiers(node)))

    def uniform(self, node: Node) -> bool:
        """Whether the expression is made of scalar parameters (and constants) alone: the same for all threads."""
        names = syntax.identifiers(node)
        return bool(names) and names <= self.sources.keys() and self.values(node) is not None

    def values(self, node: Node) -> tuple[int, ...] | None:
        """What an expression of scalar parameters was in each recorded launch; None when the text or the capture does
        not tell."""
        node = strip_parens(node)
        launches = len(self.context.workload.launches) if self.context.workload is not None else 0
        if node.type == "number_literal":
            try:
                return (int(text(node).rstrip("uUlL"), 0),) * launches
            except ValueError:
                return None
        if node.type == "identifier":
            name = text(node)
            if name in self.params and name in self.sources:
                return self.context.captured(name) or None
            value = self.writes[name][0].value if name in self.sources else None
            return self.values(value) if value is not None else None
        if node.type != "binary_expression" or operator(node) not in _EVALUATED:
            return None
        left, right = field(node, "left"), field(node, "right")
        a, b = (self.values(n) if n is not None else None for n in (left, right))
        if a is None or b is None or (operator(node) == "/" and 0 in b):
            return None
        return tuple(_EVALUATED[operator(node)](x, y) for x, y in zip(a, b, strict=True))

    # ---------------------------------------------------------------- signs

    def nonnegative(self, node: Node, pending: frozenset[str] = frozenset()) -> bool:
        """Whether an integer expression is never negative. Thread and block indices are taken to fit their variables; a
        parameter counts when its value in every launch does (see `assumed`). `pending`: variables this is asked for
        already, so that what keeps a sign in a loop is found by induction."""
        kind = node.type
        if kind == "number_literal":
            return True
        if kind in ("parenthesized_expression", "condition_clause") and node.named_child_count == 1:
            return self.nonnegative(node.named_children[0], pending)
        if kind == "cast_expression":
            value = field(node, "value")
            return value is not None and self.nonnegative(value, pending)
        if kind == "field_expression":
            argument = field(node, "argument")
            return argument is not None and text(argument) in syntax.BUILTINS
        if kind == "identifier":
            return self._never_negative(text(node), pending)
        if kind == "conditional_expression":
            return all(
                part is not None and self.nonnegative(part, pending)
                for part in (field(node, "consequence"), field(node, "alternative"))
            )
        if kind == "binary_expression":
            left, right = field(node, "left"), field(node, "right")
            if left is None or right is None or operator(node) not in ("+", "*", "/", "%", ">>"):
                return False
            return self.nonnegative(left, pending) and (
                operator(node) in ("%", ">>") or self.nonnegative(right, pending)
            )
        return False

    def _never_negative(self, name: str, pending: frozenset[str]) -> bool:
        if self.types.name(name) in ("unsigned", "uint64", "bool") or name in pending:
            return True
        writes = self.writes.get(name, [])
        if name in self.params:
            values = self.context.captured(name)
            if not values or min(values) < 0 or name in self.context.varied:
                return False
            self.assumed.add(name)
        elif name not in syntax.declared(self.context.body) or name in self.addressed:
            return False  # a variable of the file, or one that something else writes
        return all(
            w.op == "++" or (w.value is not None and w.op in _KEEPS and self.nonnegative(w.value, pending | {name}))
            for w in writes
        )


def _template_types(context: Context) -> dict[str, str]:
    """Template parameter → what it stands for in every captured launch."""
    found: dict[str, set[str]] = {}
    for _, arguments in blocks.shapes(context):
        for name, argument in arguments.items():
            found.setdefault(name, set()).add(argument)
    return {name: kinds.pop() for name, kinds in found.items() if len(kinds) == 1}


_EVALUATED = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if (a >= 0) == (b > 0) else -(-a // b),
}
_KEEPS = frozenset(("init", "=", "+=", "*=", "/=", "%=", ">>="))
_BY_VALUE = frozenset(
    (
        "min",
        "max",
        "abs",
        "sqrtf",
        "expf",
        "powf",
        "fmaxf",
        "fminf",
        "fabsf",
        "sqrt",
        "exp",
        "pow",
        "fmax",
        "fmin",
        "log",
    )
)
