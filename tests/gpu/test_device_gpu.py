"""The cuda worker on a real GPU: launches, relocation, comparison, faults, deadlines, timing. `-s` prints the numbers.

Run: pytest -s tests/gpu/test_device_gpu.py (needs a GPU, cupy and nvcc)."""

from __future__ import annotations

import hashlib
import shutil
import statistics
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy
import pytest

from cuda_agent.device import Device, open_device
from cuda_agent.device.compare import compare
from cuda_agent.device.jobs import Job
from cuda_agent.device.quarantine import Quarantine
from cuda_agent.errors import Cancelled, DeadlineExceeded, WorkerDied
from cuda_agent.judge import statistics as judged

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc to build the test's cubins"),
]

GOOD = r"""
#include <cstdio>
struct View { float *data; int n; float *other; };
__constant__ float factor;
__device__ int calls;
extern "C" {
__global__ void scale(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i] + 1.0f;
}
__global__ void scale4(const float4 *x, float4 *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 4) { float4 v = x[i]; y[i] = make_float4(2*v.x+1, 2*v.y+1, 2*v.z+1, 2*v.w+1); }
}
__global__ void strided(const float *x, float *y, int n) {  // the same result, each thread far from its neighbour
  int threads = gridDim.x * blockDim.x, t = blockIdx.x * blockDim.x + threadIdx.x, per = (n + threads - 1) / threads;
  for (int k = 0; k < per; ++k) { int i = t * per + k; if (i < n) y[i] = 2.0f * x[i] + 1.0f; }
}
__global__ void in_place(float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { y[i] = x[i]; x[i] = 1.0001f * x[i] + 1.0f; }
}
__global__ void by_value(View v, short tag, double k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < v.n) v.other[i] = v.data[i] * (float)k + tag;
}
__global__ void with_factor(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
  if (i == 0) calls = calls + 1;
}
__global__ void big_shared(const float *x, float *y, int n) {
  extern __shared__ float s[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i];
}
__global__ void one_beyond(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = 2.0f;
}
__global__ void talks(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i] + 1.0f;
  if (i < 300) printf("CAW1 element %d of the kernel\n", i);
}
__global__ void lazy(const float *x, float *y, int n) {  // works in the first launches, then leaves the output alone
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int seen = calls;
  __syncthreads();
  if (seen < 6 && i < n) y[i] = 2.0f * x[i] + 1.0f;
  if (i == 0) calls = seen + 1;
}
__global__ void nothing(const float *x, float *y, int n) {}
}
"""
EVIL = r"""
extern "C" {
__global__ void wild(const float *x, float *y, int n) { *(float *)16 = x[0]; }
__global__ void forever(const float *x, float *y, int n) { while (*(volatile const float *)x < 1e30f) {} }
__global__ void traps(const float *x, float *y, int n) { asm("trap;"); }
}
"""


def cubin(text: str, folder: Path, arch: str) -> bytes:
    source = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.cu"
    source.write_text(text)
    subprocess.run(["nvcc", "-O3", "-cubin", f"-arch={arch}", "-o", source.with_suffix(".cubin"), source], check=True)
    return source.with_suffix(".cubin").read_bytes()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@lru_cache(2)
def normals(n: int) -> bytes:
    return numpy.random.default_rng(n).standard_normal(n).astype("f4").tobytes()


