"""# 11 · float-literals: float arithmetic that a literal made double

`0.1` is a double, and so is what it is multiplied with: a GPU has half as many double units as float ones, a consumer
GPU a sixty-fourth, and `pow(x, 2)` of a float is a call of 200 instructions.

Before:

    y[i] = 0.1 * x[i] + 1.0 / sqrt(n);
    s += pow(x[i] - mean, 2);

After:

    y[i] = 0.1f * x[i] + 1.0f / sqrtf(n);
    s += powf(x[i] - mean, 2);

Legal where the value goes into a float anyway and nothing in the expression is double but literals and what they are
combined with (proved). A kernel that has double variables or arrays computes in double on purpose: refused; so is an
explicit cast to double. A comparison with a literal alone stays as it is: at that one value it would decide otherwise.
Results differ in their last bits; one operation with a literal that a float can hold gives the
same bits.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.arithmetic import OVERLOADED, Type, Types, of_literal, of_spelling
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import arguments, enclosing, field, name_of, operator, strip_parens

_MATH_CONSTANTS = frozenset(
    ("M_PI", "M_PI_2", "M_PI_4", "M_1_PI", "M_2_PI", "M_2_SQRTPI", "M_E", "M_LN2", "M_LN10", "M_SQRT2", "M_SQRT1_2")
)
_COMPARES = ("<", ">", "<=", ">=", "==", "!=")
_CONSUMERS = (
    "init_declarator",
    "assignment_expression",
    "cast_expression",
    "call_expression",
    "binary_expression",
    "return_statement",
)
_TAKES_FLOAT = re.compile(r"(?:make_)?float[1-4]?|static_cast\s*<\s*float\s*>|__f\w+_r[nuzd]")


class FloatLiterals(Rule):
    name = "float-literals"
    number = 11

    def sites(self, context: Context) -> Iterator[Site]:
        aliases, constants = _aliases(context), _constants(context)
        types = Types(context.kernel, context.body, aliases, constants)
        found = [(types, n) for n in _islands(types, context.body) if _works(types, n)]
        if found and types.any_of("double"):
            raise RuleRefused("the kernel has double variables or arrays: it computes in double on purpose")
        if not types.any_of("double"):
            for helper in _own_functions(context):
                inside = Types(None, helper, aliases, constants)
                if not inside.any_of("double") and not (
                    field(helper, "type") and text(syntax.field(helper, "type")) == "double"
                ):
                    found += [(inside, n) for n in _islands(inside, helper) if _works(inside, n)]
        if found:
            yield Site(self.name, syntax.span(found[0][1]), {}, {"islands": found})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        islands: list[tuple[Types, Node]] = site.nodes["islands"]
        edits = [edit for types, island in islands for edit in _edits(context, types, island)]
        exact = all(_exact(types, island) for types, island in islands)
        said = Assumption("these expressions feed float values only", "proved")
        return Rewrite(tuple(edits), assumptions=(said,), numeric="bit-exact" if exact else "tolerance")


# ---------------------------------------------------------------- where


def _own_functions(context: Context) -> Iterator[Node]:
    """Device functions that the kernel calls and nothing else in the file mentions."""
    called = {name for name, _ in syntax.calls(context.body)}
    for name, nodes in definitions(context.module).items():
        if name in called and len(nodes) == 1 and "__device__" in text(nodes[0]).partition("{")[0]:
            inside = context.kernel.span, context.kernel.body, syntax.span(nodes[0])
            word = re.compile(rb"(?<!\w)" + re.escape(name.encode()) + rb"(?!\w)")
            uses = (m.start() for m in word.finditer(context.module.document.data))
            if all(any(at in span for span in inside) for at in uses):
                yield nodes[0]


def _aliases(context: Context) -> dict[str, str]:
    """`typedef float real;`, `using real = float;`, `#define REAL float` of the file."""
    code = context.text
    found = {m[2]: m[1] for m in re.finditer(r"\btypedef\s+(float|double|int)\s+(\w+)\s*;", code)}
    found |= {m[1]: m[2] for m in re.finditer(r"\busing\s+(\w+)\s*=\s*(float|double|int)\s*;", code)}
    defines = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(float|double|int)[ \t\r]*$", code, re.MULTILINE)
    several = {name for name, _ in defines if len({kind for n, kind in defines if n == name}) > 1}
    return found | {name: kind for name, kind in defines if name not in several}


def _constants(context: Context) -> dict[str, Type]:
    """Macros of the file that are one number, the constants of math.h, and what the file's functions return."""
    found: dict[str, Type] = dict.fromkeys(_MATH_CONSTANTS, "double")
    for name, nodes in definitions(context.module).items():
        kinds = {text(syntax.field(n, "type")) for n in nodes if field(n, "type") is not None}
        if len(kinds) == 1 and name not in OVERLOADED:
            found[name] = of_spelling(kinds.pop())
    pattern = r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?[-+]?(\.?\d[\w.]*(?:[eE][-+]?\d+f?)?)\)?[ \t\r]*(?://.*)?$"
    for name, number in re.findall(pattern, context.text, re.MULTILINE):
        kind = of_literal(number)
        found[name] = kind if found.get(name, kind) == kind else "unknown"
    return found


def _islands(types: Types, body: Node) -> Iterator[Node]:
    """The largest double expressions whose value becomes a float, or is compared with one."""
    for node in syntax.of_type(body, *_CONSUMERS):
        for value in _consumed(types, node):
            if types.of(value) == "double" and _convertible(types, value):
                yield value


def _consumed(types: Types, node: Node) -> Iterator[Node]:
    """What the node turns into a float."""
    if node.type == "init_declarator":
        name, value = field(node, "declarator"), field(node, "value")
        if name is not None and value is not None and types.name(name_of(name) or "") == "float":
            yield value
    elif node.type == "assignment_expression":
        left, right = field(node, "left"), field(node, "right")
        if left is not None and right is not None and types.of(left) == "float":
            yield right
    elif node.type == "cast_expression":
        value = field(node, "value")
        if value is not None and types.of(node) == "float":
            yield value
    elif node.type == "return_statement":
        function = enclosing(node, "function_definition")
        kind = field(function, "type") if function is not None else None
        if kind is not None and types.spelled(text(kind)) == "float":
            yield from (n for n in node.named_children if n.type != "comment")
    elif node.type == "call_expression":
        function = field(node, "function")
        called = text(function) if function is not None else ""
        if _TAKES_FLOAT.fullmatch(called) or (called.endswith("f") and called[:-1].lstrip("_") in OVERLOADED):
            yield from arguments(node)
    elif operator(node) in _COMPARES:
        left, right = field(node, "left"), field(node, "right")
        if left is not None and right is not None:
            for one, other in ((left, right), (right, left)):
                if types.of(other) == "float":
                    yield one


def _convertible(types: Types, node: Node) -> bool:
    """Nothing in the expression is double but literals, and operators and functions of them."""
    kind = types.of(node)
    if kind == "unknown":
        return False
    if kind != "double":
        return True
    if node.type == "number_literal":
        return _fits(text(node))
    if node.type == "identifier":
        return True  # a constant: no double variable is known to `types` (see `sites`)
    if node.type in ("parenthesized_expression", "unary_expression"):
        return all(_convertible(types, n) for n in node.named_children)
    if node.type in ("binary_expression", "conditional_expression"):
        parts = [field(node, name) for name in ("left", "right", "consequence", "alternative")]
        return all(_convertible(types, n) for n in parts if n is not None)
    if node.type == "call_expression":
        function = field(node, "function")
        name = text(function).removeprefix("std::").removeprefix("::") if function is not None else ""
        return (name in OVERLOADED or name in ("min", "max", "abs")) and all(
            _convertible(types, n) for n in arguments(node)
        )
    return False


def _fits(literal: str) -> bool:
    """A float can hold the number's magnitude."""
    try:
        value = abs(float(literal.replace("'", "")))
    except ValueError:
        return False
    return value == 0 or 1.2e-38 < value < 3.4e38


def _works(types: Types, island: Node) -> bool:
    """Something is computed at run time. A literal alone costs nothing; one that a float is compared with costs a
    conversion, but what is equal to its float would take the other branch."""
    leaves = [n for n in syntax.walk(island) if n.child_count == 0 and n.is_named]
    return any(n.type in ("identifier", "field_identifier") and _variable(types, n) for n in leaves)


def _held(literal: str) -> bool:
    """A float holds the number exactly."""
    value = float(literal.replace("'", ""))
    return bool(struct.unpack("f", struct.pack("f", value))[0] == value)


def _variable(types: Types, node: Node) -> bool:
    return text(node) in types or text(node) in syntax.BUILTINS


def _exact(types: Types, island: Node) -> bool:
    """One operation of floats with a literal that a float holds exactly: rounding to double first changes nothing (53 ≥
    2·24 + 2 bits, Figueroa 1995). A comparison with such a literal is exact too."""
    node = strip_parens(island)
    literals = [text(n) for n in syntax.of_type(node, "number_literal") if of_literal(text(n)) == "double"]
    if not all(_held(one) for one in literals):
        return False
    if node.type == "number_literal":
        return True
    if node.type != "binary_expression" or operator(node) not in ("+", "-", "*", "/"):
        return False
    parts = [strip_parens(n) for n in (field(node, "left"), field(node, "right")) if n is not None]
    return all(n.type == "number_literal" or types.of(n) == "float" for n in parts)


# ---------------------------------------------------------------- text


def _edits(context: Context, types: Types, node: Node) -> Iterator[Edit]:
    """The expression in float: every double literal, constant and function in it."""
    if types.of(node) != "double":
        return
    at = syntax.span(node)
    if node.type == "number_literal":
        yield Edit(Span(at.end, at.end), "f" if re.search(r"[.eE]", text(node)) else ".0f")
    elif node.type == "identifier":
        yield Edit(at, f"(float){text(node)}")
    elif node.type == "call_expression":
        function = syntax.field(node, "function")
        given = arguments(node)
        name = text(function).removeprefix("std::").removeprefix("::")
        if name == "pow" and (product := _product(context, types, node, given)) is not None:
            yield Edit(at, product)
            return
        if name not in ("min", "max", "abs"):
            yield Edit(syntax.span(function), name + "f")
        elif name == "abs":
            yield Edit(syntax.span(function), "fabsf")
        for argument in given:
            yield from _edits(context, types, argument)
    else:
        condition = field(node, "condition")
        for child in node.named_children:
            if child != condition:
                yield from _edits(context, types, child)


def _product(context: Context, types: Types, call: Node, given: list[Node]) -> str | None:
    """`x * x` for `pow(x, 2)` of a float variable or element: nearer to the exact square than powf is."""
    if len(given) != 2 or types.of(given[0]) != "float" or text(given[1]) not in ("2", "2.0", "2."):
        return None
    x = given[0]
    if x.type not in ("identifier", "subscript_expression") or next(
        syntax.of_type(x, "call_expression", "update_expression"), None
    ):
        return None
    product = f"{context.slice(syntax.span(x))} * {context.slice(syntax.span(x))}"
    parent = call.parent
    binds = parent is not None and (
        parent.type in ("unary_expression", "cast_expression", "field_expression")
        or (parent.type == "binary_expression" and operator(parent) in ("*", "/", "%"))
    )
    return f"({product})" if binds else product
