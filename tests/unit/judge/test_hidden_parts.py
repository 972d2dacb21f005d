"""How hidden cases are made: sizes, launch shapes, extents, values, pointers. Nothing runs here."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.device import Device
from cuda_agent.judge.case import Case
from cuda_agent.judge.hidden import families, pointers
from cuda_agent.judge.hidden.divisors import Divisors
from cuda_agent.judge.hidden.extents import Extents, Refused, contents
from cuda_agent.judge.hidden.integer_data import data_parameters
from cuda_agent.judge.hidden.scalars import hidden_values, integers, sizes, template_arguments, with_values
from cuda_agent.judge.hidden.shapes import Shapes
from cuda_agent.judge.hidden.trial import KINDS, Kind, Trial, in_turn, interleaved
from cuda_agent.model import Arg, Buffer, Build, Candidate, Launch, LaunchMap, Pointer, Workload
from cuda_agent.source import edits
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module
from cuda_agent.source.symbols import module as parse
from cuda_agent.workload.bundle import BlobStore
from cuda_agent.workload.elements import ElementType
from cuda_agent.workload.launch_map import Shape

ROWS = """\
#define SCALE 3
__global__ void rows(const float *in, float *out, int height, int width, int stride, float weight)
{
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= height)
        return;
    float sum = 0.0f;
    for (int c = 0; c < width; c++)
        sum += in[r * stride + c] * weight;
    out[r] = sum * SCALE;
}
void run(const float *a, float *b, int n, int m)
{
    const int threads = 64;
    int blocks = (n + threads - 1) / threads;
    rows<<<blocks, threads>>>(a, b, n, m, 50, 1.0f);
}
"""


def launch(folder: Path, mangled: str, arrays: list[int], scalars: list[bytes], grid: int, block: int) -> Launch:
    """Arrays of ascending floats, each in a buffer of its own, then the scalars."""
    store = BlobStore(folder / "blobs")
    buffers = tuple(
        Buffer((b + 1) << 32, 4 * count, store.put(struct.pack(f"{count}f", *range(count))), None)
        for b, count in enumerate(arrays)
    )
    args = [Arg(8 * b, bytes(8), (Pointer(0, b, 0),)) for b in range(len(arrays))]
    at = 8 * len(arrays)
    for data in scalars:
        args.append(Arg(at, data))
        at += len(data)
    return Launch(mangled, "", (grid, 1, 1), (block, 1, 1), 0, tuple(args), buffers)


def i32(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


def case(folder: Path, text: str, kernel: str, one: Launch, new: str | None = None, seen: bool = False) -> Case:
    work = Workload(kernel, "captured", (one,), folder, folder / "blobs", "NVIDIA H200")
    after = text if new is None else new
    made = Candidate(kernel, text, after, edits.minimal(text, after), "person", launch=LaunchMap(seen=seen))
    build = Build(folder / "x.cu", folder, "nvcc", (), "default")
    return Case(cast(Device, None), build, work, text, made)  # no device: nothing here runs


def rows_case(folder: Path, new: str | None = None, seen: bool = False) -> Case:
    """40 rows of 48 columns, 50 floats apart."""
    scalars = [i32(40), i32(48), i32(50), struct.pack("f", 1.0)]
    return case(folder, ROWS, "rows", launch(folder, "_Z4rowsPKfPfiiif", [2000, 40], scalars, 1, 64), new, seen)


def parsed(text: str) -> Module:
    return parse(Document("x.cu", text))


# ---------------------------------------------------------------- sizes


def test_integer_arguments_and_those_that_are_sizes(tmp_path: Path) -> None:
    made = rows_case(tmp_path)
    found = integers(made.launches[0], made.kernel)
    assert {name: scalar.value for name, scalar in found.items()} == {"height": 40, "width": 48, "stride": 50}
    assert [size.name for size in sizes(made.module, made.kernel, found)] == ["height", "width"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("int i = threadIdx.x; while (i < n) { x[i] = k; i += k; }", ["n"]),
        ("int total = n * k; int i = threadIdx.x; if (i < total) x[i] = 1;", ["n", "k"]),
        ("x[threadIdx.x] = n >> k;", []),
        ("x[threadIdx.x] = n > threadIdx.x ? 1 : 0;", ["n"]),
        ("for (int i = n - 1; i >= 0; i--) x[i] = 1;", ["n"]),
    ],
)
def test_sizes_are_found_in_conditions_and_through_variables(tmp_path: Path, body: str, expected: list[str]) -> None:
    text = f"__global__ void k(float *x, int n, int k) {{ {body} }}"
    module = parsed(text)
    kernel = module.kernel("k")
    one = launch(tmp_path, "_Z1kPfii", [64], [i32(64), i32(2)], 1, 64)
    assert [size.name for size in sizes(module, kernel, integers(one, kernel))] == expected


@pytest.mark.parametrize(
    ("body", "values", "where"),
    [
        ("x[threadIdx.x % n] = 1;", {"n": 0}, "threadIdx.x % n"),
        ("x[threadIdx.x % n] = 1;", {"n": 1}, ""),
        ("int i = blockIdx.x * 8 + threadIdx.x; x[i / n] = 1;", {"n": 0}, "i / n"),
        ("const int quarter = n / 4; x[threadIdx.x % quarter] = 1;", {"n": 3}, "threadIdx.x % quarter"),
        ("const int quarter = n / 4; x[threadIdx.x % quarter] = 1;", {"n": 4}, ""),
        ("int i = threadIdx.x; i %= n - k; x[i] = 1;", {"n": 2, "k": 2}, "i %= n - k"),
        ("float sum = x[0]; x[1] = sum / n;", {"n": 0}, ""),
        ("x[1] = x[0] / n;", {"n": 0}, ""),
        ("x[threadIdx.x] = 1.0f / n;", {"n": 0}, ""),
        ("x[threadIdx.x / (float)n > 1] = 1;", {"n": 0}, ""),
        ("int m = n; m = m + 1; x[threadIdx.x % m] = 1;", {"n": 0}, ""),
    ],
)
def test_sizes_that_divide_an_integer_by_zero(body: str, values: dict[str, int], where: str) -> None:
    module = parsed(f"__global__ void k(float *x, int n, int k) {{ {body} }}")
    found = Divisors(module, module.kernel("k")).zero({"n": 64, "k": 64} | values)
    assert found == (f"line 1, `{where}`" if where else None)


def test_hidden_values_lie_below_the_recorded_one(tmp_path: Path) -> None:
    made = rows_case(tmp_path)
    height = integers(made.launches[0], made.kernel)["height"]
    values = hidden_values(height, (64, 1, 1))
    assert {0, 1, 2, 3, 7, 31, 32, 33} <= set(values)
    assert max(values) < 40
    assert len(values) == len(set(values))
    assert {63, 64, 65, 129} <= set(hidden_values(replace(height, value=1000), (64, 1, 1)))
    assert {15, 16, 17, 3, 4, 5} <= set(hidden_values(height, (16, 4, 1)))


def test_a_changed_scalar_changes_its_bytes_only(tmp_path: Path) -> None:
    made = rows_case(tmp_path)
    one = made.launches[0]
    changed = with_values(one, integers(one, made.kernel), {"width": 33})
    assert [arg.data for arg in changed.args if not arg.pointers][:3] == [i32(40), i32(33), i32(50)]
    assert changed.args[2] == one.args[2]


@pytest.mark.parametrize(
    ("mangled", "expected"),
    [
        ("_Z1kILi4EfEvPT0_i", ("4", "float")),
        ("_Z1kPfi", ()),
        ("_Z1kISt4pairIifELi2EEvi", ("std::pair<int, float>", "2")),
    ],
)
def test_template_arguments(mangled: str, expected: tuple[str, ...]) -> None:
    assert template_arguments(mangled) == expected


# ---------------------------------------------------------------- launch shapes


def shapes(made: Case) -> Shapes:
    return Shapes(made, 0, integers(made.launches[0], made.kernel))


def grid(shape: Shape | None) -> int | None:
    return shape.grid[0] if shape is not None else None


def test_the_programs_own_blocks_follow_the_size(tmp_path: Path) -> None:
    found = shapes(rows_case(tmp_path))
    assert [grid(found.original({"height": n})) for n in (0, 1, 64, 65, 1000)] == [0, 1, 1, 2, 16]
    assert grid(found.original({"width": 1000})) == 1


def test_a_candidate_is_launched_by_its_own_text(tmp_path: Path) -> None:
    new = ROWS.replace("(n + threads - 1) / threads", "n / threads + 1")
    found = shapes(rows_case(tmp_path, new, seen=True))
    own = found.original({"height": 64})
    assert own is not None
    assert (grid(own), grid(found.candidate({"height": 64}, own))) == (1, 2)
    assert found.surplus({"height": 64}, own) is None  # the two differ there: more blocks mean nothing
    assert found.surplus({"height": 33}, Shape((2, 1, 1), (64, 1, 1), 0)) is not None


@pytest.mark.parametrize(
    ("shared", "known"),
    [
        ("threads * sizeof(float)", True),
        ("threads * sizeof(T)", True),  # by what was recorded four bytes
        ("64 * sizeof(float4)", False),
        ("sizeof(Row)", False),
    ],
)
def test_shared_bytes_are_a_number_of_elements(tmp_path: Path, shared: str, known: bool) -> None:
    one = replace(rows_case(tmp_path).launches[0], shared=256)
    text = ROWS.replace("blocks, threads>>>", f"blocks, threads, {shared}>>>")
    expected = Shape((16, 1, 1), (64, 1, 1), 256) if known else None
    assert shapes(case(tmp_path, text, "rows", one)).original({"height": 1000}) == expected


def test_a_text_that_is_not_understood_says_nothing(tmp_path: Path) -> None:
    found = shapes(rows_case(tmp_path, ROWS.replace("blocks, threads>>>", "pick(n), threads>>>"), seen=True))
    own = found.original({"height": 33})
    assert own is not None
    assert found.candidate({"height": 33}, own) is None
    proved = shapes(rows_case(tmp_path, ROWS.replace("blocks, threads>>>", "pick(n), threads>>>")))
    assert proved.candidate({"height": 33}, own) == own  # G0 compared the text with the map
    other = case(tmp_path, ROWS.replace("<<<blocks", "<<<pick(n)"), "rows", rows_case(tmp_path).launches[0])
    assert shapes(other).original({"height": 33}) is None


# ---------------------------------------------------------------- extents


def fitted(
    made: Case, values: dict[str, int], one: Launch | None = None, most: int = 1 << 20
) -> tuple[Launch, dict[str, bytes]]:
    scalars = integers(made.launches[0], made.kernel)
    held: dict[str, bytes] = {}
    derived = with_values(one or made.launches[0], scalars, values)
    return Extents(made, 0, scalars).fit(derived, values, held, most), held


def test_buffers_are_cut_to_what_is_reached(tmp_path: Path) -> None:
    made = rows_case(tmp_path)
    small, held = fitted(made, {"height": 3, "width": 5})
    # The recorded rows end two elements beyond what the kernel reaches; as much is left here.
    assert [buffer.size for buffer in small.buffers] == [4 * (2 * 50 + 5 + 2), 4 * 3]
    assert contents(made, held, small.buffers[0]) == struct.pack("107f", *range(107))


def test_larger_sizes_repeat_the_recorded_bytes(tmp_path: Path) -> None:
    made = rows_case(tmp_path)
    large, held = fitted(replace_grid(made, 2), {"height": 81}, replace(made.launches[0], grid=(2, 1, 1)))
    assert large.buffers[0].size == 4 * (80 * 50 + 48 + 2)
    numbers = struct.unpack("4050f", contents(made, held, large.buffers[0]))
    assert numbers[2000:2003] == (0.0, 1.0, 2.0)


def replace_grid(made: Case, blocks: int) -> Case:
    made.__dict__["launches"] = (replace(made.launches[0], grid=(blocks, 1, 1)),)
    return made


def test_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="MiB"):
        fitted(rows_case(tmp_path), {"height": 33}, most=1000)


GATHER = """\
__global__ void gather(const float *in, const int *at, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = in[at[i]];
}
void run(float *a, int *b, float *c, int n) { gather<<<(n + 63) / 64, 64>>>(a, b, c, n); }
"""


def test_what_an_index_reaches_stays_whole_and_is_not_grown(tmp_path: Path) -> None:
    one = launch(tmp_path, "_Z6gatherPKfPKiPfi", [500, 100, 100], [i32(100)], 2, 64)
    made = case(tmp_path, GATHER, "gather", one)
    small, _ = fitted(made, {"n": 33})
    assert [buffer.size for buffer in small.buffers] == [2000, 132, 132]
    with pytest.raises(Refused, match="depends on data"):
        fitted(made, {"n": 201})


def test_a_pointer_into_a_pool_keeps_its_alignment(tmp_path: Path) -> None:
    made = rows_case(tmp_path)
    one = made.launches[0]
    pool = replace(one.args[0], pointers=(Pointer(0, 0, 1204),))
    derived, held = fitted(made, {"height": 2, "width": 3}, replace(one, args=(pool, *one.args[1:])))
    moved = derived.args[0].pointers[0]
    assert moved.offset == 1204 - 1024
    assert derived.buffers[0].size == moved.offset + 4 * (53 + 2)
    first = contents(made, held, derived.buffers[0])[moved.offset :][:4]
    assert struct.unpack("f", first) == (301.0,)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("dtype", families.FLOATS)
@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_in_every_type(family: str, dtype: ElementType) -> None:
    old = families.encode(dtype, np.linspace(0.5, 90.0, 200))
    new = families.redraw(old + b"x", dtype, family, seed=3)
    assert len(new) == len(old) + 1
    assert new[-1:] == b"x"
    assert new == families.redraw(old + b"x", dtype, family, seed=3)
    numbers = families.decode(new, dtype)
    assert np.isfinite(numbers).all() == (family not in families.NOT_FINITE)
    assert not (numbers < 0).any()  # the recorded data have no negative number
    if family in ("normal", "permuted", "sorted", "constant", "sorted downwards"):
        assert (numbers.min(), numbers.max()) >= (0.49, 0.5)
        assert numbers.max() <= 90.5
    if family == "denormal":
        smallest = {"f64": 2.3e-308, "f32": 1.2e-38, "f16": 6.2e-5, "bf16": 1.2e-38}[dtype]
        assert (numbers < smallest).all()
        assert (numbers > 0).any()
    if family == "negative zeros":
        assert np.signbit(numbers).any()


def test_permuting_keeps_the_numbers() -> None:
    old = np.arange(100, dtype="<i4")[::-1].tobytes()
    for family in families.ORDERS:
        new = np.frombuffer(families.redraw(old, "i32", family, 1), "<i4")
        assert sorted(new.tolist()) == list(range(100))
    assert np.frombuffer(families.redraw(old, "i32", "sorted", 1), "<i4").tolist() == list(range(100))


@pytest.mark.parametrize(
    ("dtype", "old", "least", "most"),
    [
        ("u8", range(20, 80), 0, 255),
        ("i8", range(20, 80), 0, 127),
        ("i8", range(-5, 5), -128, 127),
        ("u8", [0, 1] * 30, 0, 1),
        ("u8", [0, 255] * 30, 0, 255),
    ],
)
def test_bytes_become_any(dtype: ElementType, old: Sequence[int], least: int, most: int) -> None:
    code = f"<{dtype[0]}1"
    data = np.array([*old] * 200, code).tobytes()
    new = np.frombuffer(families.redraw(data, dtype, "any bytes", 1), code)
    assert (new.size, int(new.min()), int(new.max())) == (len(data), least, most)
    if len({*old}) == 2:
        assert {*new.tolist()} == {*old}


@pytest.mark.parametrize("dtype", families.FLOATS)
def test_a_nudge_moves_by_a_few_units(dtype: ElementType) -> None:
    old = families.encode(dtype, np.array([1.0, -3.0, 0.0, np.inf, np.nan, 100.0]))
    bits = f"<i{families.SIZES[dtype]}"
    new = families.nudge(old, dtype, seed=5, ulps=4)
    distance = np.abs(np.frombuffer(new, bits).astype(object) - np.frombuffer(old, bits).astype(object))
    assert distance.max() <= 4
    assert distance[[0, 1, 5]].sum() > 0
    assert distance[[2, 3, 4]].sum() == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("out[i] = a[i] + b[i];", {"a", "b", "out"}),
        ("out[a[i]] = b[i];", {"b", "out"}),
        ("int j = a[i]; out[j] = b[i];", {"b", "out"}),
        ("int j = a[i], k = 2 * j; out[i] = b[k];", {"b", "out"}),
        ("for (int j = a[i]; j < a[i + 1]; j++) out[i] += b[j];", {"b", "out"}),
        ("out[i] = a[i] / b[i];", {"a", "out"}),
        ("atomicAdd(&out[i], a[i]); helper(b[i]);", {"a", "out"}),
        ("__shared__ int s[64]; s[threadIdx.x] = a[i]; out[s[0]] = b[i];", {"b", "out"}),
        ("out[i] = *(b + a[i]);", {"out"}),
        ("out[i] = max(a[i], b[i]);", {"a", "b", "out"}),
    ],
)
def test_integers_that_reach_an_index_are_left_alone(body: str, expected: set[str]) -> None:
    module = parsed(f"__global__ void k(const int *a, const int *b, int *out, int i) {{ {body} }}")
    assert data_parameters(module, module.kernel("k")) == expected


# ---------------------------------------------------------------- pointers

COPY = """\
__global__ void copy(const float *a, float *b, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        b[i] = a[i];
}
void run(float *x, float *y, int n, int k) { copy<<<(n + 63) / 64, 64>>>(A, B, n); }
"""


@pytest.mark.parametrize(
    ("a", "b", "offsets", "aliases"),
    [
        ("x", "y", [], []),
        ("x + k", "y", ["a offset by one element"], []),
        ("&x[k]", "y + k", ["a offset by one element", "b offset by one element", "a, b offset by one element"], []),
        ("x", "x", [], ["a and b the same array"]),
        ("nullptr", "nullptr", [], []),
    ],
)
def test_only_what_a_launch_site_shows(tmp_path: Path, a: str, b: str, offsets: list[str], aliases: list[str]) -> None:
    one = launch(tmp_path, "_Z4copyPKfPfi", [64, 64], [i32(64)], 1, 64)
    made = case(tmp_path, COPY.replace("(A, B", f"({a}, {b}"), "copy", one)
    assert [name for name, _ in pointers.offsets(made, one)] == offsets
    found = list(pointers.aliases(made, one, frozenset({1})))
    assert [name for name, _ in found] == aliases
    for _, derived in found:
        assert derived.args[1].pointers == one.args[0].pointers


def test_what_a_captured_launch_shows(tmp_path: Path) -> None:
    one = launch(tmp_path, "_Z4copyPKfPfi", [64, 64], [i32(60)], 1, 64)
    moved = replace(one, args=(replace(one.args[0], pointers=(Pointer(0, 0, 4),)), *one.args[1:]))
    same = replace(one, args=(one.args[0], replace(one.args[1], pointers=(Pointer(0, 0, 0),)), one.args[2]))
    made = case(tmp_path, COPY.replace("(A, B", "(x, y"), "copy", one)
    made.workload = replace(made.workload, launches=(one, moved, same))
    assert [name for name, _ in pointers.offsets(made, one)][:1] == ["a offset by one element"]
    assert [name for name, _ in pointers.aliases(made, one, frozenset())] == ["a and b the same array"]


# ---------------------------------------------------------------- order


def trial(number: int, kind: Kind, index: int, threads: int) -> Trial:
    one = Launch("", "", (threads, 1, 1), (1, 1, 1), 0, (), ())
    return Trial(str(number), index, one, Shape(one.grid, one.block, 0), kind)


@st.composite
def trials(draw: st.DrawFn) -> list[Trial]:
    parts = st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.sampled_from((1, 64, 1 << 20)))
    return [trial(number, *part) for number, part in enumerate(draw(st.lists(parts, max_size=60)))]


@given(trials())
def test_any_prefix_covers_every_kind(given: list[Trial]) -> None:
    order = interleaved(given)
    assert sorted(order, key=lambda one: int(one.name)) == given
    total = {kind: sum(one.kind == kind for one in given) for kind in KINDS}
    for length in range(len(order) + 1):
        for kind in KINDS:
            found = sum(one.kind == kind for one in order[:length])
            assert found >= min(total[kind], length // len(KINDS))


@given(trials())
def test_of_a_kind_cheap_ones_come_first_and_recorded_launches_take_turns(given: list[Trial]) -> None:
    for kind in KINDS:
        order = [one for one in interleaved(given) if one.kind == kind]
        assert [one.cost > 1 << 17 for one in order] == sorted(one.cost > 1 << 17 for one in order)
        if len({one.cost for one in order}) == 1:
            counts = {
                index: [one.name for one in given if (one.kind, one.index) == (kind, index)] for index in range(3)
            }
            turns = in_turn(*(counts[index] for index in dict.fromkeys(one.index for one in given if one.kind == kind)))
            assert {one.name for one in order} == set(turns)
            rank = {name: names.index(name) for names in counts.values() for name in names}
            assert [rank[one.name] for one in order] == sorted(rank[one.name] for one in order)
