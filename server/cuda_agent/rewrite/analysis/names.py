"""Variables of a kernel: where each is visible, what writes it, and which write a read sees. (For names
that never change, as text: `definitions.py`.)

`reaching` is a small reaching-definitions analysis on the tree: a read sees the last write before it in the text, when
that write is on every path to the read. A read that may see several writes has no single definition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Kernel, Param, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import dispatch
from cuda_agent.source.symbols import Module
from cuda_agent.source.tree import LOOPS, ancestors, callee, masked, name_of, operator, span, walk

_SCOPES = frozenset(
    ("compound_statement", "for_statement", "for_range_loop", "if_statement", "while_statement", "lambda_expression")
)
_BRANCHES = frozenset(("conditional_expression", "if_statement", "case_statement", "switch_statement"))
# Functions of CUDA and C++ that take their arguments by value.
_BY_VALUE = re.compile(
    r"__\w+|atomic\w+|f?abs[fl]?|f?(?:min|max)[fl]?|(?:sin|cos|tan|sinh|cosh|tanh|asin|acos|atan|atan2|exp|exp2|exp10|expm1"
    r"|log|log2|log10|log1p|sqrt|rsqrt|cbrt|pow|floor|ceil|round|rint|trunc|erf|erfc|hypot|fma|fmod)[fl]?|make_\w+|assert"
    r"|printf|size_t|int|float|double|unsigned|(?:static|reinterpret|const)_cast|isnan|isinf|sizeof|u?int\d+_t|long|dim3"
)


class HasKernel(Protocol):
    """A rule's Context, or anything else that names one kernel of one text."""

    @property
    def module(self) -> Module: ...
    @property
    def kernel(self) -> Kernel: ...


@dataclass(eq=False)
class Variable:
    """A parameter or local variable. `symbol` is its name in polynomials: with a number where the kernel has several
    of that name."""

    name: str
    symbol: str
    type: str  # as spelled, without declarators: "const float"
    pointer: int  # levels of indirection of a pointer; 0 for scalars and arrays
    extents: tuple[Node, ...]  # of an array, outermost first
    declarator: Node | None  # None for a parameter
    scope: Node
    start: int  # visible from this offset to the end of the scope
    param: Param | None = None
    shared: bool = False
    escapes: bool = False  # its address is taken or it is passed by reference: unknown writes
    writes: list[syntax.Write] = field(default_factory=list)
    uses: list[Node] = field(default_factory=list)

    @property
    def is_array(self) -> bool:
        return bool(self.extents) or (self.shared and self.declarator is not None and "[" in masked(self.declarator))


