"""Rules that do the same: one of them goes before the other."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.model import Arg, Buffer, Launch, Pointer, Workload
from cuda_agent.rewrite import Context
from cuda_agent.rewrite.moves import moves

KERNEL = """__global__ void scale(float *y, const float *x, int n)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    {body}
}}
void run(float *y, const float *x, int n) {{ scale<<<(n + 255) / 256, 256>>>(y, x, n); }}
"""
PLAIN, ROWS = "y[i] = 2.0f * x[i];", "y[blockIdx.y * n + i] = 2.0f * x[blockIdx.y * n + i];"


def context(body: str) -> Context:
    args = tuple(Arg(8 * n, bytes(8), (Pointer(0, n, 0),)) for n in range(2))
    buffers = tuple(Buffer(n << 20, 4096, (), None) for n in (1, 2))
    size = Arg(16, (1 << 20).to_bytes(4, "little"))
    launch = Launch("_Z5scalePfPKfi", "", (4096, 1, 1), (256, 1, 1), 0, (*args, size), buffers)
    work = Workload("scale", "captured", (launch,), Path(), Path(), "NVIDIA H200", seen=1, varied=frozenset())
    return Context.make(Path("/project/scale.cu"), KERNEL.format(body=body), "scale", work)


def rules(context: Context, *without: str) -> set[str]:
    return {move.rule for move, _ in moves(context, without)} & {"vectorize", "vector-columns"}


def test_a_rule_stands_back_where_another_does_the_same() -> None:
    assert rules(context(PLAIN)) == {"vectorize"}
    assert rules(context(PLAIN), "vectorize") == set()  # it was asked before, and acted
    assert rules(context(PLAIN), "vector-columns") == {"vectorize"}


def test_and_acts_where_the_other_may_not() -> None:
    assert rules(context(ROWS)) == {"vector-columns"}


def test_it_stands_back_behind_the_other() -> None:
    first = context(PLAIN)
    made = next(candidate for move, candidate in moves(first) if move.rule == "vectorize")
    assert rules(first.behind(made)) == set()
