"""The gates over a real compiler and real kernels: tests/corpus/softmax_rows.cu and wrong versions of it, on the
emulator and, where there is one, on a GPU. Nothing is mocked."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent import judge, rewrite
from cuda_agent.device import Device, open_device
from cuda_agent.errors import DeviceMissing, ToolMissing
from cuda_agent.judge import JudgeOptions
from cuda_agent.judge.case import Case
from cuda_agent.model import Arg, Buffer, Build, Candidate, Launch, LaunchMap, Pointer, Verdict, Workload
from cuda_agent.source import edits
from cuda_agent.workload.bundle import BlobStore

FILE = Path(__file__).parent.parent.parent / "corpus" / "softmax_rows.cu"
ORIGINAL = FILE.read_text()
ROWS, COLUMNS, BLOCK = 40, 33, 32
OPTIONS = JudgeOptions(rounds=8, timing_budget_s=1.0)


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    try:
        opened = open_device(request.param)
        opened.compile(Build(FILE, FILE.parent, "nvcc", (), "default"), ORIGINAL)
    except (DeviceMissing, ToolMissing) as error:
        pytest.skip(f"{request.param} cannot be used here: {error}")
    with opened:
        yield opened


def workload(folder: Path, columns: int = COLUMNS) -> Workload:
    """One launch of softmax_rows on random rows; the output buffer starts as zeros."""
    blobs, count, source = BlobStore(folder / "blobs"), ROWS * columns, random.Random(7)
    values = struct.pack(f"{count}f", *(source.uniform(-8, 8) for _ in range(count)))
    buffers = (
        Buffer(0x1000, 4 * count, blobs.put(values), None),
        Buffer(0x90000, 4 * count, blobs.put(bytes(4 * count)), None),
    )
    pointers = [Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in range(2)]
    numbers = [Arg(16 + 4 * at, size.to_bytes(4, "little")) for at, size in enumerate((ROWS, columns))]
    launch = Launch(
        "_Z12softmax_rowsPKfPfii",
        "softmax_rows(float const*, float*, int, int)",
        (-(-ROWS // BLOCK), 1, 1),
        (BLOCK, 1, 1),
        0,
        (*pointers, *numbers),
        buffers,
    )
    return Workload("softmax_rows", "captured", (launch,), folder, folder / "blobs", "")


def changed(*pairs: tuple[str, str]) -> str:
    text = ORIGINAL
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def judged(device: Device, folder: Path, text: str, launch: LaunchMap | None = None, columns: int = COLUMNS) -> Verdict:
    candidate = Candidate(
        "softmax_rows",
        ORIGINAL,
        text,
        edits.minimal(ORIGINAL, text),
        "test",
        "reassociated",
        launch or LaunchMap(),
        id=hashlib.sha256(text.encode()).hexdigest()[:12],
    )
    build = Build(FILE, FILE.parent, "nvcc", (), "default")
    return judge.judge(device, build, workload(folder, columns), ORIGINAL, candidate, options=OPTIONS)


def stopped_by(verdict: Verdict) -> str:
    return next((gate.id for gate in verdict.gates if gate.status == "fail" or gate.undecided), "")


def says(verdict: Verdict) -> str:
    return "\n".join(f"{gate.id} {gate.status} {gate.detail}" for gate in verdict.gates)


BODY = ORIGINAL[ORIGINAL.index("    int row =") : ORIGINAL.index("static void softmax_reference")].rstrip()[:-1]
# One block a row, a tree reduction in shared memory. `BARRIER` marks the barrier that a mutant leaves out.
BLOCK_A_ROW = """\
    __shared__ float s[64];
    int row = blockIdx.x;
    int t = threadIdx.x;
    float largest = in[row * cols];
    for (int c = t; c < cols; c += blockDim.x)
        largest = fmaxf(largest, in[row * cols + c]);
    s[t] = largest;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half)
            s[t] = fmaxf(s[t], s[t + half]);
        BARRIER
    }
    largest = s[0];
    __syncthreads();
    float sum = 0.0f;
    for (int c = t; c < cols; c += blockDim.x)
        sum += expf(in[row * cols + c] - largest);
    s[t] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half)
            s[t] += s[t + half];
        BARRIER
    }
    sum = s[0];
    for (int c = t; c < cols; c += blockDim.x)
        out[row * cols + c] = expf(in[row * cols + c] - largest) / sum;
