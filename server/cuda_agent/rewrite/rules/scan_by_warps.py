"""# 12 · scan-by-warps: a tree scan over a block's array becomes a scan of each warp

The work-efficient scan of GPU Gems 3 (chapter 39) goes up a tree and down again in shared memory: two barriers for each
doubling, and most threads idle. A warp scans its threads' sums by shuffles, without a barrier.

Before:

    for (int d = N >> 1; d > 0; d >>= 1) {
        __syncthreads();
        if (t < d) {
            int a = offset * (2 * t + 1) - 1;
            int b = offset * (2 * t + 2) - 1;
            temp[b] += temp[a];
        }
        offset *= 2;
    }
    if (t == 0) temp[N - 1] = 0;
    for (int d = 1; d < N; d *= 2) {
        …                                        // down again
    }

After:

    __shared__ int warp_sums[32];
    const int lane = t % 32, warp = t / 32;
    __syncthreads();
    const int left = temp[2 * t], both = left + temp[2 * t + 1];
    int sum = both;
    for (int d = 1; d < 32; d *= 2) {
        const int below = __shfl_up_sync(0xffffffff, sum, d);
        if (lane >= d)
            sum += below;
    }
    if (lane == 31)
        warp_sums[warp] = sum;
    __syncthreads();
    …                                            // the first warp scans the warps' sums
    temp[2 * t] = before;
    temp[2 * t + 1] = before + left;

Legal when the loops are that scan, with or without padded indices, over an array in shared memory (proved), and the
block has one thread for two elements, in whole warps (captured). Sums of floats are added in another order: class
"reassociated"; of integers the result is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import affine, arithmetic, blocks, names
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text

_WARP = 32
_MASK = "0xffffffff"
_PAIR = (
    r"int (?P<a>\w+) = (?P<offset>\w+) \* \( 2 \* (?P<t>\w+) \+ 1 \) - 1 ; "
    r"int (?P<b>\w+) = (?P=offset) \* \( 2 \* (?P=t) \+ 2 \) - 1 ; "
    r"(?:(?P=a) \+= (?P<pad>\w+) \( (?P=a) \) ; (?P=b) \+= (?P=pad) \( (?P=b) \) ; )?"
)
_HALVES = r"(?:>>= 1|/= 2)"
_DOUBLES = r"(?:<<= 1|\*= 2)"
_UP = re.compile(
    rf"for \( int (?P<d>\w+) = (?P<n>\w+) (?:>> 1|/ 2) ; (?P=d) > 0 ; (?P=d) {_HALVES} \) \{{ __syncthreads \( \) ; "
    rf"if \( (?P<guard>\w+) < (?P=d) \) \{{ {_PAIR}"
    rf"(?P<array>\w+) \[ (?P=b) \] \+= (?P=array) \[ (?P=a) \] ; \}} (?P=offset) {_DOUBLES} ; \}}"
)
_CLEAR = re.compile(
    r"if \( (?P<t>\w+) == 0 \) (?:\{ )?"
    r"(?P<array>\w+) \[ (?P<n>\w+) - 1 (?:\+ (?P<pad>\w+) \( (?P=n) - 1 \) )?\] = 0 ;(?: \})?"
)
_DOWN = re.compile(
    rf"for \( int (?P<d>\w+) = 1 ; (?P=d) < (?P<n>\w+) ; (?P=d) {_DOUBLES} \) \{{ (?P<offset>\w+) {_HALVES} ; "
    r"__syncthreads \( \) ; if \( (?P<guard>\w+) < (?P=d) \) \{ "
    + _PAIR.replace("(?P<offset>\\w+)", "(?P=offset)")
    + r"(?P<type>[\w ]+?) (?P<held>\w+) = (?P<array>\w+) \[ (?P=a) \] ; "
    r"(?P=array) \[ (?P=a) \] = (?P=array) \[ (?P=b) \] ; (?P=array) \[ (?P=b) \] \+= (?P=held) ; \} \}"
)


@dataclass(frozen=True)
class Scan:
    """The statements of one scan; `n` elements of `array`, two for each thread `t`; `pad`: a function of an index that
    is added to it, "" of none."""

    up: Node
    down: Node
    n: str
    t: str
    offset: str
    array: str
    pad: str
    type: str


class ScanByWarps(Rule):
    name = "scan-by-warps"
    number = 12

    def sites(self, context: Context) -> Iterator[Site]:
        for node in syntax.of_type(context.body, "for_statement"):
            scan = _scan(node)
            if scan is not None and any(s.name == scan.array for s in context.kernel.shared):
                yield Site(self.name, Span(scan.up.start_byte, scan.down.end_byte), {}, {"scan": scan})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        scan: Scan = site.nodes["scan"]
        if Names(context).resolved(_use(scan.up, scan.t)) != "threadIdx.x":
            raise RuleRefused(f"{scan.t} is not the thread's index in its block")
        _check_block(context, scan)
        known = arithmetic.of_spelling(scan.type)
        exact = known in arithmetic.INTEGERS or (known == "unknown" and _integers(context, scan.type))
        assumptions = (
            Assumption("the loops scan the block's array", "proved"),
            Assumption(f"a block has {scan.n} / 2 threads, in whole warps", "captured"),
        )
        return Rewrite(
            tuple(_edits(context, scan)), assumptions=assumptions, numeric="bit-exact" if exact else "reassociated"
        )


def _tokens(node: Node) -> str:
    """The statement's tokens with one space between them, without comments."""
    leaves = (n for n in syntax.walk(node) if n.child_count == 0 and n.type != "comment")
    return " ".join(" ".join(text(n).split()) for n in leaves)


