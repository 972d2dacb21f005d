"""A type's name with several meanings: what the captured launches alone tell of its size is said with the diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.model import Arg, Buffer, Launch, Pointer, Workload
from cuda_agent.rewrite import Context
from cuda_agent.rewrite.moves import moves

TWO = "#ifdef DOUBLE_PRECISION\n#define FP double\n#else\n#define FP float\n#endif\n"
ONE = "#define FP float\n"
KERNEL = """__global__ void scale(const FP *x, FP *y, int n)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    {body}
}}
void run(const FP *x, FP *y, int n) {{ scale<<<(n + 255) / 256, 256>>>(x, y, n); }}
"""
BODIES = {
    "vectorize": "y[i] = 2 * x[i];",
    "vector-inner": "y[i] = 2 * x[i % 64];",
    "vector-columns": "y[blockIdx.y * 4096 + i] = 2 * x[blockIdx.y * 4096 + i];",
    "vector-loop": "for (int j = 0; j < 4096; j++)\n        y[j] += x[j];",
}


def said(rule: str, head: str, type_: str = "f") -> list[str]:
    """What the rule takes for granted of sizes, in the order in which it says so."""
    args = [Arg(8 * n, bytes(8), (Pointer(0, n, 0),)) for n in range(2)] + [Arg(16, (4096).to_bytes(4, "little"))]
    buffers = tuple(Buffer(n << 20, 4096 * 8, (), None) for n in (1, 2))
    launch = Launch(f"_Z5scalePK{type_}P{type_}i", "", (16, 1, 1), (256, 1, 1), 0, tuple(args), buffers)
    work = Workload("scale", "captured", (launch,), Path(), Path(), "NVIDIA H200", seen=1, varied=frozenset())
    text = head + KERNEL.format(body=BODIES[rule])
    context = Context.make(Path("/project/scale.cu"), text, "scale", work)
    made = next(candidate for move, candidate in moves(context) if move.rule == rule)
    return [
        one.text for one in made.assumptions if one.known == "captured" and " has " in one.text and "FP" in one.text
    ]


@pytest.mark.parametrize("rule", sorted(BODIES))
def test_a_size_that_only_the_capture_tells(rule: str) -> None:
    assert said(rule, TWO) == ["FP has 4 bytes"]
    # Four doubles are a structure, which asks the compiler.
    assert said(rule, TWO, "d") == ([] if rule == "vector-columns" else ["FP has 8 bytes"])
    assert said(rule, '#include "precision.h"\n') == ["FP has 4 bytes"]
    assert said(rule, ONE) == []
