"""The edit policy: every line of the catalogue that G0 must catch, and honest rewrites that it must let through."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cuda_agent.judge.edit_tokens import Selection
from cuda_agent.judge.gates.g00_edit_policy import violations
from cuda_agent.judge.half_names import ARITHMETIC, CONVERSIONS
from cuda_agent.judge.vocabulary import CALLS, PRECISION, forbidden
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module

ORIGINAL = """\
#include <cuda_runtime.h>
#include <cstdio>
#define SCALE 2.0f
__device__ int counter;
__device__ float twice(float x) { return x * SCALE; }
__device__ float shared_helper(float x) { return x + 1.0f; }

// adds
__global__ void add(const float *a, float *b, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    b[i] = twice(a[i]) + shared_helper(b[i]);
}

__global__ void other(float *b) { b[threadIdx.x] = shared_helper(1.0f); }

int main()
{
    float *a, *b;
    cudaStream_t s;
    int n = 100;
    dim3 block(256);
    dim3 grid((n + block.x - 1) / block.x);
    add<<<grid, block, 0, s>>>(a, b, n);
    other<<<1, 32>>>(b);
    printf("%d\\n", n);
    return 0;
}
"""
BODY = "    b[i] = twice(a[i]) + shared_helper(b[i]);\n"


def found(text: str, allow: frozenset[str] = frozenset()) -> list[str]:
    before = Selection(module(Document("x.cu", ORIGINAL)), "add")
    after = Selection(module(Document("x.cu", text)), "add", before.feeding_names)
    return list(violations(before, after, allow))


def change(old: str, new: str) -> str:
    assert old in ORIGINAL
    return ORIGINAL.replace(old, new, 1)


GOOD = {
    "identical": ORIGINAL,
    "comments and white space": change("// adds", "// adds two  \n\n// arrays").replace(
        "int n = 100;", "int  n\n=100 ;"
    ),
    "renamed variable": change(BODY, BODY.replace("[i]", "[k]"))
    .replace("int i =", "int k =")
    .replace("(i >= n)", "(k >= n)"),
    "restrict": change("const float *a, float *b", "const float *__restrict__ a, float *__restrict__ b"),
    "const": change("const float *a", "float const *a"),
    "launch bounds": change("__global__ void add", "__global__ void __launch_bounds__(256) add"),
    "vectors, shuffles, shared memory": change(
        BODY,
        "    __shared__ float s[256];\n    extern __shared__ float t[];\n    float4 v = make_float4(a[i], 0, 0, 0);\n"
        "    s[threadIdx.x] = v.x + float(3) + static_cast<float>(n);\n    __syncthreads();\n"
        "    b[i] = __shfl_down_sync(0xffffffffu, s[threadIdx.x], 1) + fmaxf(__ldg(a + i), rsqrtf(2.0f));\n"
        "#pragma unroll 4\n    for (int k = 0; k < 4; k++) atomicAdd(&b[i], twice(1.0f));\n",
    ),
    "owned helper": change("return x * SCALE", "return x + x"),
    "new helper": change(
        "__global__ void add",
        "template <int N> __device__ __forceinline__ float mine(float x) { return x * N; }\n"
        "static constexpr int WIDTH = 4;\n__global__ void add",
    ).replace("twice(a[i])", "mine<WIDTH>(a[i])"),
    "launch shape in place": change("<<<grid, block, 0, s>>>", "<<<dim3((n + 3) / 4), 128, 0, s>>>"),
    "launch shape by variables": change("dim3 block(256)", "const int per = 4;\n    dim3 block(128)").replace(
        "(n + block.x - 1) / block.x", "(n + block.x * per - 1) / (block.x * per)"
    ),
    "cooperative groups": change(
        "#include <cstdio>\n",
        "#include <cstdio>\n#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n",
    ).replace(
        BODY,
        "    auto t = cg::tiled_partition<32>(cg::this_thread_block());\n    b[i] = t.shfl_down(a[i], 1); t.sync();\n",
    ),
    "a variable named half": change(BODY, "    int half = n / 2;\n    b[i] = half * a[i];\n"),
    "attributes": change(
        BODY, "    alignas(16) float t[4] = {a[i]};\n    if (i > 3) [[likely]]\n        b[i] = t[0];\n"
    ),
    "lambda": change(BODY, "    auto f = [](float x) { return x * 2; };\n    b[i] = f(a[i]);\n"),
}

BAD = {
    "other kernel": (change("shared_helper(1.0f)", "shared_helper(2.0f)"), "outside add"),
    "helper of another kernel": (change("return x + 1.0f", "return x + 2.0f"), "outside add"),
    "host text": (change("int n = 100", "int n = 1"), "outside add"),
    "macro": (change("#define SCALE 2.0f", "#define SCALE 3.0f"), "outside add"),
    "include": (change("#include <cstdio>\n", "#include <cstdio>\n#include </etc/passwd>\n"), "outside add"),
    "global": (
        change("__device__ int counter;", "__device__ int counter; __device__ float cache[100];"),
        "outside add",
    ),
    "kernel gone": (change("__global__ void add(", "__global__ void add(float *x, "), "signature"),
    "extra parameter": (change("int n)\n{", "int n, int m)\n{"), "signature"),
    "element type": (change("const float *a, float *b", "const float *a, double *b"), "signature"),
    "asm": (change(BODY, BODY + '    asm volatile("mov.u32 %0, 1;" : "=r"(i));\n'), "`asm`"),
    "printf": (change(BODY, BODY + '    printf("x");\n'), "`printf`"),
    "malloc": (change(BODY, BODY + "    float *p = (float *)malloc(4);\n"), "`malloc`"),
    "new": (change(BODY, BODY + "    float *p = new float[4];\n"), "`new`"),
    "trap": (change(BODY, BODY + "    __trap();\n"), "`__trap`"),
    "clock": (change(BODY, BODY + "    b[i] += clock64();\n"), "`clock64`"),
    "launch in device code": (change(BODY, BODY + "    other<<<1, 1>>>(b);\n"), "launch"),
    "global newly used": (change(BODY, BODY + "    atomicAdd(&counter, 1);\n"), "global `counter`"),
    "static": (change(BODY, BODY + "    static float kept;\n    kept = b[i];\n"), "outlives"),
    "ifdef with the original": (
        change(BODY, "#ifdef FAST\n    b[i] = 0;\n#else\n" + BODY + "#endif\n"),
        "preprocessor line",
    ),
    "define in the kernel": (change(BODY, "#define f(x) system(x)\n" + BODY), "preprocessor line"),
    "pragma": (change(BODY, "#pragma nv_diag_suppress 20\n" + BODY), "preprocessor line"),
    "host call": (change(BODY, BODY + '    system("true");\n'), "system"),
    "runtime call": (change(BODY, BODY + "    cudaDeviceSynchronize();\n"), "cudaDeviceSynchronize"),
    "unknown call": (change(BODY, BODY + "    b[i] = mystery(b[i]);\n"), "mystery()"),
    "half": (change(BODY, "    b[i] = __half2float(__float2half(a[i]));\n"), "half"),
    "half type": (change(BODY, "    half h = a[i];\n    b[i] = h;\n"), "half"),
    "bf16": (change(BODY, "    __nv_bfloat16 h = a[i];\n    b[i] = h;\n"), "bf16"),
    "fast exp": (change(BODY, "    b[i] = __expf(a[i]);\n"), "fast-math"),
    "fast division": (change(BODY, "    b[i] = __fdividef(a[i], 3.0f);\n"), "fast-math"),
    "other stream": (change("<<<grid, block, 0, s>>>", "<<<grid, block>>>"), "stream"),
    "other arguments": (change("(a, b, n);", "(b, a, n);"), "arguments"),
    "launch twice": (change("    other<<<", "    add<<<grid, block, 0, s>>>(a, b, n);\n    other<<<"), ""),
    "no launch": (change("    add<<<grid, block, 0, s>>>(a, b, n);\n", ""), ""),
    "host call in a launch": (change("<<<grid, block,", '<<<(system("true"), grid), block,'), "system()"),
    "volatile": (change(BODY, "    volatile float *p = b;\n    p[i] = a[i];\n"), "`volatile`"),
    "directive by digraph": (change(BODY, "%:define SCALE 3.0f\n" + BODY), "preprocessor line"),
    "directive behind a comment": (change(BODY, "/* a */ /* b */#define SCALE 3.0f\n" + BODY), "preprocessor line"),
    "two halves of a word": (change(BODY, 'as\\\nm("");\n' + BODY), "backslash"),
    "braces by digraphs": (change(BODY, "    <% b[i] = a[i]; %>\n"), "digraph"),
    "look-alike letters": (change(BODY, BODY.replace("twice(a[i])", "тwice(a[i])")), "ASCII"),
    "assembly behind a raw string": (change(BODY, 'auto s = u8R"(" /* )"; asm(""); /* */\n' + BODY), "`asm`"),
    "attribute": (
        change("__global__ void add", '__global__ __attribute__((optimize("fast-math"))) void add'),
        "optimize",
    ),
    "attribute in brackets": (change("__global__ void add", '[[gnu::optimize("O0")]] __global__ void add'), ""),
    "does not parse": (change(BODY, "    b[i] = (a[i];\n"), ""),
}


@pytest.mark.parametrize("name", GOOD)
def test_honest_rewrites_pass(name: str) -> None:
    assert found(GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_tricks_are_refused(name: str) -> None:
    text, word = BAD[name]
    sentences = found(text)
    assert sentences, name
    assert any(word in sentence for sentence in sentences), sentences


@pytest.mark.parametrize(("name", "option"), [("half", "half"), ("bf16", "bf16"), ("fast exp", "fast-math")])
def test_the_person_may_opt_in_to_lower_precision(name: str, option: str) -> None:
    text, _ = BAD[name]
    sentences = found(text, frozenset([option]))
    assert not any("opt-in" in sentence for sentence in sentences), sentences


def test_complex_numbers_are_no_host_calls() -> None:
    assert not any(forbidden(word) for word in ("cuCaddf", "cuConj", "cuCreal", "cuFloatComplex", "cuComplex"))
    assert all(forbidden(word) for word in ("cuCtxSynchronize", "cuMemAlloc", "cudaMalloc", "cuCaddress"))


def test_a_changed_signature_is_allowed_when_every_launch_changed() -> None:
    text = change("int n)\n{", "int n, int m)\n{").replace("(a, b, n);", "(a, b, n, 4);")
    assert not any("signature" in sentence for sentence in found(text))


# ---------------------------------------------------------------- half precision

HALVES = """\
#include <cuda_fp16.h>
__global__ void k(const __half *a, const __half *b, __half *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = SUM;
}
"""
MIXED = "__float2half(__half2float(a[i]) + __half2float(b[i]))"


def rewritten(old: str, new: str, text: str = HALVES) -> list[str]:
    before, after = (Selection(module(Document("x.cu", text.replace("SUM", x))), "k") for x in (old, new))
    return list(violations(before, after))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("-a[i]", "__hneg(a[i])"),
        ("a[i] + b[i]", "__hadd(a[i], b[i])"),
        ("a[i] + b[i]", "__low2half(__hadd2(__half2half2(a[i]), __halves2half2(b[i], b[i])))"),
        ("__hmul(a[i], b[i])", "__hmul_rn(a[i], b[i])"),
        ("hexp(a[i])", "hexp2(__hmul(a[i], __short_as_half(0x3dc5)))"),
        (MIXED, f"__low2half(__floats2half2_rn({MIXED[13:-1]}, 0.0f))"),
        (MIXED, MIXED.replace("__half2float(a[i])", "__low2float(__half2half2(a[i]))")),
    ],
)
def test_more_of_the_half_precision_there_is(old: str, new: str) -> None:
    assert rewritten(old, new) == []


@pytest.mark.parametrize("new", ["__hadd2_rn(a[i], b[i])", "hsqrt(a[i])"])
def test_float_arithmetic_stays_float(new: str) -> None:
    """Halves that are only stored so are no licence to add them up as halves."""
    for text, old in ((HALVES, MIXED), (HALVES.replace("__half", "float"), "sqrtf(a[i])")):
        assert any("half arithmetic is a precision downgrade" in why for why in rewritten(old, new, text)), text


@pytest.mark.parametrize(
    "word", ["__float22half2_rn", "__double2half", "__ushort_as_half", "make_half2", "__ll2half_rz"]
)
def test_what_makes_a_half_of_something_else(word: str) -> None:
    for half, kind in (("half", "half"), ("bfloat16", "bf16")):
        name = word.replace("half", half)
        assert name in CONVERSIONS
        assert PRECISION[kind].fullmatch(name)
        why = f"{kind} is a precision downgrade"
        assert any(why in said for said in found(change(BODY, f"    auto h = {name}(a[i]);\n    b[i] = h;\n")))


def test_an_approximation_is_fast_math() -> None:
    assert rewritten("htanh(a[i])", "htanh_approx(a[i])")
    assert "htanh_approx" not in CALLS


def test_the_average_of_integers() -> None:
    integers = HALVES.replace("__half", "int")
    assert rewritten("(a[i] + b[i]) / 2", "__hadd(a[i], b[i])", integers) == []


HEADERS = [Path(f"/usr/local/cuda/include/cuda_{half}.h") for half in ("fp16", "bf16")]
# Declared there too, and known by other lists: memory, warps, atomics.
SHARED = re.compile(r"__(ld|st)\w+|__shfl\w*|atomicAdd")


@pytest.mark.skipif(not all(header.is_file() for header in HEADERS), reason="needs CUDA's headers")
def test_all_device_functions_of_the_headers_and_no_others() -> None:
    text = "".join(header.read_text() for header in HEADERS)
    declared = set(re.findall(r"__CUDA_(?:HOSTDEVICE_)?[FB][PF]16_DECL__\s+[\w\s*]+?\b(\w+)\(", text))
    assert {"__hadd2", "__float2bfloat16"} <= declared
    assert declared - CALLS <= {"h2tanh_approx", "htanh_approx"}
    if "htanh" in declared:  # CUDA 13: older ones lack a few
        assert {name for name in declared & CALLS if not SHARED.fullmatch(name)} == ARITHMETIC | CONVERSIONS
