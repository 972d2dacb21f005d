"""# 10 · launch-bounds: tell the compiler the real block size

Without `__launch_bounds__` nvcc assumes blocks of 1,024 threads and may spill or hold registers back.

Before: `__global__ void k(float *x, int n)` · After: `__global__ void __launch_bounds__(256) k(float *x, int n)`

Legal when no launch has more threads a block than the bound: the largest captured block is used (captured).
Bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site


class LaunchBounds(Rule):
    name = "launch-bounds"
    number = 10

    def sites(self, context: Context) -> Iterator[Site]:
        if context.kernel.launch_bounds is not None or not context.shapes:
            return
        threads = max(s.threads for s in context.shapes)
        at = Span(context.kernel.name_span.start, context.kernel.name_span.start)
        yield Site(self.name, at, {"threads": threads})
        for blocks in (2, 4, 8):
            if threads * blocks <= (context.device.threads_per_sm if context.device else 2048):
                yield Site(self.name, at, {"threads": threads, "blocks": blocks})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        inside = ", ".join(str(v) for v in site.params.values())
        known = Assumption(
            f"no launch of {context.kernel.name} has more than {site.params['threads']} threads a block", "captured"
        )
        return Rewrite((Edit(site.span, f"__launch_bounds__({inside}) "),), assumptions=(known,))
