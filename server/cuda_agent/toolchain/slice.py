"""The part of a file that one kernel needs, for a compiler that knows no host code.

Nothing is moved and no directive is flattened: what the kernel does not reach is blanked with spaces, so lines,
columns, `#if` and `#define` stay where they are. Includes of host headers go too; whoever compiles a slice therefore
compares its SASS with the whole file's, or says that it stands for a self-contained kernel only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tree_sitter import Node

from cuda_agent.errors import SourceError
from cuda_agent.model import Span
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module

# Headers that NVRTC can read; the rest of a file's includes are the host's.
_DEVICE_HEADER = re.compile(
    rb'#\s*include\s*[<"](cuda_fp\d+\.h|cuda_bf16\.h|cooperative_groups\w*(\.h|/.*)|cub/(block|warp|thread)/.*|cuda/.*|mma\.h|'
    rb'math_constants\.h|curand_kernel\.h|curand_\w+\.h|cuda_pipeline\w*\.h|cuda_awbarrier\w*\.h|vector_types\.h)[>"]'
)
_WORD = re.compile(rb"[A-Za-z_]\w*")
_OPEN = frozenset(
    {"namespace_definition", "declaration_list", "preproc_ifdef", "preproc_if", "preproc_else", "preproc_elif"}
)
_ALWAYS = frozenset({"preproc_def", "preproc_function_def", "preproc_call", "comment"})
_TYPES = frozenset({"struct_specifier", "class_specifier", "union_specifier", "enum_specifier"})
# What the standard headers would have given; 64-bit Linux, so that names are mangled as nvcc mangles them.
_INTEGERS = """
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long uint64_t; typedef long intptr_t; typedef unsigned long uintptr_t;
"""
# CCCL declares them itself, for NVRTC with `long long`.
_CCCL = re.compile(r'#\s*include\s*[<"](cooperative_groups|cub/|cuda/|cuda_pipeline|cuda_awbarrier|curand)')
_PRELUDE = """
typedef unsigned int uint; typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned long ulong;
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295U
#define LLONG_MAX 9223372036854775807LL
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_E 2.7182818284590452354
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define M_2_SQRTPI 1.12837916709551257390
#define M_LN2 0.69314718055994530942
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
"""


def prelude(part: str) -> str:
    """What to put before a slice: integer types and limits that its standard headers would have declared."""
    return ("#include <cuda/std/cstdint>\n" if _CCCL.search(part) else _INTEGERS) + _PRELUDE


@dataclass(frozen=True, slots=True)
class _Item:
    start: int
    end: int
    names: frozenset[bytes]
    text: bytes = field(repr=False)
    fixed: bool  # never blanked


_QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)".*$', re.MULTILINE)


def with_headers(text: str, path: Path, folders: Sequence[Path], seen: set[Path] | None = None) -> str:
    """`text` with the project's own headers (`#include "x.h"`) in place, once each, under `#line` directives."""
    seen = set() if seen is None else seen

    def expand(match: re.Match[str]) -> str:
        found = next((f / match[1] for f in (path.parent, *folders) if (f / match[1]).is_file()), None)
        if found is None:
            return match[0]
        line = text.count("\n", 0, match.start()) + 2
        if found.resolve() in seen:
            return ""
        seen.add(found.resolve())
        inner = with_headers(found.read_text(errors="replace"), found, folders, seen)
        return f'#line 1 "{found}"\n{inner}\n#line {line} "{path}"'

    return _QUOTED.sub(expand, text)