def _scan(node: Node) -> Scan | None:
    up = _UP.fullmatch(_tokens(node))
    if up is None or node.parent is None or node.parent.type != "compound_statement":
        return None
    following = [s for s in syntax.statements(node.parent) if s.start_byte > node.start_byte][:2]
    if len(following) != 2:
        return None
    clear, down = _CLEAR.fullmatch(_tokens(following[0])), _DOWN.fullmatch(_tokens(following[1]))
    if clear is None or down is None:
        return None
    for name in ("n", "t", "array", "pad"):
        if len({(m[name] or "") for m in (up, clear, down)}) != 1:
            return None
    if up["offset"] != down["offset"] or {up["guard"], down["guard"]} != {up["t"]}:
        return None
    return Scan(node, following[1], up["n"], up["t"], up["offset"], up["array"], up["pad"] or "", down["type"])


def _use(node: Node, name: str) -> Node:
    return next(n for n in syntax.of_type(node, "identifier") if text(n) == name)


def _check_block(context: Context, scan: Scan) -> None:
    """RuleRefused unless every captured block has a thread for two elements, and whole warps, and `offset` starts at
    1."""
    sizes = blocks.shapes(context)
    if not sizes:
        raise RuleRefused("the number of threads of a block is not known")
    here = affine.of(context, _use(scan.up, scan.n))
    for shape, arguments in sizes:
        said = arguments.get(scan.n, "")
        count = int(said) if said.isdigit() else here.value
        if shape.block[1:] != (1, 1) or shape.block[0] % _WARP or count != 2 * shape.block[0]:
            raise RuleRefused(f"a block has not one thread for two of {scan.n} elements, in whole warps")
    variable = names.of(context).resolve(scan.offset, scan.up.start_byte)
    write = names.of(context).reaching(variable, scan.up) if variable is not None else None
    if write is None or write.value is None or text(write.value) != "1":
        raise RuleRefused(f"{scan.offset} does not start at 1")


def _integers(context: Context, kind: str) -> bool:
    """A template type that was an integer in every captured launch."""
    found = [arguments.get(kind, "") for _, arguments in blocks.shapes(context)]
    return bool(found) and all(arithmetic.of_spelling(f) in arithmetic.INTEGERS for f in found)


# ---------------------------------------------------------------- the text


def _edits(context: Context, scan: Scan) -> Iterator[Edit]:
    step, eol, indent = layout.unit(context), context.eol, context.indent(scan.up.start_byte)
    lane, warp, sums, left, both, total, upto, below, before, d = (
        context.unused_here(n)
        for n in ("lane", "warp", "warp_sums", "left", "both", "sum", "upto", "below", "before", "d")
    )
    t, kind = scan.t, scan.type
    d = "d" if not _outer(context, scan, "d") else d

    def place(index: str) -> str:
        return f"{scan.array}[{index} + {scan.pad}({index})]" if scan.pad else f"{scan.array}[{index}]"

    def scanned(name: str, inside: str) -> list[str]:
        return [
            f"{inside}#pragma unroll",
            f"{inside}for (int {d} = 1; {d} < {_WARP}; {d} *= 2) {{",
            f"{inside}{step}const {kind} {below} = __shfl_up_sync({_MASK}, {name}, {d});",
            f"{inside}{step}if ({lane} >= {d})",
            f"{inside}{step}{step}{name} += {below};",
            f"{inside}}}",
        ]

    lines = [
        "// each warp scans its threads' pairs, the first warp scans the warps' sums",
        f"__shared__ {kind} {sums}[{_WARP}];",
        f"const int {lane} = {t} % {_WARP}, {warp} = {t} / {_WARP};",
        "__syncthreads();",
        f"const {kind} {left} = {place(f'2 * {t}')}, {both} = {left} + {place(f'2 * {t} + 1')};",
        f"{kind} {total} = {both};",
        *scanned(total, ""),
        f"if ({lane} == {_WARP - 1})",
        f"{step}{sums}[{warp}] = {total};",
        "__syncthreads();",
        f"if ({warp} == 0) {{",
        f"{step}{kind} {upto} = {lane} < {scan.n} / {2 * _WARP} ? {sums}[{lane}] : {kind}(0);",
        *scanned(upto, step),
        f"{step}{sums}[{lane}] = {upto};",
        "}",
        "__syncthreads();",
        f"{kind} {before} = __shfl_up_sync({_MASK}, {total}, 1);",
        f"if ({lane} == 0)",
        f"{step}{before} = 0;",
        f"if ({warp} > 0)",
        f"{step}{before} += {sums}[{warp} - 1];",
        f"{place(f'2 * {t}')} = {before};",
        f"{place(f'2 * {t} + 1')} = {before} + {left};",
    ]
    yield Edit(Span(scan.up.start_byte, scan.down.end_byte), (eol + indent).join(lines))
    gone = _declaration(context, scan)
    if gone is not None:
        yield Edit(layout.line_of(context, syntax.span(gone)), "")


def _outer(context: Context, scan: Scan, name: str) -> bool:
    """Whether the kernel has the name outside the scan."""
    inside = Span(scan.up.start_byte, scan.down.end_byte)
    return any(text(n) == name and not inside.holds(syntax.span(n)) for n in syntax.of_type(context.body, "identifier"))


def _declaration(context: Context, scan: Scan) -> Node | None:
    """`int offset = 1;`, when nothing but the scan uses it."""
    inside = Span(scan.up.start_byte, scan.down.end_byte)
    for node in syntax.of_type(context.body, "declaration"):
        if syntax.declared(node) == {scan.offset}:
            uses = [n for n in syntax.of_type(context.body, "identifier") if text(n) == scan.offset]
            outside = [
                n for n in uses if not inside.holds(syntax.span(n)) and not syntax.span(node).holds(syntax.span(n))
            ]
            return None if outside else node
    return None
