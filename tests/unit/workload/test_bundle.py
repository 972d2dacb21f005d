"""Bundles: what is saved is what is loaded, and what is broken is named."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuda_agent.errors import WorkloadError
from cuda_agent.model import Arg, Buffer, Launch, Launched, Pointer, Workload
from cuda_agent.workload import bundle
from cuda_agent.workload.bundle import UNIT, BlobStore

MANGLED = "_Z7softmaxPKfPfii"


def workload(folder: Path, *data: bytes, kernel: str = "softmax", mangled: str = MANGLED) -> Workload:
    store = BlobStore(folder / "blobs")
    buffers = tuple(Buffer(4096 * (i + 1), len(d), store.put(d), store.put(d[::-1])) for i, d in enumerate(data))
    args = tuple(Arg(8 * i, struct.pack("<Q", b.address), (Pointer(0, i, 0),)) for i, b in enumerate(buffers))
    launch = Launch(
        mangled, kernel, (4, 1, 1), (256, 1, 1), 0, args, buffers, seq=3, globals=(("factor", store.put(b"abcd")),)
    )
    made = Workload(
        kernel, "captured", (launch,), folder, store.path, "NVIDIA H200", ("make", "run"), {"LANG": "C"}, {"y": 1e-5}
    )
    return bundle.save(folder, made)


names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
numbers = st.integers(0, 2**48)


@st.composite
def workloads(draw: st.DrawFn, folder: Path) -> Workload:
    store = BlobStore(folder / "blobs")
    pieces = st.tuples(st.binary(max_size=40), st.integers(0, 3)).map(lambda p: (p[0] * (1 + p[1] * 3000))[: 3 * UNIT])
    shape = st.tuples(*[st.integers(1, 1024)] * 3)
    launches = []
    for seq in range(draw(st.integers(0, 3))):
        buffers = []
        for _ in range(draw(st.integers(0, 3))):
            before, after = draw(pieces), draw(st.none() | pieces)
            written = draw(st.none() | st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple))
            buffers.append(
                Buffer(
                    draw(numbers), len(before), store.put(before), None if after is None else store.put(after), written
                )
            )
        args = []
        for position in range(draw(st.integers(0, 3))):
            data = draw(st.binary(min_size=8, max_size=64))
            pointers = ()
            if buffers and draw(st.booleans()):
                at = draw(st.integers(0, len(data) - 8))
                pointers = (Pointer(at, draw(st.integers(0, len(buffers) - 1)), draw(numbers)),)
            args.append(Arg(position * 64, data, pointers))
        launches.append(
            Launch(draw(names), draw(names), draw(shape), draw(shape), draw(numbers), tuple(args), tuple(buffers), seq)
        )
    origin = draw(st.sampled_from(["captured", "spec", "synthetic"]))
    return Workload(
        draw(names),
        origin,
        tuple(launches),
        folder,
        store.path,
        draw(names),
        tuple(draw(st.lists(names, max_size=3))),
        seen=draw(numbers),
        varied=draw(st.none() | st.frozensets(st.integers(0, 40), max_size=5)),
        shapes=draw(st.none() | st.frozensets(st.builds(Launched, names, shape, shape, numbers), max_size=5)),
        ended=draw(st.booleans()),
    )


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(tmp_path: Path, data: st.DataObject) -> None:
    made = data.draw(workloads(tmp_path / "bundle"))
    saved = bundle.save(tmp_path / "bundle", made)
    assert saved == made
    assert bundle.load(tmp_path / "bundle") == saved
    copied = bundle.save(tmp_path / "copy", saved)
    assert copied.launches == made.launches
    for name in bundle.blob_names(made):
        assert BlobStore(copied.blobs).get(name) == BlobStore(made.blobs).get(name)


@given(st.binary(max_size=100), st.integers(0, 5000))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_come_back(tmp_path: Path, piece: bytes, times: int) -> None:
    store = BlobStore(tmp_path)
    data = piece * times
    blobs = store.put(data)
    assert store.get(blobs) == data
    assert len(blobs) == -(-len(data) // UNIT)
    path = tmp_path / "raw"
    path.write_bytes(data)
    assert store.put_file(path) == blobs


def test_large_files_are_cut_into_larger_chunks(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    data = os.urandom(UNIT) * 2 + bytes(bundle.SMALL)
    path.write_bytes(data)
    store = BlobStore(tmp_path / "blobs")
    assert store.put_file(path) == store.put(data)
    assert store.get(store.put(data)) == data
    assert len(store.put(data)) == -(-len(data) // bundle.CHUNK)


def test_equal_chunks_are_stored_once(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    assert len(set(store.put(bytes(10 * UNIT)))) == 1
    store.put(bytes(20 * UNIT))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    made = workload(tmp_path, b"x" * 100)
    name = made.launches[0].buffers[0].before[0]
    (tmp_path / "blobs" / f"{name}.zst").unlink()
    with pytest.raises(WorkloadError, match=f"{name}.zst is missing"):
        BlobStore(made.blobs).get(name)


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_broken_blob_is_named(tmp_path: Path, damage: bytes | None) -> None:
    made = workload(tmp_path, b"x" * 100, b"y" * 100)
    one, other = (buffer.before[0] for buffer in made.launches[0].buffers)
    path = tmp_path / "blobs" / f"{one}.zst"
    path.write_bytes((tmp_path / "blobs" / f"{other}.zst").read_bytes() if damage is None else damage)
    with pytest.raises(WorkloadError, match=one):
        BlobStore(made.blobs).get(one)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 1', '"version": 99'),
        ('"origin": "captured"', '"origin": "guessed"'),
        ('"kernel"', '"kernal"'),
        ('"hex": "', '"hex": "zz'),
        (
            "{",
            "",
        ),
    ],
)
def test_a_broken_launch_file_is_named(tmp_path: Path, old: str, new: str) -> None:
    workload(tmp_path, b"x" * 100)
    path = tmp_path / "launch.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(WorkloadError, match=r"launch\.json is broken"):
        bundle.load(tmp_path)


def test_a_bundle_from_before_launches_were_compared(tmp_path: Path) -> None:
    workload(tmp_path, b"x" * 100)
    path = tmp_path / "launch.json"
    data = json.loads(path.read_text())
    del data["varied"], data["shapes"], data["ended"]
    path.write_text(json.dumps(data))
    found = bundle.load(tmp_path)
    assert (found.varied, found.shapes, found.ended) == (None, None, False)


def test_blob_names_cannot_lead_out_of_the_bundle(tmp_path: Path) -> None:
    made = workload(tmp_path, b"x" * 100)
    path = tmp_path / "launch.json"
    path.write_text(path.read_text().replace(made.launches[0].buffers[0].before[0], "../../../etc/passwd"))
    with pytest.raises(WorkloadError, match="not a blob name"):
        bundle.load(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no capture of kernel k"):
        bundle.load(tmp_path, "k")


def test_find_looks_upward_and_takes_the_newest(tmp_path: Path) -> None:
    captures = tmp_path / ".cuda-agent" / "captures"
    (tmp_path / "src").mkdir()
    source = tmp_path / "src" / "main.cu"
    assert bundle.find(source) is None
    workload(captures / bundle.safe_name("ns::old"), b"1", kernel="ns::old")
    workload(captures / bundle.safe_name("new"), b"2", kernel="new")
    os.utime(captures / "ns.old" / "launch.json", (1, 1))
    newest = bundle.find(source)
    assert newest is not None
    assert newest.kernel == "new"
    old = bundle.find(source, "old")  # namespaces may be left out
    assert old is not None
    assert old.kernel == "ns::old"
    assert bundle.find(source, "other") is None
    assert bundle.load(captures, "ns::old") == old


def test_find_stays_in_the_project(tmp_path: Path) -> None:
    open_, repository = tmp_path / "open", tmp_path / "repository"
    for folder in (open_, repository / "src"):
        (folder / "p").mkdir(parents=True)
    for folder in (open_, tmp_path):
        workload(folder / ".cuda-agent" / "captures" / "k", b"1", kernel="k")
    open_.chmod(0o777)
    (repository / ".git").mkdir()
    assert bundle.find(open_ / "p" / "main.cu") is None
    assert bundle.find(repository / "src" / "main.cu") is None
    assert bundle.find(open_ / "main.cu") is not None  # its own folder counts


def test_prune_keeps_what_is_used(tmp_path: Path) -> None:
    workload(tmp_path, b"one")
    made = workload(tmp_path, b"two")
    bundle.prune(tmp_path, made)
    assert {path.stem for path in (tmp_path / "blobs").iterdir()} == bundle.blob_names(made)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(WorkloadError, match="No space left"):
        bundle.write_atomic(tmp_path / "x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_safe_names() -> None:
    assert bundle.safe_name("ns::k<int, 4>") == "ns.k_int__4_"
    assert bundle.safe_name("../..") == "_.."  # no dots in front
    long = [bundle.safe_name("k" * 200 + end) for end in "ab"]
    assert long[0] != long[1]
    assert all(len(name) <= 100 for name in long)


@pytest.mark.parametrize(
    ("mangled", "sizes", "wanted"),
    [
        ("_Z7softmaxPKfPfii", [8, 8, 4, 4], ("f32", "f32")),
        ("_Z3addIdEvPKT_PS0_i", [8, 8, 4], ("f64", "f64")),
        ("_Z1kP6__halfP13__nv_bfloat16", [8, 8], ("f16", "bf16")),
        ("_Z1kP6float4PKj", [8, 8], ("f32", "u32")),
        ("_Z1kPhPl", [8, 8], ("u8", "i64")),
        ("_Z1kPvP3Foo", [8, 8], ("bytes", "bytes")),
        ("_Z1kPPfPf", [8, 8], ("bytes", "f32")),
        ("plain_c_name", [8, 8], ("bytes", "bytes")),
        ("_Z1kPf", [8, 8], ("bytes", "bytes")),  # the layout is not the signature's
    ],
)
def test_signatures(mangled: str, sizes: list[int], wanted: tuple[str, ...]) -> None:
    args, buffers, at = [], [], 0
    for size in sizes:
        if size == 8:
            args.append(Arg(at, bytes(8), (Pointer(0, len(buffers), 4),)))
            buffers.append(Buffer(0, 64, (), None))
        else:
            args.append(Arg(at, bytes(size)))
        at += size
    launch = Launch(mangled, mangled, (1, 1, 1), (1, 1, 1), 0, tuple(args), tuple(buffers))
    assert bundle.signature(launch) == wanted


def test_a_struct_or_two_views_make_bytes() -> None:
    struct_arg = Arg(0, bytes(16), (Pointer(8, 0, 0),))
    launch = Launch("_Z1k4View", "", (1, 1, 1), (1, 1, 1), 0, (struct_arg,), (Buffer(0, 64, (), None),))
    assert bundle.signature(launch) == ("bytes",)
    two = (Arg(0, bytes(8), (Pointer(0, 0, 0),)), Arg(8, bytes(8), (Pointer(0, 0, 8),)))
    launch = Launch("_Z1kPfPi", "", (1, 1, 1), (1, 1, 1), 0, two, (Buffer(0, 64, (), None),))
    assert bundle.signature(launch) == ("bytes",)
    launch = Launch("k", "", (1, 1, 1), (1, 1, 1), 0, two, (Buffer(0, 64, (), None),))
    assert bundle.signature(launch, ["const float *", "float *__restrict__"]) == ("f32",)
