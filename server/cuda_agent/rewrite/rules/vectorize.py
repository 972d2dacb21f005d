"""# 6 · vectorize: 128-bit loads and stores

A thread that moves 4 bytes an instruction needs four times the instructions and keeps a quarter of the bytes in
flight.

Before:

    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = a * x[i] + y[i];

After (and a quarter of the blocks):

    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i + 3 < n) {
        __align__(16) float y4[4], x4[4];
        *reinterpret_cast<float4 *>(y4) = *reinterpret_cast<const float4 *>(y + i);
        *reinterpret_cast<float4 *>(x4) = *reinterpret_cast<const float4 *>(x + i);
        #pragma unroll
        for (int k = 0; k < 4; k++)
            y4[k] = a * x4[k] + y4[k];
        *reinterpret_cast<float4 *>(y + i) = *reinterpret_cast<const float4 *>(y4);
    } else {
        for (; i < n; i++)
            y[i] = a * x[i] + y[i];
    }

Legal when every array is indexed by the thread's own index and nothing else (proved), the pointers are 16-byte
aligned (captured) and do not overlap (captured), and the launch has a thread for every element (captured). The last
elements keep the scalar loop. Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis.coverage import check_index_only, covered
from cuda_agent.rewrite.analysis.elements import element_size
from cuda_agent.rewrite.layout import unit, unused_index
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.coarsen import Guarded, bound_text, guarded
from cuda_agent.rewrite.rules.restrict import check_disjoint
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.rewrite.vectors import Vector, declarations, local_vector, sizes_seen


class Vectorize(Rule):
    name = "vectorize"
    number = 6

    def sites(self, context: Context) -> Iterator[Site]:
        found = guarded(context.body)
        if found is None or not context.shapes:
            return
        elements = _elements(context, found)
        for nbytes in (16, 8):
            width = nbytes // max(size for _, size in elements.values())
            if width >= 2:
                yield Site(
                    self.name, syntax.span(found.guard), {"width": width}, {"found": found, "elements": elements}
                )

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        found: Guarded = site.nodes["found"]
        width: int = site.params["width"]
        elements: dict[str, tuple[str, int]] = site.nodes["elements"]
        arrays = {a: local_vector(context, a, kind, size, width) for a, (kind, size) in elements.items()}
        reached = covered(context, bound_text(context, found), "x")
        check_disjoint(context)
        for name, vector in arrays.items():
            if not context.aligned(name, vector.bytes):
                raise RuleRefused(f"{name} is not known to be aligned to {vector.bytes} bytes")
        edit = _edit(context, found, arrays, width)
        edits, mapping = launches.fewer_blocks(context, width)
        largest = max(v.bytes for v in arrays.values())
        return Rewrite(
            (edit, *edits),
            mapping,
            (
                Assumption(f"{', '.join(arrays)} are aligned to {largest} bytes at every launch", "captured"),
                Assumption("the pointers of one launch never overlap", "captured"),
                reached,
                *sizes_seen(context, arrays.values()),
            ),
        )


def _elements(context: Context, found: Guarded) -> dict[str, tuple[str, int]]:
    """Array → type and bytes of an element, in the order of first use. RuleRefused when the index means more than
    "this element"."""
    index = found.index.name
    if syntax.COOPERATION.search(text(context.body)):
        raise RuleRefused("threads of a block work together: they must all stay in step")
    check_index_only(context, found.index.value)
    elements = {p.name: p.element for p in context.kernel.params if p.pointer == 1}
    arrays: dict[str, tuple[str, int]] = {}
    for part in found.rest:
        if next(syntax.of_type(part, "return_statement"), None):
            raise RuleRefused("the guarded part may return early")
        for n in syntax.of_type(part, "identifier"):
            if text(n) in elements and (n.parent is None or n.parent.type != "subscript_expression"):
                raise RuleRefused(f"{text(n)} is used as a pointer")
        for array, at, whole in syntax.subscripts(part):
            if array not in elements:
                continue
            if squeeze(text(at)) != index:
                raise RuleRefused(f"{text(whole)} is not this thread's own element")
            size = element_size(context, array, elements[array])
            if size is None:
                raise RuleRefused(f"the size of {elements[array]} is not known")
            if whole.parent is not None and whole.parent.type == "pointer_expression":
                raise RuleRefused(f"the address of {text(whole)} is taken")
            arrays[array] = elements[array], size
    if not arrays:
        raise RuleRefused("no array is indexed by the thread index")
    if any(w.name == index for part in found.rest for w in syntax.writes(part)):
        raise RuleRefused(f"{index} is changed")
    return arrays


def _edit(context: Context, found: Guarded, arrays: dict[str, Vector], width: int) -> Edit:
    index, eol = found.index, context.eol
    indent, step = context.indent(index.declaration.start_byte), unit(context)
    kind = text(syntax.field(index.declaration, "type"))
    bound = bound_text(context, found)
    k = unused_index(context)
    reads = [a for a in arrays if _first_use_reads(found.rest, a) or not _always_stored(found.rest, a)]
    stores = [a for a in arrays if _stored(found.rest, a)]
    places = {a: v.at(k) for a, v in arrays.items()}
    one, two = indent + step, indent + 2 * step
    definitions = dict.fromkeys(v.definition for v in arrays.values() if v.definition)
    lines = [
        f"{kind} {index.name} = {_opened(text(index.value))} * {width};",
        f"{indent}if ({index.name} + {width - 1} < {bound}) {{",
        *(one + d for d in (*definitions, *declarations(list(arrays.values())))),
        *(one + arrays[a].load(f"{a} + {index.name}") for a in reads),
        f"{one}#pragma unroll",
        f"{one}for (int {k} = 0; {k} < {width}; {k}++) {{",
        *(two + line for line in _body(context, found, places, k)),
        f"{one}}}",
        *(one + arrays[a].store(f"{a} + {index.name}") for a in stores),
        f"{indent}}} else {{",
        f"{one}for (; {index.name} < {bound}; {index.name}++) {{",
        *(two + line for line in _body(context, found, {}, k)),
        f"{one}}}",
        f"{indent}}}",
    ]
    return Edit(Span(index.declaration.start_byte, max(found.rest[-1].end_byte, found.guard.end_byte)), eol.join(lines))


def _opened(code: str) -> str:
    return code if code.startswith("(") and code.endswith(")") else f"({code})"


def _body(context: Context, found: Guarded, local: dict[str, str], k: str) -> list[str]:
    """The guarded statements, one line each as in the file, with `a[i]` replaced by the local vector's element."""
    parts = [s for part in found.rest for s in syntax.statements(part)]
    start = context.module.document.data.rfind(b"\n", 0, parts[0].start_byte) + 1
    base = (
        len(context.slice(Span(start, parts[0].start_byte)))
        if not context.slice(Span(start, parts[0].start_byte)).strip()
        else 0
    )
    code = context.slice(Span(parts[0].start_byte, parts[-1].end_byte))
    for name, new in local.items():
        code = re.sub(rf"\b{re.escape(name)}\s*\[\s*{re.escape(found.index.name)}\s*\]", new, code)
    if local:
        code = re.sub(rf"(?<![\w.]){re.escape(found.index.name)}(?!\w)", f"({found.index.name} + {k})", code)
    first, *rest = code.splitlines()
    return [first, *(line[base:] if not line[:base].strip() else line for line in rest)]


def _stored(parts: list[Node], array: str) -> bool:
    return any(
        a == array
        for part in parts
        for w in syntax.memory_writes(part)
        for a, _, n in syntax.subscripts(w.target)
        if n == w.target
    )


def _first_use_reads(parts: list[Node], array: str) -> bool:
    """Some statement reads the element: it must be loaded."""
    targets = {
        w.target.start_byte
        for part in parts
        for w in syntax.memory_writes(part)
        if w.op == "=" and w.target.type == "subscript_expression"
    }
    return any(a == array and n.start_byte not in targets for part in parts for a, _, n in syntax.subscripts(part))


def _always_stored(parts: list[Node], array: str) -> bool:
    """The element is stored by a statement that always runs: its old value need not be loaded."""
    for part in parts:
        for statement in syntax.statements(part):
            if statement.type == "expression_statement":
                for w in syntax.memory_writes(statement):
                    if any(a == array and n == w.target for a, _, n in syntax.subscripts(w.target)):
                        return True
    return False
