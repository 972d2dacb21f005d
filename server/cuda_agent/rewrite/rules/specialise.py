"""# 15 · specialise: scalars that never change become constants

A size that the compiler does not know costs a division of 20 instructions where a multiplication would do, a loop that
is not unrolled, and an address computed anew for every element.

Before:

    __global__ void pool(const float *in, float *out, int width, int rows, int cols)
    {
        …
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols; c++)
                …
    }

After:

    __device__ __forceinline__ void pool_body(const float *in, float *out, int width, int rows, int cols)
    {
        …                                        // unchanged
    }

    __global__ void pool(const float *in, float *out, int width, int rows, int cols)
    {
        // The usual sizes as constants: loops unroll, divisions become multiplications.
        if (rows == 2 && cols == 2)
            pool_body(in, out, width, 2, 2);
        else
            pool_body(in, out, width, rows, cols);
    }

The scalars are those that divide, bound a loop or scale an index and that were equal in every launch of the captured
program, also in those that were not recorded (captured).
Any other value takes the second call, which is the kernel as it was (proved). Signature and launches stay. Bit-exact.
Later rules work on the body as they would on the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import trips
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.analysis.scalars import Scalars
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, changes
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.headers import Header
from cuda_agent.source.tree import field, operator

COLUMNS = 110
COMMENT = "// the usual sizes as constants: loops unroll and divisions become multiplications"
_NOT_IN_HELPER = r'extern\s*"C"|__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)|\b(?:inline|__inline__)\b'


class Specialise(Rule):
    name = "specialise"
    number = 15

    def sites(self, context: Context) -> Iterator[Site]:
        scalars = Scalars(context, instantiated=True)
        roles = Roles(scalars)
        if not roles.worth:
            return
        if context.workload is None:
            raise RuleRefused("no captured launch says which values are usual")
        known = {n: v for n, p in scalars.params.items() if n in roles.all and (v := _constant(scalars, n)) is not None}
        if not known.keys() & roles.worth:
            raise RuleRefused(_unknown(context, roles.worth))
        few = {n: v for n, v in known.items() if n in roles.worth}
        for values in (known, few) if few != known else (known,):
            label = {n: int(v) if v.lstrip("-").isdigit() else v for n, v in values.items()}
            yield Site(self.name, context.kernel.span, label, {"values": values})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        values: dict[str, str] = site.nodes["values"]
        header = _header(context)
        name = context.unused(f"{context.kernel.name}_body")
        edits = [*_helper(context, header, name), _dispatch(context, name, values)]
        said = ", ".join(f"{n} was {v}" for n, v in values.items())
        known = Assumption(f"{said} in {context.every_launch}; other values run the kernel as it was", "captured")
        return Rewrite(tuple(edits), assumptions=(known,))


class Roles:
    """What scalar parameters do in a body. `worth`: they divide or bound a loop, so that a constant changes the code;
    `all`: also those that scale an index or choose a branch."""

    def __init__(self, scalars: Scalars) -> None:
        body = scalars.context.body
        worth: set[str] = set()
        scale: set[str] = set()
        for node in syntax.of_type(body, "binary_expression", "assignment_expression"):
            right = field(node, "right")
            if right is not None and operator(node) in ("/", "%", "/=", "%="):
                worth |= scalars.behind(right)
            elif operator(node) == "*":
                scale |= scalars.behind(node)
        for name, call in syntax.calls(body):
            if any(_works(n) for n in definitions(scalars.context.module).get(name.partition("<")[0], ())):
                worth |= scalars.behind(syntax.field(call, "arguments"))
        strides = _strides(body)
        for loop in syntax.of_type(body, "for_statement"):
            condition, update = field(loop, "condition"), field(loop, "update")
            if condition is None or update is None:
                continue
            if not any(w.value is not None and syntax.identifiers(w.value) & strides for w in syntax.writes(update)):
                worth |= scalars.behind(condition)
                steps = trips.trips(scalars.context, loop)  # from a thread's own start to its own end
                worth |= steps.names & scalars.params.keys() if steps is not None else set()
        asked = (field(n, "condition") for n in syntax.of_type(body, "if_statement", "conditional_expression"))
        flags = {text(n).strip("(! )") for n in asked if n is not None} & scalars.params.keys()
        self.worth = frozenset(worth)
        self.all = frozenset(worth | scale | flags)


def _works(function: Node) -> bool:
    """A device function divides or loops: a constant argument changes its code too."""
    return any(
        n.type == "for_statement" or operator(n) in ("/", "%")
        for n in syntax.of_type(function, "for_statement", "binary_expression")
    )


def _strides(body: Node) -> set[str]:
    """blockDim, gridDim and the constants made of them: a loop that steps by one has no trip count even if its bound is
    known."""
    found = {"blockDim", "gridDim"}
    for write in syntax.writes(body):
        made = write.value is not None and "threadIdx" not in text(write.value) and syntax.identifiers(write.value)
        if write.op == "init" and write.name is not None and made and made & found:
            found.add(write.name)
    return found


def _changes(context: Context, name: str) -> bool:
    return name in context.varied or len(set(context.captured(name))) > 1


def _unknown(context: Context, names: frozenset[str]) -> str:
    """Why none of these parameters has a usual value."""
    changing = [n for n in names if _changes(context, n)]
    if not changing:
        return f"no captured launch tells what it was: {', '.join(sorted(names))}"
    return changes(changing)


def _constant(scalars: Scalars, name: str) -> str | None:
    """The value that the parameter had in every launch, as a literal."""
    values = set(scalars.context.captured(name))
    if _changes(scalars.context, name) or not values:
        return None
    (value,) = values
    kind = scalars.types.name(name)
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("unsigned", "uint64") and value < 0:
        return None  # the highest bit is set: no size
    return str(value)


def _header(context: Context) -> Header:
    kernel = context.kernel
    header = next((h for h in context.module.tree.headers if h.name_span == kernel.name_span), None)
    code = context.slice(Span(kernel.span.start, kernel.body.start))
    if header is None or code.count("__global__") != 1:
        raise RuleRefused("the kernel's head is behind a macro, or the kernel is specialised already")
    if header.specialised is not None or sum(k.name == kernel.name for k in context.module.kernels) > 1:
        raise RuleRefused(f"{kernel.name} has several definitions")
    if "__grid_constant__" in code or header.scope:
        raise RuleRefused("the kernel's head cannot be that of a device function")
    if "asm" in syntax.identifiers(context.body) or next(syntax.of_type(context.body, "gnu_asm_expression"), None):
        raise RuleRefused("assembly text may not stand in the program twice")
    return header


def _helper(context: Context, header: Header, name: str) -> Iterator[Edit]:
    """The kernel's own text becomes an inlined device function."""
    kernel = context.kernel
    head = context.slice(Span(kernel.span.start, kernel.name_span.start))
    at = kernel.span.start
    for match in re.finditer(rf"(__global__)|[ \t]+(?:{_NOT_IN_HELPER})(?=\s)|(?:{_NOT_IN_HELPER})[ \t]*", head):
        start = at + len(head[: match.start()].encode())
        end = at + len(head[: match.end()].encode())
        yield Edit(Span(start, end), "__device__ __forceinline__" if match[1] else "")
    yield Edit(kernel.name_span, name)
    if re.search(r"__launch_bounds__|__attribute__", context.slice(Span(kernel.params_span.end, kernel.body.start))):
        raise RuleRefused("attributes stand behind the kernel's parameters")


