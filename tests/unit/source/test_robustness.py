"""Half-typed, cut and broken text: partial answers, never an exception, every span inside the text and in place."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuda_agent.model import Span
from cuda_agent.source import edits, parse, tree
from cuda_agent.source.documents import Document, decode, encode
from cuda_agent.source.symbols import Module, module
from patience import patience

PROGRAM = """#include <cuda_runtime.h>
#define BOUNDS(n) __launch_bounds__(n)
#define GO(g, b) reduce<float, 3><<<g, b>>>(x, y, n)
namespace house { namespace { template <typename T, int N = (4 > 3)> struct Pair { T a[N]; }; } // größe 😀
template <typename T, int N> /* rows */
__global__ void BOUNDS(256) reduce(const T* __restrict__ x, T (*f)(T, int), Pair<T, N> p = {}, T** out = nullptr) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ T tile[32][N + 1], one;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= N || x == nullptr) return;
  for (int j = threadIdx.x; j <= N; j += blockDim.x) { tile[j][0] = x[i * N + j] < 'a' ? 1'000 : 0x1p-3f; }
#if defined(A) && \\
    B
  for (int s = 16; s > 0; s >>= 1) { one += __shfl_down_sync(~0u, one, s);
#else
  do { one++; } while (one < 3);
  {
#endif
  }
  if (i < N) { **out = R"x(not "a" __global__ void r() {})x"[0]; }
}
}
extern "C" { static __global__ void plain(float *a, float b[], int n) {
  for (auto v : {1, 2}) while (n--) a[n] = b[v];
} }
#if 0
__global__ void dead(int n) { }
#endif
template <typename F> void run(F f, int n) {
  if (n) house::reduce<float, 3><<<dim3((n + 31) / 32, 2), 256, n * sizeof(float), stream>>>(x, y, n);
  auto g = [=](int m) { plain<<<m, 1 << 5>>>(x, "k<<<1, 2>>>(3)", n < 3, n > 4); };
  CHECK(( plain <<< 1, 2 >>> ( x, y, n ) ));
}
int main(int argc, char** argv) { run(1, 2); return 0; }
"""
RAW = encode(PROGRAM)
SEEDS = [b"{", b"}", b"(", b")", b"<", b">", b"<<<", b">>>", b'"', b"'", b"/*", b"*/", b"//", b"#", b"\n", b"\r", b"\\",
         b"\0", b"__global__ ", b"template<", b"#if 0\n", b"#else\n", b"#endif\n", b'R"(', b"::", b",", b";",
         b"\xff", b"\xf0\x9f"]  # fmt: skip


def check(document: Document) -> Module:
    """Ask for everything and hold every answer against the text."""
    found = module(document)
    size = len(document.data)
    everything = Span(0, size)
    for kernel in found.kernels:
        inner = [kernel.name_span, kernel.params_span, kernel.body]
        inner += [item.span for item in (*kernel.params, *kernel.shared, *kernel.loops, *kernel.guards)]
        assert everything.holds(kernel.span)
        assert all(kernel.span.holds(span) and span.start <= span.end for span in inner)
        assert document.data[kernel.body.start] == ord("{")
        assert kernel.name
        assert found.text(kernel.name_span).split("(")[0].strip() == kernel.name.split("(")[0].strip()
        assert all(
            kernel.params_span.holds(param.span) and param.span.holds(param.name_span) for param in kernel.params
        )
        assert all(kernel.body.holds(loop.span) and loop.span.holds(loop.body) for loop in kernel.loops)
        assert found.kernel_at(kernel.name_span.start) is not None
        assert len(found.kernel_hash(kernel)) == 64
        found.launches_of(kernel)
        found.other_uses(kernel)
        node = found.node(kernel.body)
        tree.assignments(node)
        tree.subscripts(node)
        tree.calls(node)
    for site in found.launches:
        assert everything.holds(site.span)
        assert site.span.holds(site.config_span)
        assert site.config_span.holds(site.grid_span)
        assert site.config_span.holds(site.block_span)
        assert found.launch_at(site.span.start) is not None
        found.kernels_of(site)
    assert isinstance(found.has_main, bool)
    return found


def signature(found: Module) -> tuple[object, ...]:
    return found.kernels, found.launches, found.has_main, str(found.root)


def test_the_program_itself_is_read_whole() -> None:
    found = check(Document("k.cu", PROGRAM))
    assert [(kernel.qualified_name, kernel.extern_c, kernel.launch_bounds) for kernel in found.kernels] == [
        ("house::reduce", False, None),
        ("plain", True, None),
    ]
    reduce, plain = found.kernels
    assert [(array.name, array.dynamic) for array in reduce.shared] == [("raw", True), ("tile", False), ("one", False)]
    assert [param.name for param in reduce.params] == ["x", "f", "p", "out"]
    assert not plain.has_error
    assert len(found.launches_of(reduce)) == 2
    assert len(found.launches_of(plain)) == 2
    assert [site.function for site in found.launches] == [None, "run", "run", "run"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(RAW)), st.integers(0, len(RAW)))
def test_truncated(start: int, end: int) -> None:
    check(Document("k.cu", decode(RAW[:end])))
    check(Document("k.cu", decode(RAW[start:])))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(RAW)), st.integers(0, 60), st.sampled_from([b"", *SEEDS])), max_size=6))
def test_damaged(damages: list[tuple[int, int, bytes]]) -> None:
    data = RAW
    for at, length, inserted in damages:
        data = data[:at] + inserted + data[at + length :]
    check(Document("k.cu", decode(data)))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(SEEDS), st.binary(max_size=3)), max_size=40).map(b"".join))
def test_noise(data: bytes) -> None:
    check(Document("k.cu", decode(data)))
    check(Document("k.cu", data.decode("utf-8", "surrogateescape")))


tokens = re.findall(r"\w+|\s+|.", PROGRAM)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(tokens), max_size=120).map("".join))
def test_token_soup(text: str) -> None:
    check(Document("k.cu", text))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(RAW)), st.integers(0, 30), st.sampled_from([b"", b"x", *SEEDS])),
        min_size=1,
        max_size=4,
    )
)
def test_incremental_parse_gives_the_same_tree(damages: list[tuple[int, int, bytes]]) -> None:
    document = Document("k.cu", PROGRAM)
    previous = parse.parse(document)
    for at, length, inserted in damages:
        data = document.data[:at] + inserted + document.data[at + length :]
        document = Document("k.cu", decode(data))
        again = parse.parse(document, previous)
        fresh = parse.parse(document)
        assert again.source == fresh.source
        if not fresh.root_node.has_error:
            # with errors, tree-sitter may recover another way when it keeps parts of the old tree
            assert str(again.root_node) == str(fresh.root_node)
        previous = again


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(PROGRAM)), st.integers(0, 40), st.sampled_from(["", "x", "\r\n", "😀", "  "]))
def test_edits_of_the_program_reverse(at: int, length: int, inserted: str) -> None:
    new = PROGRAM[:at] + inserted + PROGRAM[at + length :]
    changes = edits.minimal(PROGRAM, new)
    assert edits.apply(PROGRAM, changes) == new
    assert edits.apply(new, edits.invert(PROGRAM, changes)) == PROGRAM


LONG = [
    "(" * 50000,
    "{" * 50000,
    "[" * 20000 + "<<<",
    "<" * 5000,
    "__global__ void k(" * 2000,
    "__global__ " * 5000,
    "k<<<" * 3000,
    "#if 1\n" * 5000,
    "__global__ void k() { " + "if (a < b) { " * 3000,
    "f<" * 5000 + "<<<1, 2>>>(3)",
    "a<b," * 3000 + "k<<<1,2>>>(" + "c<d," * 3000 + ")",
    "__global__ void k() { x; }\n" * 300,
    "void f() { k<<<1, 2>>>(3); }\n" * 2000,
]


@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_deep_and_long_texts_end_in_time(text: str) -> None:
    started = time.perf_counter()
    check(Document("k.cu", text))
    assert time.perf_counter() - started < patience(10)
