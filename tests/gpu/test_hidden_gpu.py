"""G5 on a real GPU: what it costs on a large capture. That it finds what it must is in tests/mutants (hidden_*.txt).

Run: pytest -rA tests/gpu/test_hidden_gpu.py. -rA shows the gate's sentence and its seconds."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from cuda_agent import capture as room
from cuda_agent import rewrite
from cuda_agent.capture import CaptureOptions
from cuda_agent.device import open_device
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g05_hidden_sizes import HiddenSizes
from cuda_agent.model import Build
from cuda_agent.workload import bundle

pytestmark = pytest.mark.gpu

SOFTMAX = Path(__file__).parents[1] / "corpus" / "softmax_rows.cu"
SIZES = ("16384", "1024", "2")  # 128 MiB a launch
BUDGET_S = 5.0


def test_a_large_capture_costs_seconds(tmp_path: Path) -> None:
    file = Path(shutil.copy(SOFTMAX, tmp_path))
    build = Build(file, file.parent, "nvcc", ("-std=c++17", "-O3"), "default")
    room.build_and_run(file, SIZES, build, CaptureOptions(device="cuda:0"))
    work = bundle.find(file, "softmax_rows")
    assert work is not None
    text = file.read_text()
    with open_device("cuda:0") as device:
        context = rewrite.Context.make(file, text, "softmax_rows", work, device.info)
        made = next(one for one in rewrite.candidates(context) if "row-per-warp" in one.origin)
        case = Case(device, build, work, text, made)
        case.outcomes()  # earlier gates have run the recorded launches
        started = time.monotonic()
        result = HiddenSizes().check(case)
        seconds = time.monotonic() - started
    print(f"{seconds:.2f} s: {result.detail}")
    print(*result.data["tried"], *(f"left out: {one}" for one in result.data["left_out"]), sep="\n")
    assert result.status == "pass", result.detail
    assert len(result.data["tried"]) >= 40
    assert seconds < BUDGET_S