"""
SITE = ("softmax_rows<<<grid, block>>>", "softmax_rows<<<rows, 64>>>")
ONE_BLOCK_A_ROW = LaunchMap(grid=(str(ROWS), "1", "1"), block=("64", "1", "1"), seen=True)

MUTANTS: dict[str, tuple[str, LaunchMap | None, tuple[str, ...]]] = {
    "last element not written": (
        changed(
            (
                "        out[row * cols + c] = e;\n",
                "        if (row != rows - 1 || c != cols - 1)\n            out[row * cols + c] = e;\n",
            ),
            (
                "        out[row * cols + c] /= sum;\n",
                "        if (row != rows - 1 || c != cols - 1)\n            out[row * cols + c] /= sum;\n",
            ),
        ),
        None,
        ("G3",),
    ),
    "out-of-bounds write by one": (
        changed(
            ("    float sum = 0.0f;\n", "    if (row == 0)\n        out[rows * cols] = 1.0f;\n    float sum = 0.0f;\n")
        ),
        None,
        ("G4",),
    ),
    "minus for plus": (changed(("sum += e;\n    }\n\n    for", "sum -= e;\n    }\n\n    for")), None, ("G3",)),
    "missing barrier": (
        changed((BODY, BLOCK_A_ROW.replace("BARRIER", ";")), SITE),
        ONE_BLOCK_A_ROW,
        ("G3", "G5", "G6", "G7"),
    ),
    "zeros": (
        changed(("= e;", "= 0.0f;"), ("out[row * cols + c] /= sum", "out[row * cols + c] = 0.0f")),
        None,
        ("G3",),
    ),
    "ones": (changed(("out[row * cols + c] /= sum", "out[row * cols + c] = 1.0f")), None, ("G3",)),
    "first rows only": (changed(("if (row >= rows)", "if (row >= rows - 8)")), None, ("G3",)),
    "does not compile": (changed(("float e =", "floot e =")), None, ("G1",)),
    "fast-math": (changed(("expf(in", "__expf(in")), None, ("G0",)),
    "prints": (changed(("    float sum = 0.0f;\n", '    float sum = 0.0f;\n    printf("x");\n')), None, ("G0",)),
    "writes an input": (
        changed(("    float sum = 0.0f;\n", "    ((float *)in)[row] = 0.0f;\n    float sum = 0.0f;\n")),
        None,
        ("G3",),
    ),
    "uninitialised shared memory": (
        changed(
            (
                "    float sum = 0.0f;\n",
                "    __shared__ float s[64];\n    float sum = s[threadIdx.x + 32] == 12345.0f ? 1e-30f : 0.0f;\n",
            )
        ),
        None,
        ("G7",),
    ),
}
EMULATOR_ONLY = {
    "uninitialised shared memory",
    "missing barrier",
}  # a GPU may get away with it: compute-sanitizer is a later gate


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected_by_the_right_gate(device: Device, tmp_path: Path, name: str) -> None:
    if name in EMULATOR_ONLY and device.info.kind != "emulator":
        pytest.skip("needs a race checker on this device")
    text, launch, gates = MUTANTS[name]
    verdict = judged(device, tmp_path, text, launch)
    assert verdict.status == "rejected", says(verdict)
    assert stopped_by(verdict) in gates, says(verdict)
    assert not verdict.faster


def test_the_last_element_is_named(device: Device, tmp_path: Path) -> None:
    verdict = judged(device, tmp_path, MUTANTS["last element not written"][0])
    assert f"out[{ROWS * COLUMNS - 1}]" in verdict.gates[3].detail


def test_a_block_a_row_is_verified(device: Device, tmp_path: Path) -> None:
    text = changed((BODY, BLOCK_A_ROW.replace("BARRIER", "__syncthreads();")), SITE)
    verdict = judged(device, tmp_path, text, ONE_BLOCK_A_ROW)
    assert verdict.status == "verified", says(verdict)
    assert verdict.numeric == "reassociated"
    if device.info.kind == "emulator":
        assert verdict.level == "emulated"
        assert verdict.timing is None
        assert "not measured" in judge.headline(verdict)
        assert 0 < verdict.traffic["sectors_after"] < verdict.traffic["sectors_before"]
        assert {gate.id for gate in verdict.gates if gate.status == "not-run"} == {
            "G8", "G9", "G10", "G11", "G12", "G13"
        }  # fmt: skip
    else:
        assert verdict.level == "replayed"
        assert verdict.timing is not None


def test_the_rule_for_rows_is_verified(device: Device, tmp_path: Path) -> None:
    work = workload(tmp_path)
    context = rewrite.Context.make(FILE, ORIGINAL, "softmax_rows", work, device.info)
    made = next(c for c in rewrite.candidates(context) if "row-per-warp" in c.origin)
    build = Build(FILE, FILE.parent, "nvcc", (), "default")
    verdict = judge.judge(device, build, work, ORIGINAL, made, options=OPTIONS)
    assert verdict.status == "verified", says(verdict)


@pytest.mark.parametrize("rename", [False, True])
def test_the_identical_kernel_is_no_change(device: Device, tmp_path: Path, rename: bool) -> None:
    text = changed((BODY, BODY.replace("largest", "biggest"))) if rename else ORIGINAL
    verdict = judged(device, tmp_path, text)
    assert verdict.status == "verified", says(verdict)
    assert verdict.numeric == "bit-exact"
    assert not verdict.faster


def test_one_column_is_too_weak(device: Device, tmp_path: Path) -> None:
    """A softmax over one column is all ones."""
    verdict = judged(device, tmp_path, MUTANTS["minus for plus"][0], columns=1)
    assert verdict.status == "undecided"
    assert stopped_by(verdict) == "G2"
    assert "writes ones" in verdict.gates[2].detail


def test_quick_on_the_emulator_counts_traffic(device: Device, tmp_path: Path) -> None:
    if device.info.kind != "emulator":
        pytest.skip("the emulator's own")
    text = changed((BODY, BLOCK_A_ROW.replace("BARRIER", "__syncthreads();")), SITE)
    candidate = Candidate(
        "softmax_rows", ORIGINAL, text, edits.minimal(ORIGINAL, text), "test", "reassociated", ONE_BLOCK_A_ROW
    )
    build = Build(FILE, FILE.parent, "nvcc", (), "default")
    verdict = judge.quick(device, build, workload(tmp_path), ORIGINAL, candidate)
    assert verdict.status == "verified", says(verdict)
    assert 0 < verdict.traffic["sectors_after"] < verdict.traffic["sectors_before"]


TOTAL = """\
#include <cuda_runtime.h>
__global__ void total(const float *x, float *sum, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        atomicAdd(sum, x[i]);
}
"""
WARP_TOTAL = """\
    float v = i < n ? x[i] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2)
        v += __shfl_down_sync(0xffffffffu, v, offset);
    if (threadIdx.x % 32 == 0)
        atomicAdd(sum, v);
