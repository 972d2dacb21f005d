"""Arithmetic types of names and expressions in a kernel, by C++'s usual arithmetic conversions.

"unknown" is anything the text does not tell: template types, `auto` of an unknown value, classes, macros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from tree_sitter import Node

from cuda_agent.model import Kernel
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import field, name_of, operator

Type = Literal["bool", "int", "unsigned", "int64", "uint64", "half", "float", "double", "unknown"]

_SPELLED: dict[str, Type] = {
    **dict.fromkeys(("bool",), "bool"),
    **dict.fromkeys(("int", "signed", "signed int", "int32_t", "char", "signed char", "unsigned char"), "int"),
    **dict.fromkeys(("short", "short int", "unsigned short", "int8_t", "uint8_t", "int16_t", "uint16_t"), "int"),
    **dict.fromkeys(("uchar", "ushort", "unsigned short int"), "int"),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), "unsigned"),
    **dict.fromkeys(("long", "long int", "long long", "long long int", "int64_t", "ptrdiff_t"), "int64"),
    **dict.fromkeys(("unsigned long", "unsigned long int", "unsigned long long", "ulong", "uint64_t"), "uint64"),
    **dict.fromkeys(("unsigned long long int", "size_t", "std::size_t"), "uint64"),
    **dict.fromkeys(("half", "__half"), "half"),
    "float": "float",
    "double": "double",
}
_RANK: tuple[Type, ...] = ("bool", "int", "unsigned", "int64", "uint64", "half", "float", "double")
INTEGERS: frozenset[Type] = frozenset(("bool", "int", "unsigned", "int64", "uint64"))
# Mathematical functions that C++ overloads: of float they give float, of double or an integer double. With `f` behind
# the name they are the float ones.
_MATH = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 exp10 expm1 fabs fdim floor fma
    fmax fmin fmod hypot log log10 log1p log2 pow rint round rsqrt sin sinh sqrt tan tanh trunc
"""
OVERLOADED = frozenset(_MATH.split())
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_COMPARES = frozenset(("==", "!=", "<", ">", "<=", ">=", "&&", "||"))
_VECTOR = re.compile(r"(float|double|int|uint)[1-4]")


def of_spelling(spelling: str) -> Type:
    """The type that `const unsigned int`, `size_t` … spell. Types shorter than int count as the int they promote to."""
    words = re.sub(r"\b(const|constexpr|volatile|static|register|__shared__|__restrict__)\b|&", " ", spelling)
    return _SPELLED.get(" ".join(words.split()), "unknown")


def common(a: Type, b: Type) -> Type:
    """The type of `a + b`."""
    if "unknown" in (a, b):
        return "unknown"
    wider = max(a, b, key=_RANK.index)
    return "int" if wider == "bool" else wider


