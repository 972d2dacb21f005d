"""The analyses against brute force: random kernels are run thread by thread, and every polynomial must give the index
that was really used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_kernels import INPUTS, Program, Run, programs

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Kernel, Launch, Workload
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import access, aliasing, live, names, trips, uniform
from cuda_agent.rewrite.analysis.carried import reductions
from cuda_agent.rewrite.analysis.loops import counting
from cuda_agent.rewrite.analysis.polynomial import OPERATIONS, Poly
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.rules.pad import turns
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module, module
from cuda_agent.source.tree import LOOPS, masked, walk

small = st.integers(-7, 7)


@dataclass(frozen=True)
class Case:
    text: str

    @cached_property
    def module(self) -> Module:
        return module(Document("k.cu", self.text))

    @cached_property
    def kernel(self) -> Kernel:
        return self.module.kernels[-1]

    def index(self, number: int = 0) -> Poly:
        return access.of(self).found[number].index


def body(code: str, params: str = "float *x, const int *t, int n, int m", before: str = "") -> Case:
    return Case(f"{before}\n__global__ void k({params})\n{{\n{code}\n}}\n")


@given(programs(), st.lists(st.tuples(*[st.integers(0, 6)] * len(INPUTS)), min_size=1, max_size=4))
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_polynomials_give_the_index_of_every_run(program: Program, inputs: list[tuple[int, ...]]) -> None:
    case = Case(program.text)
    stores = {int(masked(a.node.parent.child_by_field_name("right"))): a for a in access.of(case) if a.node.parent}
    for values in inputs:
        run = Run(dict(zip(INPUTS, values, strict=True)))
        program.run(run)
        for number, seen in run.seen.items():
            poly = stores[number].index
            for index, loops in seen:
                known = dict(zip(INPUTS, values, strict=True)) | loops
                if (got := trips.evaluate(poly, known)) is not None:
                    assert got == index, f"{poly} at {known} in\n{program.text}"


@given(programs())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_stride_is_the_difference_of_two_indices(program: Program) -> None:
    case = Case(program.text)
    for one in access.of(case):
        for symbol in ("threadIdx.x", "n"):
            step = one.index.stride(symbol)
            here = dict.fromkeys((*INPUTS, *one.counted), 3)
            there = here | {symbol: 4}
            a, b = trips.evaluate(one.index, here), trips.evaluate(one.index, there)
            if step is not None and a is not None and b is not None:
                assert b - a == step.evaluate(here)


@given(st.dictionaries(st.sampled_from("pqr"), small, min_size=3), small, small)
def test_the_algebra_is_that_of_integers(values: dict[str, int], c: int, d: int) -> None:
    p, q, r = (Poly.symbol(s) for s in "pqr")
    x = (p * c + q * r - d) * (p - r) + p * q
    plain = (values["p"] * c + values["q"] * values["r"] - d) * (values["p"] - values["r"]) + values["p"] * values["q"]
    assert x.evaluate(values) == plain
    assert x.substitute({"p": q + 1}).evaluate(values) == x.evaluate({**values, "p": values["q"] + 1})
    assert x - x == Poly()
    assert x + 0 == x
    coefficient, rest = x.split("q")
    assert coefficient is None or coefficient * q + rest == x
    if d:
        for op in ("/", "%"):
            assert Poly.operation(op, x * d, Poly.constant(d)).evaluate(values) == OPERATIONS[op](plain * d, d)


def test_division_is_towards_zero() -> None:
    for a in range(-9, 10):
        for b in (-4, -1, 1, 3):
            q, r = OPERATIONS["/"](a, b), OPERATIONS["%"](a, b)
            assert q * b + r == a
            assert abs(r) < abs(b)
            assert r == 0 or (r < 0) == (a < 0)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; x[i] = 0;",
            "blockDim.x*blockIdx.x + threadIdx.x",
        ),
        ("auto i = static_cast<int>(threadIdx.x); x[(i + 1) * n - n] = 0;", "n*threadIdx.x"),
        ("int i(threadIdx.x); x[IDX(i, m)] = 0;", "2048*m + threadIdx.x"),
        ("x[flat(threadIdx.x, m)] = 0;", "m + n*threadIdx.x"),
        ("int i = threadIdx.x; i += 3; x[i] = 0;", "3 + threadIdx.x"),
        ("int i; if (m) { i = threadIdx.x * W; x[i] = 0; }", "17*threadIdx.x"),
        ("float *p = x + threadIdx.x * n; p += 2; p[m] = 0;", "2 + m + n*threadIdx.x"),
        ("float *p = &x[n]; *(p + 1) = 0;", "1 + n"),
        ("float4 *v = reinterpret_cast<float4 *>(x); v[threadIdx.x] = z;", "threadIdx.x"),
        ("*((char*)(x + n) + 1) = 0;", "1 + 4*n"),
        ("int i = threadIdx.x % 32; x[i] = 0;", "(threadIdx.x % 32)"),
        ("x[(int)(0.5f * n)] = 0;", "(int)(0.5f * n)@75"),
        ("x[n << 2 | 1] = 0;", "(4*n | 1)"),
    ],
)
def test_indices_in_their_usual_spellings(code: str, expected: str) -> None:
    before = "#define N 2048\n#define IDX(i,j) ((i)+(j)*N)\nconst int W = 17;\n"
    case = body(code, before=before.replace("\n\n", "\n"))
    if "flat" in code:
        case = body(
            code.replace("m)", "m, n)"), before="__device__ int flat(int i, int j, int w) { return i * w + j; }"
        )
    found = str(next(a for a in access.of(case) if a.kind == "store").index)
    assert found.split("@")[0] == expected.split("@")[0]


def test_a_variable_that_may_have_two_values_stays_a_name() -> None:
    case = body("int i = threadIdx.x; if (m > 3) i = m; x[i] = 0; x[i + 1] = 0; i = n; x[i] = 0;")
    first, second, third = (a.index for a in access.of(case))
    assert second - first == Poly.constant(1)
    assert first.depends("threadIdx.x")
    assert first.depends("m")
    assert first.stride("threadIdx.x") is None
    assert third == Poly.symbol("n")


def test_a_variable_passed_by_reference_is_not_known_afterwards() -> None:
    case = body("int i = n; next(i); x[i] = 0;", before="__device__ void next(int &i) { i++; }")
    assert case.index().terms != Poly.symbol("n").terms
    case = body("int i = n; show(i); x[i] = 0;", before='__device__ void show(int i) { printf("", i); }')
    assert case.index() == Poly.symbol("n")


def test_lanes_loops_and_types_of_accesses() -> None:
    case = body(
        """__shared__ double s[8][33];
        for (int r = blockIdx.x; r < n; r += gridDim.x)
            for (int c = threadIdx.x; c < m; c += blockDim.x) {
                s[threadIdx.y][threadIdx.x] = x[r * m + c];
                atomicAdd(&x[c * n], 1.f);
            }"""
    )
    load, store, atomic = sorted(access.of(case), key=lambda a: ("load", "store", "atomic").index(a.kind))
    assert (store.array, store.space, store.bytes, str(store.index)) == (
        "s",
        "shared",
        8,
        "threadIdx.x + 33*threadIdx.y",
    )
    assert load.contiguous == ("threadIdx.x",)
    assert load.lane == Poly.constant(1)
    assert str(load.stride("c")) == "blockDim.x"
    assert str(load.stride("r")) == "gridDim.x*m"
    assert str(atomic.lane) == "n"
    assert atomic.kind == "atomic"
    numbers = {"blockDim.x": 16, "blockDim.y": 4, "blockDim.z": 1, "n": 5, "m": 16}
    assert load.lanes(numbers) == (*range(16), *range(16))
    assert atomic.lanes(numbers) == tuple(5 * (k % 16) for k in range(32))
    assert access.strides(case, [numbers], atomic) == [5]


@pytest.mark.parametrize(
    ("head", "python"),
    [
        ("int i = 0; i < n; i++", "range(n)"),
        ("int i = m; i <= n; i += 3", "range(m, n + 1, 3)"),
        ("int i = n; i > m; i -= 2", "range(n, m, -2)"),
        ("int i = n - 1; i >= 0; --i", "range(n - 1, -1, -1)"),
        ("int i = m; n > i; i = i + 1", "range(m, n)"),
        ("int i = m; i + 2 < n; i += 4", "range(m, n - 2, 4)"),
        ("int i = threadIdx.x; i < n; i += blockDim.x", "range(t, n, 5)"),
    ],
)
def test_trip_counts(head: str, python: str) -> None:
    case = body(f"for ({head}) x[i] = 0;")
    loop = next(walk(names.of(case).body, LOOPS))
    count = trips.trips(case, loop)
    assert count is not None
    for n in range(-3, 20):
        for m in range(-3, 8):
            expected = len(eval(python, {"n": n, "m": m, "t": m}))
            assert trips.evaluate(count, {"n": n, "m": m, "threadIdx.x": m, "blockDim.x": 5}) == expected


@pytest.mark.parametrize(
    "head", ["int i = 1; i < n; i *= 2", "int i = 0; x[i] < n; i++", "int i = 0; i != n; i += 2", ";;"]
)
def test_loops_without_a_known_trip_count(head: str) -> None:
    case = body(f"for ({head}) {{ x[0] = 0; }}")
    assert trips.trips(case, next(walk(names.of(case).body, LOOPS))) is None


def test_levels_of_uniformity() -> None:
    case = body(
        """int warp = threadIdx.x / 32, row = blockIdx.x * n, k = t[row], own = t[threadIdx.x], w = x[row];
        int q = n; if (own > 2) q = 3; int r = n; if (k > 2) r = 3;
        __syncthreads();
        if (k) __syncthreads();
        if (q) __syncthreads();
        if (own) return;
        __syncthreads();
        x[warp + row + k + own + w + q + r] = n;""",
    )
    scope = names.of(case)
    levels = {}
    for node in walk(scope.body, "subscript_expression"):
        for n in walk(node, "identifier"):
            if masked(n) in ("warp", "row", "k", "own", "w", "q", "r"):
                levels[masked(n)] = uniform.level(case, n, warp_rows=True)
    assert levels == {
        "warp": "warp",
        "row": "block",
        "k": "block",
        "own": "thread",
        "w": "thread",
        "q": "thread",
        "r": "block",
    }
    assert [b.level for b in uniform.barriers(case)] == ["grid", "block", "thread", "thread"]


def test_what_is_read_and_written() -> None:
    case = body(
        """__shared__ float s[32]; s[threadIdx.x] = x[n]; float *p = y; if (n) p = y + 1; *p = t[0]; use(z);
        w[0].a += 1;""",
        "const float *x, float *y, float *z, S *w, const int *t, int n",
    )
    found = aliasing.effects(case)
    assert found.read == {"x", "t", "z", "w"}
    assert found.written == {"s", "y", "z", "w"}
    assert found.passed == {"z"}
    assert not found.unknown


@pytest.mark.parametrize(
    ("code", "op"),
    [
        ("s += x[i];", "+"),
        ("s = x[i] + s;", "+"),
        ("s -= x[i];", "+"),
        ("s *= 2;", "*"),
        ("s++;", "+"),
        ("s = fmaxf(s, x[i]);", "fmaxf"),
        ("s = s < x[i] ? x[i] : s;", "max"),
        ("s = (x[i] < s) ? x[i] : s;", "min"),
        ("if (x[i] > s) s = x[i];", "max"),
        ("if (s >= x[i]) { s = x[i]; }", "min"),
        ("s = fmaf(x[i], 2, s);", "+"),
        ("s |= t[i];", "|"),
        ("int j; for (j = 0; j < m; j++) s = s + t[j] + x[i];", "+"),
        ("if (x[i] > s) s = x[i + 1];", None),
        ("x[i] = s++;", None),
        ("use(&s); s += x[i];", None),
        ("s = s * 2 + x[i];", None),
        ("s += x[i]; s *= 2;", None),
        ("s += s;", None),
        ("s += x[i]; x[i] = s;", None),
    ],
)
def test_folds(code: str, op: str | None) -> None:
    case = body(f"float s = 0; for (int i = 0; i < n; i++) {{ {code} }}")
    context = Context.make(Path("k.cu"), case.text, "k")
    loop = counting(next(walk(context.body, LOOPS)))
    assert loop is not None
    if op is None:
        with pytest.raises(RuleRefused):
            reductions(context, loop)
    else:
        assert [(r.name, r.op) for r in reductions(context, loop)] == [("s", op)]


def test_lanes_wait_for_one_bank() -> None:
    for stride in range(65):
        lanes = tuple(stride * k for k in range(32))
        assert turns(lanes, 4) == (gcd(stride, 32) if stride else 1)
        assert turns(lanes, 8) == 2 * (gcd(stride, 16) if stride else 1)


@pytest.mark.parametrize(
    ("before", "size"),
    [
        ("typedef double REAL;", 8),
        ("using REAL = float;", 4),
        ("#define REAL unsigned int", 4),
        ("#ifdef HALF\n#define REAL float\n#else\n#define REAL double\n#endif", None),
        ("struct REAL { float x; };", None),
    ],
)
def test_the_size_of_a_named_type(before: str, size: int | None) -> None:
    case = body("x[n] = y;", "REAL *x, REAL y, int n", before=before)
    assert access.of(case).found[0].bytes == size


ENUMS = "enum Kind { A, B = 5, C };\nenum class Mode { ONE, TWO };\nenum Built {\n#ifdef X\n  X1,\n#endif\n  X2 };\n"


@pytest.mark.parametrize(
    ("condition", "arguments", "then", "otherwise"),
    [
        ("FLAG", "true, 4, (Mode)1, int", True, False),
        ("!FLAG", "true, 4, (Mode)1, int", False, True),
        ("N > 3u && FLAG", "false, 4, (Mode)1, int", False, True),
        ("n > 3 && FLAG", "false, 4, (Mode)1, int", False, True),  # whatever n is
        ("n > 3 || FLAG", "false, 4, (Mode)1, int", True, True),
        ("n > 3", "false, 4, (Mode)1, int", True, True),
        ("MODE == Mode::TWO", "true, 4, (Mode)1, int", True, False),
        ("MODE != Mode::TWO", "true, 4, (Mode)1, int", False, True),
        ("N == C", "true, 6, (Mode)1, int", True, False),
        ("N == X2", "true, 0, (Mode)1, int", True, True),  # a directive decides its number
        ("N - 5 < 0", "true, 4u, (Mode)1, int", True, True),  # arithmetic depends on the types
        ("N < 4", "true, -1, (Mode)1, int", True, True),
        ("sizeof(T) == 4", "true, 4, (Mode)1, int", True, True),
        ("int k = N; FLAG", "false, 4, (Mode)1, int", True, True),
    ],
)
def test_which_branch_an_instantiation_has(condition: str, arguments: str, then: bool, otherwise: bool) -> None:
    for word in ("", "constexpr "):
        code = (
            f"{ENUMS}template <bool FLAG, int N, Mode MODE, typename T>\n__global__ void k(T *x, int n)\n"
            f"{{\n  if {word}({condition}) {{\n    x[0] = 1;\n  }} else\n    x[1] = 2;\n}}\n"
        )
        made = f"void k<{arguments}>(int*, int)"
        launch = Launch("_Z1k", made, (1, 1, 1), (32, 1, 1), 0, (), ())
        work = Workload("k", "captured", (launch,), Path(), Path(), "NVIDIA H200")
        context = Context.make(Path("k.cu"), code, "k", work)
        stores = list(syntax.of_type(context.body, "expression_statement"))
        assert [live.reached(context, one) for one in stores] == [(then,), (otherwise,)]
