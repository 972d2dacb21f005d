"""What a candidate costs a search on a real GPU: seconds of a quick judgement, gate by gate, and bytes moved.

Run: pytest -s tests/gpu/test_quick_gpu.py (needs a GPU, cupy and nvcc), nothing beside on the GPU. Look at the seconds
of the second and third candidate: a small part of the first one's, which moves the inputs and finds out what the
original does; and of those most should be G8, the timing itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from cuda_agent import cache, judge
from cuda_agent.device import Device, open_device
from cuda_agent.judge import floor
from cuda_agent.model import Arg, Buffer, Build, Candidate, Launch, LaunchMap, Pointer, Workload
from cuda_agent.source import edits
from cuda_agent.workload.bundle import BlobStore

pytestmark = pytest.mark.gpu

DEVICE = os.environ.get("QUICK_DEVICE", "cuda:0")
PROGRAM = """\
__global__ void smooth(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    y[i] = 0.5f * x[i] + 0.25f;
}
"""
# The same results by other instructions, so that each is timed.
OTHERS = tuple(f"0.5f * {load}(&x[i]) + 0.25f" for load in ("__ldg", "__ldcs", "__ldcg"))


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device(DEVICE) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_floor_of_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = cache.Cache(tmp_path / "floors")
    monkeypatch.setattr(floor, "store", lambda: kept)
    yield
    kept.close()


def workload(folder: Path, n: int) -> Workload:
    """One launch of smooth(x, y, n), with the program's own result."""
    blobs = BlobStore(folder / "blobs")
    x = numpy.random.default_rng(1).standard_normal(n).astype("f4")
    before, after = blobs.put(x.tobytes()), blobs.put((numpy.float32(0.5) * x + numpy.float32(0.25)).tobytes())
    buffers = (
        Buffer(0x10000000000, 4 * n, before, before),
        Buffer(0x20000000000, 4 * n, blobs.put(bytes(4 * n)), after),
    )
    args = [Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in (0, 1)]
    args.append(Arg(16, n.to_bytes(4, "little")))
    name, mangled = "smooth(float const*, float*, int)", "_Z6smoothPKfPfi"
    made = Launch(mangled, name, (-(-n // 256), 1, 1), (256, 1, 1), 0, tuple(args), buffers)
    return Workload("smooth", "captured", (made,), folder, folder / "blobs", "")


@pytest.mark.parametrize("n", [1 << 16, 1 << 20, 1 << 26])
def test_only_the_first_candidate_pays_for_the_inputs(device: Device, tmp_path: Path, n: int) -> None:
    file = tmp_path / "x.cu"
    file.write_text(PROGRAM)
    build, inputs = Build(file, tmp_path, "nvcc", ("-O3",), "default"), workload(tmp_path, n)
    took: list[float] = []
    for number, other in enumerate(OTHERS):
        text = PROGRAM.replace("0.5f * x[i] + 0.25f", other)
        made = Candidate(
            "smooth", PROGRAM, text, edits.minimal(PROGRAM, text), "test", "bit-exact", LaunchMap(), id=str(number)
        )
        device.compile(build, text)  # not what is looked at here
        before, began = device.uploaded, time.monotonic()
        verdict = judge.quick(device, build, inputs, PROGRAM, made)
        took.append(time.monotonic() - began)
        gates = ", ".join(f"{gate.id} {gate.seconds:.2f}" for gate in verdict.gates if gate.seconds > 0.005)
        moved = device.uploaded - before
        print(f"\n {4 * n:,} bytes, candidate {number}: {took[-1]:.3f} s ({gates}), moved {moved:,}", end="")
        assert verdict.status == "verified", [gate.detail for gate in verdict.gates if gate.status != "pass"]
        if device.kind == "cuda":
            assert verdict.timing is not None
            # Below what is kept each launch moves its inputs; above it the first judgement moves them once: x, and y as
            # the program had it, and its own result to hold against.
            assert moved <= 3 * 4 * n or 4 * n < 1 << 20
            assert number == 0 or moved == 0 or 4 * n < 1 << 20
    if n == 1 << 26:
        assert max(took[1:]) < took[0] / 2