def slice_kernels(text: str, path: str, kernels: Sequence[str]) -> str:
    """`text` with everything blanked that `kernels` (qualified names) do not reach.

    Raises SourceError when the file has no such kernel, or when the syntax around it is not understood.
    """
    parsed = module(Document(path, text))
    wanted = [parsed.kernel(name) for name in kernels]
    for kernel in wanted:
        if kernel.has_error:
            raise SourceError(f"The kernel {kernel.id} has a syntax error, or a macro that is not understood.")
    data = parsed.document.data
    others = [k.span for k in parsed.kernels if k not in wanted]
    items = list(_items(parsed.root, data, others))
    roots = {item for item in items if any(item.start <= k.span.start and k.span.end <= item.end for k in wanted)}
    if len(roots) < len(wanted):
        raise SourceError(f"{' or '.join(kernels)} does not stand at the top of the file or of a namespace.")
    kept = _reached(items, roots)
    result = bytearray(data)
    for item in items:
        if item not in kept and not item.fixed:
            result[item.start : item.end] = re.sub(rb"[^\r\n]", b" ", data[item.start : item.end])
    return result.decode()


def _reached(items: list[_Item], roots: set[_Item]) -> set[_Item]:
    """The roots, items whose names occur in them, items whose names occur in those, and so on."""
    kept, fresh = set(roots), set(roots)
    seen: set[bytes] = set()
    while fresh:
        words = {word for item in fresh for word in _WORD.findall(item.text)} - seen
        seen |= words
        fresh = {item for item in items if item not in kept and item.names & words}
        kept |= fresh
    return kept


def _items(node: Node, data: bytes, others: Sequence[Span]) -> Iterator[_Item]:
    """Everything at the top of the file and of its namespaces; `others` are kernels that are not wanted."""
    for child in node.named_children:
        if child.type == "ERROR":
            raise SourceError("The file has a syntax error outside of functions.")
        if child.type in _OPEN or (child.type == "linkage_specification" and _body(child) is not None):
            yield from _items(_body(child) or child, data, others)
            continue
        start, end = child.start_byte, child.end_byte
        text = data[start:end]
        other = any(start <= k.start and k.end <= end for k in others)
        fixed = child.type in _ALWAYS or (node.type.startswith("preproc") and _is_condition(child, node))
        if child.type == "preproc_include":
            fixed = _DEVICE_HEADER.match(text) is not None
        elif child.type == "using_declaration":
            fixed = b"std" not in _WORD.findall(text)
        yield _Item(start, end, frozenset() if other else frozenset(_declared(child)), text, fixed)


def _body(node: Node) -> Node | None:
    body = node.child_by_field_name("body")
    return body if body is not None and body.type == "declaration_list" else None


def _is_condition(child: Node, parent: Node) -> bool:
    """The `X` of `#ifdef X`, the expression of `#if`."""
    return child in (parent.child_by_field_name("name"), parent.child_by_field_name("condition"))


def _declared(node: Node) -> Iterator[bytes]:
    """Names that an item introduces, qualified ones in parts."""
    if node.type in {"template_declaration", "linkage_specification"}:
        for child in node.named_children:
            yield from _declared(child)
    elif node.type == "namespace_alias_definition":
        yield from _WORD.findall((node.text or b"").partition(b"=")[0])
    elif node.type in _TYPES or node.type in {"alias_declaration", "preproc_def", "preproc_function_def"}:
        name = node.child_by_field_name("name")
        if name is not None and name.text is not None:
            yield from _WORD.findall(name.text)
        body = node.child_by_field_name("body")
        if node.type == "enum_specifier" and body is not None and body.text is not None:
            yield from _WORD.findall(body.text)
    elif node.type in {"function_definition", "declaration", "type_definition", "template_instantiation"}:
        kind = node.child_by_field_name("type")
        if kind is not None and kind.type in _TYPES:
            yield from _declared(kind)
        for declarator in node.children_by_field_name("declarator"):
            yield from _declarator(declarator)


def _declarator(node: Node) -> Iterator[bytes]:
    if node.type == "operator_name" or (node.text or b"").startswith(b"operator"):
        yield from (b"operator",)
    inner = node.child_by_field_name("declarator")
    if inner is not None:
        yield from _declarator(inner)
    elif node.type.endswith("reference_declarator") and node.named_children:
        yield from _declarator(node.named_children[-1])
    elif node.text is not None:
        yield from _WORD.findall(node.text)
