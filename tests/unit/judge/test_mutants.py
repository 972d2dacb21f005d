"""Mutants of a kernel's text, and what G2 makes of those that the recorded inputs do not show."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from cuda_agent.device import Device
from cuda_agent.judge import mutation
from cuda_agent.judge.case import Case
from cuda_agent.judge.mutants import Schema
from cuda_agent.judge.options import JudgeOptions
from cuda_agent.model import Arg, Buffer, Build, Candidate, Launch, Pointer, Workload
from cuda_agent.source import edits
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.workload.bundle import BlobStore


def schema(text: str, count: int = 100, seed: int = 0, without: frozenset[int] = frozenset()) -> Schema:
    parsed = module(Document("k.cu", text))
    return Schema(parsed, parsed.kernels[0], count, seed, without)


def mutants(body: str, params: str = "const float *x, float *y, float a, int n, const int *index") -> set[str]:
    text = f"__global__ void k({params})\n{{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    {body}\n}}\n"
    return {f"{mutant.old} → {mutant.new}" for mutant in schema(text).mutants}


TOKENS = {
    "y[i] = a * x[i];": {"* → +", "i → i + 1"},
    "y[i] += x[i];": {"+= → -=", "i → i + 1"},
    "y[i] *= x[i] / 3.0f;": {"*= … → *= 1", "i → i + 1", "/ → *", "3.0f → 3.0f + 1"},
    "y[i] = fmaxf(x[i], 0.5f);": {"fmaxf → fminf", "i → i + 1"},
    "float s = 0.0f;\n    for (int c = 0; c < n; c++)\n        s -= x[i * n + c];\n    y[i] = s;": {
        "-= → +=", "i * n + c → (i * n + c) + 1"
    },
    "const float *row = x + i * n;\n    y[i] = row[2];": {"2 → 2 + 1"},
    "y[i] = x[index[i] + 1];": {"index[i] + 1 → (index[i] + 1) + 1"},
    "y[i] = __ldg(&x[i]);": {"i → i + 1"},
    "atomicAdd(&y[i % 4], 1.0f);": set(),  # no loaded data, and no address of a load
    "if (i < n && i + 1 > 0)\n        y[i] = (float)(i * n + 3);": set(),  # guards and coordinates
    "y[i] = sizeof(x[0]);": set(),
    "x += n;\n    y[i] = x[i];": set(),  # where x ends is not known any more
    "__shared__ float s[32 * 2];\n    s[i] = 1.0f;": set(),
    "switch (n) { case 1 + 1: y[i] = x[0]; }": {"0 → 0 + 1"},
}  # fmt: skip


@pytest.mark.parametrize("body", TOKENS)
def test_which_tokens_are_mutated(body: str) -> None:
    assert mutants(body) == TOKENS[body]


def test_the_last_term_is_dropped_or_the_sign_turned() -> None:
    found = [mutants(f"y[i] = {term} + x[i] * a;") for term in ("x[0]", "x[1]", "x[2]", "x[3]", "a", "y[i]")]
    assert any("+ x[i] * a → nothing" in some for some in found)
    assert any("+ → -" in some for some in found)


LONG = "__global__ void k(const float *x, const float *z, float *y)\n{\n" + "".join(
    f"    y[{i}] = x[{i}] * 2.0f + z[{i}];\n" for i in range(10)
) + "}\n"  # fmt: skip


def test_so_many_are_chosen_by_seed() -> None:
    first, same, other = (schema(LONG, 8, seed).mutants for seed in (1, 1, 2))
    assert len(first) == len(other) == 8
    assert first == same != other
    assert [mutant.line for mutant in first] == sorted(mutant.line for mutant in first)
    assert {"x", "z"} <= {site.param for site in schema(LONG, 2, 1).sites}  # loads of both
    lines = frozenset(mutant.line for mutant in first)
    assert not lines & {mutant.line for mutant in schema(LONG, 8, 1, lines).mutants}


def test_the_text_keeps_its_lines_and_everything_else() -> None:
    text = "// é\n" + LONG + "int main() {}\n"
    made = schema(text, 8).text
    prelude, _, rest = made.partition('#line 1 "k.cu"\n')
    assert "cuda_agent_next" in prelude
    assert rest.count("\n") == text.count("\n")
    assert rest.startswith("// é\n__global__")
    assert rest.endswith("int main() {}\n")
    for mutant in schema(text, 8).mutants:
        assert f"({mutant.number}, " in rest.splitlines()[mutant.line - 1]


# ---------------------------------------------------------------- on the emulator


ROWS, COLUMNS = 12, 16
SOFTMAX = """\
#include <cuda_runtime.h>
__global__ void k(const float *x, const float *bias, float *y, int rows, int cols)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    float most = x[row * cols];
    for (int c = 1; c < cols; c++)
        most = fmaxf(most, x[row * cols + c]);
    float sum = 0.0f;
    for (int c = 0; c < cols; c++)
        sum += expf(x[row * cols + c] - most);
    for (int c = 0; c < cols; c++)
        y[row * cols + c] = expf(x[row * cols + c] - most) / sum + bias[c];
}
"""
VARIED = [((i * 37) % 101) / 25.0 - 2.0 for i in range(ROWS * COLUMNS)]


def case_of(device: Device, folder: Path, text: str, other: str, x: Sequence[float], bias: Sequence[float]) -> Case:
    blobs = BlobStore(folder / "blobs")
    buffers = (
        Buffer(0x1000, 4 * len(x), blobs.put(struct.pack(f"{len(x)}f", *x)), None),
        Buffer(0x5000, 4 * len(bias), blobs.put(struct.pack(f"{len(bias)}f", *bias)), None),
        Buffer(0x9000, 4 * len(x), blobs.put(bytes(4 * len(x))), None),
    )
    args = (
        *(Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in range(3)),
        Arg(24, ROWS.to_bytes(4, "little")),
        Arg(28, COLUMNS.to_bytes(4, "little")),
    )
    launch = Launch("_Z1kPKfS0_Pfii", "", (1, 1, 1), (32, 1, 1), 0, args, buffers)
    work = Workload("k", "captured", (launch,), folder, folder / "blobs", "")
    made = Candidate("k", text, other, edits.minimal(text, other), "test", "reassociated")
    return Case(device, Build(folder / "k.cu", folder, "nvcc", (), "default"), work, text, made, options=JudgeOptions())


def gone(found: Sequence[mutation.Mutant]) -> list[tuple[int, str]]:
    return [(mutant.line, mutant.old) for mutant in found]


def test_what_softmax_only_subtracts_is_harmless(emulator: Device, tmp_path: Path) -> None:
    bias = [0.1 * c - 0.3 for c in range(COLUMNS)]
    case = case_of(emulator, tmp_path, SOFTMAX, SOFTMAX, VARIED, bias)
    case.options = JudgeOptions(mutants=20)
    score = mutation.score(case)
    assert not score.weak
    assert {(7, "row * cols"), (9, "fmaxf"), (9, "row * cols + c")} <= set(gone(score.harmless))
    assert {(14, "row * cols + c"), (14, "/"), (12, "+=")} <= set(gone(score.noticed))
    assert all(line in (7, 9, 12, 14) for line, _ in gone(score.harmless))
    assert mutation.score(case) is score  # once for an original and its launches
    assert mutation.parting(case, score) is None


def test_a_bias_of_zeros_is_weak(emulator: Device, tmp_path: Path) -> None:
    other = SOFTMAX.replace(" / sum + bias[c]", " / sum")
    case = case_of(emulator, tmp_path, SOFTMAX, other, VARIED, [0.0] * COLUMNS)
    case.options = JudgeOptions(mutants=20)
    score = mutation.score(case)
    assert [14] * len(score.weak) == [weakness.mutant.line for weakness in score.weak]
    assert "c" in [weakness.mutant.old for weakness in score.weak]
    parted = mutation.parting(case, score)
    assert parted is not None
    assert parted[1].startswith("y[")
    # a candidate that adds it all the same agrees with the original on other values, far from its bits
    right = SOFTMAX.replace(
        "expf(x[row * cols + c] - most) / sum + bias[c]", "bias[c] + expf(x[row * cols + c] - most) / sum"
    )
    right = right.replace("sum += expf", "sum = sum + expf").replace("/ sum", "* (1.0f / sum)")
    again = case_of(emulator, tmp_path / "right", SOFTMAX, right, VARIED, [0.0] * COLUMNS)
    again.options = case.options
    assert mutation.parting(again, mutation.score(again)) is None


def test_mutants_that_do_not_compile_are_left_out(emulator: Device, tmp_path: Path) -> None:
    text = SOFTMAX.replace(
        "__global__",
        "struct Sum { float v; };\n__device__ Sum operator+(Sum a, float b) { return Sum{a.v + b}; }\n__global__",
        1,
    ).replace(
        "    float sum = 0.0f;\n",
        "    Sum none{x[row * cols]};\n    none = (none + x[row * cols]);\n    float sum = 0.0f;\n",
    )
    case = case_of(emulator, tmp_path, text, text, VARIED, [1.0] * COLUMNS)
    case.options = JudgeOptions(mutants=40)
    score = mutation.score(case)
    assert score.noticed
    assert 13 not in [line for line, _ in gone(score.noticed + score.harmless)]


def test_a_kernel_without_mutants_says_so(emulator: Device, tmp_path: Path) -> None:
    text = SOFTMAX[: SOFTMAX.index("    float most")] + "    y[row] = 1.0f + row;\n}\n"
    score = mutation.score(case_of(emulator, tmp_path, text, text, VARIED, [1.0] * COLUMNS))
    assert "computes nothing from the data it loads" in score.sentence()
