"""Several kernels of one file on the simulated GPU: order, budget, and what is said of the file with all edits."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import cache
from cuda_agent.agent import program
from cuda_agent.agent.memory import Memory
from cuda_agent.agent.policies import State
from cuda_agent.agent.program import optimize_all, together
from cuda_agent.agent.request import Request
from cuda_agent.judge.case import Case
from cuda_agent.model import Binary, Build, Candidate, Facts
from cuda_agent.source import edits
from cuda_agent.workload import bundle
from simulated import WEATHERS, SimulatedDevice
from unit.judge.conftest import PRELUDE, workload

from .test_loop_timed import OPTIONS

KERNEL = """\
__global__ void {name}(const float *a, float *b, int n)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = {body};
/*machine
def _Z{length}{name}PKfPfi(c, x, y, count):
    n = number(count)
    a, b = floats(x, n), floats(y, n)
    b[:] = 2 * a + 1
    return {us}
*/
}}
"""
MAIN = "int main() { axpy<<<1, 64>>>(0, 0, 64); scale<<<1, 64>>>(0, 0, 64); tiny<<<1, 64>>>(0, 0, 64); }\n"
US = {"axpy": 100.0, "scale": 100.0, "tiny": 100.0}
SECONDS = {"axpy": 0.004, "scale": 0.02, "tiny": 0.0001}  # of a launch


def text(**us: float) -> str:
    parts = [
        KERNEL.format(
            name=name,
            length=len(name),
            body="1 + 2 * a[i]" if name in us else "2 * a[i] + 1",
            us=us.get(name, US[name]),
        )
        for name in US
    ]
    return "\n".join(parts) + MAIN


def assemble(build: Build, text: str) -> Binary:
    """Each kernel's machine code by itself."""
    parts = re.findall(r"/\*machine\n(.*?)\*/", text, re.DOTALL)
    code = (PRELUDE + "".join(parts)).encode()
    facts = {}
    for part in parts:
        name = re.findall(r"def (_Z\w+)", part)[0]
        digest = hashlib.sha256(part.encode()).hexdigest()
        facts[name] = Facts(name, name, "sm_90", 32, 0, 0, 0, 0, 0, digest, 10)
    return Binary("host", code, hashlib.sha256(code).hexdigest(), facts, "nvcc", build.flags, "host 1.0")  # type: ignore[arg-type]


class Faster:
    """Proposes one rewrite of each kernel but `tiny`."""

    name = "faster"

    def ahead(self, context: object) -> Sequence[Candidate]:
        return []

    def propose(self, state: State) -> Sequence[Candidate]:
        kernel = state.context_of(None).kernel.name
        if state.steps or kernel == "tiny":
            return []
        made = text(**{kernel: 50.0})
        origin, digest = f"rule:twice-{kernel}", hashlib.sha256(made.encode()).hexdigest()[:12]
        return [Candidate(kernel, text(), made, edits.minimal(text(), made), origin, id=digest)]


@pytest.fixture
def project(tmp_path: Path, memory: cache.Cache, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(program, "Memory", partial(Memory, store=lambda: memory))
    measured = program._launch_seconds

    def seconds(case: Case) -> float:
        """The worker's clock would show how busy this machine is."""
        assert measured(case) > 0
        return SECONDS[case.kernel.name]

    monkeypatch.setattr(program, "_launch_seconds", seconds)
    path = tmp_path / "x.cu"
    path.write_text(text())
    for name in US:
        made = workload(tmp_path / name)
        mangled = f"_Z{len(name)}{name}PKfPfi"
        launches = tuple(replace(launch, mangled=mangled, demangled=f"{name}(…)") for launch in made.launches)
        # `axpy` is launched ten times as often, so that it costs twice as much as `scale`.
        seen = 100 if name == "axpy" else 10
        captures = tmp_path / ".cuda-agent" / "captures" / name
        bundle.save(captures, replace(made, kernel=name, launches=launches, seen=seen))
    return path


def searched(path: Path, **more: Any) -> tuple[list[Any], list[Mapping[str, Any]]]:
    events: list[Mapping[str, Any]] = []
    device = SimulatedDevice(WEATHERS["quiet"], 7, assemble)
    request = Request(path, options=OPTIONS, budget_s=more.pop("budget_s", 100.0))
    return optimize_all(request, on_event=events.append, device=device, policy=Faster, **more), events


def test_the_most_costly_first(project: Path) -> None:
    outcomes, _ = searched(project)
    assert [(o.kernel, o.status) for o in outcomes] == [
        ("axpy", "verified"),
        ("scale", "verified"),
        ("tiny", "nothing"),
    ]
    shares = [o.share for o in outcomes]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] == pytest.approx(2 / 3, abs=0.01)


