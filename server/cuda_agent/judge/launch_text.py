"""Does a candidate's text launch the shapes it was judged at?

A candidate says twice how it launches: in its text, which the person gets, and in its `LaunchMap`, by which the device
launches it. Both are evaluated here, the texts as C integer arithmetic, at random values of the variables in them
(identity testing, Schwartz 1980: expressions that differ agree at few points). A variable that is declared once and
never changed stands for its initialiser, a macro for its body. What is no integer arithmetic (a call, a member, a
float) is an unknown that depends on its own text and on the variables in it, the same on both sides.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial

from tree_sitter import Node

from cuda_agent.errors import NoInputs, WorkloadError
from cuda_agent.model import Dim3, Kernel, LaunchMap, LaunchSite, Span
from cuda_agent.source import joined
from cuda_agent.source.declared import constructed, declared, expression, kind_of, version
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module, module
from cuda_agent.source.tree import arguments, masked, strip_parens, walk
from cuda_agent.workload import launch_map
from cuda_agent.workload.elements import plain, sizeof
from cuda_agent.workload.launch_map import Shape

_DRAWS = 64
_BOUNDS = (4, 40, 40, 700, 70_000, 2**40)  # an unknown lies in 1…bound; each has its own bound in each draw
_YZ_BOUND = 64  # of an unknown's y and z


def mismatch(before: Module, after: Module, kernel: Kernel, launch: LaunchMap) -> str | None:
    """The first launch site of the kernel whose new text is not `launch` of its old text, in one sentence; None when
    all agree. The sites of both texts are paired in order."""
    if launch != LaunchMap():
        if not before.launches_of(kernel):
            return f"{kernel.name} was judged at other launch shapes, but nothing in this file launches it"
        if before.other_uses(kernel):
            return f"{kernel.name} was judged at other launch shapes, but it is also launched through its address"
    for was, now in zip(_each(before), _each(after), strict=True):
        pairs = zip(was.launches_of(was.kernel(kernel.id)), now.launches_of(now.kernel(kernel.id)), strict=False)
        if said := next((said for a, b in pairs if (said := _differs(was, now, a, b, launch))), None):
            return said
    return None


def _each(whole: Module) -> Iterator[Module]:
    """Of joined files each one beside the header."""
    for text in joined.each(whole.document.text):
        yield whole if text == whole.document.text else module(Document(whole.document.path, text))


def follow(before: Module, after: Module, kernel: Kernel) -> LaunchMap:
    """The launch map that the texts say: it takes what the old ones launch to what the new ones do, at random values.
    Where none of the usual forms does, no change: `mismatch` then says what differs. Nothing is run."""
    pairs: list[tuple[Shape, Shape]] = []
    for was, now in zip(before.launches_of(kernel), after.launches_of(after.kernel(kernel.id)), strict=False):
        scalars = _operands((was.grid, was.block, now.grid, now.block))
        sides = [(_Names(module), site) for module, site in ((before, was), (after, now))]
        for draw in range(_DRAWS):
            try:
                old, new = (_Reader(*side, draw, scalars).shape() for side in sides)
            except ZeroDivisionError:
                continue
            if min(*old.grid, *old.block) > 0:
                pairs.append((old, new))
    try:
        return replace(launch_map.fit(pairs), seen=False) if pairs else LaunchMap()
    except WorkloadError:
        return LaunchMap()


def _differs(before: Module, after: Module, was: LaunchSite, now: LaunchSite, launch: LaunchMap) -> str | None:
    scalars = _operands((was.grid, was.block, now.grid, now.block))
    sides = [(_Names(module), site) for module, site in ((before, was), (after, now))]
    compared = False
    for draw in range(_DRAWS):
        old, new = (_Reader(*side, draw, scalars) for side in sides)
        try:
            start = old.shape()
            if launch != LaunchMap() and min(*start.grid, *start.block) < 0:  # no launch: rounding differs there
                continue
            wanted, got = launch_map.apply(launch, start.grid, start.block, start.shared), new.shape()
        except (ZeroDivisionError, WorkloadError):
            continue
        compared |= min(*start.grid, *start.block) > 0
        if got != wanted:
            values = ", ".join(f"{name} = {value}" for name, value in sorted((old.named | new.named).items()))
            return (
                f"`<<<{after.document.slice(now.config_span)}>>>` launches {got.text()}, judged was {wanted.text()} "
                f"where the original launches {start.text()}{f' ({values})' if values else ''}"
            )
    if not compared and launch != LaunchMap():
        return f"what `<<<{after.document.slice(now.config_span)}>>>` launches could not be worked out"
    return None


def _operands(texts: Iterable[str]) -> set[str]:
    """Names that arithmetic is done with: they are no dim3."""
    found = set()
    for text in texts:
        for node in walk(expression(text), "binary_expression"):
            sides = (strip_parens(_field(node, side)) for side in ("left", "right"))
            found |= {masked(side) for side in sides if side.type == "identifier"}
    return found


class _NotInteger(Exception):
    """The expression is no integer arithmetic."""


class _Names:
    """The declarations and expressions of one text, looked up once for all draws."""

    def __init__(self, module: Module) -> None:
        self.declared = cache(partial(declared, module))
        self.version = cache(partial(version, module))
        self.expression = cache(expression)


class _Reader:
    """The launch texts of one site at one choice of the unknowns."""

    def __init__(self, names: _Names, site: LaunchSite, seed: int, scalars: set[str]) -> None:
        self.names, self.site, self.seed, self.scalars = names, site, seed, scalars
        self.named: dict[str, int] = {}  # unknown variables and their values, for the sentence
        self._open: list[str] = []  # names whose values are being read: one that needs itself is unknown

    def shape(self) -> Shape:
        at, site = self.site.span.start, self.site
        read = self.names.expression
        shared = self.whole(read(site.shared), at) if site.shared else 0
        return Shape(self.dims(read(site.grid), at), self.dims(read(site.block), at), shared)

    # ------------------------------------------------------------ extents

    def dims(self, node: Node, at: int) -> Dim3:
        """An integer n is (n, 1, 1); a dim3 its fields."""
        node = strip_parens(node)
        parts = constructed(node)
        if parts is not None:
            if len(parts) == 1:
                return self.dims(parts[0], at)
            x, y, z = ([self.whole(part, at) for part in parts] + [1, 1, 1])[:3]
            return x, y, z
        if node.type == "conditional_expression":
            try:
                return self.dims(self._chosen(node, at), at)
            except _NotInteger:
                return self._unknown_dims(node, at)
        if node.type == "identifier":
            return self._named_dims(node, at)
        if node.type in ("call_expression", "field_expression", "subscript_expression") and not _component(node):
            return self._unknown_dims(node, at)
        return self.whole(node, at), 1, 1

    def _named_dims(self, node: Node, at: int) -> Dim3:
        name, found = masked(node), self.names.declared(masked(node), at)
        if found.kind == "integer" or name in self.scalars:
            return self.whole(node, at), 1, 1
        if found.value is None or name in self._open:
            return self._unknown_dims(node, at)
        with self._opened(name):
            return self.dims(found.value, found.at)

    def _unknown_dims(self, node: Node, at: int) -> Dim3:
        return self.unknown(node, at), self.unknown(node, at, ".y"), self.unknown(node, at, ".z")

    # ------------------------------------------------------------ integers

    def whole(self, node: Node, at: int) -> int:
        """The value of an expression that ends as an integer; what is no integer arithmetic is unknown as a whole."""
        try:
            return self.integer(node, at)
        except _NotInteger:
            return self.unknown(node, at)

    def integer(self, node: Node, at: int) -> int:
        node = strip_parens(node)
        match node.type:
            case "number_literal":
                return _literal(masked(node))
            case "identifier":
                return self._variable(node, at)
            case "binary_expression":
                left, right = (_field(node, side) for side in ("left", "right"))
                return _binary(
                    masked(_field(node, "operator")), self.integer(left, at), lambda: self.integer(right, at)
                )
            case "unary_expression":
                value = self.integer(_field(node, "argument"), at)
                return {"-": -value, "+": value, "!": int(not value), "~": ~value}[masked(_field(node, "operator"))]
            case "conditional_expression":
                return self.integer(self._chosen(node, at), at)
            case "cast_expression":
                return self._cast(masked(_field(node, "type")), _field(node, "value"), at)
            case "field_expression" if _component(node):
                return self.dims(_field(node, "argument"), at)["xyz".index(masked(_field(node, "field")))]
            case "call_expression":
                return self._call(node, at)
            case "sizeof_expression":
                return self._bytes(node, at)
        return self.unknown(node, at)

    def _variable(self, node: Node, at: int) -> int:
        name, found = masked(node), self.names.declared(masked(node), at)
        if found.kind == "float":
            raise _NotInteger
        if found.value is None or found.kind == "dim3" or name in self._open:
            return self.unknown(node, at)
        with self._opened(name):
            return self.whole(found.value, found.at)

    def _cast(self, type_: str, value: Node, at: int) -> int:
        if kind_of(type_) == "float":
            raise _NotInteger
        return self.whole(value, at)

    def _call(self, node: Node, at: int) -> int:
        name, args = masked(_field(node, "function")), arguments(node)
        bare = name.removeprefix("std::").partition("<")[0].strip()
        if bare in ("min", "max") and len(args) == 2:
            return (min if bare == "min" else max)(self.integer(one, at) for one in args)
        if len(args) == 1 and (bare == "static_cast" or kind_of(name) in ("integer", "float")):
            return self._cast(name, args[0], at)
        return self.unknown(node, at)

    def _bytes(self, node: Node, at: int) -> int:
        """`sizeof(int)` is a number; of a type that the file or a template's argument makes it is unknown."""
        operand = masked(node).removeprefix("sizeof").strip()
        try:
            return sizeof(plain(operand[1:-1])) if operand.startswith("(") else self.unknown(node, at)
        except NoInputs:
            return self.unknown(node, at)

    def _chosen(self, node: Node, at: int) -> Node:
        condition = self.integer(_field(node, "condition"), at)
        return _field(node, "consequence" if condition else "alternative")

    # ------------------------------------------------------------ unknowns

    def unknown(self, node: Node, at: int, suffix: str = "") -> int:
        """A number that depends on the text, on the values of the variables in it and on the draw."""
        key = ["".join(masked(node).split()) + suffix]
        if node.type == "identifier":
            key.append(self.names.version(masked(node), at, self.site.span.start))
        else:
            called = {_field(call, "function") for call in walk(node, "call_expression")}
            key += [self._inside(one, at) for one in walk(node, "identifier") if one not in called]
        digest = hashlib.blake2b("\0".join((str(self.seed), *key)).encode("utf-8", "surrogateescape"), digest_size=8)
        number = int.from_bytes(digest.digest(), "little")
        bound = _YZ_BOUND if suffix else _BOUNDS[number % len(_BOUNDS)]
        value = 1 + number // len(_BOUNDS) % bound
        if node.type == "identifier":
            self.named[key[0]] = value
        return value

    def _inside(self, node: Node, at: int) -> str:
        try:
            return str(self.integer(node, at))
        except _NotInteger:
            return masked(node)

    @contextmanager
    def _opened(self, name: str) -> Iterator[None]:
        self._open.append(name)
        try:
            yield
        finally:
            self._open.pop()


