"""G7 on a real GPU under the real compute-sanitizer: its self-test, one bad kernel for each tool, a clean one.

Run: pytest -rA tests/gpu/test_sanitizer_gpu.py (needs a GPU, cupy, nvcc and compute-sanitizer). -rA shows what was
printed: versions, every verdict, the seconds of each tool and, of the self-test, the tools' own reports."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent.device import Device, bare, open_device, sanitizer
from cuda_agent.judge import JudgeOptions
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g07_races_and_memory import RacesAndMemory
from cuda_agent.judge.tool_runs import KNOWN_BAD, SHOWN, THREADS, ZEROS, bad_task
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all cases: the original is then one binary, and its findings are kept."""
    return tmp_path_factory.mktemp("axpy")


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


def asked(
    device: Device, folder: Path, text: str, original: str = ORIGINAL, options: JudgeOptions | None = None
) -> GateResult:
    made = Candidate("axpy", original, text, edits.minimal(original, text), "test", "reassociated", LaunchMap(), id="x")
    build = Build(folder / "x.cu", folder, "nvcc", ("-O3", "-lineinfo"), "default")
    case = Case(device, build, workload(folder), original, made, options=options)
    case.baseline(0)  # compiled and replayed before the clock starts, as in a judgement
    assert case.candidate_binary
    started = time.monotonic()
    result = RacesAndMemory().check(case)
    print(f"{result.status} in {time.monotonic() - started:.1f} s: {result.detail[:600]}")
    print(result.data.get("emulator"))
    for name, answer in result.data.get("tools", {}).items():
        print(f"{name:9} {answer['seconds']:6.2f} s  {answer['status']}  {answer['why']}")
    return result


def test_every_tool_finds_its_known_bad_kernel(device: Device, tool: sanitizer.Sanitizer, tmp_path: Path) -> None:
    """All four are asked before any assertion, so that one run shows all their reports."""
    print(f"compute-sanitizer {tool.version} at {tool.path}, driver {device.info.driver}, {device.info.name}")
    build = Build(tmp_path / "x.cu", tmp_path, "nvcc", ("-O3",), "default")
    binary = device.compile(replace(build, flags=()), KNOWN_BAD)
    (tmp_path / binary.sha256).write_bytes(binary.data)
    (tmp_path / ZEROS).write_bytes(bytes(4 * THREADS))
    started = time.monotonic()
    bad_task("initcheck", binary, tmp_path).write(tmp_path)
    assert device.bare(tmp_path).reap(60.0) == 0
    assert bare.error_of(tmp_path) == ""
    print(f"without a tool: {time.monotonic() - started:.2f} s")
    checked = {}
    for name in sanitizer.TOOLS:
        checked[name] = found = sanitizer.check(tool, name, device, bad_task(name, binary, tmp_path), 60.0)
        kinds = sorted({finding.kind for finding in found.findings})
        print(f"---- {name}: {' '.join(tool.command(name, Path('log')))}")
        print(f"{found.seconds:.2f} s; why: {found.why or '-'}; kinds: {kinds}; {len(found.findings)} findings")
        lines = found.log.splitlines()
        print("\n".join([*lines[:12], "…", *lines[-4:]] if len(lines) > 16 else lines))
    for name, (kernel, kind) in SHOWN.items():
        assert any(kind in f.kind and f.kernel == kernel for f in checked[name].findings), (name, checked[name].why)


def test_a_clean_kernel_passes(device: Device, folder: Path) -> None:
    result = asked(device, folder, CLEAN)
    assert result.status == "pass"
    assert {name: answer["status"] for name, answer in result.data["tools"].items()} == dict.fromkeys(SHOWN, "clean")


def test_a_small_case_takes_the_place_of_a_large_launch(device: Device, folder: Path) -> None:
    result = asked(device, folder, CLEAN, options=JudgeOptions(checker_bytes=5000))
    assert result.status == "pass"
    assert "find nothing on n = 513 (captured 1,024), recorded grid (derived: the smallest captured" in result.detail
    racy = program(BAD["racecheck, a missing __syncthreads"][1])
    result = asked(device, folder, racy, options=JudgeOptions(checker_bytes=5000, emulator_s=0))
    assert result.status == "fail"
    assert result.data["tools"]["racecheck"]["status"] == "worse"


def test_what_only_the_emulator_sees(device: Device, folder: Path) -> None:
    """A race in global memory: every thread writes its neighbour's element too, the same value."""
    body = "    tile[t] = 0.0f;\n    for (int j = i; j <= i + 1; j++)\n"
    body += "        if (j < n) b[j] = 2.0f * a[j] + 1.0f + tile[t];"
    result = asked(device, folder, program(body))
    assert result.status == "fail"
    assert {answer["status"] for answer in result.data["tools"].values()} == {"clean"}
    assert result.data["emulator"]["status"] == "worse"
    assert "on the emulator, launch <<<5, 256>>>: global-race" in result.detail


@pytest.mark.parametrize("name", BAD)
def test_a_bad_kernel_fails(device: Device, folder: Path, name: str) -> None:
    expected, body = BAD[name]
    result = asked(device, folder, program(body))
    assert result.status == "fail"
    assert result.data["tools"][expected]["status"] == "worse"
    assert {finding["kernel"] for finding in result.data["findings"] if "kernel" in finding} == {"axpy"}


def test_the_originals_own_race_is_the_programs(device: Device, folder: Path) -> None:
    racy = program(BAD["racecheck, a missing __syncthreads"][1])
    result = asked(device, folder, racy.replace("tile[255 - t]", "tile[t ^ 255]"), original=racy)
    assert result.status == "pass"
    assert "the original itself shows" in result.detail
    better = asked(device, folder, CLEAN, original=racy)
    assert better.status == "pass"