class Case:
    """kernel(x, y, n) over n floats in the modules `good` and `evil`."""

    def __init__(self, device: Device, good: bytes, evil: bytes) -> None:
        self.device, self.good, self.evil = device, good, evil
        self.blobs: dict[str, bytes] = {sha(good): good, sha(evil): evil}

    def blob(self, data: bytes) -> dict[str, list[str]]:
        self.blobs[sha(data)] = data
        return {"blobs": [sha(data)]}

    def load(self, module: str = "good") -> dict[str, Any]:
        return {"op": "load", "module": module, "kind": "cubin", "blob": sha(getattr(self, module))}

    def fields(self, kernel: str, n: int, module: str = "good", block: int = 256, **more: Any) -> dict[str, Any]:
        x = normals(n)
        fields = {
            "module": module,
            "kernel": kernel,
            "grid": [-(-n // block), 1, 1],
            "block": [block, 1, 1],
            "shared": 0,
            "args": [
                {"offset": 0, "hex": "00" * 8, "pointers": [[0, 0, 0]]},
                {"offset": 8, "hex": "00" * 8, "pointers": [[0, 1, 0]]},
                {"offset": 16, "hex": struct.pack("i", n).hex(), "pointers": []},
            ],
            "buffers": [
                {"size": 4 * n, "init": self.blob(x)},
                {"size": 4 * n, "init": {"fill": "00"}, "poison": [[0, 4 * n, "0000c0ff"]]},
            ],
            "globals": [],
        }
        return {**fields, **more}

    def launch(self, run: str, kernel: str, n: int, canary: int = 4096, shift: int = 0, **more: Any) -> dict[str, Any]:
        return {"op": "launch", "run": run, "canary": canary, "shift": shift, **self.fields(kernel, n, **more)}

    def run(self, *steps: dict[str, Any], deadline: float = 60.0, load: str = "good") -> list[dict[str, Any]]:
        return self.device.run(Job([self.load(load), *steps], deadline), self.blobs)[1:]


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    for what in ("first worker on this host", "second worker"):
        started = time.monotonic()
        with open_device("cuda:0") as device:
            arch = device.info.arch
            print(f"\n {what}: {time.monotonic() - started:.2f} s", end="")
    folder = tmp_path_factory.mktemp("cubins")
    return cubin(GOOD, folder, arch), cubin(EVIL, folder, arch)


@pytest.fixture(scope="module")
def shared(binaries: tuple[bytes, bytes]) -> Iterator[Case]:
    with open_device("cuda:0", quarantine=Quarantine()) as device:
        yield Case(device, *binaries)


@pytest.fixture
def case(shared: Case) -> Case:
    """One worker for all tests; a test that kills it leaves a fresh one behind and a clean quarantine."""
    shared.device.quarantine.forget(sha(shared.good))
    shared.device.quarantine.forget(sha(shared.evil))
    return shared


def floats(result: dict[str, Any]) -> numpy.ndarray:
    return numpy.frombuffer(result["data"], dtype="f4")


def test_info(case: Case) -> None:
    info = case.device.info
    print("\n", info)
    assert info.kind == "cuda"
    assert info.sms > 0
    assert info.l2_bytes > 0
    assert info.memory_bandwidth_gbs > 0
    assert info.clock_mhz > 0
    assert info.shared_per_block_optin >= 48 << 10


def test_load_lists_kernels(case: Case) -> None:
    kernels = case.device.run(Job([case.load()]), case.blobs)[0]["kernels"]
    assert {"scale", "in_place", "big_shared"} <= set(kernels)


@pytest.mark.parametrize("n", [1, 1000, 1 << 20])
def test_relocated_launch(case: Case, n: int) -> None:
    x = numpy.random.default_rng(n).standard_normal(n).astype("f4")
    launch, left, got = case.run(
        case.launch("a", "scale", n),
        {"op": "unpoisoned", "run": "a"},
        {"op": "fetch", "run": "a", "buffer": 1},
    )
    assert launch["ok"], launch
    assert launch["canaries"] == []
    assert left["buffers"][1]["bytes"] > 0
    numpy.testing.assert_allclose(floats(got), 2 * x + 1, rtol=1e-6)


def test_pointers_inside_a_struct_by_value(case: Case) -> None:
    n = 777
    step = case.launch("a", "by_value", n)
    step["args"] = [
        {"offset": 0, "hex": struct.pack("<QiiQ", 0, n, 0, 0).hex(), "pointers": [[0, 0, 0], [16, 1, 0]]},
        {"offset": 24, "hex": struct.pack("h", 3).hex(), "pointers": []},
        {"offset": 32, "hex": struct.pack("d", 0.5).hex(), "pointers": []},
    ]
    launch, got = case.run(step, {"op": "fetch", "run": "a", "buffer": 1})
    assert launch["ok"], launch
    x = numpy.random.default_rng(n).standard_normal(n).astype("f4")
    numpy.testing.assert_allclose(floats(got), x * numpy.float32(0.5) + 3, rtol=1e-6)


def test_other_parameters_than_captured_are_refused(case: Case) -> None:
    step = case.launch("a", "scale", 64)
    step["args"].pop()
    result = case.run(step)[0]
    assert not result["ok"]
    assert "other parameters" in result["error"], result


def test_globals(case: Case) -> None:
    n = 100
    five, zero = struct.pack("f", 5.0), bytes(4)
    set_both = [["factor", case.blob(five)], ["calls", case.blob(zero)]]
    one, two, got, calls = case.run(
        case.launch("a", "with_factor", n, globals=set_both),
        case.launch("b", "with_factor", n, globals=set_both),
        {"op": "fetch", "run": "b", "buffer": 1},
        {"op": "fetch", "run": "b", "buffer": 3},
    )
    assert one["ok"], one
    assert two["ok"], two
    x = numpy.random.default_rng(n).standard_normal(n).astype("f4")
    numpy.testing.assert_array_equal(floats(got), numpy.float32(5) * x)
    assert calls["data"] == struct.pack("i", 1)  # reset before the second launch


def test_dynamic_shared_above_48_kib(case: Case) -> None:
    n = 25_000
    launch, got = case.run(
        case.launch("a", "big_shared", n, grid=[1, 1, 1], shared=4 * n), {"op": "fetch", "run": "a", "buffer": 1}
    )
    assert launch["ok"], launch
    x = numpy.random.default_rng(n).standard_normal(n).astype("f4")
    numpy.testing.assert_array_equal(floats(got), x[::-1])


@pytest.mark.parametrize(
    "change", [{"block": [2048, 1, 1]}, {"shared": 10 << 20}, {"grid": [0, 1, 1]}, {"kernel": "missing"}]
)
def test_a_refused_launch_is_a_sentence_and_the_worker_lives(case: Case, change: dict[str, Any]) -> None:
    starts = case.device.starts
    refused, good = case.run({**case.launch("a", "scale", 64), **change}, case.launch("b", "scale", 64))
    assert not refused["ok"]
    print("\n", refused["error"])
    assert good["ok"]
    assert case.device.starts == starts


def test_out_of_memory_is_a_sentence(case: Case) -> None:
    step = case.launch("a", "scale", 64)
    step["buffers"][1] = {"size": 1 << 42, "init": {"fill": "00"}}
    refused, good = case.run(step, case.launch("b", "scale", 64))
    assert refused["out_of_memory"]
    assert good["ok"]


def test_memory_is_given_back(case: Case) -> None:
    n = 64 << 20
    for _ in range(3):  # 3 GiB a job
        big = case.launch("a", "scale", 64)
        big["buffers"] += [{"size": 4 * n, "init": {"fill": "00"}} for _ in range(12)]
        assert case.run(big)[0]["ok"]
    used = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True
    ).stdout
    print("\n MiB used after jobs of 3 GiB:", used.strip())
    assert int(used.split()[0]) < 2048


def test_canary_sees_a_write_by_one(case: Case) -> None:
    n = 1000
    found = case.run(case.launch("a", "one_beyond", n, grid=[4, 1, 1]))[0]["canaries"]
    assert [(f["buffer"], f["side"], f["at"]) for f in found] == [(1, "after", 4 * n)]


def test_printf_does_not_touch_the_stream(case: Case) -> None:
    assert [r["ok"] for r in case.run(case.launch("a", "talks", 1000), case.launch("b", "scale", 1000))] == [True, True]


DTYPES = ["f64", "f32", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "bytes"]


def test_compare_on_the_device_says_what_numpy_says(case: Case) -> None:
    """Random bits (so NaNs and infinities too) and small changes, every type, with masks and tolerances."""
    rng = numpy.random.default_rng(7)
    size = 1 << 16
    a = rng.integers(0, 256, size, dtype="u1")
    b = a.copy()
    where = rng.choice(size, 200, replace=False)
    b[where] = rng.integers(0, 256, 200, dtype="u1")
    step = case.launch("a", "nothing", 64)
    step["buffers"] = [{"size": size, "init": case.blob(b.tobytes())}, {"size": 256, "init": {"fill": "00"}}]
    expected = case.blob(a.tobytes())
    tolerance = {"rel": 1e-2, "scaled": 1e-30, "ulp": 4}
    entries = [
        {"buffer": 0, "dtype": d, "expected": expected, **t, **r}
        for d in DTYPES
        for t in ({}, {"tolerance": tolerance})
        for r in ({}, {"ranges": [[800, 20000]]})
    ]
    launch, found = case.run(step, {"op": "compare", "a": "a", "b": "a", "buffers": entries})
    assert launch["ok"]
    assert found["ok"], found
    from cuda_agent.device.compare import select

    for entry, got in zip(entries, found["buffers"], strict=True):
        chosen = select(numpy, size, entry["dtype"], entry.get("ranges"), None, False)
        want = compare(numpy, a, b, entry["dtype"], selected=chosen, tolerance=entry.get("tolerance"))
        for key, value in want.items():
            same = got[key] == value or (isinstance(value, float) and got[key] == pytest.approx(value, rel=1e-12))
            assert same, (entry["dtype"], key, got[key], value)


def test_masks_on_the_device(case: Case) -> None:
    n = 4096
    ref, short, left, masked, rest = case.run(
        case.launch("ref", "scale", n),
        case.launch("short", "scale", n, grid=[8, 1, 1]),
        {"op": "unpoisoned", "run": "short", "mask": "w"},
        {"op": "compare", "a": "ref", "b": "short", "buffers": [{"buffer": 1, "dtype": "f32", "mask": "w"}]},
        {"op": "compare", "a": "ref", "b": "short", "buffers": [{"buffer": 1, "dtype": "f32"}]},
    )
    assert ref["ok"]
    assert short["ok"]
    assert left["buffers"][1]["last"] == 8 * 256 * 4 - 1
    assert masked["buffers"][0]["equal"]
    first = rest["buffers"][0]["first"]
    assert (first["index"], first["got"]) == (2048, "nan")


# ---------------------------------------------------------------- inputs kept on the device


@pytest.mark.parametrize("n", [1 << 18, (1 << 25) + 3])
def test_a_quick_judgement_moves_its_input_once_and_the_next_one_never(case: Case, n: int) -> None:
    """Look at the seconds: without the upload a judgement of 128 MB takes a small part of the first one's."""
    case.device.restart()
    time_ = {"op": "time", "a": case.fields("scale", n), "b": case.fields("scale", n), "rounds": 5, "budget_s": 2}
    time_["check"] = {"run": "o", "buffers": [{"buffer": 1, "dtype": "f32", "mask": "written"}]}
    masks = [{"op": "changed", "run": "o", "mask": "changed"}, {"op": "unpoisoned", "run": "o", "mask": "written"}]
    same = {"op": "compare", "a": "o", "b": "c", "buffers": [{"buffer": 1, "dtype": "f32", "mask": "written"}]}
    outputs = [case.launch("c", "scale", n), case.launch("o", "scale", n), *masks, same]
    for moves in (1, 0, 0):
        before, began = case.device.uploaded, time.monotonic()
        compared = case.run(*outputs)[-1]
        between = time.monotonic()
        checked = case.run(case.launch("o", "scale", n), *masks, time_)[-1]["checked"]
        print(f"\n {4 * n:,} bytes: outputs {between - began:.3f} s, timing {time.monotonic() - between:.3f} s", end="")
        assert compared["buffers"][0]["equal"]
        assert checked["equal"]
        assert case.device.uploaded - before == moves * 4 * n


def test_what_a_kernel_writes_over_a_kept_input_is_seen_by_nobody(binaries: tuple[bytes, bytes]) -> None:
    """In this process, which knows where the copy lies: the kernel gets its address in place of its output's."""
    from cuda_agent.device.cuda import CudaBackend
    from cuda_agent.device.interpreter import Interpreter

    with open_device("cuda:0", start=False) as device:
        case = Case(device, *binaries)
    n = (1 << 24) + 1
    steps, entry = [case.load(), case.launch("a", "scale", n)], {"buffer": 1, "dtype": "f32"}
    expected = case.blob((2 * numpy.frombuffer(normals(n), "f4") + 1).astype("f4").tobytes())
    compare_ = {"op": "compare", "a": "a", "b": "a", "buffers": [{**entry, "expected": expected}]}
    evil = case.launch("evil", "scale", n)
    interpreter = Interpreter(CudaBackend(0), case.blobs)
    for scribbles in (False, True, False):
        before, began = interpreter.uploaded, time.monotonic()
        found = [interpreter.step(step).result for step in (*steps, compare_)]
        print(f"\n job {time.monotonic() - began:.3f} s", end="")
        assert found[-1]["buffers"][0]["equal"], found[-1]
        moved = interpreter.uploaded - before
        if scribbles:
            assert moved == 4 * n  # the program's own result alone
            (copy,) = interpreter.kept._copies.values()
            evil["args"][1] = {"offset": 8, "hex": struct.pack("<Q", copy.array.data.ptr).hex(), "pointers": []}
            assert interpreter.step(evil).result["ok"]
        else:
            assert moved == 2 * 4 * n
        interpreter.end()


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize(("kernel", "what"), [("wild", "ILLEGAL_ADDRESS"), ("traps", "CUDA_ERROR")])
def test_a_fault_kills_the_worker_and_quarantines(case: Case, kernel: str, what: str) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerDied, match=what) as caught:
        case.run(case.launch("a", kernel, 64, module="evil"), load="evil")
    print(f"\n {caught.value}")
    assert caught.value.module == sha(case.evil)
    with pytest.raises(WorkerDied, match="not run again"):
        case.run(case.launch("a", kernel, 64, module="evil"), load="evil")
    assert case.run(case.launch("a", "scale", 64))[0]["ok"]
    print(f" fault and fresh worker in {time.monotonic() - started:.2f} s")