class _Unreadable(Exception):
    """The text says less than a number."""


class _Known(_Reader):
    """The same texts where some host expressions are known by their spelling, and anything else unknown is an error."""

    def __init__(self, names: _Names, site: LaunchSite, known: Mapping[str, int], element: int | None = None) -> None:
        super().__init__(names, site, 0, _operands((site.grid, site.block)))
        self.known, self.element = known, element

    def integer(self, node: Node, at: int) -> int:
        known = self.known.get("".join(masked(node).split()))
        return known if known is not None else super().integer(node, at)

    def unknown(self, node: Node, at: int, suffix: str = "") -> int:
        known = self.known.get("".join(masked(node).split()))
        if known is None and node.type == "sizeof_expression":
            known = self.element
        if known is None or suffix:
            raise _Unreadable
        return known


def evaluate(module: Module, site: LaunchSite, known: Mapping[str, int], element: int | None = None) -> Shape | None:
    """The shape that a site launches where these host expressions (by their text without spaces) have these values, and
    types whose size the text does not tell have `element` bytes; a grid axis may be 0. None where the text does not
    say."""
    try:
        return _Known(_Names(module), site, known, element).shape()
    except (_Unreadable, _NotInteger, ZeroDivisionError):
        return None


class Integers:
    """Values of a text's integer expressions where some of its names are known."""

    def __init__(self, module: Module) -> None:
        self._names = _Names(module)

    def value(self, text: str, at: int, known: Mapping[str, int]) -> int | None:
        """What the expression is at an offset: names stand for macros and for variables that are initialised and never
        changed. None where the text does not say."""
        site = LaunchSite(text, (), "1", "1", None, None, (), *(Span(at, at),) * 4, None, None)
        try:
            return _Known(self._names, site, known).integer(self._names.expression(text), at)
        except (_Unreadable, _NotInteger, ZeroDivisionError):
            return None