class Types:
    """The types of a kernel's parameters and local variables; a name declared with two types is unknown."""

    def __init__(
        self,
        kernel: Kernel | None,
        body: Node,
        aliases: Mapping[str, str] = _NOTHING,
        constants: Mapping[str, Type] = _NOTHING,
    ) -> None:
        """`aliases`: what names of types stand for (`typedef float real;`); `constants`: macros, constants
        and functions of the file."""
        self._aliases = aliases
        self._names: dict[str, Type] = {}
        self._elements: dict[str, Type] = {}
        self._vectors: dict[str, Type] = {}
        self._constants = constants
        for param in kernel.params if kernel is not None else ():
            self._declare(param.name, param.element, param.pointer)
        for name, spelling, levels, value in _declarations(body):
            if spelling == "auto" and levels == 0 and value is not None:
                self._merge(self._names, name, self.of(value))
            else:
                self._declare(name, spelling, levels)

    def _declare(self, name: str, spelling: str, levels: int) -> None:
        spelling = " ".join(self._aliases.get(word, word) for word in spelling.split())
        vector = _VECTOR.fullmatch(spelling.replace("const", "").strip())
        if vector and levels == 0:
            self._merge(self._vectors, name, of_spelling(vector[1]))
        table, other = (self._names, self._elements) if levels == 0 else (self._elements, self._names)
        if name in other:
            other[name] = "unknown"
        self._merge(table, name, of_spelling(spelling) if levels <= 1 else "unknown")

    @staticmethod
    def _merge(table: dict[str, Type], name: str, new: Type) -> None:
        table[name] = new if table.get(name, new) == new else "unknown"

    def __contains__(self, name: str) -> bool:
        return name in self._names or name in self._elements

    def spelled(self, spelling: str) -> Type:
        """The type that a spelling in this file means."""
        return of_spelling(" ".join(self._aliases.get(word, word) for word in spelling.split()))

    def name(self, name: str) -> Type:
        """The type of a scalar variable or parameter."""
        return self._names.get(name, "unknown")

    def any_of(self, wanted: Type) -> bool:
        """Whether some parameter, pointee or local has this type."""
        return any(wanted in table.values() for table in (self._names, self._elements, self._vectors))

    def of(self, node: Node) -> Type:
        kind = node.type
        if kind == "number_literal":
            return of_literal(text(node))
        if kind in ("true", "false"):
            return "bool"
        if kind == "identifier":
            return self._names.get(text(node), self._constants.get(text(node), "unknown"))
        if kind in ("parenthesized_expression", "condition_clause") and node.named_child_count == 1:
            return self.of(node.named_children[0])
        if kind == "cast_expression":
            to = field(node, "type")
            return self.spelled(text(to)) if to is not None else "unknown"
        if kind == "subscript_expression" or (kind == "pointer_expression" and text(node).startswith("*")):
            argument = field(node, "argument")
            return self._elements.get(text(argument), "unknown") if argument is not None else "unknown"
        if kind == "field_expression":
            return self._field(node)
        if kind == "call_expression":
            return self._call(node)
        if kind == "conditional_expression":
            parts = (field(node, "consequence"), field(node, "alternative"))
            return self._common(parts)
        if kind == "binary_expression":
            if operator(node) in _COMPARES:
                return "bool"
            if operator(node) in ("<<", ">>"):
                left = field(node, "left")
                return common(self.of(left), "int") if left is not None else "unknown"
            return self._common((field(node, "left"), field(node, "right")))
        if kind == "unary_expression":
            argument = field(node, "argument")
            if operator(node) == "!":
                return "bool"
            return common(self.of(argument), "int") if argument is not None else "unknown"
        if kind in ("assignment_expression", "update_expression"):
            target = field(node, "left") or field(node, "argument")
            return self.of(target) if target is not None else "unknown"
        return "unknown"

    def _common(self, parts: tuple[Node | None, ...]) -> Type:
        types = [self.of(part) for part in parts if part is not None]
        return common(*types) if len(types) == 2 else "unknown"

    def _field(self, node: Node) -> Type:
        argument = field(node, "argument")
        base = text(argument) if argument is not None else ""
        if base in syntax.BUILTINS:
            return "unsigned"
        return self._vectors.get(base, "unknown")

    def _call(self, node: Node) -> Type:
        function = field(node, "function")
        code = text(function) if function is not None else ""
        cast = re.fullmatch(r"(?:static_cast|reinterpret_cast)\s*<([^<>]*)>", code)
        if cast or self.spelled(code) != "unknown":
            return self.spelled(cast[1] if cast else code)
        arguments = field(node, "arguments")
        given = [self.of(n) for n in arguments.named_children if n.type != "comment"] if arguments is not None else []
        name = code.removeprefix("std::").removeprefix("::")
        if name.endswith("f") and name[:-1].lstrip("_") in OVERLOADED:
            return "float"
        if code in self._constants:
            return self._constants[code]
        if not given or "unknown" in given:
            return "unknown"
        if name in OVERLOADED:
            return "float" if set(given) == {"float"} else "double"
        return max(given, key=_RANK.index) if name in ("min", "max", "abs") else "unknown"


def of_literal(code: str) -> Type:
    """The type of a number as spelled: `1.0f`, `0x10u`, `3ll`."""
    code = code.lower().replace("'", "")
    hexadecimal = code.startswith("0x")
    if "." in code or (not hexadecimal and "e" in code) or (hexadecimal and "p" in code):
        return "float" if code.endswith("f") else "unknown" if code.endswith("l") else "double"
    suffix = code[len(code.rstrip("ulz")) :]
    if "l" in suffix or "z" in suffix:
        return "uint64" if "u" in suffix else "int64"
    return "unsigned" if "u" in suffix else "int"


def _declarations(body: Node) -> Iterator[tuple[str, str, int, Node | None]]:
    """(name, type as spelled, levels of pointer or array, initialiser) of every local variable."""
    for declaration in syntax.of_type(body, "declaration", "for_range_loop", "parameter_declaration"):
        spelled = field(declaration, "type")
        if spelled is None:
            continue
        for child in declaration.children_by_field_name("declarator"):
            value = field(child, "value") if child.type == "init_declarator" else None
            inner = field(child, "declarator") if child.type == "init_declarator" else child
            levels, name = 0, name_of(child)
            while inner is not None and inner.type != "identifier":
                levels += inner.type in ("pointer_declarator", "array_declarator")
                following = field(inner, "declarator")
                if following is None and inner.named_children and inner.type.endswith("declarator"):
                    following = inner.named_children[-1]
                inner = following
            if name is not None:
                yield name, text(spelled), levels, value
