"""What kernels compute on the emulator, and how failures come back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cuda_agent.device.emulator import native
from cuda_agent.errors import CompileError, DeviceError, ToolMissing

from .conftest import KERNELS, Kernels, aligned


@pytest.fixture
def basic(build: Callable[[str, bool], Kernels]) -> Kernels:
    return build("basic", False)


def ints(count: int) -> np.ndarray:
    return np.zeros(count, np.int32)


def test_names_and_layout(basic: Kernels) -> None:
    assert {"_Z10sum_blocksIfEvPKT_PS0_", "_Z10sum_blocksIdEvPKT_PS0_", "reversed", "_Z9sum_warpsPKfPf"} <= set(
        basic.names
    )
    takes = basic.find("takes")
    assert takes.mangled == "_Z5takesc4PairsPf4dim3"
    assert takes.offsets == (0, 8, 24, 32, 40)
    assert takes.sizes == (1, 16, 2, 8, 12)
    assert takes.bytes == 52
    # Internal linkage: nvcc's names, not g++'s with their L.
    assert {"_Z4onlyPi", "_ZN2ns4onlyEPi", "_ZN2ns4eachIiEEvPT_"} <= set(basic.names)
    out = ints(4)
    for name, expected in (("_Z4onlyPi", 1), ("_ZN2ns4onlyEPi", 2), ("_ZN2ns4eachIiEEvPT_", 3)):
        assert basic.run(name, 1, 1, out).error is None
        assert out[0] == expected


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("threads", [1, 2])
def test_barrier_reduction(basic: Kernels, seed: int, threads: int) -> None:
    rng = np.random.default_rng(3)
    data, out = rng.integers(0, 9, 256 * 37).astype(np.float32), np.zeros(37, np.float32)
    assert basic.run("_Z10sum_blocksIfEvPKT_PS0_", 37, 256, data, out, seed=seed, threads=threads).error is None
    np.testing.assert_array_equal(out, data.reshape(37, 256).sum(1))


def test_warp_reduction(basic: Kernels) -> None:
    data, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    basic.run("sum_warps", 2, 128, data, out)
    np.testing.assert_array_equal(out, np.repeat(data.reshape(8, 32).sum(1), 32))


@pytest.mark.parametrize("seed", [0, 5])
def test_warp_primitives(basic: Kernels, seed: int) -> None:
    out, lane = ints(288), np.arange(32)
    assert basic.run("shuffles", 1, 32, out, seed=seed).error is None
    rows = out.reshape(9, 32)
    np.testing.assert_array_equal(rows[0], lane // 8 * 8 + 3)
    np.testing.assert_array_equal(rows[1], np.where(lane % 16 < 2, lane, lane - 2))
    np.testing.assert_array_equal(rows[2], np.where(lane % 16 >= 14, lane, lane + 2))
    np.testing.assert_array_equal(rows[3], 46)
    np.testing.assert_array_equal(rows[4].view(np.uint32), sum(1 << i for i in range(0, 32, 3)))
    np.testing.assert_array_equal(rows[5], 3)
    np.testing.assert_array_equal(rows[6].view(np.uint32), np.uint32(0xFF) << (lane // 8 * 8).astype(np.uint32))
    np.testing.assert_array_equal(rows[7], 496)
    np.testing.assert_array_equal(rows[8].view(np.uint32), np.where(lane % 2 == 1, 0xAAAAAAAA, 0))


def test_barrier_predicates(basic: Kernels) -> None:
    out = ints(3)
    basic.run("counts", 1, 100, out)
    assert out.tolist() == [20, 1, 1]


def test_dynamic_shared_memory(basic: Kernels) -> None:
    data, out = np.arange(96, dtype=np.int32), ints(96)
    basic.run("reversed", 1, 96, data, out, shared=96 * 4)
    np.testing.assert_array_equal(out, data[::-1])


def test_atomics(basic: Kernels) -> None:
    data, out = np.random.default_rng(1).integers(0, 16, 50_000).astype(np.int32), ints(16)
    basic.run("histogram", 200, 256, data, out, np.int32(50_000))
    np.testing.assert_array_equal(out, np.bincount(data, minlength=16))
    i, u, long = ints(6), np.zeros(4, np.uint32), np.zeros(2, np.uint64)
    u[3] = 50
    f, d = np.zeros(2, np.float32), np.zeros(1, np.float64)
    assert basic.run("atomics", 1, 64, i, u, long, f, d).error is None
    assert i.tolist() == [2016, -64, -7, 63, 0x7FFFFFFF, 128]
    assert u.tolist() == [64 % 10, 6, 0, 0]
    assert long.tolist() == [64 << 33, 63 << 40]
    assert (f.tolist(), d.tolist()) == ([32.0, 64.0], [16.0])


def test_a_spin_lock_is_fair(basic: Kernels) -> None:
    mutex, value = ints(1), ints(1)
    assert basic.run("lock", 4, 64, mutex, value).error is None
    assert (mutex[0], value[0]) == (0, 256)


def test_parameters_structs_and_globals(basic: Kernels) -> None:
    out = np.zeros(7, np.float32)
    kernel = basic.find("takes")
    data = bytearray(kernel.bytes)
    data[0:1] = b"\x07"
    data[8:9] = b"\x09"
    data[16:24] = np.float64(2.5).tobytes()
    data[24:26] = np.int16(-3).tobytes()
    data[32:40] = out.ctypes.data.to_bytes(8, "little")
    data[40:52] = np.array([1, 6, 1], np.uint32).tobytes()
    module = basic.module
    names = {g.name: g for g in module.globals()}
    assert (names["counter"].mangled, names["counter"].size) == ("counter", 4)
    assert (names["weights"].mangled, names["weights"].size) == ("weights", 12)  # static, named as nvcc names it
    module.write_global("counter", np.int32(11).tobytes())
    assert np.frombuffer(module.read_global("counter"), np.int32)[0] == 11
    assert module.launch(kernel.mangled, (1, 1, 1), (1, 1, 1), 0, bytes(data)).error is None
    assert out.tolist() == [7, 9, 2.5, -3, 6, 3, 11]


def test_coordinates(basic: Kernels) -> None:
    out = ints(2 * 3 * 4 * 24)
    basic.run("where", (2, 3, 4), (4, 3, 2), out)
    np.testing.assert_array_equal(out.reshape(24, 24), np.arange(24)[:, None] * 1000 + np.arange(24))


def test_half_and_bfloat16_round_to_nearest_even(basic: Kernels) -> None:
    rng = np.random.default_rng(2)
    data = np.concatenate(
        [
            rng.normal(size=3000) * 10.0 ** rng.integers(-9, 6, 3000),
            [0, -0.0, np.inf, -np.inf, 65504, 65520, 65519.9, 6e-8, 2.9e-8, 3e-8, 1e-40, 2049, 2051],
        ]
    ).astype(np.float32)
    data = np.resize(data, 3072)
    h, b, back = np.zeros(3072, np.float16), np.zeros(3072, np.uint16), np.zeros(3072, np.float32)
    basic.run("halves", 12, 256, data, h, b, back)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(h.view(np.uint16), data.astype(np.float16).view(np.uint16))
        np.testing.assert_array_equal(back, (h.astype(np.float32) + 1).astype(np.float16).astype(np.float32))
    bits = data.view(np.uint32).astype(np.uint64)
    np.testing.assert_array_equal(b, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))


def test_cooperative_groups(basic: Kernels) -> None:
    data, out, ranks = np.arange(64, dtype=np.float32), np.zeros(64, np.float32), ints(64)
    assert basic.run("groups", 1, 64, data, out, ranks).error is None
    np.testing.assert_array_equal(out, np.repeat(data.reshape(8, 8).sum(1), 8))
    np.testing.assert_array_equal(ranks[1:32:4], 800 + np.arange(8))


def test_cub_block_primitives(basic: Kernels) -> None:
    data, total, scan = np.arange(128, dtype=np.int32) % 7, ints(1), ints(128)
    assert basic.run("cub_sums", 1, 128, data, total, scan).error is None
    assert total[0] == data.sum()
    np.testing.assert_array_equal(scan, np.cumsum(data) - data)


def test_intrinsics(basic: Kernels) -> None:
    u, f = np.array([0x00F01234, 0x89ABCDEF], np.uint32), np.array([4.0, 2.5, -1.0], np.float32)
    a, b = np.zeros(12, np.uint32), np.zeros(10, np.float32)
    basic.run("intrinsics", 1, 1, u, f, a, b)
    x, y = 0x00F01234, 0x89ABCDEF
    assert a.tolist() == [
        bin(x).count("1"), 8, 3, int(f"{x:032b}"[::-1], 2), x * y >> 32, 0x008912CD, (y << 8 | x >> 24) & 0xFFFFFFFF,
        0x40800000, 2, 0, 7, 32,
    ]  # fmt: skip
    np.testing.assert_allclose(b[:8], [0.5, 1.0, 1.6, 9.0, 1.0, 0.476936276, 0.841344746, 2.5], rtol=1e-6)
    assert b[8] == np.nextafter(np.float32(1), np.float32(2))
    assert b[9] == 4.0


def test_a_million_threads_run_in_seconds(basic: Kernels) -> None:
    n = 1 << 20
    x, y = np.ones(n, np.float32), np.full(n, 2, np.float32)
    outcome = basic.run("saxpy", n // 256, 256, np.int32(n), np.float32(3), x, y)
    assert outcome.error is None
    assert outcome.seconds < 2.0
    assert (y == 5).all()


def test_the_seed_changes_what_a_missing_barrier_gives(basic: Kernels) -> None:
    results = set()
    for seed in range(4):
        out = ints(64)
        basic.run("neighbour", 1, 64, out, seed=seed)
        results.add(out.tobytes())
    assert len(results) > 1


@pytest.mark.parametrize(
    ("kernel", "error"),
    [
        ("wild", "illegal address 0x8 at line"),
        ("by_zero", "integer division by zero at line"),
        ("asserts", "assertion `p[0] == 123' failed"),
        ("traps", "__trap was called at line"),
        ("texture", "unsupported: textures"),
        ("nested", "unsupported: dynamic parallelism"),
        ("large_tiles", "unsupported: tiles of more than a warp"),
        ("stuck", "barrier: thread (0,0,0) waits at __syncwarp with mask 0xffffffff for lanes 0xfffffff8"),
        ("unnamed", "barrier: lane 1 calls a shuffle with mask 0x00000001, which does not name it"),
        ("deep", "local memory: a thread used more than"),
    ],
)
def test_failures_are_answers(basic: Kernels, kernel: str, error: str) -> None:
    out = ints(64)
    outcome = basic.run(kernel, 1, 32, out)
    assert outcome.error is not None
    assert outcome.error.startswith(error), outcome.error
    # The process and the module go on.
    again = basic.run("counts", 1, 100, ints(3))
    assert again.error is None


def test_misuse_is_refused(basic: Kernels) -> None:
    with pytest.raises(DeviceError, match="no kernel nothing"):
        basic.module.launch("nothing", (1, 1, 1), (1, 1, 1), 0, b"")
    with pytest.raises(DeviceError, match="takes 8 bytes"):
        basic.module.launch(basic.find("counts").mangled, (1, 1, 1), (1, 1, 1), 0, b"")
    assert "1 to 1024 threads" in (basic.run("counts", 1, 2048, ints(3)).error or "")
    with pytest.raises(DeviceError, match="cannot load"):
        native.Module.load(b"not a shared object")


def test_compile_errors_and_a_missing_compiler(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "bad.cpp"
    bad.write_text('#include "cuemu/device.h"\n__global__ void k() { CUEMU_KERNEL(); nonsense; }\n')
    with pytest.raises(CompileError) as caught:
        native.compile_shared(bad, tmp_path / "bad.so")
    assert "nonsense" in caught.value.diagnostics
    monkeypatch.setenv("CUDA_AGENT_CXX", "no-such-compiler")
    with pytest.raises(ToolMissing, match=r"apt install g\+\+"):
        native.compile_shared(KERNELS / "basic.cpp", tmp_path / "x.so")


def test_modules_unload(tmp_path) -> None:
    output = tmp_path / "traced.so"
    native.compile_shared(KERNELS / "traced.cpp", output)
    for _ in range(3):
        kernels = Kernels(native.Module.load(output.read_bytes()))
        data, out = aligned(np.ones(512, np.float32)), aligned(np.zeros(2, np.float32))
        assert kernels.run("_Z4treePKfPf", 2, 256, data, out, threads=2).error is None
        assert out.tolist() == [256, 256]
        path = kernels.module.path
        kernels.module.close()
        assert not path.exists()