def constant(module: Module, name: str, at: int) -> int | None:
    """The integer that a name stands for at an offset."""
    return Integers(module).value(name, at, {})


def _component(node: Node) -> bool:
    return node.type == "field_expression" and masked(_field(node, "field")) in ("x", "y", "z")


def _literal(text: str) -> int:
    digits = text.replace("'", "").rstrip("uUlLzZ")
    try:
        return int(digits, 8 if digits.startswith("0") and digits.isdigit() else 0)
    except ValueError:
        raise _NotInteger from None


def _binary(sign: str, left: int, right: Callable[[], int]) -> int:
    """C's arithmetic; division truncates."""
    if sign in ("&&", "||"):
        return int(bool(left) and bool(right())) if sign == "&&" else int(bool(left) or bool(right()))
    value = right()
    if sign in ("/", "%"):
        quotient = abs(left) // abs(value) * (1 if (left < 0) == (value < 0) else -1)
        return quotient if sign == "/" else left - quotient * value
    if sign in ("<<", ">>") and not 0 <= value < 64:
        raise _NotInteger
    if sign not in _OPERATORS:
        raise _NotInteger
    return int(_OPERATORS[sign](left, value))


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def _field(node: Node, name: str) -> Node:
    found = node.child_by_field_name(name)
    if found is None:
        raise _NotInteger
    return found
