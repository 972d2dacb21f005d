"""Index expressions as polynomials over thread indices, loop variables, parameters and other names; pointers as
places.

Local variables with one definition are inlined, through casts, `auto` and parentheses; macros and one-line functions
are expanded; names of constants become numbers. What is no polynomial stays an operation that knows what it depends on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from tree_sitter import Node

from cuda_agent.model import Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import names
from cuda_agent.rewrite.analysis.names import HasKernel, Names, Variable
from cuda_agent.rewrite.analysis.polynomial import OPERATIONS, Poly
from cuda_agent.source import declared
from cuda_agent.source.documents import decode
from cuda_agent.source.symbols import Module
from cuda_agent.source.tree import (
    LOOPS,
    ancestors,
    arguments,
    callee,
    enclosing,
    field,
    masked,
    operator,
    statements,
    strip_parens,
    subscript_parts,
    walk,
)

AXES = tuple(f"{b}.{a}" for b in ("threadIdx", "blockIdx", "blockDim", "gridDim") for a in "xyz")
SIZES = {
    **dict.fromkeys(("char", "signed char", "unsigned char", "bool", "int8_t", "uint8_t", "uchar"), 1),
    **dict.fromkeys(("short", "unsigned short", "ushort", "int16_t", "uint16_t", "half", "__half", "__nv_bfloat16"), 2),
    **dict.fromkeys(("int", "unsigned", "unsigned int", "uint", "float", "int32_t", "uint32_t", "half2", "__half2"), 4),
    **dict.fromkeys(("long", "unsigned long", "long long", "unsigned long long", "double", "size_t", "int64_t"), 8),
    **dict.fromkeys(("uint64_t", "ptrdiff_t", "float2", "int2", "uint2"), 8),
    **dict.fromkeys(("float4", "int4", "uint4", "double2", "longlong2"), 16),
    **dict.fromkeys(("uchar4", "char4", "short2"), 4),
    **dict.fromkeys(("float3", "int3", "uint3"), 12),
    "double4": 32,
}
_INTEGER = re.compile(
    r"(?:const\s+)?(?:(?:unsigned|signed|long|int)(?:\s+(?:int|long))*|size_t|ssize_t|ptrdiff_t|u?int(?:32|64)_t|uint|ulong"
    r"|\w*[iI]ndex\w*|\w*[iI]dx_t|\w*IndexType)"
)
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F']+|0[bB][01']+|[0-9][0-9']*)[uUlLzZ]*")
_PRODUCTS = ("__mul24", "__umul24", "mul24", "IMUL", "IMAD")
_BUILTINS = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim"))
_READS = frozenset(("identifier", "field_expression", "subscript_expression", "pointer_expression", "call_expression"))
_DECISIONS = frozenset((*LOOPS, "if_statement", "conditional_expression", "switch_statement"))
_DEPTH = 40


def integer_type(spelled: str) -> bool:
    """The type holds any index: an integer of 32 or 64 bits."""
    return _INTEGER.fullmatch(spelled.strip()) is not None


def size_of(element: str, module: Module | None = None) -> int | None:
    """Bytes of an element type, also of a name that the file gives to a known one; None of a template parameter or a
    struct."""
    bare = re.sub(r"\b(?:const|volatile)\b\s*", "", element).strip()
    return SIZES.get(bare) or (SIZES.get(_alias(module, bare)) if module is not None else None)


@lru_cache(maxsize=1024)
def _alias(module: Module, name: str) -> str:
    """What `typedef T name;`, `using name = T;` or `#define name T` of the file stands for; "" of any other name, and
    of one with several meanings."""
    word = re.escape(name.encode("utf-8", "surrogateescape"))
    typedef = rb"\btypedef\s+([\w ]+?)\s+" + word + rb"\s*;|\busing\s+" + word + rb"\s*=\s*([\w ]+?)\s*;"
    macro = rb"^[ \t]*#[ \t]*define[ \t]+" + word + rb"[ \t]+([\w ]+?)[ \t]*\r?$"
    found = [m[1] or m[2] for m in re.finditer(typedef, module.tree.lexed.code)]
    found += [m[1] for m in re.finditer(macro, module.document.data, re.M)]
    return decode(found[0]) if len(set(found)) == 1 else ""


@dataclass(frozen=True)
class Place:
    """An element of an array: `index` counts elements of type `element` from where `base` points. `base` is a
    parameter, an array of the kernel, or a global. `inner` are the extents still to be subscripted."""

    base: str
    index: Poly
    element: str
    inner: tuple[Poly, ...] = ()

    def moved(self, by: Poly) -> Place:
        return replace(self, index=self.index + by)


def of(where: HasKernel, node: Node) -> Poly:
    """The integer expression at `node` (of the kernel's tree) as a polynomial."""
    return _of(names.of(where)).poly(node)


def place(where: HasKernel, node: Node) -> Place | None:
    """The element that `a[i]`, `*p`, `a[i][j]` or `a[i].x` is; None when it is not known which array it lies in."""
    return _of(names.of(where)).place(node)


def pointer(where: HasKernel, node: Node) -> Place | None:
    """The element that a pointer-valued expression points to."""
    return _of(names.of(where)).pointer(node)


def induction(where: HasKernel, loop: Node) -> Induction | None:
    """The variable that a `for` loop counts with."""
    return _of(names.of(where)).induction(loop)


def variable(where: HasKernel, identifier: Node) -> Variable | None:
    """The parameter or local variable that an identifier of the kernel means."""
    return names.of(where).resolve(masked(identifier), identifier.start_byte)


def depends(where: HasKernel, variable: Variable) -> frozenset[str]:
    """Everything that any value of the variable may depend on: "memory" and "call" stand for loads and calls."""
    return _of(names.of(where)).depends(variable)


@lru_cache(maxsize=128)
def _of(scope: Names) -> Affine:
    return Affine(scope)


@dataclass(frozen=True)
class Induction:
    """`for (v = start; v relation bound; v += step)`, v not written elsewhere in the loop."""

    variable: Variable
    loop: Node
    start: Poly
    step: Poly
    condition: Node | None

    @property
    def symbol(self) -> str:
        """The variable's name in polynomials inside the loop."""
        return self.variable.symbol


@dataclass(frozen=True)
class _At:
    """Where an expression of another tree (a macro body, a function's result) stands in the kernel, with its
    arguments."""

    node: Node
    values: Mapping[str, Poly]


class Affine:
    def __init__(self, scope: Names) -> None:
        self.names = scope
        self.module: Module = scope.module
        self._cache: dict[int, Poly] = {}
        self._inductions: dict[int, Induction | None] = {}
        self._uses: dict[int, tuple[frozenset[str], tuple[Variable, ...]]] = {}
        self._leaves: dict[int, tuple[Node, ...]] = {}
        self._depends: dict[str, frozenset[str]] = {}
        self._depth = 0
        self._cut = False  # the depth limit was met: what is above is not kept
        self._pointing: set[int] = set()

    # ------------------------------------------------------------ expressions

    def poly(self, node: Node, at: _At | None = None) -> Poly:
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

    def _poly(self, node: Node, at: _At | None) -> Poly:
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

    def _whole(self, value: Node, node: Node, at: _At | None) -> Poly:
        """An integer cast: of an integer it changes nothing, of a float it rounds."""
        return self.poly(value, at) if self._integral(value, at) else self._opaque(node, at)

    def _integral(self, node: Node, at: _At | None) -> bool:
        """Surely no floating-point arithmetic inside."""
        for n in walk(node, ("number_literal", "identifier", "call_expression", "subscript_expression")):
            if n.type == "number_literal" and integer(masked(n)) is None:
                return False
            if n.type == "identifier" and not (at is not None and masked(n) in at.values):
                found = self.names.resolve(masked(n), (at.node if at is not None else n).start_byte)
                if found is not None and not found.pointer and not _counts(found) and found.type != "bool":
                    return False
        return True

    def _unary(self, node: Node, at: _At | None) -> Poly:
        argument = field(node, "argument")
        sign = operator(node)
        if argument is None or sign not in "+-!~":
            return self._opaque(node, at)
        inner = self.poly(argument, at)
        return -inner if sign == "-" else inner if sign == "+" else Poly.operation(sign, inner)

    def _binary(self, node: Node, at: _At | None) -> Poly:
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

    def _reads_as_cast(self, node: Node, at: _At | None) -> bool:
        """`(a) + b * c` that the parser took for a cast of `+b`, times c."""
        while node.type == "binary_expression" and (left := field(node, "left")) is not None:
            node = left
        if node.type != "cast_expression":
            return False
        name = masked(field(node, "type"))
        spot = at.node if at is not None else node
        return (at is not None and name in at.values) or self.names.resolve(name, spot.start_byte) is not None

    def _name(self, node: Node, at: _At | None) -> Poly:
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
                counted = self.induction(loop)
                if counted is not None and counted.variable is variable:
                    return Poly.symbol(variable.symbol, self.depends(variable))
        if variable.param is not None and self.names.initial(variable, read):
            return Poly.symbol(variable.symbol)
        write = self.names.reaching(variable, read)
        known = integer_type(variable.type) or variable.type in ("auto", "bool") or variable.param is not None
        if write is not None and known and variable.pointer == 0 and not variable.extents:
            value = self._written(variable, write)
            if value is not None:
                return value
        return Poly.symbol(self.names.version(variable, read), self.depends(variable))

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
            return self.poly(value, _At(spot, {}))
        return Poly.symbol(name)

    def _call(self, node: Node, at: _At | None) -> Poly:
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
            return self.poly(value, _At(spot, values))
        return self._opaque(node, at)

    def _load(self, node: Node) -> Poly:
        """A load from memory that the kernel cannot write has one value for one index."""
        found = self.place(node)
        read_only = next(
            (p for p in self.names.kernel.params if found is not None and p.name == found.base and p.const), None
        )
        if found is None or found.inner or read_only is None:
            return self._opaque(node, None)
        name = f"{found.base}[{found.index}]"
        return Poly.operation("load", found.index, name=name, depends=("memory", found.base))

    def _opaque(self, node: Node, at: _At | None) -> Poly:
        """Any other expression: equal texts with equal operands are equal, unless memory may change in between."""
        spot = at.node if at is not None else node
        on: set[str] = set()
        if at is None:
            plain, variables = self._used(node)
            on = set(plain).union(*({v.symbol} | self.depends(v) for v in variables))
        else:
            for n in walk(node, _READS):
                on |= self._used_in_macro(n, at)
        text = re.sub(r"\s+", " ", masked(node))
        return Poly.operation("load", name=f"{text}@{spot.start_byte}", depends=on)

    def _used_in_macro(self, n: Node, at: _At) -> frozenset[str]:
        spelled = re.sub(r"\s+", "", masked(n))
        if n.type == "call_expression":
            return frozenset(_call_effect(self.module, n))
        if n.type == "field_expression":
            return frozenset({spelled} & set(AXES))
        if n.type != "identifier":
            return frozenset({"memory"})
        if spelled in at.values:
            return at.values[spelled].names
        found = self.names.resolve(spelled, at.node.start_byte)
        if found is not None:
            return self.depends(found) | {found.symbol}
        return frozenset({spelled} - _BUILTINS)

    # ------------------------------------------------------------ dependence

    def depends(self, variable: Variable) -> frozenset[str]:
        """Everything that any value of the variable may depend on, through definitions, conditions and loops around
        its writes."""
        if variable.symbol not in self._depends:
            self._depends[variable.symbol] = frozenset(self._closure(variable))
        return self._depends[variable.symbol]

    def _closure(self, variable: Variable) -> set[str]:
        on: set[str] = set()
        seen = {variable.symbol}
        todo = [variable]
        while todo:
            one = todo.pop()
            on.add(one.symbol)
            if one.escapes:
                on.add("call")
            for source in self._sources(one):
                plain, variables = self._used(source)
                on |= plain
                todo += [v for v in variables if v.symbol not in seen]
                seen |= {v.symbol for v in variables}
        return on

    def _used(self, node: Node) -> tuple[frozenset[str], tuple[Variable, ...]]:
        """(names, variables) that an expression reads; "memory" and "call" are names here."""
        if node.id not in self._uses:
            plain: set[str] = set()
            variables: list[Variable] = []
            for n in walk(node, _READS):
                spelled = masked(n)
                if n.type == "field_expression":
                    if (axis := re.sub(r"\s+", "", spelled)) in AXES:
                        plain.add(axis)
                elif n.type == "call_expression":
                    plain |= _call_effect(self.module, n)
                elif n.type != "identifier":
                    plain.add("memory")
                elif (found := self.names.resolve(spelled, n.start_byte)) is not None:
                    variables.append(found)
                elif spelled not in _BUILTINS:
                    plain.add(spelled)
            self._uses[node.id] = frozenset(plain), tuple(variables)
        return self._uses[node.id]

    def _sources(self, variable: Variable) -> list[Node]:
        """The values written to a variable and the conditions under which they are."""
        found: dict[int, Node] = {}
        for w in variable.writes:
            if w.value is not None:
                found[w.value.id] = w.value
            for above in ancestors(w.node, _DECISIONS):
                condition = above.child_by_field_name("condition")
                if condition is None or above.start_byte < variable.scope.start_byte:
                    continue
                if w.op == "init" and variable.scope.start_byte >= above.start_byte and above.type != "for_statement":
                    continue  # declared inside: it only exists where the condition held
                found |= {c.id: c for c in (condition, *self._leaving(above))}
        return list(found.values())

    def _leaving(self, node: Node) -> tuple[Node, ...]:
        """Conditions below the node under which a loop or the kernel is left."""
        if node.id not in self._leaves:
            ifs = (n for n in walk(node, "if_statement") if _leaves(n))
            self._leaves[node.id] = tuple(c for n in ifs if (c := n.child_by_field_name("condition")) is not None)
        return self._leaves[node.id]

    # ------------------------------------------------------------ loops

    def induction(self, loop: Node) -> Induction | None:
        if loop.id not in self._inductions:
            self._inductions[loop.id] = None  # a loop whose own step depends on its variable
            self._inductions[loop.id] = self._induction(loop)
        return self._inductions[loop.id]

    def _induction(self, loop: Node) -> Induction | None:
        if loop.type != "for_statement":
            return None
        update = loop.child_by_field_name("update")
        first = loop.child_by_field_name("initializer")
        if update is None or first is None:
            return None
        changes = [w for w in syntax.writes(update) if w.target.type == "identifier"]
        for change in changes:
            variable = self.names.resolve(masked(change.target), change.target.start_byte)
            if variable is None or variable.escapes or variable.pointer or not _counts(variable):
                continue
            inside = [w for w in variable.writes if names.iterates(loop, w.node)]
            step = self._step(variable, change)
            starts = [
                w for w in syntax.writes(first) if w.target.type == "identifier" and masked(w.target) == variable.name
            ]
            if [w.node for w in inside] != [change.node] or step is None or len(starts) != 1 or starts[0].value is None:
                continue
            if step.depends(variable.symbol):
                continue
            value = starts[0].value
            if value.type in ("argument_list", "initializer_list") and value.named_child_count == 1:
                value = value.named_children[0]
            return Induction(variable, loop, self.poly(value), step, loop.child_by_field_name("condition"))
        return None

    def _step(self, variable: Variable, change: syntax.Write) -> Poly | None:
        if change.op in ("++", "--"):
            return Poly.constant(1 if change.op == "++" else -1)
        if change.value is None:
            return None
        if change.op in ("+=", "-="):
            by = self.poly(change.value)
            return by if change.op == "+=" else -by
        value = strip_parens(change.value)
        if change.op != "=" or value.type != "binary_expression" or operator(value) not in "+-":
            return None
        left, right = field(value, "left"), field(value, "right")
        if left is None or right is None:
            return None
        if masked(left) == variable.name:
            by = self.poly(right)
            return by if operator(value) == "+" else -by
        if masked(right) == variable.name and operator(value) == "+":
            return self.poly(left)
        return None

    # ------------------------------------------------------------ places

    def place(self, node: Node) -> Place | None:
        node = strip_parens(node)
        if node.type == "subscript_expression":
            array, index = subscript_parts(node)
            found = self.pointer(array) if array is not None else None
            if found is None or index is None:
                return None
            by = self.poly(index)
            for extent in found.inner[1:]:
                by = by * extent
            return replace(found.moved(by), inner=found.inner[1:])
        if node.type == "pointer_expression" and operator(node) == "*":
            argument = field(node, "argument")
            return self.pointer(argument) if argument is not None else None
        if node.type == "field_expression":
            argument = field(node, "argument")
            if argument is not None and masked(node)[len(masked(argument)) :].lstrip().startswith("->"):
                return self.pointer(argument)
            return self.place(argument) if argument is not None else None
        return None

    def pointer(self, node: Node, depth: int = 0) -> Place | None:
        node = strip_parens(node)
        if depth > _DEPTH:
            return None
        match node.type:
            case "identifier":
                return self._named(node, depth)
            case "subscript_expression":  # a row of an array of arrays
                found = self.place(node)
                return found if found is not None and found.inner else None
            case "pointer_expression" if operator(node) == "&":
                argument = field(node, "argument")
                found = self.place(argument) if argument is not None else None
                if argument is not None and argument.type == "field_expression":
                    return None
                return found
            case "binary_expression" if operator(node) in ("+", "-"):
                left, right = field(node, "left"), field(node, "right")
                if left is None or right is None:
                    return None
                for one, other in ((left, right), (right, left)):
                    found = self.pointer(one, depth + 1)
                    if found is not None and not found.inner[1:] and (one is left or operator(node) == "+"):
                        by = self.poly(other)
                        return found.moved(by if operator(node) == "+" else -by)
                return None
            case "cast_expression":
                value, kind = field(node, "value"), field(node, "type")
                return self._cast(value, masked(kind), depth) if value is not None else None
            case "call_expression":
                given = arguments(node)
                cast = re.fullmatch(
                    r"(?:reinterpret|static|const)_cast\s*<(.*)>", masked(field(node, "function")), re.S
                )
                if cast and len(given) == 1:
                    return self._cast(given[0], cast[1], depth)
        return None

    def _cast(self, value: Node, kind: str, depth: int) -> Place | None:
        found = self.pointer(value, depth + 1)
        element = re.sub(r"\b(?:const|volatile|__restrict__|restrict)\b", "", kind.split("*")[0]).strip()
        if found is None or kind.count("*") != 1:
            return None
        if found.element == element:
            return replace(found, inner=())
        if found.index == Poly():
            return replace(found, element=element, inner=())
        old, new = size_of(found.element), size_of(element)
        if old is None or new is None:
            return None
        if (old % new) == 0:
            return replace(found, element=element, index=found.index * (old // new), inner=())
        scaled = Poly.operation("/", found.index * old, Poly.constant(new))
        return replace(found, element=element, index=scaled, inner=())

    def _named(self, node: Node, depth: int) -> Place | None:
        if node.id in self._pointing:
            return None  # a pointer that is made from itself
        self._pointing.add(node.id)
        try:
            return self._pointed(node, depth)
        finally:
            self._pointing.discard(node.id)

    def _pointed(self, node: Node, depth: int) -> Place | None:
        variable = self.names.resolve(masked(node), node.start_byte)
        if variable is None:
            element = global_array(self.module, masked(node))
            return Place(masked(node), Poly(), element) if element is not None else None
        if variable.is_array:
            extents = tuple(self.poly(e) for e in variable.extents)
            return Place(variable.symbol, Poly(), variable.type, extents or (Poly(),))
        if variable.param is not None and self.names.initial(variable, node):
            return Place(variable.symbol, Poly(), variable.type) if variable.pointer == 1 else None
        if variable.pointer != 1 and variable.type != "auto":
            return None
        write = self.names.reaching(variable, node)
        if write is not None:
            if write.op in ("init", "=") and write.value is not None:
                value = write.value
                if value.type in ("argument_list", "initializer_list") and value.named_child_count == 1:
                    value = value.named_children[0]
                found = self.pointer(value, depth + 1)
                return replace(found, inner=found.inner[1:] and found.inner) if found is not None else None
            if write.op in ("+=", "-=") and write.value is not None:
                before = self._named(write.target, depth + 1)
                by = self.poly(write.value)
                return before.moved(by if write.op == "+=" else -by) if before is not None else None
        return self._moving(variable, node, depth)

    def _moving(self, variable: Variable, read: Node, depth: int) -> Place | None:
        """A pointer that changes: within one array still, where every value comes from that array."""
        roots = set()
        element = variable.type
        for w in variable.writes:
            if w.op in ("+=", "-=", "++", "--"):
                continue
            if w.value is None:
                return None
            if variable.name in {masked(n) for n in walk(w.value, "identifier")}:
                continue  # p = p + n
            found = self.pointer(w.value, depth + 1)
            if found is None:
                return None
            roots.add(found.base)
        if variable.param is not None:
            roots.add(variable.symbol)
        if len(roots) != 1 or variable.escapes:
            return None
        index = Poly.symbol(self.names.version(variable, read), self.depends(variable))
        return Place(roots.pop(), index, element)


def integer(literal: str) -> int | None:
    """The value of an integer literal; None of a float."""
    match = _NUMBER.fullmatch(literal)
    if match is None:
        return None
    digits = match[1].replace("'", "")
    return int(digits, 8) if re.fullmatch(r"0[0-7]+", digits) else int(digits, 0)


def _counts(variable: Variable) -> bool:
    return (
        integer_type(variable.type)
        or variable.type in ("auto", "char", "short", "unsigned short")
        or _typename(variable)
    )


def _typename(variable: Variable) -> bool:
    return re.fullmatch(r"\w+", variable.type) is not None and size_of(variable.type) is None


def _leaves(node: Node) -> bool:
    consequence = node.child_by_field_name("consequence")
    return consequence is not None and any(
        s.type in ("break_statement", "return_statement", "continue_statement") for s in statements(consequence)
    )


def _call_effect(module: Module, call: Node) -> set[str]:
    """What a call's result depends on besides its arguments."""
    name = callee(call) or ""
    pure = names._BY_VALUE.fullmatch(name) and not name.startswith(("__", "atomic"))
    return set() if pure or inline_body(module, name, len(arguments(call))) else {"call"}


# ---------------------------------------------------------------- the file around the kernel


@lru_cache(maxsize=2048)
def constant(module: Module, name: str, at: int) -> Node | None:
    """The expression that an object-like macro or a constant of the file stands for, in a tree of its own."""
    found = declared.declared(module, name, at)
    if (
        found.value is None
        or found.value.type == "translation_unit"
        or name in {masked(n) for n in walk(found.value, "identifier")}
    ):
        return None
    macro = re.search(
        rb"^[ \t]*#[ \t]*define[ \t]+" + re.escape(name.encode("utf-8", "surrogateescape")) + rb"\b",
        module.document.data,
        re.M,
    )
    if macro is None and found.kind != "integer":
        return None
    if macro is None:
        around = module.root.descendant_for_byte_range(found.at, found.at)
        declaration = (
            around
            if around is not None and around.type == "declaration"
            else (enclosing(around, "declaration") if around is not None else None)
        )
        words = masked(declaration)[:200] if declaration is not None else ""
        if not re.search(r"\bconst(expr)?\b", words):
            return None  # a global that host code may set
    return found.value


@lru_cache(maxsize=2048)
def inline_body(module: Module, name: str, count: int) -> tuple[tuple[str, ...], Node] | None:
    """(parameters, expression) of a macro with arguments, or of a function of the file that only returns an
    expression; None when there is none, several, or another number of arguments."""
    if not name:
        return None
    word = re.escape(name.encode("utf-8", "surrogateescape"))
    bodies: list[tuple[tuple[str, ...], str]] = []
    for directive in module.tree.lexed.directives:
        if directive.keyword == "define":
            line = decode(module.document.data[directive.span.start : directive.span.end]).replace("\\\n", " ")
            match = re.match(rf"#\s*define\s+{re.escape(name)}\(([\w\s,]*)\)(.*)$", line, re.S)
            if match:
                text = re.sub(r"//.*|/\*.*?\*/", " ", match[2], flags=re.S).strip()
                bodies.append((tuple(p.strip() for p in match[1].split(",") if p.strip()), text))
    function = re.compile(rb"(?<![\w.>:])" + word + rb"\s*\(([^(){};]*)\)\s*\{\s*return\b([^;{}]*);\s*\}")
    for found in function.finditer(module.tree.lexed.code):
        names_ = [re.search(r"(\w+)\s*(?:=.*)?$", p.strip()) for p in decode(found[1]).split(",") if p.strip()]
        bodies.append((tuple(p[1] for p in names_ if p), module.document.slice(Span(*found.span(2))).strip()))
    if len(bodies) != 1 or len(bodies[0][0]) != count:
        return None
    parameters, code = bodies[0]
    for p in parameters:  # `(i) + (j)` reads as a cast without the macro's arguments
        code = re.sub(rf"(?<![\w)\]])(\s*)\(\s*{p}\s*\)", rf"\1{p}", code)
    value = declared.expression(code)
    if value.type == "translation_unit" or re.search(r"(?<![=!<>])=(?!=)|\+\+|--", bodies[0][1]):
        return None
    return parameters, value


@lru_cache(maxsize=2048)
def global_array(module: Module, name: str) -> str | None:
    """The element type of a `__device__` or `__constant__` array of the file."""
    word = re.escape(name.encode("utf-8", "surrogateescape"))
    found = re.search(rb"__(?:device|constant)__[^;{}()]*?([\w:]+)\s+" + word + rb"\s*\[", module.tree.lexed.code)
    return decode(found[1]) if found else None
