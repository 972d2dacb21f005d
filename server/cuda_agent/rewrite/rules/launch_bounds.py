"""# 10 · launch-bounds: tell the compiler the real block size, and how many registers are worth it

Without `__launch_bounds__` nvcc may give a thread up to 255 registers, and few blocks are then resident on a
multiprocessor. With the block size and a number of blocks it keeps to the registers that let so many be resident. The
numbers tried are the next steps of occupancy: one register more than `65536 / (blocks · threads)` would lose a block.

Before: `__global__ void k(float *x, int n)` · After: `__global__ void __launch_bounds__(256, 5) k(float *x, int n)`

A kernel with `__launch_bounds__(256)` gets the second number. One that is launched with blocks of several sizes gets
`__maxnreg__(48)` instead, which says the registers themselves (CUDA 12.4 and later).

Legal when no launch has more threads a block than the bound: the largest captured block is used (captured).
Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cuda_agent.errors import UsageError
from cuda_agent.hints import occupancy
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site

_OWN = re.compile(rb"__launch_bounds__\s*\(")
_STEPS = 3  # numbers of blocks that are tried
_REGISTERS = (24, 128)  # caps outside spill for certain, or cap nothing


class LaunchBounds(Rule):
    name = "launch-bounds"
    number = 10

    def sites(self, context: Context) -> Iterator[Site]:
        kernel = context.kernel
        if not context.shapes or (kernel.launch_bounds is not None and len(kernel.launch_bounds) > 1):
            return
        header = context.slice(Span(kernel.span.start, kernel.name_span.start))
        if "__maxnreg__" in header:
            return
        at = Span(kernel.name_span.start, kernel.name_span.start)
        sizes = {s.threads for s in context.launched}
        threads = max(sizes)
        if kernel.launch_bounds is not None:
            own = kernel.launch_bounds[0].strip()
            if own == str(threads):
                for blocks, _ in steps(context, threads):
                    yield Site(self.name, _before_parenthesis(context), {"blocks": blocks})
            return
        for blocks, registers in steps(context, threads):
            if len(sizes) == 1:
                yield Site(self.name, at, {"threads": threads, "blocks": blocks}, minor=context.facts is None)
            else:
                yield Site(self.name, at, {"registers": registers}, minor=context.facts is None)
        yield Site(self.name, at, {"threads": threads}, minor=True)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        params = site.params
        if "registers" in params:
            return Rewrite((Edit(site.span, f"__maxnreg__({params['registers']}) "),))
        threads = params.get("threads") or max(s.threads for s in context.launched)
        known = Assumption(f"no launch of {context.kernel.name} has more than {threads} threads a block", "captured")
        inside = ", ".join(str(v) for v in params.values())
        text = f"__launch_bounds__({inside}) " if "threads" in params else f", {inside}"
        return Rewrite((Edit(site.span, text),), assumptions=(known,))


def steps(context: Context, threads: int) -> list[tuple[int, int]]:
    """Steps of occupancy worth a try, nearest first: (blocks resident on one SM, registers a thread that still allow
    them). With the compiler's facts those above what the kernel reaches, where registers are what holds it back;
    without them the steps whose registers a kernel may well need. None on the emulator, which has no registers."""
    if context.device is not None and context.device.kind == "emulator":
        return []
    try:
        sm = occupancy.limits(context.device.arch if context.device is not None else "sm_90")
    except UsageError:
        return []
    shared = max(s.shared for s in context.launched)
    now = 1
    if context.facts is not None:
        reached = occupancy.occupancy(sm, context.facts.registers, context.facts.shared_bytes + shared, threads)
        if reached.limiters != ("registers",):
            return []
        now = reached.blocks
        shared += context.facts.shared_bytes
    found: list[tuple[int, int]] = []
    for registers in range(_REGISTERS[1], _REGISTERS[0] - 1, -8):
        blocks = occupancy.occupancy(sm, registers, shared, threads).blocks
        if blocks > now:
            found.append((blocks, registers))
            now = blocks
    if context.facts is None:  # the middle of the range: 64 registers and what lies around
        found.sort(key=lambda step: abs(step[1] - 64))
    return found[:_STEPS]


def _before_parenthesis(context: Context) -> Span:
    """Just behind the one argument of the kernel's own bounds."""
    start, end = context.kernel.span.start, context.kernel.name_span.start
    data = context.module.document.data
    opened = _OWN.search(data, start, end)
    assert opened is not None
    assert context.kernel.launch_bounds is not None
    argument = context.kernel.launch_bounds[0].encode()
    at = data.index(argument, opened.end()) + len(argument)
    return Span(at, at)