def test_what_costs_little_is_left_out_and_said(project: Path) -> None:
    outcomes, _ = searched(project, everything=False)
    assert outcomes[2].kernel == "tiny"
    assert re.fullmatch(r"tiny takes 0\.\d % of .*: not searched \(--all: it too\)", outcomes[2].message)
    assert outcomes[2].seconds == 0


def test_costs_share_the_budget(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, float] = {}
    original = program.optimize

    def noted(request: Request, **more: Any) -> Any:
        asked[str(request.kernel)] = request.budget_s
        return original(request, **more)

    monkeypatch.setattr(program, "optimize", noted)
    searched(project, budget_s=90.0)
    assert asked["axpy"] == pytest.approx(90 * (0.5 / 3 + 0.5 * 2 / 3), abs=5)
    assert asked["axpy"] < asked["tiny"] < 90  # what the first two left over is not lost


def test_a_single_kernel_has_all_of_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scale", "tiny"):
        shutil.rmtree(project.parent / ".cuda-agent" / "captures" / name)
    asked: list[float] = []
    original = program.optimize
    monkeypatch.setattr(program, "optimize", lambda r, **more: asked.append(r.budget_s) or original(r, **more))
    outcomes, _ = searched(project, budget_s=90.0)
    assert asked == [90.0]
    assert outcomes[0].share is None


def test_all_edits_in_one_file(project: Path) -> None:
    outcomes, _ = searched(project)
    request = Request(project, options=OPTIONS)
    whole = together(request, outcomes, SimulatedDevice(WEATHERS["quiet"], 7, assemble))
    assert whole is not None
    assert whole.text == text(axpy=50.0, scale=50.0)
    assert whole.kernels == ("axpy", "scale")
    assert whole.sentence.endswith("compiled together, each has the machine code that was judged")


@pytest.mark.parametrize("origin", ["rule:unroll", "model:x+unroll"])
def test_what_a_model_wrote_is_compiled_in_the_sandbox_here_too(
    project: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    (first, *others), _ = searched(project)
    assert first.candidate is not None
    device, asked = SimulatedDevice(WEATHERS["quiet"], 7, assemble), []
    original = device.compile
    monkeypatch.setattr(device, "compile", lambda *a, **more: asked.append(more) or original(*a, **more))
    together(Request(project), [replace(first, candidate=replace(first.candidate, origin=origin)), *others], device)
    assert [more["untrusted"] for more in asked] == [origin.startswith("model")]


def test_machine_code_that_changed_is_said(project: Path) -> None:
    outcomes, _ = searched(project)

    def other(build: Build, text: str) -> Binary:
        return assemble(build, text.replace("return 50.0", "return 51.0"))

    whole = together(Request(project), outcomes, SimulatedDevice(WEATHERS["quiet"], 7, other))
    assert whole is not None
    assert whole.sentence.endswith("compiles, and was not judged as a whole")


def test_edits_of_the_same_lines_are_left_out(project: Path) -> None:
    outcomes, _ = searched(project)
    first = outcomes[0]
    clash = replace(first, kernel="other")
    whole = together(Request(project), [first, clash], SimulatedDevice(WEATHERS["quiet"], 7, assemble))
    assert whole is not None
    assert (whole.kernels, whole.left_out) == (("axpy",), ("other",))
    assert together(Request(project), [first], None) is None


def test_the_second_time_nothing_is_measured(project: Path) -> None:
    first, _ = searched(project)

    class Broken(SimulatedDevice):
        def run(self, job: Any, blobs: Any = None) -> list[dict[str, Any]]:
            raise AssertionError("something ran")

    again = optimize_all(
        Request(project, options=OPTIONS, budget_s=100.0),
        device=Broken(WEATHERS["quiet"], 7, assemble),
        policy=Faster,
    )
    assert [o.kernel for o in again] == [o.kernel for o in first]
    assert [o.status for o in again] == [o.status for o in first]
