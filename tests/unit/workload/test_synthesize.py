"""Synthetic inputs: sizes that fit the kernel's own index ranges, or a reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.errors import NoInputs
from cuda_agent.model import Workload
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.toolchain import names
from cuda_agent.workload import synthesize


def make(tmp_path: Path, text: str, kernel: str = "k") -> Workload:
    found = module(Document(str(tmp_path / "main.cu"), text))
    return synthesize.synthesize(found, found.kernel(kernel))


def sizes(made: Workload) -> list[list[int]]:
    return [[buffer.size for buffer in launch.buffers] for launch in made.launches]


def test_softmax_rows(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "corpus" / "softmax_rows.cu").read_text()
    made = make(tmp_path, text, "softmax_rows")
    assert made.origin == "synthetic"
    assert sizes(made) == [[4 * 1000 * 97] * 2, [4 * 333 * 64] * 2]
    assert [(launch.grid, launch.block) for launch in made.launches] == [
        ((4, 1, 1), (256, 1, 1)),
        ((2, 1, 1), (256, 1, 1)),
    ]
    assert made.launches[0].mangled == "_Z12softmax_rowsPKfPfii"


def test_the_launch_gives_block_and_grid(tmp_path: Path) -> None:
    made = make(
        tmp_path,
        """
#define TILE 16
__global__ void k(const float *x, float *y, int height, int width) {
  __shared__ float tile[TILE][TILE];
  int c = blockIdx.x * TILE + threadIdx.x, r = blockIdx.y * TILE + threadIdx.y;
  if (r < height && c < width) tile[threadIdx.y][threadIdx.x] = x[r * width + c];
  __syncthreads();
  if (r < height && c < width) y[c * height + r] = tile[threadIdx.y][threadIdx.x];
}
void run(float *a, float *b, int h, int w) {
  dim3 threads(TILE, TILE);
  dim3 blocks((w + TILE - 1) / TILE, ceil_div(h, TILE));
  k<<<blocks, threads>>>(a, b, h, w);
}
""",
    )
    first = made.launches[0]
    assert first.block == (16, 16, 1)
    assert first.grid == (7, 63, 1)  # 97 columns, 1000 rows
    assert sizes(made)[0] == [4 * 97000] * 2


@pytest.mark.parametrize(
    ("body", "elements"),
    [
        (
            "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = y[i];",
            [1000, 1000],
        ),
        ("int i = threadIdx.x; if (i >= n) return; x[i] = y[2 * i + 1];", [256, 512]),
        ("int i = threadIdx.x; const float *row = y + i * 3; for (int j = 0; j < 3; ++j) x[i] += row[j];", [256, 768]),
        ("if (threadIdx.x < 10) atomicAdd(&x[threadIdx.x / 2], *(y + 7));", [5, 8]),
        ("int i = threadIdx.x; for (int s = 128; s > 0; s >>= 1) if (i < s) x[i] += y[i + s];", [128, 256]),
        ("int i = threadIdx.x % 8; x[i & 3] = y[min(i, 5)];", [4, 6]),
        ("int i = threadIdx.x; x[i > 5 ? i : 0] = __ldg(y + i);", [256, 256]),
        ("int i = 0; while (i < n) { x[i] = y[i]; i += 2; }", [1000, 1000]),
    ],
)
def test_index_ranges(tmp_path: Path, body: str, elements: list[int]) -> None:
    text = f"__global__ void k(float *x, const float *y, int n) {{ {body} }}\nvoid f() {{ k<<<1, 256>>>(a, b, n); }}"
    assert sizes(make(tmp_path, text))[0] == [4 * count for count in elements]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__global__ void k(float **x, int n) { x[0][0] = n; }", "only scalars and pointers to scalars"),
        ("struct S { float *p; }; __global__ void k(S s) { s.p[0] = 1; }", "no number"),
        ("__global__ void k(float *x, const int *at) { x[at[threadIdx.x]] = 1; }", "depends on data"),
        ("__global__ void k(float *x) { helper(x); }", "handed to helper"),
        ("__global__ void k(float *x) { x += threadIdx.x; *x = 1; }", "moves the pointer x"),
        ("__global__ void k(float *x) { reinterpret_cast<float4 *>(x)[threadIdx.x].x = 1; }", "x"),
        ("__global__ void k(float *x) { x[threadIdx.x - 1] = 1; }", "before the start of x"),
        ("__global__ void k(float *x) { __shared__ float s[64]; s[threadIdx.x] = 1; x[0] = s[0]; }", "block size"),
        ("__global__ void k(float *x, int n) { x[blockIdx.x] = n; }", "how many blocks"),
        ("template <class T> __global__ void k(T *x) { x[0] = 1; }", "arguments T are not known"),
        ("__global__ void k(float *x, int n) { int i = 0; while (x[0] > 0) { x[i] = 0; i += n; } }", "no bound"),
    ],
)
def test_reasons(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(NoInputs, match=reason):
        make(tmp_path, text)


def test_template_arguments_are_deduced(tmp_path: Path) -> None:
    made = make(
        tmp_path,
        "typedef double real; template <typename T> __global__ void k(const T *x, T *y, T a, int n) {\n"
        "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = a * x[i]; }\n"
        "void f(int n) { real *dx, *dy; k<<<(n + 127) / 128, 128>>>(dx, dy, 2.0, n); }",
    )
    assert made.launches[0].demangled == "void k<double>(double const*, double*, double, int)"
    assert (
        names.match(["_Z1kIdEvPKT_PS0_S0_i", "_Z1kIfEvPKT_PS0_S0_i"], made.launches[0].mangled)
        == "_Z1kIdEvPKT_PS0_S0_i"
    )
    assert made.launches[0].grid == (8, 1, 1)
