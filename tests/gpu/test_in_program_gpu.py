"""G13 on a real GPU: tests/corpus/softmax_rows.cu rebuilt with an edit in a copy of its folder and run again.

Run: pytest -rA tests/gpu/test_in_program_gpu.py. -rA shows the gate's sentence, its numbers and the whole program's
times."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent import capture as room
from cuda_agent import judge, rewrite
from cuda_agent.capture import CaptureOptions
from cuda_agent.device import Device, open_device
from cuda_agent.judge import JudgeOptions
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g13_in_program import InProgram
from cuda_agent.model import Build, Candidate, GateResult, LaunchMap, Workload
from cuda_agent.source import edits
from cuda_agent.toolchain import sandbox
from cuda_agent.toolchain.build import find_build
from cuda_agent.verify import VerifyRequest, verify
from cuda_agent.workload import bundle

pytestmark = pytest.mark.gpu

SOFTMAX = Path(__file__).parents[1] / "corpus" / "softmax_rows.cu"
SIZES = ("16384", "1024", "50")
OPTIONS = JudgeOptions(in_program=True)
MAKEFILE = """\
run: softmax_rows
\t./softmax_rows 4096 512 20
softmax_rows: softmax_rows.cu
\tnvcc -O3 -std=c++17 -arch=native $< -o $@
"""


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("cuda:0") as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return Path(shutil.copy(SOFTMAX, folder))


def captured(file: Path) -> tuple[Build, Workload]:
    build = Build(file, file.parent, "nvcc", ("-std=c++17", "-O3"), "default")
    room.build_and_run(file, SIZES, build, CaptureOptions(device="cuda:0"))
    work = bundle.find(file, "softmax_rows")
    assert work is not None
    return build, work


def shown(result: GateResult) -> GateResult:
    print(f"mounted: {sandbox.available()}; {result.status} in {result.seconds:.1f} s: {result.detail}")
    print(dict(result.data))
    return result


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_faster_kernel_in_its_program(device: Device, file: Path) -> None:
    build, work = captured(file)
    text, before = file.read_text(), files(file.parent)
    context = rewrite.Context.make(file, text, "softmax_rows", work, device.info)
    made = next(c for c in rewrite.candidates(context) if "row-per-warp" in c.origin)
    verdict = judge.judge(device, build, work, text, made, options=OPTIONS)
    print(judge.headline(verdict))
    for gate in verdict.gates:
        print(f"{gate.id} {gate.status} {gate.seconds:.1f} s: {gate.detail}")
    result = shown(verdict.gates[13])
    assert result.status == "pass"
    assert (verdict.status, verdict.level) == ("verified", "in-program")
    assert result.data["launches"] == len(work.launches)
    assert result.data["exit_code"] == 0
    assert 0 < result.data["seconds_after"] < 60
    assert 0 < result.data["seconds_before"] < 60
    assert files(file.parent) == before


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("softmax_rows<<<grid, block>>>", "softmax_rows<<<grid.x - 1, block>>>", "exit code 1 instead of 0"),
        ("largest relative error", "largest error", "line 1 of its output is"),
        ("softmax_rows<<<grid, block>>>", "softmax_rows<<<grid, block>>", "does not build with the edit"),
    ],
)
def test_what_only_the_program_shows(device: Device, file: Path, old: str, new: str, says: str) -> None:
    build, work = captured(file)
    text = file.read_text()
    assert old in text
    edited = text.replace(old, new)
    made = Candidate(
        "softmax_rows", text, edited, edits.minimal(text, edited), "person", "reassociated", LaunchMap(),
        id=hashlib.sha256(edited.encode()).hexdigest()[:12],
    )  # fmt: skip
    result = shown(InProgram().check(Case(device, build, work, text, made, options=OPTIONS)))
    assert result.status == "fail"
    assert says in result.detail


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_a_changed_launch_through_make_run(device: Device, file: Path) -> None:
    """The launch shapes of the candidate are learned by the recorded command, and the program is judged by it."""
    (file.parent / "Makefile").write_text(MAKEFILE)
    room.capture(["make", "run"], file.parent, CaptureOptions(device="cuda:0"))
    work = bundle.find(file, "softmax_rows")
    assert work is not None
    assert work.command == ("make", "run")
    print(find_build(file))
    context = rewrite.Context.make(file, file.read_text(), "softmax_rows", work, device.info)
    made = next(c for c in rewrite.candidates(context) if "row-per-warp" in c.origin)
    candidate = file.parent.parent / "candidate.cu"
    candidate.write_text(made.text)
    done = verify(VerifyRequest(file, candidate, options=OPTIONS), device=device)
    print(judge.headline(done.verdict), done.candidate.launch)
    result = shown(done.verdict.gates[13])
    assert result.status == "pass"
    assert done.verdict.status == "verified"
    assert done.candidate.launch != LaunchMap()
