"""The float64 shadow: the text in float64, the launch as it takes it, and the errors it measures."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.device import Device
from cuda_agent.judge import numeric, shadow, shadow_kernel
from cuda_agent.judge.case import Case
from cuda_agent.judge.options import JudgeOptions
from cuda_agent.judge.widen import refusal, widen
from cuda_agent.model import Arg, Buffer, Build, Candidate, Launch, Pointer, Workload
from cuda_agent.source import edits
from cuda_agent.workload.bundle import BlobStore

WIDENED = {
    "const float *__restrict__ x": "const double *__restrict__ x",
    "float4 v = make_float4(0.f, 1e-3f, .5F)": "double4 v = make_double4(double(0.f), double(1e-3f), double(.5F))",
    "expf(x) + __expf(x) + std::sqrtf(x) + fmaxf(a, b)": "exp(x) + exp(x) + std::sqrt(x) + fmax(a, b)",
    "__fadd_rn(a, __fmul_rz(b, c))": "__dadd_rn(a, __dmul_rz(b, c))",
    "__fmaf_rn(a, b, c) + __frcp_rn(a) + __fdividef(a, b)": "__fma_rn(a, b, c) + __drcp_rn(a) + __ddiv_rn(a, b)",
    "__float2int_rn(x) + __float2uint_rz(x)": "__double2int_rn(x) + __double2uint_rz(x)",
    "__float2ll_ru(x) + __float2ull_rd(x)": "__double2ll_ru(x) + __double2ull_rd(x)",
    "__int2float_rz(i) + __ull2float_rn(u)": "__int2double_rn(i) + __ull2double_rn(u)",
    "#define SCALE 0.25f\n#define SQ(x) expf(x)": "#define SCALE double(0.25f)\n#define SQ(x) exp(x)",
    "std::numeric_limits<float>::max()": "std::numeric_limits<float>::max()",
    "1.0 + 0x1f + 3u + x.f + floats": "1.0 + 0x1f + 3u + x.f + floats",
    'printf("%f float\\n", x); // a float': 'printf("%f float\\n", x); // a float',
}


@pytest.mark.parametrize("text", WIDENED)
def test_text_in_float64(text: str) -> None:
    assert widen(text) == WIDENED[text]


REFUSED = {
    "int b = __float_as_int(x[i]);": "__float_as_int",
    "union { float f; int i; } u;": "union",
    "atomicMax((int *)x, 3);": "reinterprets memory as int",
    "const unsigned *b = reinterpret_cast<const unsigned *>(x);": "reinterprets memory as const unsigned",
    "half h = x[i];": "half",
}
ALLOWED = (
    "float4 v = reinterpret_cast<const float4 *>(x)[i];",
    "float v = *(float *)(x + 4 * i);",
    "int4 v = *(int4 *)(index + 4 * i);",  # of integers
    "int v = (a * b) + (n * n);",
)
PARAMS = [("x", "const float *"), ("index", "const int *"), ("n", "int")]


@pytest.mark.parametrize("code", REFUSED)
def test_what_has_no_float64_version(code: str) -> None:
    why = refusal(code.replace("(", " ").split(), code, PARAMS)
    assert why is not None
    assert REFUSED[code] in why


@pytest.mark.parametrize("code", ALLOWED)
def test_what_has_one(code: str) -> None:
    assert refusal(code.replace("(", " ").split(), code, PARAMS) is None


# ---------------------------------------------------------------- the rule


def row(**changes: Any) -> dict[str, Any]:
    made = {
        "buffer": 0, "dtype": "f32", "equal": False, "compared": 8, "differing": 3, "max_abs": 1e-4, "max_rel": 1e-4,
        "max_ulp": 800, "rel_l2": 1e-4, "nan_mismatch": 0, "histogram": [5, 3],
        "worst": {"index": 2, "expected": 1.0, "got": 1.0001},
        "first": {"index": 1, "expected": 1.0, "got": 1.00001},
    }  # fmt: skip
    return {**made, **changes}


def shadowed(original: float, candidate: float, original_l2: float = 0.0, candidate_l2: float = 0.0) -> Any:
    a = numeric.Error(original, original, original_l2 or original)
    b = numeric.Error(candidate, candidate, candidate_l2 or candidate)
    return numeric.Shadowed(a, b, 1.0)


@pytest.mark.parametrize(
    ("arbiter", "within"),
    [
        (shadowed(1e-4, 1.9e-4), True),
        (shadowed(1e-4, 2.1e-4), False),
        (shadowed(1e-4, 1e-5), True),
        (shadowed(0.0, 4e-7, 0.0, 2e-7), True),  # exact by luck: a few ulp are always allowed
        (shadowed(0.0, 2e-6), False),  # inside 1e-5
        (shadowed(1e-4, 1.5e-4, 1e-6, 3e-6), False),  # one element as wrong as the original's worst, but many of them
    ],
)
def test_twice_the_originals_own_error(arbiter: numeric.Shadowed, within: bool) -> None:
    compared = numeric.classify(0, "out", row(max_abs=3e-7), declared="reassociated", max_ref=1.0, shadow=arbiter)
    assert compared.within is within
    assert compared.klass == "reassociated"
    assert compared.rule == "float64 shadow"
    assert compared.to_json()["shadow"]["allowed"]["max_abs"] == arbiter.limit_abs
    assert "against a float64 shadow" in compared.sentence()


def test_without_a_shadow_the_scaled_tolerance_says_why() -> None:
    compared = numeric.classify(0, "out", row(), declared="bit-exact", max_ref=1.0, why="it uses half")
    assert not compared.within
    assert "1e-05·max|reference|, no float64 shadow: it uses half" in compared.sentence()
    assert numeric.classify(0, "out", row(max_abs=1e-6), declared="bit-exact", max_ref=1.0).within


def test_the_persons_tolerance_comes_first() -> None:
    compared = numeric.classify(
        0, "out", row(), declared="bit-exact", max_ref=1.0, tolerance=1e-3, shadow=shadowed(0.0, 1e-4)
    )
    assert (compared.within, compared.klass, compared.rule) == (
        True,
        "tolerance",
        "your tolerance 0.001·max|reference|",
    )


def test_misplaced_nans_are_named() -> None:
    worst = {"index": 5, "expected": 1.0, "got": "nan"}
    compared = numeric.classify(
        0, "out", row(max_abs=0.0, nan_mismatch=2, worst=worst), declared="reassociated", max_ref=1.0
    )
    assert not compared.within
    assert compared.sentence().startswith("out[5]: expected 1, got nan (")
    assert "2 of them NaN or infinite on one side only" in compared.sentence()


# ---------------------------------------------------------------- on the emulator

SOURCE = """\
#include <cuda_runtime.h>
#define LEAST 1e-6f
__constant__ float weights[4];
template <typename T, int N>
__device__ T helper(T v) { return expf(v) * N; }

