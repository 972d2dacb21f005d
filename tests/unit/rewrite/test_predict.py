"""Counts read off the text, each against what the definition of a sector and a bank gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.model import Arg, Dim3, Launch, Workload
from cuda_agent.rewrite import predict
from cuda_agent.rewrite.rule import Context

# body of `k(float *x, double *d, int *c, int n)`, block, what differs from nothing
CASES: dict[str, tuple[str, Dim3, dict[str, float]]] = {
    "coalesced": ("x[t] = 1;", (256, 1, 1), {"requests": 1, "sectors": 4, "bytes": 128}),
    "wide": ("d[t] = 1;", (256, 1, 1), {"requests": 1, "sectors": 8, "bytes": 256}),
    "strided by n": ("x[t * n] = 1;", (256, 1, 1), {"requests": 1, "sectors": 32, "bytes": 128}),
    "by two": ("x[2 * t] = 1;", (256, 1, 1), {"requests": 1, "sectors": 8, "bytes": 128}),
    "one for all": ("x[n] = 1;", (256, 1, 1), {"requests": 1, "sectors": 1, "bytes": 128}),
    "read and written": ("x[t] += 1;", (256, 1, 1), {"requests": 2, "sectors": 8, "bytes": 256}),
    "columns of a small block": (
        "x[threadIdx.x * 64 + threadIdx.y] = 1;",
        (16, 16, 1),
        {"requests": 1, "sectors": 16, "bytes": 128},
    ),
    "a row of its own": (
        "for (int j = 0; j < n; j++) x[t * n + j] = 1;",
        (256, 1, 1),
        {"requests": 100, "sectors": 3200, "bytes": 12800},
    ),
    "a loop that nobody can count": (
        "while (x[t] > 0) { }",
        (256, 1, 1),
        {"requests": 8, "sectors": 32, "bytes": 1024},
    ),
    "indirect": ("x[c[t]] = 1;", (256, 1, 1), {"requests": 2, "sectors": 8, "bytes": 256}),
    "partly indirect": ("x[c[t] + t] = 1;", (256, 1, 1), {"requests": 2, "sectors": 8, "bytes": 256}),
    "atomics": (
        "atomicAdd(&c[n], 1); x[t] = 1;",
        (256, 1, 1),
        {"requests": 2, "sectors": 5, "bytes": 256, "atomics": 1},
    ),
    "a column of a tile": (
        "__shared__ float s[32][32]; s[threadIdx.x][0] = 1;",
        (32, 1, 1),
        {"shared_requests": 1, "wavefronts": 32, "bank_conflicts": 31},
    ),
    "a column of a padded tile": (
        "__shared__ float s[32][33]; s[threadIdx.x][0] = 1;",
        (32, 1, 1),
        {"shared_requests": 1, "wavefronts": 1},
    ),
    "doubles in a row": (
        "__shared__ double s[32]; s[threadIdx.x] = 1;",
        (32, 1, 1),
        {"shared_requests": 1, "wavefronts": 2},
    ),
    "one word for all": (
        "__shared__ float s[32]; s[n] = 1;",
        (32, 1, 1),
        {"shared_requests": 1, "wavefronts": 1},
    ),
    "nothing": ("", (32, 1, 1), {}),
}


def context(body: str, block: Dim3, launches: int = 1) -> Context:
    text = f"""__global__ void k(float *x, double *d, int *c, int n) {{
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  {body}
}}
"""
    pointer, number = Arg(0, bytes(8)), Arg(24, (100).to_bytes(4, "little"))
    one = Launch("k", "k", (64, 1, 1), block, 0, (pointer, pointer, pointer, number), ())
    workload = Workload("k", "captured", (one,) * launches, Path(), Path(), "emulator")
    return Context.make(Path("k.cu"), text, "k", workload)


@pytest.mark.parametrize("name", CASES)
def test_counts_of_one_warp(name: str) -> None:
    body, block, wanted = CASES[name]
    found = predict.counts(context(body, block))
    assert {key: value for key, value in found.items() if value} == wanted


def test_without_a_capture_there_is_nothing_to_say() -> None:
    assert predict.counts(context("x[t] = 1;", (256, 1, 1), launches=0)) == {}
