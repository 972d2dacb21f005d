"""Launch texts against launch maps: what the person gets must launch what was judged."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.judge import launch_text
from cuda_agent.model import LaunchMap
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module

SAME = LaunchMap()
HALF_BLOCKS = LaunchMap(grid=("gx * 2", "gy", "gz"), block=("128", "by", "bz"))
RESHAPED = LaunchMap(grid=("ceil_div(gx * bx, 32)", "ceil_div(gy * by, 8)", "gz"), block=("32", "8", "1"))


def mismatch(before: str, after: str, launch: LaunchMap, top: str = "") -> str | None:
    """Both are the body of a host function."""
    kernel = "__global__ void k(float *a, int n) { a[threadIdx.x] = n; }\n"
    old, new = (
        module(Document("x.cu", f"{top}{kernel}void run(float *a, int n, int m, double d, dim3 given) {{ {body} }}\n"))
        for body in (before, after)
    )
    return launch_text.mismatch(old, new, old.kernel("k"), launch)


AGREE = {
    "nothing changed": ("k<<<f(n), 256>>>(a, n);", "k<<<f(n), 256>>>(a, n);", SAME, ""),
    "constants": ("k<<<10, 256>>>(a, n);", "k<<<20, 128>>>(a, n);", HALF_BLOCKS, ""),
    "arithmetic": ("k<<<(n + 255) / 256, 256>>>(a, n);", "k<<<(n + 255) / 256 * 2, 128>>>(a, n);", HALF_BLOCKS, ""),
    "dim3 with parentheses inside": (
        "dim3 g((n+15)/16,(m+15)/16); dim3 b(16, 16); k<<<g, b>>>(a, n);",
        "dim3 g((n+15)/16,(m+15)/16); dim3 b(16, 16); k<<<dim3((g.x + 1) / 2, g.y * 2), dim3(32, 8)>>>(a, n);",
        RESHAPED,
        "",
    ),
    "braces": (
        "dim3 g = {(unsigned)n, 4}; k<<<g, 256>>>(a, n);",
        "dim3 g = {(unsigned)n, 4}; k<<<dim3(g.x * 2, g.y), 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "one dimension": ("dim3 g(n); k<<<g, 256>>>(a, n);", "dim3 g(n); k<<<g.x * 2, 128>>>(a, n);", HALF_BLOCKS, ""),
    "a block that is passed in": (
        "k<<<n, given>>>(a, n);",
        "k<<<dim3((n * given.x + 31) / 32, (given.y + 7) / 8), dim3(32, 8)>>>(a, n);",
        RESHAPED,
        "",
    ),
    "a call of unknown kind": (
        "k<<<blocks(n), 256>>>(a, n);",
        "k<<<dim3(dim3(blocks(n)).x * 2, dim3(blocks(n)).y, dim3(blocks(n)).z), 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "a float rounded before": (
        "int g = ceil(n / 256.0); k<<<g, 256>>>(a, n);",
        "int g = ceil(n / 256.0); k<<<g * 2, 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "a macro": (
        "k<<<BLOCKS, T>>>(a, n);",
        "k<<<BLOCKS * 2, 128>>>(a, n);",
        HALF_BLOCKS,
        "#define BLOCKS (7+1)\n#define T 256\n",
    ),
    "the declaration changed": (
        "dim3 g(n); k<<<g, 256>>>(a, n);",
        "dim3 g(n * 2); k<<<g, 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "elements of an array": (
        "int t[2]; t[0] = 16; t[1] = n; dim3 b(t[0], t[1]); k<<<n, b>>>(a, n);",
        "int t[2]; t[0] = 16; t[1] = n; dim3 b(t[0], t[1]);"
        " k<<<dim3((n * t[0] + 31) / 32, (t[1] + 7) / 8), dim3(32, 8)>>>(a, n);",
        RESHAPED,
        "",
    ),
    "changed before, and the kernel is longer": (
        "int f = 2; while (m % f) f /= 2; dim3 g(n / f); k<<<g, 256>>>(a, n);",
        "/* longer */ int f = 2; while (m % f) f /= 2; dim3 g(n / f); k<<<g, 256>>>(a, n);",
        SAME,
        "",
    ),
    "a variable that changes": (
        "int g = n; g++; k<<<g, 256>>>(a, n);",
        "int g = n; g++; k<<<g * 2, 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
}

DIFFER = {
    "map changed, text not": ("k<<<n, 256>>>(a, n);", "k<<<n, 256>>>(a, n);", HALF_BLOCKS, ""),
    "text changed, map not": ("k<<<n, 256>>>(a, n);", "k<<<n, 128>>>(a, n);", SAME, ""),
    "lost y": (
        "dim3 g((n+15)/16,(m+15)/16); dim3 b(16, 16); k<<<g, b>>>(a, n);",
        "dim3 g((n+15)/16,(m+15)/16); dim3 b(16, 16); k<<<(g.x + 1) / 2, dim3(32, 8)>>>(a, n);",
        RESHAPED,
        "",
    ),
    "lost y of a parameter": (
        "k<<<given, 256>>>(a, n);",
        "k<<<given.x * 2, 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "rounds down": ("k<<<(n + 255) / 256, 256>>>(a, n);", "k<<<n / 128, 128>>>(a, n);", HALF_BLOCKS, ""),
    "only right for even grids": (
        "k<<<n, 256>>>(a, n);",
        "k<<<n / 2, 512>>>(a, n);",
        LaunchMap(grid=("ceil_div(gx, 2)", "gy", "gz"), block=("512", "1", "1")),
        "",
    ),
    "a float rounded after": (
        "k<<<ceil(n / 256.0), 256>>>(a, n);",
        "k<<<ceil(n / 256.0 * 2), 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "the declaration changed": ("dim3 g(n); k<<<g, 256>>>(a, n);", "dim3 g(n / 2); k<<<g, 256>>>(a, n);", SAME, ""),
    "another overload": ("k<<<f(n), 256>>>(a, n);", "k<<<f(m) * 2, 128>>>(a, n);", HALF_BLOCKS, ""),
    "shared memory": ("k<<<n, 256, 4 * m>>>(a, n);", "k<<<n, 256, 2 * m>>>(a, n);", SAME, ""),
    "changed in between": (
        "int g = n; n = m; k<<<g, 256>>>(a, n);",
        "int g = n; n = m; k<<<n * 2, 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "changed in a loop around the launch": (
        "int g = n; for (;;) { k<<<g, 256>>>(a, n); n /= 2; }",
        "int g = n; for (;;) { k<<<n * 2, 128>>>(a, n); n /= 2; }",
        HALF_BLOCKS,
        "",
    ),
    "read in between": (
        "int g = 0; dim3 d(g + 1); std::cin >> g; k<<<d, 256>>>(a, n);",
        "int g = 0; dim3 d(g + 1); std::cin >> g; k<<<dim3(g * 2 + 2), 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "changed by a function": (
        "int g = 1; dim3 d(g); grow(g); k<<<d, 256>>>(a, n);",
        "int g = 1; dim3 d(g); grow(g); k<<<g * 2, 128>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "one of two sites": (
        "k<<<n, 256>>>(a, n); k<<<m, 256>>>(a, n);",
        "k<<<n * 2, 128>>>(a, n); k<<<m, 256>>>(a, n);",
        HALF_BLOCKS,
        "",
    ),
    "no site": ("", "", HALF_BLOCKS, ""),
    "launched by address too": (
        "k<<<n, 256>>>(a, n); cudaLaunchKernel((void *)k, n, 256, 0, 0, 0);",
        "k<<<n * 2, 128>>>(a, n); cudaLaunchKernel((void *)k, n, 256, 0, 0, 0);",
        HALF_BLOCKS,
        "",
    ),
}


@pytest.mark.parametrize("case", AGREE.values(), ids=AGREE)
def test_agrees(case: tuple[str, str, LaunchMap, str]) -> None:
    assert mismatch(*case) is None


@pytest.mark.parametrize("case", DIFFER.values(), ids=DIFFER)
def test_differs(case: tuple[str, str, LaunchMap, str]) -> None:
    assert mismatch(*case)


def test_the_sentence_shows_a_launch() -> None:
    said = mismatch("k<<<n, 256>>>(a, n);", "k<<<n, 128>>>(a, n);", SAME)
    assert said is not None
    assert "`<<<n, 128>>>` launches <<<" in said
    assert "(n = " in said


@given(st.text(alphabet="nm()+-*/%?:<>=&|!.,x{}[]1 \"'", max_size=24))
def test_any_text_is_the_same_as_itself(text: str) -> None:
    body = f"k<<<{text}, 256>>>(a, n);"
    assert mismatch(body, body, SAME) is None


@given(st.integers(1, 2000), st.integers(1, 1024), st.integers(1, 16), st.integers(0, 3))
def test_division_truncates_as_in_c(n: int, block: int, k: int, less: int) -> None:
    """(n + block - 1 - less) / block blocks, a k-th of them rounded up."""
    before = f"k<<<(n + {block - 1 - less}) / {block}, {block}>>>(a, n);"
    after = f"k<<<((n + {block - 1 - less}) / {block} + {k - 1}) / {k}, {block}>>>(a, n);"
    assert mismatch(before, after, LaunchMap(grid=(f"ceil_div(gx, {k})", "gy", "gz"))) is None


def test_a_long_file_takes_no_time() -> None:
    filler = "".join(f"void f{i}(int n) {{ int g = n * {i}; dim3 b(g, {i}); use(b); }}\n" for i in range(3000))
    body = "dim3 g((n+15)/16,(m+15)/16); int t = 16; dim3 b(t, t); k<<<g, b>>>(a, n);"
    started = time.process_time()
    assert mismatch(body, body, SAME, filler) is None
    assert time.process_time() - started < 5
