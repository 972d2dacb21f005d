"""One-token mutants of a kernel's text, all of them in one text (a mutant schema; Untch, Offutt and Harrold 1993).

Each mutated expression becomes a call that computes the original's value, or the mutant's where a device variable
holds that mutant's number: one compilation, and one kernel under its own name, for all of them.

Only tokens that carry values are mutated: arithmetic and constants in expressions that hold loaded data or float
parameters, and the index of a load from a pointer parameter (to the next element, where the buffer has one). Loop
headers, guards and the arithmetic of coordinates and store indices are not: whether these matter depends on the size
and the shape of the launch, not on the data.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from cuda_agent.model import Kernel
from cuda_agent.source import tree
from cuda_agent.source.documents import decode
from cuda_agent.source.symbols import Module

NUMBER = "cuda_agent_mutant"  # the device variable: which mutant runs, 0 for none
EXTENTS = "cuda_agent_extents"  # bytes before and after where each parameter points: long long [2 * PARAMETERS]
PARAMETERS = 32
LOADS = 3  # of the wanted mutants, at least so many are loads where there are
_SWAPS = {"+": "-", "-": "+", "*": "+", "/": "*"}
_NAMES = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_EXTREMA = {"fmaxf": "fminf", "fminf": "fmaxf", "fmax": "fmin", "fmin": "fmax", "max": "min", "min": "max"}
_WHOLE = frozenset(("negated", "one", "more"))  # functions of the prelude that take an expression's value
_CLOSED = frozenset(("subscript_argument_list", "template_argument_list", "ERROR", "lambda_expression"))
_FLOAT = re.compile(r"\b(float[1-4]?|double[1-4]?|half2?|__half2?|__nv_bfloat162?|T|scalar_t)\b")
_PRELUDE = f"""\
__device__ int {NUMBER} = 0;
__device__ long long {EXTENTS}[{2 * PARAMETERS}] = {{0}};
#define CUDA_AGENT_SWAP(name, is, was) \\
    template <class A, class B> __device__ inline auto cuda_agent_##name(int k, A a, B b) -> decltype(a is b) \\
    {{ return {NUMBER} == k ? (a was b) : (a is b); }}
CUDA_AGENT_SWAP(add, +, -)
CUDA_AGENT_SWAP(sub, -, +)
CUDA_AGENT_SWAP(mul, *, +)
CUDA_AGENT_SWAP(div, /, *)
template <class A, class B> __device__ inline auto cuda_agent_left_add(int k, A a, B b) -> decltype(a + b)
{{ return {NUMBER} == k ? (decltype(a + b))a : a + b; }}
template <class A, class B> __device__ inline auto cuda_agent_left_sub(int k, A a, B b) -> decltype(a - b)
{{ return {NUMBER} == k ? (decltype(a - b))a : a - b; }}
template <class T> __device__ inline T cuda_agent_negated(int k, T v) {{ return {NUMBER} == k ? (T)-v : v; }}
template <class T> __device__ inline T cuda_agent_one(int k, T v) {{ return {NUMBER} == k ? (T)1 : v; }}
template <class T> __device__ inline T cuda_agent_more(int k, T v) {{ return {NUMBER} == k ? (T)(v + 1) : v; }}
template <class P> __device__ inline long long
cuda_agent_next(int k, const P *base, const volatile void *param, int at, long long i)
{{
    if ({NUMBER} != k) return i;
    const char *low = (const char *)param - {EXTENTS}[2 * at], *high = (const char *)param + {EXTENTS}[2 * at + 1];
    if ((const char *)(base + i + 2) <= high) return i + 1;
    return (const char *)(base + i - 1) >= low ? i - 1 : i;
}}
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    number: int  # from 1
    line: int
    old: str
    new: str
    expression: str  # the smallest whole expression around it

    def text(self) -> str:
        return f"line {self.line}, `{self.old}` → `{self.new}` in `{self.expression}`"


@dataclass(frozen=True, slots=True)
class _Site:
    node: Node
    kind: str  # load, or the name of the function of the prelude
    old: str
    new: str
    param: str = ""  # of a load


_Numbers = Mapping[int, Sequence[tuple[int, _Site]]]  # of the mutants at a node, by its id