class Names:
    """The variables of one kernel."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.module, self.kernel = module, kernel
        self.body = next(
            (
                n
                for n in syntax.of_type(module.node(kernel.body), "compound_statement")
                if syntax.span(n) == kernel.body
            ),
            None,
        ) or _missing(kernel)
        self.variables = list(self._variables())
        self._by_name: dict[str, list[Variable]] = {}
        for v in self.variables:
            same = self._by_name.setdefault(v.name, [])
            if same:
                v.symbol = f"{v.name}#{len(same) + 1}"
            same.append(v)
        self._collect()

    def resolve(self, name: str, at: int) -> Variable | None:
        """The variable that `name` means at the offset: None for a macro, a global or a template parameter."""
        visible = [v for v in self._by_name.get(name, ()) if v.start <= at < v.scope.end_byte]
        return max(visible, key=lambda v: v.start, default=None)

    def variable(self, symbol: str) -> Variable | None:
        return next((v for v in self.variables if v.symbol == symbol), None)

    def reaching(self, variable: Variable, read: Node) -> syntax.Write | None:
        """The one write that a read at this node sees; None when there may be several, or none before it."""
        if variable.escapes:
            return None
        before = [w for w in variable.writes if w.node.end_byte <= read.start_byte]
        if not before:
            return None
        last = before[-1]
        for loop in ancestors(read, LOOPS):  # an update runs after the body that follows it in the text
            update, body = loop.child_by_field_name("update"), loop.child_by_field_name("body")
            updates = update is not None and span(update).holds(span(read))
            if updates and body is not None and any(span(body).holds(span(w.node)) for w in variable.writes):
                return None
        return last if self._dominates(last.node, read) and not self._carried(variable, last.node, read) else None

    def initial(self, variable: Variable, read: Node) -> bool:
        """A parameter that still has its argument's value at the read."""
        return (
            variable.param is not None
            and not variable.escapes
            and all(w.node.start_byte >= read.start_byte or w.node.end_byte > read.start_byte for w in variable.writes)
            and not self._carried(variable, None, read)
        )

    def version(self, variable: Variable, read: Node) -> str:
        """Reads of the variable with equal versions see the same value within one iteration of the loops around."""
        count = sum(w.node.end_byte <= read.start_byte for w in variable.writes)
        loop = next((l for l in ancestors(read, LOOPS) if iterates(l, read) and _written_in(variable, l)), None)
        return f"{variable.symbol}@{count}" + (f".{self.module.line(loop.start_byte)}" if loop is not None else "")

    @staticmethod
    def _dominates(write: Node, read: Node) -> bool:
        """The write, before the read in the text, is done whenever the read is."""
        node = write
        while (parent := node.parent) is not None:
            if _conditional(parent, node):
                return False
            if span(parent).holds(span(read)):
                return True
            node = parent
        return False

    @staticmethod
    def _carried(variable: Variable, write: Node | None, read: Node) -> bool:
        """A loop around the read, but not around the write, writes the variable: a later iteration sees that."""
        for loop in ancestors(read, LOOPS):
            if not iterates(loop, read):
                continue
            if write is not None and iterates(loop, write):
                continue
            if _written_in(variable, loop):
                return True
        return False

    # ------------------------------------------------------------ building

    def _variables(self) -> Iterator[Variable]:
        for p in self.kernel.params:
            yield Variable(p.name, p.name, p.element, p.pointer, (), None, self.body, self.body.start_byte, p)
        for node in walk(self.body, ("declaration", "for_range_loop")):
            kind = masked(node.child_by_field_name("type"))
            scope = next(ancestors(node, _SCOPES), self.body) if node.type == "declaration" else node
            shared = any(masked(c) == "__shared__" for c in node.children if c.type == "type_qualifier")
            for d in node.children_by_field_name("declarator"):
                yield from _declared(d, kind, scope, shared)

    def _collect(self) -> None:
        for write in syntax.writes(self.body):
            target = write.target
            if write.op == "init":
                name = name_of(target)
                start = _identifier(target)
                found = self.resolve(name, start.start_byte) if name and start is not None else None
                if found is not None and target.type != "reference_declarator":
                    found.writes.append(write)
            else:
                while target.type == "parenthesized_expression" and target.named_child_count == 1:
                    target = target.named_children[0]
                if target.type == "identifier" and (found := self.resolve(masked(target), target.start_byte)):
                    found.writes.append(write)
                elif target.type == "field_expression":
                    root = target.child_by_field_name("argument")
                    found = self.resolve(masked(root), root.start_byte) if root is not None else None
                    if found is not None:
                        found.escapes = True  # a member changes: the value is not one number
        for node in walk(self.body, "identifier"):
            found = self.resolve(masked(node), node.start_byte)
            if found is not None:
                found.uses.append(node)
                found.escapes = found.escapes or self._escapes(found, node)
        for v in self.variables:
            v.writes.sort(key=lambda w: w.node.end_byte)

    def _escapes(self, variable: Variable, use: Node) -> bool:
        above = use.parent
        if above is None:
            return False
        if above.type == "pointer_expression":
            return operator(above) == "&"
        if above.type == "reference_declarator" or above.type == "lambda_capture_specifier":
            return True
        if above.type == "init_declarator":
            declarator = above.child_by_field_name("declarator")
            return declarator is not None and declarator.type == "reference_declarator" and declarator != use
        if above.type == "argument_list" and above.parent is not None and above.parent.type == "call_expression":
            name = callee(above.parent) or ""
            taken = None if _BY_VALUE.fullmatch(name) else by_reference(self.module, name)
            # A function of another file may take an integer by reference; hardly ever a pointer.
            return taken is True or (taken == "unknown" and not variable.pointer and not variable.is_array)
        return above.type in ("gnu_asm_output_operand", "asm_statement")


