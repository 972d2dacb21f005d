"""The float64 shadow on a real GPU: nvcc compiles it, the worker runs it, and it decides where 1e-5 cannot.

Run: pytest -rA tests/gpu/test_shadow_gpu.py (needs a GPU, cupy and nvcc). -rA shows the errors that were measured."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.device import Device, open_device
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g03_outputs import Outputs
from cuda_agent.judge.numeric import Compared
from cuda_agent.model import Arg, Buffer, Build, Candidate, Launch, LaunchMap, Pointer, Workload
from cuda_agent.source import edits
from cuda_agent.workload.bundle import BlobStore

pytestmark = pytest.mark.gpu

ROWS, LONG, SHORT = 4, 50_000, 64
SERIAL = """\
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum += {term};
    if (row < rows)
        sums[row] = sum;
"""
# Four partial sums: another order of adding, and a smaller error for a long row.
PARTIAL = """\
    float part[4] = {{0.0f, 0.0f, 0.0f, 0.0f}};
    for (int i = 0; i < n; i++)
        part[i % 4] += {term};
    if (row < rows)
        sums[row] = (part[0] + part[1]) + (part[2] + part[3]);
"""
TERM = "x[row * n + i]"


def program(body: str, term: str = TERM) -> str:
    return f"""\
__global__ void total(const float *x, float *sums, int rows, int n)
{{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
{body.format(term=term)}}}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("cuda:0") as opened:
        yield opened


def values(n: int) -> list[float]:
    return [0.1 + 0.01 * (i % 3) for i in range(ROWS * n)]


def workload(folder: Path, n: int) -> Workload:
    """One launch of total(x, sums, rows, n), whose own result was not recorded."""
    blobs = BlobStore(folder / "blobs")
    x = blobs.put(struct.pack(f"{ROWS * n}f", *values(n)))
    buffers = (
        Buffer(0x1000, 4 * ROWS * n, x, x),
        Buffer(0x9000000, 4 * ROWS, blobs.put(bytes(4 * ROWS)), None),
    )
    pointers = [Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in (0, 1)]
    scalars = [Arg(16, ROWS.to_bytes(4, "little")), Arg(20, n.to_bytes(4, "little"))]
    name, mangled = "total(float const*, float*, int, int)", "_Z5totalPKfPfii"
    made = Launch(mangled, name, (1, 1, 1), (32, 1, 1), 0, (*pointers, *scalars), buffers)
    return Workload("total", "captured", (made,), folder, folder / "blobs", "")


def compared(device: Device, folder: Path, candidate: str, n: int, original: str = program(SERIAL)) -> Compared:
    """The one output of the candidate beside the original's."""
    made = Candidate(
        "total", original, candidate, edits.minimal(original, candidate), "test", "reassociated", LaunchMap(), id="x"
    )
    build = Build(folder / "x.cu", folder, "nvcc", ("-O3",), "default")
    case = Case(device, build, workload(folder, n), original, made)
    (row,) = case.outcome(0).compared
    gate = Outputs().check(case)
    assert (gate.status == "pass") == row.within, gate.detail
    print(row.sentence())
    return row


def test_a_reassociated_sum_is_accepted_beyond_the_scaled_tolerance(device: Device, tmp_path: Path) -> None:
    """The serial sum of a long row is far off; another order is closer to the exact result, and so further from it
    than 1e-5."""
    row = compared(device, tmp_path, program(PARTIAL), LONG)
    assert row.rule == "float64 shadow"
    assert row.shadow is not None
    assert row.result["max_abs"] > 1e-5 * row.shadow.magnitude
    assert row.shadow.candidate.max_abs < row.shadow.original.max_abs
    assert row.within


def test_the_shadow_is_the_exact_result(device: Device, tmp_path: Path) -> None:
    row = compared(device, tmp_path, program(PARTIAL), LONG)
    assert row.shadow is not None
    numbers = struct.unpack(f"{ROWS * LONG}f", struct.pack(f"{ROWS * LONG}f", *values(LONG)))
    exact = [math.fsum(numbers[r * LONG : (r + 1) * LONG]) for r in range(ROWS)]
    assert row.shadow.magnitude == pytest.approx(max(exact), rel=1e-12)


def test_further_from_the_truth_than_it_may_be_is_rejected_inside_the_scaled_tolerance(
    device: Device, tmp_path: Path
) -> None:
    """Terms that lose their last bits: a short sum is nearly exact, and this one within 1e-5 of it."""
    narrow = program(SERIAL, f"__int_as_float(__float_as_int({TERM}) & ~0x3f)")
    row = compared(device, tmp_path, narrow, SHORT)
    assert row.rule == "float64 shadow"
    assert row.shadow is not None
    assert 0 < row.result["max_abs"] < 1e-5 * row.shadow.magnitude
    assert row.shadow.candidate.max_abs > row.shadow.limit_abs
    assert not row.within


def test_where_there_is_no_shadow_the_scaled_tolerance_decides(device: Device, tmp_path: Path) -> None:
    bits = f"__int_as_float(__float_as_int({TERM}) & 0x7fffffff)"
    row = compared(device, tmp_path, program(PARTIAL, bits), SHORT, original=program(SERIAL, bits))
    assert row.shadow is None
    assert "no float64 shadow: it uses __" in row.rule
    assert row.within