def test_misaligned_float4(case: Case) -> None:
    with pytest.raises(WorkerDied, match="MISALIGNED"):
        case.run(case.launch("a", "scale4", 1024, shift=4))
    case.device.quarantine.forget(sha(case.good))
    assert case.run(case.launch("a", "scale4", 1024, shift=16))[0]["ok"]


def test_a_kernel_that_never_ends(case: Case) -> None:
    with pytest.raises(DeadlineExceeded, match="deadline of 1 s"):
        case.run(case.launch("a", "forever", 64, module="evil"), load="evil", deadline=1.0)
    started = time.monotonic()
    assert case.run(case.launch("a", "scale", 64))[0]["ok"]
    print(f"\n fresh worker and job after the kill: {time.monotonic() - started:.2f} s")


def test_cancel_within_half_a_second(case: Case) -> None:
    case.run(case.launch("a", "scale", 64))
    ended: list[float] = []

    def work() -> None:
        with pytest.raises(Cancelled):
            case.run(case.launch("a", "forever", 64, module="evil"), load="evil")
        ended.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    asked = time.monotonic()
    case.device.cancel()
    print(f"\n cancel took {time.monotonic() - asked:.3f} s")
    thread.join(3)
    assert ended[0] - asked < 0.5


# ---------------------------------------------------------------- time