template <typename T, int N>
__global__ void k(const T *x, T *out, char tag, float scale, int n, const int *index)
{
    extern __shared__ float s[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s[threadIdx.x] = i < n ? x[index[i]] : 0.0f;
    __syncthreads();
    const float4 *quad = reinterpret_cast<const float4 *>(x);
    if (i < n)
        out[i] = helper<T, N>(s[threadIdx.x]) * scale + weights[i % 4] + quad[i / 4].y + fmaxf(x[i], LEAST);
}
template __global__ void k<float, 3>(const float *, float *, char, float, int, const int *);
"""
MANGLED = "_Z1kIfLi3EEvPKT_PS0_cfiPKi"
COUNT = 256


def case_of(device: Device, folder: Path, text: str, other: str, params: Sequence[bytes | int]) -> Case:
    """A case of one launch over 256 floats, their result, and a permutation. An int in `params` numbers a buffer."""
    blobs = BlobStore(folder / "blobs")
    x = struct.pack(f"{COUNT}f", *(math.sin(i) for i in range(COUNT)))
    index = struct.pack(f"{COUNT}i", *((i * 37) % COUNT for i in range(COUNT)))
    buffers = (
        Buffer(0x1000, 4 * COUNT, blobs.put(x), None),
        Buffer(0x9000, 4 * COUNT, blobs.put(bytes(4 * COUNT)), None),
        Buffer(0x11000, 4 * COUNT, blobs.put(index), None),
    )
    args, end = [], 0
    for param in params:
        size = 8 if isinstance(param, int) else len(param)
        offset = -(-end // size) * size
        pointers = (Pointer(0, param, 0),) if isinstance(param, int) else ()
        args.append(Arg(offset, bytes(8) if isinstance(param, int) else param, pointers))
        end = offset + size
    weights = struct.pack("4f", 0.5, -0.25, 3.0, 0.1)
    globals_ = (("weights", blobs.put(weights)),) if "weights" in text else ()
    mangled = MANGLED if "k<float, 3>" in text else "_Z1kPKfPfcfiPKi"
    launch = Launch(mangled, "", (4, 1, 1), (64, 1, 1), 256, tuple(args), buffers, 0, globals_)
    work = Workload("k", "captured", (launch,), folder, folder / "blobs", "")
    made = Candidate(
        "k", text, other, edits.minimal(text, other), "test", id=hashlib.sha256(other.encode()).hexdigest()
    )
    build = Build(folder / "k.cu", folder, "nvcc", (), "default")
    return Case(device, build, work, text, made, options=JudgeOptions())


PARAMETERS = (0, 1, b"x", struct.pack("f", 0.7), COUNT.to_bytes(4, "little"), 2)


def test_templates_constants_shared_memory_and_parameters(emulator: Device, tmp_path: Path) -> None:
    """The shadow of a kernel with all of them is the exact result."""
    other = SOURCE.replace("* scale + weights[i % 4]", "* (1.0001f * scale) + weights[i % 4]")
    case = case_of(emulator, tmp_path, SOURCE, other, PARAMETERS)
    found = case.outcome(0).compared
    assert [row.rule for row in found] == ["float64 shadow"]
    arbiter = found[0].shadow
    assert arbiter is not None
    assert 1e-9 < arbiter.original.max_abs < 4e-6
    assert arbiter.candidate.max_abs > 100 * arbiter.original.max_abs
    assert not found[0].within
    # float64 from the same numbers
    x = [struct.unpack("f", struct.pack("f", math.sin(i)))[0] for i in range(COUNT)]
    scale, tenth, least = (struct.unpack("f", struct.pack("f", v))[0] for v in (0.7, 0.1, 1e-6))
    w = (0.5, -0.25, 3.0, tenth)
    exact = [
        math.exp(x[(i * 37) % COUNT]) * 3 * scale + w[i % 4] + x[i // 4 * 4 + 1] + max(x[i], least)
        for i in range(COUNT)
    ]
    assert arbiter.magnitude == pytest.approx(max(abs(v) for v in exact), rel=1e-12)


def test_a_reassociated_result_is_accepted(emulator: Device, tmp_path: Path) -> None:
    other = SOURCE.replace(
        "helper<T, N>(s[threadIdx.x]) * scale + weights[i % 4] + quad[i / 4].y",
        "helper<T, N>(s[threadIdx.x]) * scale + (quad[i / 4].y + weights[i % 4])",
    )
    found = case_of(emulator, tmp_path, SOURCE, other, PARAMETERS).outcome(0).compared
    assert [(row.klass, row.within, row.rule) for row in found] == [("reassociated", True, "float64 shadow")]


PLAIN = """\
#include <cuda_runtime.h>
__global__ void k(const float *x, float *out, char tag, float scale, int n, const int *index)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = BODY;
}
"""
REASONS = {
    "__int_as_float(__float_as_int(x[i]) + 1) * scale + index[i]": "it uses __",
    "((const int *)x)[i] * 1e-9f * scale + index[i]": "it reinterprets memory as const int",
    # float64 does not overflow where float32 does
    "(x[i] + index[i] + 9.0f) * (i == 7 ? 1e38f * scale : 1.0f)": "finite",
    "x[i] * scale + (__fadd_rn(1.0f, 1e-8f) == 1.0f ? 1.0f : 2.0f)": "too far to tell",
}


@pytest.mark.parametrize("body", REASONS)
def test_the_reason_why_there_is_none(emulator: Device, tmp_path: Path, body: str) -> None:
    text = PLAIN.replace("BODY", body)
    other = PLAIN.replace("BODY", f"({body}) * 1.000001f")
    (found,) = case_of(emulator, tmp_path, text, other, PARAMETERS).outcome(0).compared
    assert found.shadow is None
    assert "no float64 shadow: " in found.rule
    assert REASONS[body] in found.rule


def test_equal_bits_need_no_shadow(emulator: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(case: Case) -> None:
        raise AssertionError("a shadow was made")

    monkeypatch.setattr(shadow_kernel, "_compile", refuse)
    text = PLAIN.replace("BODY", "x[i] * scale")
    case = case_of(emulator, tmp_path, text, text.replace("x[i] * scale", "scale * x[i]"), PARAMETERS)
    assert [row.klass for row in case.outcome(0).compared] == ["bit-exact"]
    wild = case_of(emulator, tmp_path, text, text.replace("x[i] * scale", "x[i] + scale"), PARAMETERS)
    assert [row.within for row in wild.outcome(0).compared] == [False]  # no shadow could allow as much


def test_host_code_that_needs_float32_is_left_out(emulator: Device, tmp_path: Path) -> None:
    host = '\nvoid call() { static_assert(sizeof(float) == 4, "a library takes float"); }\n'
    text = PLAIN.replace("BODY", "x[i] * scale + 1.0f") + host
    other = text.replace("x[i] * scale + 1.0f", "1.0f + (x[i] * scale) * 1.0000001f")
    (found,) = case_of(emulator, tmp_path, text, other, PARAMETERS).outcome(0).compared
    assert found.rule == "float64 shadow"


def test_no_shadow_is_remembered(emulator: Device, tmp_path: Path) -> None:
    text = PLAIN.replace("BODY", "__int_as_float(__float_as_int(x[i]))")
    case = case_of(emulator, tmp_path, text, text, PARAMETERS)
    for _ in range(2):
        with pytest.raises(shadow.NoShadow, match="it uses __"):
            shadow_kernel.binary(case)


def test_a_search_of_many_inputs_may_ask_only_for_wide_differences(emulator: Device, tmp_path: Path) -> None:
    text = PLAIN.replace("BODY", "x[i] * scale + 1.0f")
    near = case_of(emulator, tmp_path, text, PLAIN.replace("BODY", "(x[i] * scale + 1.0f) * 1.000001f"), PARAMETERS)
    far = case_of(emulator, tmp_path, text, PLAIN.replace("BODY", "(x[i] * scale + 1.0f) * 1.0001f"), PARAMETERS)
    near.options = far.options = JudgeOptions(shadow="wide")
    assert [(row.within, row.rule[:5]) for row in near.outcome(0).compared] == [(True, "1e-05")]
    assert [(row.within, row.rule) for row in far.outcome(0).compared] == [(False, "float64 shadow")]
