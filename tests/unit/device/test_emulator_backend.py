"""The emulator's worker: real modules built from CUDA C++ by g++, in the sandbox where there is one."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.device import Device, open_device
from cuda_agent.device.emulator_backend import jsonable, parameter_block
from cuda_agent.device.jobs import Job
from cuda_agent.device.quarantine import Quarantine
from cuda_agent.errors import DeadlineExceeded, Unsupported

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")

TEXT = """
#include <cuda_runtime.h>
__constant__ float factor;
extern "C" __global__ void scale(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}
extern "C" __global__ void one_beyond(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = x[i < n ? i : 0];
}
extern "C" __global__ void reverse(const float *x, float *y, int n) {
  extern __shared__ float s[];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void meet(const float *x, float *y, int n) {
  __syncthreads();
  if (threadIdx.x < n) y[threadIdx.x] = x[n - 1 - threadIdx.x];
}
extern "C" __global__ void forever(const float *x, float *y, int n) {
  while (*(volatile const float *)x < 1e30f) {}
}
extern "C" __global__ void wild(const float *x, float *y, int n) { *(volatile float *)16 = 1.0f; }
extern "C" __global__ void talks(const float *x, float *y, int n) {
  printf("CAW1 printf of thread %d\\n", threadIdx.x);
}
extern "C" __global__ void ptx(const float *x, float *y, int n) {
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(n));
}
"""
N = 100
X = tuple(float(i) for i in range(N))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    from cuda_agent.device.emulator import native, translate

    folder = tmp_path_factory.mktemp("emulator")
    unit = folder / "k.cpp"
    unit.write_text(translate.translate(TEXT, "k.cu"))
    for name, traced in (("plain", False), ("traced", True)):
        native.compile_shared(unit, folder / f"{name}.so", traced=traced)
    return {name: (folder / f"{name}.so").read_bytes() for name in ("plain", "traced")}


@pytest.fixture(scope="module")
def opened() -> Iterator[Device]:
    with open_device("emulator:a100", quarantine=Quarantine()) as device:
        yield device


class Case:
    def __init__(self, device: Device, binaries: dict[str, bytes]) -> None:
        self.device, self.binaries = device, binaries
        self.x, self.factor = struct.pack(f"{N}f", *X), struct.pack("f", 3.0)
        self.blobs = {sha(data): data for data in (*binaries.values(), self.x, self.factor)}

    def launch(self, run: str, kernel: str, **more: Any) -> dict[str, Any]:
        step = {
            "op": "launch",
            "run": run,
            "module": "m",
            "kernel": kernel,
            "grid": [1, 1, 1],
            "block": [128, 1, 1],
            "shared": 0,
            "args": [
                {"offset": 0, "hex": "00" * 8, "pointers": [[0, 0, 0]]},
                {"offset": 8, "hex": "00" * 8, "pointers": [[0, 1, 0]]},
                {"offset": 16, "hex": struct.pack("i", N).hex(), "pointers": []},
            ],
            "buffers": [
                {"size": 4 * N, "init": {"blobs": [sha(self.x)]}},
                {"size": 4 * N, "init": {"fill": "00"}, "poison": [[0, 4 * N, "0000c0ff"]]},
            ],
            "globals": [["factor", {"blobs": [sha(self.factor)]}]],
        }
        return {**step, **more}

    def run(self, *steps: dict[str, Any], binary: str = "plain", deadline: float = 30.0) -> list[dict[str, Any]]:
        data = self.binaries[binary]
        load = {"op": "load", "module": "m", "kind": "emulator", "blob": sha(data)}
        return self.device.run(Job([load, *steps], deadline), self.blobs)


@pytest.fixture
def case(opened: Device, binaries: dict[str, bytes]) -> Case:
    for data in binaries.values():
        opened.quarantine.forget(sha(data))
    return Case(opened, binaries)


def floats(result: dict[str, Any]) -> tuple[float, ...]:
    return struct.unpack(f"{len(result['data']) // 4}f", result["data"])


def test_info_is_of_the_chosen_gpu(case: Case) -> None:
    info = case.device.info
    assert (info.kind, info.arch, info.sms) == ("emulator", "sm_80", 108)
    assert "A100" in info.name


@pytest.mark.parametrize("binary", ["plain", "traced"])
def test_launch_with_a_constant(case: Case, binary: str) -> None:
    loaded, launched, got = case.run(case.launch("a", "scale"), {"op": "fetch", "run": "a", "buffer": 1}, binary=binary)
    assert "scale" in loaded["kernels"]
    assert launched["ok"], launched
    assert launched["canaries"] == []
    assert floats(got) == tuple(3 * x for x in X)


def test_dynamic_shared_memory_and_a_barrier(case: Case) -> None:
    _, launched, got = case.run(
        case.launch("a", "reverse", block=[N, 1, 1], shared=4 * N), {"op": "fetch", "run": "a", "buffer": 1}
    )
    assert launched["ok"], launched
    assert floats(got) == X[::-1]


def test_a_write_by_one_beyond_is_seen_by_canary_and_by_tracer(case: Case) -> None:
    plain = case.run(case.launch("a", "one_beyond"))[1]
    assert [(c["buffer"], c["side"], c["at"]) for c in plain["canaries"]] == [(1, "after", 4 * N)]
    traced = case.run(case.launch("a", "one_beyond", trace=True), binary="traced")[1]
    found = [f for f in traced["findings"] if f["kind"] == "out-of-bounds"]
    assert found, traced
    assert (found[0]["buffer"], found[0]["line"]) == (1, 10)


def test_traffic_and_written_ranges(case: Case) -> None:
    traced = case.run(case.launch("a", "scale", trace=True), binary="traced")[1]
    assert traced["findings"] == []
    assert traced["written"][1] == [[0, 4 * N]]
    assert traced["written"][0] == []
    assert traced["traffic"]["sectors"] >= 2 * 13  # 400 bytes read and written, in sectors of 32
    assert "6" in traced["traffic"]["by_line"]


def compare(dtype: str = "f32", **more: Any) -> dict[str, Any]:
    return {"op": "compare", "a": "a", "b": "b", "buffers": [{"buffer": 1, "dtype": dtype, **more}]}


def test_a_wrong_element_has_its_writer(case: Case) -> None:
    *_, compared = case.run(
        case.launch("a", "scale"),
        case.launch("b", "reverse", block=[N, 1, 1], shared=4 * N, trace=True),
        compare(tolerance={"abs": 200.0}),
        binary="traced",
    )
    row = compared["buffers"][0]
    assert row["first"] == {"index": 75, "expected": 225.0, "got": 24.0}  # 3 i - (99 - i) > 200 from here on
    assert row["writer"] == {"thread": [75, 0, 0], "block": [0, 0, 0], "line": 16}


def test_an_element_that_nobody_wrote_has_no_writer(case: Case) -> None:
    few = case.launch("b", "scale", grid=[1, 1, 1], block=[32, 1, 1], trace=True)
    *_, compared = case.run(case.launch("a", "scale"), few, compare(), binary="traced")
    row = compared["buffers"][0]
    assert row["first"]["index"] == 32
    assert row["writer"] is None


def test_writers_are_known_of_the_last_launch_only(case: Case) -> None:
    steps = [case.launch("b", "reverse", block=[N, 1, 1], shared=4 * N, trace=True), case.launch("a", "scale")]
    *_, compared = case.run(*steps, compare(), binary="traced")
    assert compared["buffers"][0]["writer"] is None
    *_, compared = case.run(steps[1], case.launch("b", "reverse", block=[N, 1, 1], shared=4 * N), compare())
    assert "writer" not in compared["buffers"][0]


def test_limits_of_the_chosen_gpu(case: Case) -> None:
    refused = case.run(
        case.launch("a", "reverse", shared=200 << 10),
        case.launch("b", "scale", block=[2048, 1, 1]),
        case.launch("c", "scale", grid=[0, 1, 1]),
        case.launch("d", "missing"),
    )[1:]
    assert [r["ok"] for r in refused] == [False] * 4
    assert "shared memory" in refused[0]["error"]


def test_other_parameters_than_captured_are_refused(case: Case) -> None:
    step = case.launch("a", "scale")
    step["args"].pop()
    assert "other parameters" in case.run(step)[1]["error"]


def test_a_stray_access_is_named_and_the_worker_lives(case: Case) -> None:
    starts = case.device.starts
    _, stopped, good = case.run(case.launch("a", "wild"), case.launch("b", "scale"))
    assert not stopped["ok"]
    assert stopped["fault"]
    assert "illegal address" in stopped["error"]
    assert good["ok"]
    assert case.device.starts == starts


def test_a_kernel_that_never_ends_is_killed(case: Case) -> None:
    with pytest.raises(DeadlineExceeded, match="launch forever"):
        case.run(case.launch("a", "forever"), deadline=0.7)
    assert case.run(case.launch("a", "scale"), deadline=30)[1]["ok"]


def test_printf_does_not_touch_the_stream(case: Case) -> None:
    assert [r["ok"] for r in case.run(case.launch("a", "talks"), case.launch("b", "scale"))] == [True] * 3


def test_what_it_cannot_run_it_names(case: Case) -> None:
    with pytest.raises(Unsupported, match="inline PTX"):
        case.run(case.launch("a", "ptx"))


def test_no_time_on_the_emulator(case: Case) -> None:
    step = {k: v for k, v in case.launch("a", "scale").items() if k not in ("op", "run")}
    result = case.run({"op": "time", "a": step, "b": step})[1]
    assert result == {"ok": False, "error": "the emulator does not measure time"}


def test_a_cubin_is_not_for_the_emulator(case: Case) -> None:
    data = case.binaries["plain"]
    with pytest.raises(Unsupported, match="cubin"):
        case.device.run(Job([{"op": "load", "module": "m", "kind": "cubin", "blob": sha(data)}]), case.blobs)


def test_a_broken_object_is_a_sentence(case: Case, tmp_path: Path) -> None:
    case.blobs["broken"] = b"\x7fELF and nothing more"
    load = {"op": "load", "module": "m", "kind": "emulator", "blob": "broken"}
    result = case.device.run(Job([load]), case.blobs)[0]
    assert not result["ok"]
    assert "does not load" in result["error"]


def test_parameter_block_has_zero_gaps() -> None:
    assert parameter_block([(0, b"\x01"), (8, b"\x02\x03")]) == b"\x01" + bytes(7) + b"\x02\x03"
    assert parameter_block([]) == b""


def test_jsonable() -> None:
    assert jsonable({1: [(0, 4)], "x": {"y": (1,)}}) == {"1": [[0, 4]], "x": {"y": [1]}}


def meeting(case: Case, run: str) -> dict[str, Any]:
    """A block of 1,024 threads that are suspended at the same time."""
    return case.launch(run, "meet", block=[1024, 1, 1], grid=[2, 1, 1])


def mappings(device: Device) -> list[str]:
    assert device.pid is not None
    return Path(f"/proc/{device.pid}/maps").read_text().splitlines()


def test_two_hundred_modules_with_large_blocks_leave_no_mapping_behind(case: Case) -> None:
    plain = case.binaries["plain"]
    counts = []
    for number in range(200):
        other = plain + bytes(number)  # what follows a shared object's sections means nothing
        case.blobs[sha(other)] = other
        load = {"op": "load", "module": "m", "kind": "emulator", "blob": sha(other)}
        _, launched, got = case.device.run(
            Job([load, meeting(case, "a"), {"op": "fetch", "run": "a", "buffer": 1}], 30.0), case.blobs
        )
        assert launched["ok"], launched
        assert floats(got) == X[::-1]
        counts.append(len(mappings(case.device)))
    assert max(counts) - counts[0] < 100, counts
    assert not [line for line in mappings(case.device) if "cuda-agent-" in line]  # all are unloaded


def test_many_modules_of_one_job_take_stacks_in_turn(case: Case) -> None:
    """Together they have more threads than there are stacks."""
    steps: list[dict[str, Any]] = []
    count = 20
    for number in range(count):
        other = case.binaries["plain"] + bytes(number)
        case.blobs[sha(other)] = other
        steps.append({"op": "load", "module": f"m{number}", "kind": "emulator", "blob": sha(other)})
    for turn in range(2):
        for number in range(count):
            run = f"{turn}.{number}"
            steps.append({**meeting(case, run), "module": f"m{number}"})
            steps.append({"op": "fetch", "run": run, "buffer": 1})
    results = case.device.run(Job(steps, 60.0), case.blobs)
    assert all(result["ok"] for result in results)
    assert [floats(result) for result in results if "data" in result] == [X[::-1]] * 2 * count


WITHOUT_ROOM = """
import json, pathlib, resource, sys
from cuda_agent.device.emulator_backend import EmulatorBackend
from cuda_agent.device.interpreter import Interpreter
steps, blobs, room = json.load(sys.stdin)
interpreter = Interpreter(EmulatorBackend(), {name: bytes.fromhex(data) for name, data in blobs.items()})
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
print(json.dumps([interpreter.step(step).result for step in steps]))
"""


@pytest.mark.parametrize(("room", "results"), [(1 << 16, [False]), (500 << 20, [True, False]), (8 << 30, [True, True])])
def test_a_machine_without_room_is_not_the_kernels_fault(case: Case, room: int, results: list[bool]) -> None:
    plain = case.binaries["plain"]
    steps = [{"op": "load", "module": "m", "kind": "emulator", "blob": sha(plain)}, meeting(case, "a")]
    given = json.dumps([steps[: len(results)], {name: data.hex() for name, data in case.blobs.items()}, room])
    done = subprocess.run([sys.executable, "-c", WITHOUT_ROOM], input=given, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert [result["ok"] for result in said] == results, said
    for step, result in zip(steps, said, strict=False):
        assert result["ok"] or (
            result["out_of_memory"] and result["error"].startswith(f"out of device memory in {step['op']}: ")
        )