def medians(result: dict[str, Any]) -> tuple[float, float]:
    sides = {s: [x["us"] for x in result["samples"] if x["side"] == s] for s in "ab"}
    return statistics.median(sides["a"]), statistics.median(sides["b"])


def show(name: str, result: dict[str, Any]) -> None:
    a, b = medians(result)
    clocks = [s["clock_mhz"] for s in result["samples"] if s["clock_mhz"]]
    clock = f"{min(clocks):.0f}-{max(clocks):.0f}" if clocks else "none"
    quartiles = " ".join(
        "/".join(f"{q:.2f}" for q in statistics.quantiles([x["us"] for x in result["samples"] if x["side"] == s]))
        for s in "ab"
    )
    print(
        f"\n {name:24s} a {a:9.3f} us  b {b:9.3f} us  a/b {a / b:.4f}  batch {result['batch']:3d} "
        f"sets {result['sets']:3d} rounds {result['rounds']:4d} in {result['seconds']:.2f} s  MHz {clock}  "
        f"warm {result['warm']['a_us']:.2f} {result['warm']['b_us']:.2f}  {quartiles} {result['notes']}",
        end="",
    )


def timed(
    case: Case,
    a: str,
    b: str,
    n: int,
    reference: str = "scale",
    a_fields: Any = None,
    b_fields: Any = None,
    **more: Any,
) -> dict[str, Any]:
    fa, fb = case.fields(a, n, **(a_fields or {})), case.fields(b, n, **(b_fields or {}))
    check = {"run": "ref", "buffers": [{"buffer": 0, "dtype": "f32"}, {"buffer": 1, "dtype": "f32"}]}
    step = {
        "op": "time",
        "a": fa,
        "b": fb,
        "rounds": 50,
        "seed": 3,
        "min_us": 20,
        "budget_s": 3,
        "check": check,
        **more,
    }
    ref, result = case.run(case.launch("ref", reference, n), step)
    assert ref["ok"], ref
    assert result["ok"], result
    show(f"{a} {b} {n}", result)
    return result