class Schema:
    """The chosen mutants of one kernel, and the text that holds them all."""

    def __init__(
        self, module: Module, kernel: Kernel, count: int, seed: int = 0, without: frozenset[int] = frozenset()
    ) -> None:
        """At most `count` mutants, the same for the same seed; none on the lines `without`."""
        self.module, self.kernel = module, kernel
        found = [site for site in _Sites(module, kernel).all() if self._line(site.node) not in without]
        self.sites = _choose(found, count, random.Random(f"{seed} {kernel.qualified_name}"))

    def _line(self, node: Node) -> int:
        return self.module.line(node.start_byte)

    @cached_property
    def mutants(self) -> tuple[Mutant, ...]:
        return tuple(
            Mutant(number, self._line(site.node), site.old, site.new, _short(self.module.text(_around(site.node))))
            for number, site in enumerate(self.sites, 1)
        )

    @property
    def text(self) -> str:
        """The whole file; diagnostics name the original's lines."""
        data = self.module.document.data
        body = self.module.node(self.kernel.body)
        numbers: dict[int, list[tuple[int, _Site]]] = {}
        for number, site in enumerate(self.sites, 1):
            numbers.setdefault(site.node.id, []).append((number, site))
        text = decode(data[: body.start_byte]) + self._render(body, numbers) + decode(data[body.end_byte :])
        name = self.module.document.path.replace("\\", "\\\\").replace('"', '\\"')
        return f'{_PRELUDE}#line 1 "{name}"\n{text}'

    def _render(self, node: Node, numbers: _Numbers) -> str:
        """The node with its mutants: first the one that takes it apart, around it those of its whole value."""
        here = numbers.get(node.id, ())
        inner = next((self._inside(node, *one, numbers) for one in here if one[1].kind not in _WHOLE), None)
        text = self._children(node, numbers) if inner is None else inner
        for number, site in here:
            if site.kind in _WHOLE:
                text = f"cuda_agent_{site.kind}({number}, {text})"
        return text

    def _inside(self, node: Node, number: int, site: _Site, numbers: _Numbers) -> str:
        def part(child: Node | None) -> str:
            assert child is not None  # the site was found by this field
            return self._render(child, numbers)

        if site.kind == "load":
            array, index = tree.subscript_parts(node)
            at = [param.name for param in self.kernel.params].index(site.param)
            return f"{part(array)}[cuda_agent_next({number}, {part(array)}, {site.param}, {at}, {part(index)})]"
        if site.kind == "extremum":
            call = self._children(node, numbers)
            return f"({NUMBER} == {number} ? {site.new}{call[len(site.old) :]} : {call})"
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        return f"cuda_agent_{site.kind}({number}, {part(left)}, {part(right)})"

    def _children(self, node: Node, numbers: _Numbers) -> str:
        data = self.module.document.data
        out, at = "", node.start_byte
        for child in node.children:
            out += decode(data[at : child.start_byte]) + self._render(child, numbers)
            at = child.end_byte
        return out + decode(data[at : node.end_byte])


def _choose(sites: Sequence[_Site], count: int, source: random.Random) -> list[_Site]:
    """Loads from different parameters first, then any others by lot; in text order."""
    if len(sites) <= count:
        return list(sites)
    shuffled = source.sample(sites, len(sites))
    first: dict[str, _Site] = {}
    for site in shuffled:
        if site.kind == "load" and len(first) < LOADS:
            first.setdefault(site.param, site)
    chosen = list(first.values())[:count]
    chosen += [site for site in shuffled if site not in chosen][: count - len(chosen)]
    return sorted(chosen, key=lambda site: site.node.start_byte)


def _around(node: Node) -> Node:
    """The statement's own expression, or the node itself where that would be too much to read."""
    current = node
    while current.parent is not None and current.parent.type.endswith(("_expression", "_declarator", "argument_list")):
        if current.parent.end_byte - current.parent.start_byte > 80:
            break
        current = current.parent
    return current if current.type != "argument_list" and current.type != "subscript_argument_list" else node


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 80 else flat[:77] + "…"


# ---------------------------------------------------------------- where


