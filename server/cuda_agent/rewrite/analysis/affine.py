"""Index expressions as polynomials over thread indices, loop variables, parameters and other names; pointers as
places.

Local variables with one definition are inlined, through casts, `auto` and parentheses; macros and one-line functions
are expanded; names of constants become numbers. What is no polynomial stays an operation that knows what it depends on.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import names
from cuda_agent.rewrite.analysis.dependence import AXES, READS, Dependence
from cuda_agent.rewrite.analysis.induction import Induction, Inductions
from cuda_agent.rewrite.analysis.inline import At, constant, inline_body, integer
from cuda_agent.rewrite.analysis.names import HasKernel, Names, Variable
from cuda_agent.rewrite.analysis.places import Place, Places
from cuda_agent.rewrite.analysis.polynomial import OPERATIONS, Poly
from cuda_agent.rewrite.analysis.sizes import counts, integer_type, size_of
from cuda_agent.source.tree import LOOPS, ancestors, arguments, callee, field, masked, operator, strip_parens, walk

_PRODUCTS = ("__mul24", "__umul24", "mul24", "IMUL", "IMAD")
_DEPTH = 40


def of(where: HasKernel, node: Node) -> Poly:
    """The integer expression at `node` (of the kernel's tree) as a polynomial."""
    return _of(names.of(where)).poly(node)


def place(where: HasKernel, node: Node) -> Place | None:
    """The element that `a[i]`, `*p`, `a[i][j]` or `a[i].x` is; None when it is not known which array it lies in."""
    return _of(names.of(where)).places.place(node)


def pointer(where: HasKernel, node: Node) -> Place | None:
    """The element that a pointer-valued expression points to."""
    return _of(names.of(where)).places.pointer(node)


def induction(where: HasKernel, loop: Node) -> Induction | None:
    """The variable that a `for` loop counts with."""
    return _of(names.of(where)).inductions.of(loop)


def variable(where: HasKernel, identifier: Node) -> Variable | None:
    """The parameter or local variable that an identifier of the kernel means."""
    return names.of(where).resolve(masked(identifier), identifier.start_byte)


def depends(where: HasKernel, variable: Variable) -> frozenset[str]:
    """Everything that any value of the variable may depend on: "memory" and "call" stand for loads and calls."""
    return _of(names.of(where)).dependence.depends(variable)


@lru_cache(maxsize=128)
def _of(scope: Names) -> Affine:
    return Affine(scope)


class Affine:
    """The expressions of one kernel. What stands in the body of a macro or function is read `at` its call."""

    def __init__(self, scope: Names) -> None:
        self.names = scope
        self.module = scope.module
        self.dependence = Dependence(scope)
        self.inductions = Inductions(scope, self.poly)
        self.places = Places(scope, self.poly, self.dependence.depends)
        self._cache: dict[int, Poly] = {}
        self._depth = 0
        self._cut = False  # the depth limit was met: what is above is not kept

    def poly(self, node: Node, at: At | None = None) -> Poly:
        if at is None and node.id in self._cache:
            return self._cache[node.id]
        if self._depth > _DEPTH:
            self._cut = True
            return self._opaque(node, at)
        self._depth += 1
        try:
            found = self._poly(node, at)
        finally:
            self._depth -= 1
        if at is None and not self._cut:
            self._cache[node.id] = found
        self._cut = self._cut and self._depth > 0
        return found

    def _poly(self, node: Node, at: At | None) -> Poly:
        match node.type:
            case "parenthesized_expression" if node.named_child_count == 1:
                return self.poly(node.named_children[0], at)
            case "number_literal":
                number = integer(masked(node))
                return self._opaque(node, at) if number is None else Poly.constant(number)
            case "true" | "false":
                return Poly.constant(int(node.type == "true"))
            case "identifier":
                return self._name(node, at)
            case "field_expression":
                spelled = re.sub(r"\s+", "", masked(node))
                return Poly.symbol(spelled) if spelled in AXES else self._opaque(node, at)
            case "cast_expression":
                value = field(node, "value")
                if value is not None and integer_type(masked(field(node, "type"))):
                    return self._whole(value, node, at)
            case "unary_expression":
                return self._unary(node, at)
            case "binary_expression":
                return self._binary(node, at)
            case "conditional_expression":
                parts = [field(node, f) for f in ("condition", "consequence", "alternative")]
                return Poly.operation("?", *(self.poly(p, at) for p in parts if p is not None))
            case "assignment_expression" if operator(node) == "=":
                value = field(node, "right")
                if value is not None:
                    return self.poly(value, at)
            case "call_expression":
                return self._call(node, at)
            case "subscript_expression" if at is None:
                return self._load(node)
            case "sizeof_expression":
                size = size_of(masked(field(node, "type") or strip_parens(field(node, "value") or node)))
                return self._opaque(node, at) if size is None else Poly.constant(size)
        return self._opaque(node, at)

    def _whole(self, value: Node, node: Node, at: At | None) -> Poly:
        """An integer cast: of an integer it changes nothing, of a float it rounds."""
        return self.poly(value, at) if self._integral(value, at) else self._opaque(node, at)

    def _integral(self, node: Node, at: At | None) -> bool:
        """Surely no floating-point arithmetic inside."""
        for n in walk(node, ("number_literal", "identifier", "call_expression", "subscript_expression")):
            if n.type == "number_literal" and integer(masked(n)) is None:
                return False
            if n.type == "identifier" and not (at is not None and masked(n) in at.values):
                found = self.names.resolve(masked(n), (at.node if at is not None else n).start_byte)
                if found is not None and not found.pointer and not counts(found) and found.type != "bool":
                    return False
        return True

    def _unary(self, node: Node, at: At | None) -> Poly:
        argument = field(node, "argument")
        sign = operator(node)
        if argument is None or sign not in "+-!~":
            return self._opaque(node, at)
        inner = self.poly(argument, at)
        return -inner if sign == "-" else inner if sign == "+" else Poly.operation(sign, inner)

    def _binary(self, node: Node, at: At | None) -> Poly:
        left, right, sign = field(node, "left"), field(node, "right"), operator(node)
        if left is None or right is None or (sign not in "+-*" and sign not in OPERATIONS):
            return self._opaque(node, at)
        if self._reads_as_cast(left, at):
            return self._opaque(node, at)
        a, b = self.poly(left, at), self.poly(right, at)
        match sign:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
        return Poly.operation(sign, a, b)

    def _reads_as_cast(self, node: Node, at: At | None) -> bool:
        """`(a) + b * c` that the parser took for a cast of `+b`, times c."""
        while node.type == "binary_expression" and (left := field(node, "left")) is not None:
            node = left
        if node.type != "cast_expression":
            return False
        name = masked(field(node, "type"))
        spot = at.node if at is not None else node
        return (at is not None and name in at.values) or self.names.resolve(name, spot.start_byte) is not None

    def _name(self, node: Node, at: At | None) -> Poly:
        name = masked(node)
        if at is not None and name in at.values:
            return at.values[name]
        spot = at.node if at is not None else node
        found = self.names.resolve(name, spot.start_byte)
        if found is None:
            return self._global(name, spot)
        return self._read(found, spot)

    def _read(self, variable: Variable, read: Node) -> Poly:
        for loop in ancestors(read, LOOPS):
            if names.iterates(loop, read):
                counted = self.inductions.of(loop)
                if counted is not None and counted.variable is variable:
                    return Poly.symbol(variable.symbol, self.dependence.depends(variable))
        if variable.param is not None and self.names.initial(variable, read):
            return Poly.symbol(variable.symbol)
        write = self.names.reaching(variable, read)
        known = integer_type(variable.type) or variable.type in ("auto", "bool") or variable.param is not None
        if write is not None and known and variable.pointer == 0 and not variable.extents:
            value = self._written(variable, write)
            if value is not None:
                return value
        return Poly.symbol(self.names.version(variable, read), self.dependence.depends(variable))

    def _written(self, variable: Variable, write: syntax.Write) -> Poly | None:
        """The variable's value after a write."""
        if write.op in ("init", "=") and write.value is not None:
            value = write.value
            if value.type in ("argument_list", "initializer_list"):
                if value.named_child_count != 1:
                    return None
                value = value.named_children[0]
            return self.poly(value)
        before = self._read(variable, write.target)
        if write.op in ("++", "--"):
            return before + (1 if write.op == "++" else -1)
        if write.value is None:
            return None
        by = self.poly(write.value)
        match write.op:
            case "+=":
                return before + by
            case "-=":
                return before - by
            case "*=":
                return before * by
        sign = write.op.removesuffix("=")
        return Poly.operation(sign, before, by) if sign in OPERATIONS else None

    def _global(self, name: str, spot: Node) -> Poly:
        """A macro, constant or template parameter."""
        value = constant(self.module, name, spot.start_byte)
        if value is not None and self._depth < _DEPTH:
            return self.poly(value, At(spot, {}))
        return Poly.symbol(name)

    def _call(self, node: Node, at: At | None) -> Poly:
        name, given = callee(node) or "", arguments(node)
        function = masked(field(node, "function"))
        cast = re.fullmatch(r"static_cast\s*<(.*)>", function)
        if len(given) == 1 and (integer_type(cast[1]) if cast else integer_type(function)):
            return self._whole(given[0], node, at)
        if name in ("min", "max") and len(given) == 2:
            return Poly.operation(name, *(self.poly(g, at) for g in given))
        if name in _PRODUCTS[:3] and len(given) == 2:
            return self.poly(given[0], at) * self.poly(given[1], at)
        body = inline_body(self.module, name, len(given))
        if body is not None and self._depth < _DEPTH:
            parameters, value = body
            values = {p: self.poly(g, at) for p, g in zip(parameters, given, strict=True)}
            spot = at.node if at is not None else node
            return self.poly(value, At(spot, values))
        return self._opaque(node, at)

    def _load(self, node: Node) -> Poly:
        """A load from memory that the kernel cannot write has one value for one index."""
        found = self.places.place(node)
        read_only = next(
            (p for p in self.names.kernel.params if found is not None and p.name == found.base and p.const), None
        )
        if found is None or found.inner or read_only is None:
            return self._opaque(node, None)
        name = f"{found.base}[{found.index}]"
        return Poly.operation("load", found.index, name=name, depends=("memory", found.base))

    def _opaque(self, node: Node, at: At | None) -> Poly:
        """Any other expression: equal texts with equal operands are equal, unless memory may change in between."""
        spot = at.node if at is not None else node
        on: set[str] = set()
        if at is None:
            plain, variables = self.dependence.used(node)
            on = set(plain).union(*({v.symbol} | self.dependence.depends(v) for v in variables))
        else:
            for n in walk(node, READS):
                on |= self.dependence.used_in_macro(n, at)
        text = re.sub(r"\s+", " ", masked(node))
        return Poly.operation("load", name=f"{text}@{spot.start_byte}", depends=on)
