"""kernels.toml: what it makes, and what it says of mistakes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from cuda_agent.errors import UsageError
from cuda_agent.model import Workload
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.workload import bundle, layout, spec

SOURCE = """
typedef float real;
namespace ns {
__global__ void scale(const real *x, double *y, char flag, double a, int rows, int cols) {}
}
template <typename T, int N> __global__ void add(const T *__restrict__ x, T *y, T4 *z, int n) {}
template <typename T> __global__ void twice(const T *x, const T *y, T *z, float4 v) {}
struct S { int a; };
__global__ void bad(S s, int n) {}
"""
GOOD = """
[[kernel]]
name = "scale"
grid = ["ceil_div(rows, bx)", 2]
block = 32
shared = "4 * cols"
tolerance = { y = 1e-5 }
sizes = { rows = 100, cols = 7 }
[kernel.args]
x = { count = "rows * cols", seed = 3 }
y = { data = [1, 2.5, -3] }
flag = 1
a = 0.25
[[kernel.launch]]
[[kernel.launch]]
sizes = { rows = 10 }
args = { y = { count = 4, values = "constant", value = 2.0 } }
"""


def load(tmp_path: Path, text: str, kernel: str = "scale") -> Workload | None:
    path = tmp_path / "kernels.toml"
    path.write_text(text)
    found = module(Document(str(tmp_path / "main.cu"), SOURCE))
    return spec.load(path, found, found.kernel(kernel))


def test_a_whole_spec(tmp_path: Path) -> None:
    made = load(tmp_path, GOOD)
    assert made is not None
    assert (made.kernel, made.origin, dict(made.tolerance)) == ("ns::scale", "spec", {"y": 1e-5})
    first, second = made.launches
    assert first.demangled == "ns::scale(float const*, double*, char, double, int, int)"
    assert (first.grid, first.block, first.shared) == ((4, 2, 1), (32, 1, 1), 28)
    assert (second.grid, second.shared) == ((1, 2, 1), 28)
    assert [arg.offset for arg in first.args] == [0, 8, 16, 24, 32, 36]
    assert [arg.data for arg in first.args[2:]] == [
        b"\1",
        struct.pack("<d", 0.25),
        *(struct.pack("<i", n) for n in (100, 7)),
    ]
    assert [buffer.size for buffer in first.buffers] == [2800, 24]
    store = bundle.BlobStore(made.blobs)
    assert struct.unpack("<3d", store.get(first.buffers[1].before)) == (1, 2.5, -3)
    assert struct.unpack("<4d", store.get(second.buffers[1].before)) == (2, 2, 2, 2)
    x = np.frombuffer(store.get(first.buffers[0].before), dtype="<f4")
    assert abs(float(x.mean())) < 0.2
    assert 0.8 < float(x.std()) < 1.2
    assert bundle.signature(first) == ("f32", "f64")
    spans = sorted((b.address, b.address + b.size) for b in first.buffers)
    assert spans[0][1] <= spans[1][0]
    assert bundle.load(made.root) == made
    assert (tmp_path / ".cuda-agent" / ".gitignore").read_text() == "*\n"


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = load(tmp_path, GOOD), load(tmp_path, GOOD)
    assert first == second


def test_a_template(tmp_path: Path) -> None:
    text = (
        GOOD.replace('"scale"', '"twice"\ntemplate = ["half"]').split("tolerance")[0]
        + """
[kernel.args]
x = { count = 8, values = "arange" }
y = { count = 8, values = "integers", low = 2, high = 3 }
z = { count = 8 }
v = 1
"""
    )
    made = load(tmp_path, text.replace('["ceil_div(rows, bx)", 2]', "1").replace('"4 * cols"', "0"), "twice")
    assert made is not None
    (launch,) = made.launches
    assert launch.demangled == "void twice<half>(half const*, half const*, half*, float4)"
    assert launch.args[3].offset == 32  # 24, aligned to 16
    assert len(launch.args[3].data) == 16
    store = bundle.BlobStore(made.blobs)
    assert np.frombuffer(store.get(launch.buffers[0].before), "<f2").tolist() == list(range(8))
    assert np.frombuffer(store.get(launch.buffers[1].before), "<f2").tolist() == [2.0] * 8


def test_nothing_about_the_kernel(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD.replace('"scale"', '"other"')) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("block = 32", "block = 2048", r"block: .*1024"),
        ("block = 32", "", r"block: one to three"),
        ("block = 32", "blok = 32", r"blok: unknown key; known are"),
        ("rows * cols", "rows * columns", r"args\.x\.count: .*columns.*rows, cols"),
        ("seed = 3", "sead = 3", r"args\.x\.sead: unknown key"),
        ("flag = 1", "", r"args\.flag: give the value"),
        ("flag = 1", "flag = 1000", r"args\.flag: 1000 does not fit"),
        ("flag = 1", "flag = 1.5", r"args\.flag: flag is an integer"),
        ("a = 0.25", "b = 0.25", r"args\.b: ns::scale has no such parameter"),
        ('count = "rows * cols", seed', "seed", r"count: an integer"),
        ("y = 1e-5", "x2 = 1e-5", r"tolerance\.x2: .*no such pointer"),
        ("y = 1e-5", "y = 5", r"tolerance\.y: a relative"),
        ('values = "constant"', 'values = "gauss"', r"values: 'gauss' is none of"),
        ("data = [1, 2.5, -3]", 'data = ["a"]', r"data: a list of numbers"),
        ("[[kernel]]", "[[kernel", r"is not TOML"),
        ("rows = 100", 'rows = "cols2"', r"sizes\.rows: .*cols2"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert "kernels.toml" in str(caught.value)


def test_a_struct_parameter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="parameter s has the type S"):
        load(tmp_path, GOOD.replace('"scale"', '"bad"'), "bad")


@pytest.mark.parametrize("element", ["f64", "f32", "f16", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"])
def test_every_element_type_can_be_filled(element: layout.ElementType) -> None:
    for values in ("normal", "uniform", "zeros", "ones", "arange", "integers", "constant"):
        data = layout.fill(element, 100, values, 1, 3.0, 9.0)  # type: ignore[arg-type]
        assert len(data) == 100 * layout.SIZES[element]
    assert layout.fill(element, 4, "zeros", 1, 0, 1) == bytes(4 * layout.SIZES[element])
    assert layout.fill(element, 64, "normal", 1, 0, 1) != layout.fill(element, 64, "normal", 2, 0, 1)
