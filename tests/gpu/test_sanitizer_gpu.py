"""G7 on a real GPU under the real compute-sanitizer: its self-test, one bad kernel for each tool, a clean one.

Run: pytest -rA tests/gpu/test_sanitizer_gpu.py (needs a GPU, cupy, nvcc and compute-sanitizer). -rA shows what was
printed: versions, seconds, every verdict and the tools' own reports."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent.device import Device, jobs, open_device, sanitizer
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g07_races_and_memory import RacesAndMemory
from cuda_agent.judge.sanitizer import KNOWN_BAD, SHOWN, THREADS, bad_step
from cuda_agent.model import Arg, Buffer, Build, Candidate, GateResult, Launch, LaunchMap, Pointer, Workload
from cuda_agent.source import edits
from cuda_agent.workload.bundle import BlobStore

pytestmark = pytest.mark.gpu

COUNT = 1024  # 4,096 bytes: the next allocation of the driver may begin right behind a buffer
MANGLED = "_Z4axpyPKfPfi"


def program(body: str) -> str:
    return f"""\
__global__ void axpy(const float *a, float *b, int n)
{{
    __shared__ float tile[256];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
{body}
}}
"""


ORIGINAL = program("    tile[t] = 0.0f;\n    if (i < n) b[i] = 2.0f * a[i] + 1.0f + tile[t];")
CLEAN = program(
    "    tile[t] = i < n ? a[i] : 0.0f;\n    __syncthreads();\n    float x = tile[255 - t];\n    __syncthreads();\n"
    "    tile[255 - t] = x;\n    __syncthreads();\n    if (i < n) b[i] = 2.0f * tile[t] + 1.0f;"
)
BAD = {
    "memcheck, a read one beyond": (
        "memcheck",
        "    tile[t] = 0.0f;\n    if (i < n) b[i] = 2.0f * a[i] + 1.0f + 0.0f * a[i + 1] + tile[t];",
    ),
    "memcheck, a write one beyond": (
        "memcheck",
        "    tile[t] = 0.0f;\n    if (i <= n) b[i] = 2.0f * (i < n ? a[i] : 0.0f) + 1.0f + tile[t];",
    ),
    "memcheck, a misaligned vector": (
        "memcheck",
        "    tile[t] = 0.0f;\n    if (i < n) b[i] = 2.0f * a[i] + 1.0f + tile[t];\n"
        "    if (i == 0) { float2 v = *(const float2 *)(a + 1); b[0] = 2.0f * a[0] + 1.0f + 0.0f * (v.x + v.y); }",
    ),
    "racecheck, a missing __syncthreads": (
        "racecheck",  # the value decides nothing, so that the result is right all the same
        "    tile[t] = i < n ? a[i] : 0.0f;\n    float x = tile[255 - t];\n"
        "    if (i < n) b[i] = x == 1e30f ? x : 2.0f * a[i] + 1.0f;",
    ),
    "initcheck, an output that is read first": (
        "initcheck",
        "    tile[t] = 0.0f;\n    if (i < n) b[i] = 2.0f * a[i] + 1.0f + 0.0f * b[i] + tile[t];",
    ),
    "synccheck, a divergent barrier": (
        "synccheck",
        "    tile[t] = i < n ? a[i] : 0.0f;\n    if (t % 2) __syncthreads();\n"
        "    if (i < n) b[i] = 2.0f * tile[t] + 1.0f;",
    ),
}


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("cuda:0") as opened:
        yield opened


@pytest.fixture(scope="module")
def tool() -> sanitizer.Sanitizer:
    return sanitizer.find()


def workload(folder: Path) -> Workload:
    """One launch of axpy(a, b, n)."""
    blobs = BlobStore(folder / "blobs")
    values = [float((i * 37) % 64) - 20.5 for i in range(COUNT)]

    def put(numbers: list[float]) -> tuple[str, ...]:
        return blobs.put(struct.pack(f"{COUNT}f", *numbers))

    buffers = (
        Buffer(0x1000, 4 * COUNT, put(values), put(values)),
        Buffer(0x9000, 4 * COUNT, put([0.0] * COUNT), put([2 * v + 1 for v in values])),
    )
    pointers = [Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in (0, 1)]
    args = (*pointers, Arg(16, COUNT.to_bytes(4, "little")))
    made = Launch(MANGLED, "axpy(float const*, float*, int)", (COUNT // 256 + 1, 1, 1), (256, 1, 1), 0, args, buffers)
    return Workload("axpy", "captured", (made,), folder, folder / "blobs", "NVIDIA H200")


def asked(device: Device, folder: Path, text: str, original: str = ORIGINAL) -> GateResult:
    made = Candidate("axpy", original, text, edits.minimal(original, text), "test", "reassociated", LaunchMap(), id="x")
    build = Build(folder / "x.cu", folder, "nvcc", ("-O3", "-lineinfo"), "default")
    started = time.monotonic()
    result = RacesAndMemory().check(Case(device, build, workload(folder), original, made))
    print(f"{result.status} in {time.monotonic() - started:.1f} s: {result.detail}")
    print(json.dumps(result.data, indent=1)[:6000])
    return result


def test_every_tool_finds_its_known_bad_kernel(device: Device, tool: sanitizer.Sanitizer, tmp_path: Path) -> None:
    """All four are asked before any assertion, so that one run shows all their reports."""
    print(f"compute-sanitizer {tool.version} at {tool.path}, driver {device.info.driver}, {device.info.name}")
    build = Build(tmp_path / "x.cu", tmp_path, "nvcc", ("-O3",), "default")
    binary = device.compile(replace(build, flags=()), KNOWN_BAD)
    checked = {}
    for name in sanitizer.TOOLS:
        job = jobs.Job([jobs.load_step(binary, "bad"), bad_step(name)], 60.0, name)
        blobs = {binary.sha256: binary.data, "zeros": bytes(4 * THREADS)}
        checked[name] = found = sanitizer.check(tool, name, device, job, blobs, 60.0)
        print(f"---- {name}: {' '.join(tool.command(name, Path('log')))}")
        print(f"{found.seconds:.1f} s; why: {found.why or '-'}; kinds: {sorted({f.kind for f in found.findings})}")
        print("\n".join(found.log.splitlines()[:60]))
    for name, (kernel, kind) in SHOWN.items():
        assert any(kind in f.kind and f.kernel == kernel for f in checked[name].findings), (name, checked[name].why)


def test_a_clean_kernel_passes(device: Device, tmp_path: Path) -> None:
    result = asked(device, tmp_path, CLEAN)
    assert result.status == "pass"
    assert {name: answer["status"] for name, answer in result.data["tools"].items()} == dict.fromkeys(SHOWN, "clean")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_kernel_fails(device: Device, tmp_path: Path, name: str) -> None:
    expected, body = BAD[name]
    result = asked(device, tmp_path, program(body))
    assert result.status == "fail"
    assert result.data["tools"][expected]["status"] == "worse"
    assert {finding["kernel"] for finding in result.data["findings"]} == {"axpy"}


def test_the_originals_own_race_is_the_programs(device: Device, tmp_path: Path) -> None:
    racy = program(BAD["racecheck, a missing __syncthreads"][1])
    result = asked(device, tmp_path, racy.replace("2.0f * a[i] + 1.0f", "1.0f + 2.0f * a[i]"), original=racy)
    assert result.status == "pass"
    assert "the original itself shows" in result.detail
    better = asked(device, tmp_path, CLEAN, original=racy)
    assert better.status == "pass"