@pytest.mark.parametrize("n", [1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26])
def test_a_against_a(case: Case, n: int) -> None:
    """By the judge's own estimate: where two buffer sets differ by 1 %, medians of all samples jump between them."""
    result = timed(case, "scale", "scale", n)
    timing = judged.compare(result["samples"])
    print(f"  ratio {timing.ratio:.4f} [{timing.ci[0]:.4f}, {timing.ci[1]:.4f}] {timing.label}", end="")
    assert timing.ratio == pytest.approx(1.0, abs=0.015)
    assert timing.label in ("SAME", "AMBIGUOUS")
    assert result["checked"]["equal"]
    assert result["late"] == 0


def test_a_copy_comes_near_the_peak_bandwidth(case: Case) -> None:
    n = 1 << 26
    fields = {"grid": [n // 4 // 256, 1, 1]}
    result = timed(case, "scale4", "scale4", n, a_fields=fields, b_fields=fields)
    share = 8 * n / (medians(result)[0] * 1e-6) / 1e9 / case.device.info.memory_bandwidth_gbs
    print(f"  {share:.0%} of peak", end="")
    assert 0.7 < share < 1.0


def test_a_longer_window_is_quieter(case: Case) -> None:
    a, b = medians(timed(case, "scale", "scale", 1 << 16, min_us=200))
    assert a / b == pytest.approx(1.0, abs=0.01)


def test_a_fresh_worker_compares_and_times_at_once(case: Case) -> None:
    """No array operation may be compiled, or look for its headers, in every process."""
    case.device.restart()
    started = time.monotonic()
    timed(case, "scale", "scale", 1 << 10)
    print(f"\n first timing of a fresh worker: {time.monotonic() - started:.2f} s", end="")
    assert time.monotonic() - started < 3


def test_in_place_a_against_a(case: Case) -> None:
    for n in (1 << 12, 1 << 22):
        result = timed(case, "in_place", "in_place", n, reference="in_place")
        assert result["checked"]["equal"], result["checked"]


def test_a_real_difference(case: Case) -> None:
    a, b = medians(timed(case, "strided", "scale", 1 << 22, a_fields={"grid": [1024, 1, 1]}))
    assert a / b > 1.3


def test_cold_is_not_warm(case: Case) -> None:
    result = timed(case, "scale", "scale", 1 << 20, min_us=50)  # 8 MiB: fits L2
    a, _ = medians(result)
    assert result["warm"]["a_us"] < a


def test_a_kernel_that_stops_working_is_caught(case: Case) -> None:
    zero = case.blob(bytes(4))
    n = 1 << 16
    step = {
        "op": "time",
        "a": case.fields("scale", n),
        "b": case.fields("lazy", n),
        "rounds": 20,
        "check": {"run": "ref", "buffers": [{"buffer": 1, "dtype": "f32"}]},
    }
    _, result = case.run(case.launch("ref", "scale", n), step)
    assert not result["checked"]["equal"]
    assert result["checked"]["failures"][0]["side"] == "b"
    assert zero


def test_an_empty_kernel_is_the_floor(case: Case) -> None:
    timed(case, "nothing", "nothing", 1 << 10, reference="nothing")