def by_value(function: str) -> bool:
    """A function of CUDA or C++ that computes a value from its arguments and reads nothing else."""
    return _BY_VALUE.fullmatch(function) is not None and not function.startswith(("__ld", "__st", "atomic", "printf"))


@lru_cache(maxsize=512)
def by_reference(module: Module, function: str) -> bool | Literal["unknown"]:
    """Whether a function may change a variable that is passed to it; "unknown" when it is not in this file."""
    if not function:
        return False  # a call through something else than a name
    code = module.tree.lexed.code
    word = re.escape(function.encode("utf-8", "surrogateescape"))
    define = rb"^[ \t]*#[ \t]*define[ \t]+" + word + rb"\([^)]*\)((?:[^\n\\]|\\.|\\\n)*)"
    macro = re.search(define, module.document.data, re.M)
    if macro is not None:
        return re.search(rb"(?<![=!<>])=(?!=)|\+\+|--", macro[1]) is not None
    found = re.findall(rb"(?<![\w.>])" + word + rb"\s*\(([^(){};]*(?:\([^()]*\)[^(){};]*)*)\)\s*\{", code)
    return any(b"&" in parameters for parameters in found) if found else "unknown"


def of(where: HasKernel) -> Names:
    """The variables of the kernel, found once for a text. RuleRefused when its body is not understood."""
    return where if isinstance(where, Names) else _names(where.module, where.kernel.span)


@lru_cache(maxsize=128)
def _names(module: Module, kernel: Span) -> Names:  # a span, as hashing a whole Kernel takes longer than the look-up
    return Names(module, dispatch.worker(module, next(k for k in module.kernels if k.span == kernel)))


def iterates(loop: Node, node: Node) -> bool:
    """The node is run by every iteration: in the loop, and not the initialiser of a `for`."""
    if not span(loop).holds(span(node)) or loop == node:
        return False
    first = loop.child_by_field_name("initializer")
    return first is None or not span(first).holds(span(node))


def _written_in(variable: Variable, loop: Node) -> bool:
    """The loop changes a variable that lives through its iterations."""
    return any(w.op != "init" and iterates(loop, w.node) for w in variable.writes)


def _conditional(parent: Node, node: Node) -> bool:
    """Whether the parent may leave its child out, or run it after the parts that follow it in the text."""
    if parent.type in _BRANCHES:
        return node != parent.child_by_field_name("condition")
    if parent.type in LOOPS and parent.type != "do_statement":
        return node in (parent.child_by_field_name("body"), parent.child_by_field_name("update"))
    if parent.type == "binary_expression" and operator(parent) in ("&&", "||"):
        return node == parent.child_by_field_name("right")
    return parent.type in ("lambda_expression", "else_clause")


def _declared(declarator: Node, kind: str, scope: Node, shared: bool) -> Iterator[Variable]:
    node = declarator.child_by_field_name("declarator") if declarator.type == "init_declarator" else declarator
    extents: list[Node] = []
    pointer = 0
    outer = node
    while node is not None and node.type != "identifier":
        if node.type == "array_declarator":
            size = node.child_by_field_name("size")
            if size is not None:
                extents.insert(0, size)
        elif node.type == "pointer_declarator":
            pointer += 1
        elif node.type == "function_declarator":
            return  # `float v(a)` that the parser took for a prototype: not a variable that we know
        inner = node.child_by_field_name("declarator")
        node = inner or (node.named_children[-1] if node.named_children else None)
    if node is not None:
        name = masked(node)
        v = Variable(name, name, kind, pointer, tuple(extents), outer, scope, node.start_byte, shared=shared)
        v.escapes = outer is not None and outer.type == "reference_declarator"
        yield v


def _identifier(node: Node) -> Node | None:
    return next(walk(node, "identifier"), None)


def _missing(kernel: Kernel) -> Node:
    raise RuleRefused(f"{kernel.name} has no body the parser understands")