def _dispatch(context: Context, name: str, values: dict[str, str]) -> Edit:
    """The kernel anew behind its body: it calls the body with the constants, or with what it was given."""
    kernel, eol = context.kernel, context.eol
    indent = context.indent(kernel.span.start)
    step = layout.unit(context)
    head = context.slice(Span(kernel.span.start, kernel.body.start))
    called = name + _template_arguments(kernel.template_params)
    test = " && ".join(n if v == "true" else f"!{n}" if v == "false" else f"{n} == {v}" for n, v in values.items())
    one, two = indent + step, indent + step * 2
    lines = [
        head + "{",
        f"{one}{COMMENT}",
        *_wrapped(f"{one}if (", test, ")", " && "),
        *_wrapped(f"{two}{called}(", ", ".join(values.get(p.name, p.name) for p in kernel.params), ");", ", "),
        f"{one}else",
        *_wrapped(f"{two}{called}(", ", ".join(p.name for p in kernel.params), ");", ", "),
        f"{indent}}}",
    ]
    return Edit(Span(kernel.body.end, kernel.body.end), eol * 2 + indent + eol.join(lines))


def _template_arguments(params: tuple[str, ...]) -> str:
    names = []
    for param in params:
        found = re.search(r"(\w+)\s*(?:=.*)?$", param.strip(), re.DOTALL)
        if found is None or "..." in param or param.lstrip().startswith("template"):
            raise RuleRefused("the template has parameters that cannot be passed on by name")
        names.append(found[1])
    return f"<{', '.join(names)}>" if names else ""


def _wrapped(before: str, code: str, after: str, separator: str) -> list[str]:
    """One line, or several that are broken at the separator and start below the first; below a long head, two steps to
    the right of it."""
    parts = code.split(separator)
    if len(before) <= COLUMNS // 2:
        lines, margin = [before], " " * len(before.expandtabs(4))
    else:
        margin = before[: len(before) - len(before.lstrip())] + " " * 4
        lines = [before, margin]
    for index, part in enumerate(parts):
        piece = part + (separator.rstrip() if index + 1 < len(parts) else after)
        if lines[-1].strip() and len(lines[-1]) + len(piece) > COLUMNS and index:
            lines[-1] = lines[-1].rstrip()
            lines.append(margin)
        lines[-1] += piece + (" " if index + 1 < len(parts) else "")
    return lines
