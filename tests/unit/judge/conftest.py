"""A device for the judge's tests: the real worker, protocol, interpreter and client over a small backend whose
kernels are Python functions over memory (`tests/unit/device/host_worker.py`). It calls itself a GPU, so the timing
gates run too: a kernel "takes" the microseconds it returns.

A kernel's source is CUDA with the Python function that stands for its machine code in a comment.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import fake_driver
from cuda_agent import cache
from cuda_agent.device import open_device
from cuda_agent.device.client import Device
from cuda_agent.device.transports import PipeTransport, ProcessChannel
from cuda_agent.errors import CompileError, DeviceMissing, ToolMissing
from cuda_agent.judge import emulated, floor
from cuda_agent.model import Arg, Binary, Buffer, Build, Candidate, Facts, Launch, LaunchMap, Pointer, Workload
from cuda_agent.source import edits
from cuda_agent.workload.bundle import BlobStore

WORKER = Path(__file__).parent.parent / "device" / "host_worker.py"
MANGLED = "_Z4axpyPKfPfi"
PRELUDE = """
def address(raw): return int.from_bytes(raw, "little")
def floats(raw, n): return numpy.ctypeslib.as_array((ctypes.c_float * n).from_address(address(raw)))
def number(raw): return int.from_bytes(raw, "little")
state = {}
"""


@dataclass(frozen=True)
class HostTransport(PipeTransport):
    def open(self, device: str) -> ProcessChannel:
        argv = [sys.executable, str(WORKER), "--device", device]
        argv = self.wrap(argv) if self.wrap else [*argv, "--parent", str(os.getpid())]
        return ProcessChannel(argv, self.environment())

    def bare(self, device: str, folder: Path, before: Sequence[str]) -> ProcessChannel:
        return ProcessChannel([*before, sys.executable, fake_driver.__file__, device, str(folder)], self.environment())


def assemble(build: Build, text: str) -> Binary:
    """The Python in a file's `/*machine … */` comment as a binary. Raises CompileError."""
    machine = re.search(r"/\*machine\n(.*?)\*/", text, re.DOTALL)
    if machine is None or "syntax error" in text:
        raise CompileError("it does not compile", "x.cu(3): error: expected a ;")
    code = (PRELUDE + machine[1]).encode()
    digest = hashlib.sha256(code).hexdigest()
    registers = int(found[1]) if (found := re.search(r"registers=(\d+)", text)) else 32
    shared = int(found[1]) if (found := re.search(r"shared=(\d+)", text)) else 0
    facts = {
        name: Facts(name, "axpy(float const*, float*, int)", "sm_90", registers, shared, 0, 0, 0, 0, digest, 10)
        for name in re.findall(r"def (_Z\w+)", machine[1])
    }
    return Binary("host", code, digest, facts, "nvcc", build.flags, "host 1.0")  # type: ignore[arg-type]


class HostDevice(Device):
    def compile(self, build: Build, text: str, *, untrusted: bool = False, kernel: str | None = None) -> Binary:
        return assemble(build, text)


@pytest.fixture(autouse=True)
def floors_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What other tests and earlier days found must not raise the noise floor."""
    kept = cache.Cache(tmp_path / "floors")
    monkeypatch.setattr(floor, "store", lambda: kept)
    yield
    kept.close()


@pytest.fixture(autouse=True)
def no_emulator_beside_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """G7 asks the emulator too where a kernel is judged on a GPU: a compiler run a text, and tests of its own."""

    def refuse(*_: object, **__: object) -> Device:
        raise DeviceMissing("not in this test")

    monkeypatch.setattr(emulated, "open_device", refuse)
    monkeypatch.setattr(emulated, "compilations", lambda case: iter(()))


@pytest.fixture(scope="module")
def emulator() -> Iterator[Device]:
    try:
        opened = open_device("emulator")
    except (DeviceMissing, ToolMissing) as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with HostDevice("host", HostTransport()) as opened:
        yield opened


def source(machine: str, body: str = "b[i] = 2 * a[i] + 1;", note: str = "") -> str:
    """A program with one kernel; `machine` is the body of the Python function that the kernel compiles to."""
    lines = "\n".join("    " + line for line in machine.strip().splitlines())
    return f"""\
__global__ void axpy(const float *a, float *b, int n)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{ {body} }} {note}
/*machine
def {MANGLED}(c, x, y, count):
    n = number(count)
    a, b = floats(x, n), floats(y, n)
{lines}
*/
}}
int main() {{ axpy<<<1, 64>>>(nullptr, nullptr, 64); }}
"""


GOOD = "b[:] = 2 * a + 1\nreturn 50.0"


def candidate(text: str, original: str, numeric: str = "bit-exact", launch: LaunchMap | None = None) -> Candidate:
    return Candidate(
        "axpy",
        original,
        text,
        edits.minimal(original, text),
        "test",
        numeric,  # type: ignore[arg-type]
        launch or LaunchMap(),
        id=hashlib.sha256(text.encode()).hexdigest()[:12],
    )


def build(tmp_path: Path) -> Build:
    return Build(tmp_path / "x.cu", tmp_path, "nvcc", ("-O3",), "default")


VALUES = tuple(float((i * 37) % 64) - 20.5 for i in range(64))


def workload(
    folder: Path,
    values: tuple[float, ...] = VALUES,
    before: tuple[float, ...] | None = None,
    after: tuple[float, ...] | str | None = "right",
    launches: int = 1,
    origin: str = "captured",
) -> Workload:
    """Launches of axpy(x, y, n): y = 2 x + 1. `before` is y's content before; `after` what the program found."""
    blobs = BlobStore(folder / "blobs")
    count = len(values)

    def put(numbers: tuple[float, ...]) -> tuple[str, ...]:
        return blobs.put(struct.pack(f"{count}f", *numbers))

    result = tuple(2 * v + 1 for v in values) if after == "right" else after
    zeros = (0.0,) * count
    buffers = (
        Buffer(0x1000, 4 * count, put(values), put(values)),
        Buffer(0x9000, 4 * count, put(before or zeros), put(result) if isinstance(result, tuple) else None),
    )
    args = (
        Arg(0, bytes(8), (Pointer(0, 0, 0),)),
        Arg(8, bytes(8), (Pointer(0, 1, 0),)),
        Arg(16, count.to_bytes(4, "little")),
    )
    made = [
        Launch(MANGLED, "axpy(float const*, float*, int)", (n + 1, 1, 1), (64, 1, 1), 0, args, buffers, n)
        for n in range(launches)
    ]
    return Workload("axpy", origin, tuple(made), folder, folder / "blobs", "NVIDIA H200")  # type: ignore[arg-type]