"""
ATOMIC = "    if (i < n)\n        atomicAdd(sum, x[i]);\n"


def total_judged(device: Device, folder: Path, body: str) -> Verdict:
    """Sum 4,096 floats with float atomics: the original's own result varies with the order."""
    blobs, count, source = BlobStore(folder / "blobs"), 4096, random.Random(3)
    values = struct.pack(f"{count}f", *(source.uniform(-1, 3) for _ in range(count)))
    buffers = (Buffer(0x1000, 4 * count, blobs.put(values), None), Buffer(0x90000, 4, blobs.put(bytes(4)), None))
    args = (
        *(Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in range(2)),
        Arg(16, count.to_bytes(4, "little")),
    )
    mangled, plain = "_Z5totalPKfPfi", "total(float const*, float*, int)"
    launch = Launch(mangled, plain, (count // 128, 1, 1), (128, 1, 1), 0, args, buffers)
    work = Workload("total", "captured", (launch,), folder, folder / "blobs", "")
    text = TOTAL.replace(ATOMIC, body)
    made = Candidate("total", TOTAL, text, edits.minimal(TOTAL, text), "test", "reassociated")
    build = Build(folder / "total.cu", folder, "nvcc", (), "default")
    return judge.judge(device, build, work, TOTAL, made, options=OPTIONS)


def test_float_atomics_summed_by_warps(device: Device, tmp_path: Path) -> None:
    verdict = total_judged(device, tmp_path, WARP_TOTAL)
    assert verdict.status == "verified", says(verdict)
    assert "in place" in verdict.gates[3].detail


@pytest.mark.parametrize(
    "body",
    [
        "    if (i < n)\n        sum[0] += x[i];\n",
        WARP_TOTAL.replace("0xffffffffu, v, offset", "0xffffffffu, v, 1"),
        WARP_TOTAL.replace("if (threadIdx.x % 32 == 0)", "if (threadIdx.x == 0)"),
    ],
)
def test_broken_atomics(device: Device, tmp_path: Path, body: str) -> None:
    verdict = total_judged(device, tmp_path, body)
    assert verdict.status == "rejected", says(verdict)
    assert stopped_by(verdict) in ("G3", "G5", "G6", "G7")


TRANSPOSE = """\
__global__ void transpose(float *out, float *in, int n)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < n && y < n)
        out[x * n + y] = in[y * n + x];
}
"""


def test_the_output_of_a_kernel_that_only_moves_data_is_found_where_it_lies_already(
    device: Device, tmp_path: Path
) -> None:
    """The second launch of a program's timing loop. With its input poisoned too, poison lands on poison."""
    blobs, n = BlobStore(tmp_path / "blobs"), 16
    given = struct.pack(f"{n * n}f", *range(1, n * n + 1))
    moved = struct.pack(f"{n * n}f", *(1 + y * n + x for x in range(n) for y in range(n)))
    buffers = tuple(Buffer((1 + at) << 32, 4 * n * n, blobs.put(one), None) for at, one in enumerate((moved, given)))
    pointers = [Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in range(2)]
    size = Arg(16, n.to_bytes(4, "little"))
    launch = Launch("_Z9transposePfS_i", "", (2, 2, 1), (8, 8, 1), 0, (*pointers, size), buffers)
    work = Workload("transpose", "captured", (launch,), tmp_path, tmp_path / "blobs", "")
    file = tmp_path / "transpose.cu"
    file.write_text(TRANSPOSE)
    made = Candidate("transpose", TRANSPOSE, TRANSPOSE, (), "test", "bit-exact", LaunchMap(), id="same")
    found = Case(device, Build(file, tmp_path, "nvcc", (), "default"), work, TRANSPOSE, made).baseline(0)
    assert (found.outputs, found.poisoned, found.written) == ((0,), {0}, (n * n, 0))