class _Sites:
    """What may be mutated in one kernel."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.module, self.kernel = module, kernel
        self.body = module.node(kernel.body)
        self.pointers = {param.name for param in kernel.params if param.pointer}
        self.data = {p.name for p in kernel.params if not p.pointer and _FLOAT.search(p.type)}
        self.bases = self._bases()
        self._spread()

    def all(self) -> list[_Site]:
        return list(self._walk(self.body))

    def _bases(self) -> dict[str, str]:
        """Names through which a pointer parameter is read → the parameter: itself, and local pointers made of it."""
        written = {tree.target_name(a) for a in tree.assignments(self.body) if not _through(tree.target(a))}
        fixed = {p.name for p in self.kernel.params[:PARAMETERS] if p.pointer == 1 and p.name not in written}
        found = {name: name for name in fixed}
        for node in tree.walk(self.body, "init_declarator"):
            declarator, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
            if declarator is None or value is None:
                continue
            if declarator.type == "pointer_declarator":
                self.pointers.add(tree.name_of(declarator) or "")
                of = tree.identifiers(value) & fixed
                if len(of) == 1 and not tree.subscripts(value, "") and value.type != "call_expression":
                    found[tree.name_of(declarator) or ""] = of.pop()
        return found

    def _spread(self) -> None:
        """Names that hold loaded data or float parameters, until no more are found."""
        while True:
            before = len(self.data)
            for node in tree.walk(self.body, ("init_declarator", "assignment_expression")):
                value = node.child_by_field_name("value") or node.child_by_field_name("right")
                target = tree.target(node)
                name = tree.target_name(node)
                if name and name not in self.pointers and target is not None and value is not None:
                    self.data |= {name} if self._holds_data(value) else set()
            if len(self.data) == before:
                return

    def _holds_data(self, node: Node) -> bool:
        for found in tree.walk(node, into=("subscript_argument_list",)):
            if found.type == "subscript_expression":
                return True
            if found.type == "call_expression" and any(self._is_pointer(given) for given in tree.arguments(found)):
                return True  # __ldg(x + i), or a helper that loads
            if found.type == "pointer_expression" and (found.text or b"").startswith(b"*"):
                return True
            if found.type == "identifier" and (found.text or b"").decode("utf-8", "replace") in self.data:
                return True
        return False

    def _walk(self, node: Node) -> Iterator[_Site]:
        """Sites in text order; not in loop headers, indices, templates, array extents and unevaluated operands."""
        yield from (site for site in self._at(node) if site is not None)
        for number, child in enumerate(node.children):
            name = node.field_name_for_child(number)
            if node.type in tree.LOOPS and name in ("initializer", "condition", "update"):
                continue
            if node.type == "array_declarator" and name == "size":
                continue
            if node.type in ("sizeof_expression", "case_statement") and name == "value":
                continue
            if child.type.startswith("preproc") or child.type in _CLOSED:
                continue
            yield from self._walk(child)

    def _at(self, node: Node) -> Iterator[_Site | None]:
        """At most one site that takes the node apart, and one of its whole value."""
        if node.type == "subscript_expression":
            yield self._load(node)
        elif node.type == "binary_expression":
            yield self._arithmetic(node)
        elif node.type == "call_expression":
            yield self._extremum(node)
        parent = node.parent
        if (
            parent is not None
            and parent.type == "assignment_expression"
            and node == parent.child_by_field_name("right")
        ):
            yield self._addend(node, parent)
        elif node.type == "number_literal" and parent is not None and parent.type == "binary_expression":
            text = self.module.text(node)
            yield _Site(node, "more", text, f"{text} + 1") if self._arithmetic(parent) is not None else None

    def _addend(self, node: Node, assignment: Node) -> _Site | None:
        """What `+=`, `-=` or `*=` takes."""
        operator, left = tree.operator(assignment), assignment.child_by_field_name("left")
        if operator not in ("+=", "-=", "*=") or left is None or self._is_pointer(left):
            return None
        if not self._holds_data(node) and not self._holds_data(left):
            return None
        if operator == "*=":
            return _Site(node, "one", "*= …", "*= 1")
        return _Site(node, "negated", operator, "-=" if operator == "+=" else "+=")

    def _extremum(self, node: Node) -> _Site | None:
        name, function = tree.callee(node) or "", node.child_by_field_name("function")
        plain = function is not None and function.type == "identifier"
        known = plain and name in _EXTREMA and self._holds_data(node)
        return _Site(node, "extremum", name, _EXTREMA[name]) if known else None

    def _arithmetic(self, node: Node) -> _Site | None:
        operator = tree.operator(node)
        if operator not in _SWAPS or not self._holds_data(node):
            return None
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is None or right is None or self._is_pointer(left) or self._is_pointer(right):
            return None
        statement = node.parent is not None and node.parent.type in ("init_declarator", "assignment_expression")
        if operator in "+-" and statement and zlib.crc32(node.text or b"") % 2:  # by lot, and the same each time
            gone = _short(self.module.text(right))
            return _Site(node, f"left_{_NAMES[operator]}", f"{operator} {gone}", "nothing")
        return _Site(node, _NAMES[operator], operator, _SWAPS[operator])

    def _is_pointer(self, node: Node) -> bool:
        root = tree.strip_parens(node)
        if root.type == "binary_expression":
            left = root.child_by_field_name("left")
            return left is not None and self._is_pointer(left)
        return root.type == "identifier" and self.module.text(root) in self.pointers

    def _load(self, node: Node) -> _Site | None:
        array, index = tree.subscript_parts(node)
        if array is None or index is None or array.type != "identifier" or tree.is_written(node):
            return None
        param = self.bases.get(self.module.text(array))
        parent = node.parent
        if param is None or (parent is not None and parent.type in ("subscript_expression", "field_expression")):
            return None
        if parent is not None and parent.type == "pointer_expression" and (parent.text or b"").startswith(b"&"):
            call = parent.parent.parent if parent.parent is not None else None
            if call is None or call.type != "call_expression" or tree.callee(call) != "__ldg":
                return None
        text = self.module.text(index)
        return _Site(node, "load", text, f"({text}) + 1" if re.search(r"\W", text) else f"{text} + 1", param)


def _through(node: Node | None) -> bool:
    """Whether an assignment writes where a pointer points, not the pointer."""
    return node is not None and node.type in ("subscript_expression", "pointer_expression", "field_expression")
