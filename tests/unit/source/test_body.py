"""Shared arrays, loops and guards of a kernel."""

from __future__ import annotations

import pytest

from cuda_agent.model import Kernel
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module, module


def kernel(body: str) -> tuple[Module, Kernel]:
    found = module(Document("k.cu", f"template <class T> __global__ void k(T* x, int n) {{\n{body}\n}}\n"))
    assert len(found.kernels) == 1
    return found, found.kernels[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__shared__ float a[32];", [("a", "float", ("32",), False)]),
        ("__shared__ float a[32][32 + 1];", [("a", "float", ("32", "32 + 1"), False)]),
        (
            "__shared__ T a[N * 2], b[3], c;",
            [("a", "T", ("N * 2",), False), ("b", "T", ("3",), False), ("c", "T", (), False)],
        ),
        ("extern __shared__ float a[];", [("a", "float", (), True)]),
        ("extern __shared__ __align__(16) unsigned char a[];", [("a", "unsigned char", (), True)]),
        ("__shared__ extern float a[];", [("a", "float", (), True)]),
        ("static __shared__ float a[3];", [("a", "float", ("3",), False)]),
        ("volatile __shared__ float a[3];", [("a", "float", ("3",), False)]),
        ("__shared__ volatile float a[3];", [("a", "float", ("3",), False)]),
        ("const __shared__ float a[3];", [("a", "float", ("3",), False)]),
        ("alignas(16) __shared__ float a[3];", [("a", "float", ("3",), False)]),
        ("__shared__ float __align__(16) a[3];", [("a", "float", ("3",), False)]),
        (
            "__shared__ typename cub::BlockReduce<T, 256>::TempStorage a;",
            [("a", "typename cub::BlockReduce<T, 256>::TempStorage", (), False)],
        ),
        ("__shared__ float* a[3];", [("a", "float*", ("3",), False)]),
        ("__shared__ struct { int x; } a;", [("a", "struct { int x; }", (), False)]),
        ("if (n) { __shared__ int a[2]; }", [("a", "int", ("2",), False)]),
        ("float a[3]; // __shared__ float b[3];", []),
    ],
)
def test_shared(text: str, expected: list[tuple[str, str, tuple[str, ...], bool]]) -> None:
    found, item = kernel(text)
    assert [(array.name, array.element, array.extents, array.dynamic) for array in item.shared] == expected
    assert not item.has_error
    for array in item.shared:
        assert "__shared__" in found.text(array.span)
        assert found.text(array.span).endswith(";")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("for (int i = 0; i < n; i++)", ("i", "0", "n", "1")),
        ("for (int i = 0; i < n; ++i)", ("i", "0", "n", "1")),
        (
            "for (unsigned int i = a + b; n > i; i += blockDim.x * gridDim.x)",
            ("i", "a + b", "n", "blockDim.x * gridDim.x"),
        ),
        ("for (i = threadIdx.x; i < n * m; i = i + 32)", ("i", "threadIdx.x", "n * m", "32")),
        ("for (i = 0; i < n; i = 32 + i)", ("i", "0", "n", "32")),
        ("for (int i = n - 1; i >= 0; i--)", ("i", "n - 1", "0 - 1", "-1")),
        ("for (int i = n; i > 0; i -= 2)", ("i", "n", "0", "-2")),
        ("for (int i = n; i > 0; i -= a + b)", ("i", "n", "0", "-(a + b)")),
        ("for (int i = 0; i <= n; i++)", ("i", "0", "n + 1", "1")),
        ("for (int i = 0; i <= n - m; i++)", ("i", "0", "(n - m) + 1", "1")),
        ("for (int i = 0; i != n; i++)", ("i", "0", "n", "1")),
        ("for (int i(0); i < n; i++)", ("i", "0", "n", "1")),
        ("for (int i = 128; i > 0; i >>= 1)", None),
        ("for (int i = 1; i < n; i *= 2)", None),
        ("for (int i = 0, j = 0; i < n; i++)", None),
        ("for (int i = 0; i < n && x[i]; i++)", None),
        ("for (int i = 0; i < n; j++)", None),
        ("for (int i = 0; j < n; i++)", None),
        ("for (; i < n; i++)", None),
        ("for (int i = 0; i < n;)", None),
        ("for (;;)", None),
        ("for (auto v : x)", None),
        ("while (i < n)", None),
    ],
)
def test_counted(header: str, expected: tuple[str, str, str, str] | None) -> None:
    found, item = kernel(f"{header} {{ x[i] = 1; }}")
    (loop,) = item.loops
    assert (loop.kind, loop.depth) == (header.split()[0], 0)
    assert (loop.variable, loop.start, loop.bound, loop.step) == (expected or (None, None, None, None))
    assert found.text(loop.body) == "{ x[i] = 1; }"
    assert found.text(loop.span) == f"{header} {{ x[i] = 1; }}"


def test_nesting() -> None:
    _, item = kernel(
        "for (int i = 0; i < n; i++) { while (n) { do x++; while (*x); } for (int j = 0; j < 3; j++) x[j] = 0; }\n"
        "if (n < 3) for (int k = 0; k < n; k++) { }\n"
    )
    assert [(loop.kind, loop.depth, loop.variable) for loop in item.loops] == [
        ("for", 0, "i"),
        ("while", 1, None),
        ("do", 2, None),
        ("for", 1, "j"),
        ("for", 0, "k"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if (i < n) { x[i] = 1; }", [("body", "i < n")]),
        ("if (i < n) x[i] = 1;", [("body", "i < n")]),
        ("if (i < n && (j < m)) { }", [("body", "i < n && (j < m)")]),
        ("if (i >= n) return;", [("return", "i >= n")]),
        ("if (i >= n || j >= m) { return; }", [("return", "i >= n || j >= m")]),
        ("if (!active) return;", [("return", "!active")]),
        ("if (i < n) { if (j < m) { x[i] = 1; } }", [("body", "i < n"), ("body", "j < m")]),
        ("if (i >= n) return; if (j < m) { x[j] = 2; }", [("return", "i >= n"), ("body", "j < m")]),
        ("if (threadIdx.x == 0) x[0] = 1;", []),  # an election, not a range
        ("if (i < n) { } else { }", []),
        ("for (;;) { if (i < n) x[i] = 1; }", []),
        ("#ifdef A\nif (i < n) { x[i] = 1; }\n#endif\n", [("body", "i < n")]),
        ("if (i >= n) { x[0] = 1; return; }", [("body", "i >= n")]),
    ],
)
def test_guards(text: str, expected: list[tuple[str, str]]) -> None:
    found, item = kernel(text)
    assert [(guard.kind, guard.condition) for guard in item.guards] == expected
    for guard in item.guards:
        assert found.text(guard.condition_span) == guard.condition
        assert found.text(guard.span).startswith("if (")
