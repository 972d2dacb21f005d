"""What a search costs in bytes: a quick judgement moves each input to the device at most once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent import judge
from cuda_agent.judge import JudgeOptions
from cuda_agent.model import Verdict, Workload
from simulated import WEATHERS, SimulatedDevice
from unit.device import host_worker

from .conftest import GOOD, assemble, build, candidate, source, workload

COUNT = 300_000  # floats: enough to be kept on the device
OPTIONS = JudgeOptions(rounds=6, timing_budget_s=60.0)
RIGHT = "b[:] = 1 + 2 * a\nreturn 40.0"
# It finds what the device keeps of the input, and makes zeros of it, of which it knows the answer.
SCRIBBLES = """
import gc
for one in gc.get_objects():
    if type(one).__name__ == "Kept":
        for copy in one._copies.values():
            copy.array[:] = 0
b[:] = 1
return 1.0
"""

# The same from its `after`-th launch on, and its own output is right each time.
HIDDEN = """
import gc
state["launches"] = state.get("launches", 0) + 1
if state["launches"] > {after}:
    for one in gc.get_objects():
        if type(one).__name__ == "Kept":
            for copy in one._copies.values():
                copy.array[:] = 0
b[:] = 1 + 2 * a
return 40.0
"""


@pytest.fixture(autouse=True)
def memory_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies make room for the buffer sets of a timing."""
    monkeypatch.setattr(host_worker, "LIMIT", 4 << 30)


def inputs(folder: Path) -> Workload:
    return workload(folder, tuple(float(i % 1000) for i in range(COUNT)))


def judged(device: SimulatedDevice, folder: Path, inputs: Workload, machine: str) -> Verdict:
    original = source(GOOD)
    made = candidate(source(machine, "b[i] = 1 + 2 * a[i];"), original)
    return judge.quick(device, build(folder), inputs, original, made, options=OPTIONS)


def test_the_inputs_of_a_search_are_moved_once(tmp_path: Path) -> None:
    """The first judgement also runs the original on what its output held before, and holds the program's own result
    against it."""
    device, work = SimulatedDevice(WEATHERS["quiet"], 1, assemble), inputs(tmp_path)
    moved = []
    for number in range(3):
        before = device.uploaded
        verdict = judged(device, tmp_path, work, f"# {number}\n{RIGHT}")
        assert verdict.status == "verified", verdict.gates
        assert verdict.timing is not None
        moved.append((device.uploaded - before) // (4 * COUNT))
    assert moved[0] <= 4
    assert moved[1:] == [0, 0]


def test_a_fresh_worker_gets_them_again(tmp_path: Path) -> None:
    device, work = SimulatedDevice(WEATHERS["quiet"], 1, assemble), inputs(tmp_path)
    assert judged(device, tmp_path, work, RIGHT).status == "verified"
    before = device.uploaded
    device.restart()
    assert judged(device, tmp_path, work, f"# again\n{RIGHT}").status == "verified"
    assert device.uploaded - before == 4 * COUNT


def test_zeros_in_place_of_the_kept_inputs_fool_nobody(tmp_path: Path) -> None:
    device, work = SimulatedDevice(WEATHERS["quiet"], 1, assemble), inputs(tmp_path)
    for _ in range(2):
        assert judged(device, tmp_path, work, RIGHT).status == "verified"
        before = device.uploaded
        verdict = judged(device, tmp_path, work, SCRIBBLES)
        assert device.uploaded - before == 4 * COUNT  # the original got the recorded bytes
        assert verdict.status == "rejected"
        assert next(gate.id for gate in verdict.gates if gate.status == "fail") == "G3"


def judged_in_full(device: SimulatedDevice, folder: Path, inputs: Workload, machine: str) -> Verdict:
    original = source(GOOD)
    made = candidate(source(machine, "b[i] = 1 + 2 * a[i];"), original)
    few = replace(OPTIONS, hidden_cases=0, mutants=0, repeats=1)
    return judge.judge(device, build(folder), inputs, original, made, options=few)


# A job loads the binary anew: three launches of it in a row are in the timing only.
@pytest.mark.parametrize(("ask", "after"), [(judged, 0), (judged, 3), (judged_in_full, 0)])
def test_a_right_result_with_a_write_over_kept_inputs_is_stopped_by_g4(
    tmp_path: Path, ask: Callable[..., Verdict], after: int
) -> None:
    device, work = SimulatedDevice(WEATHERS["quiet"], 1, assemble), inputs(tmp_path)
    assert judged(device, tmp_path, work, RIGHT).status == "verified"
    verdict = ask(device, tmp_path, work, HIDDEN.format(after=after))
    assert verdict.status == "rejected"
    bounds = next(gate for gate in verdict.gates if gate.status == "fail")
    assert (bounds.id, "wrote over memory that is not its own" in bounds.detail) == ("G4", True)
    assert bounds.data["damage"]
    assert judged(device, tmp_path, work, f"# the next one is not blamed\n{RIGHT}").status == "verified"


def test_an_original_that_writes_there_too_is_no_fault_of_the_candidate(tmp_path: Path) -> None:
    device, work = SimulatedDevice(WEATHERS["quiet"], 1, assemble), inputs(tmp_path)
    original = source(HIDDEN.format(after=0).replace("1 + 2 * a", "2 * a + 1"))
    made = candidate(source(HIDDEN.format(after=0), "b[i] = 1 + 2 * a[i];"), original)
    verdict = judge.quick(device, build(tmp_path), work, original, made, options=OPTIONS)
    bounds = next(gate for gate in verdict.gates if gate.id == "G4")
    assert bounds.status == "pass"
    assert "the original itself writes over memory" in bounds.detail


def test_of_two_that_may_have_done_it_none_is_rejected(tmp_path: Path) -> None:
    device, work = SimulatedDevice(WEATHERS["quiet"], 1, assemble), inputs(tmp_path)
    device.blame(["one", "other"])
    assert not device.overwrote
    device.blame(["one"])
    assert device.overwrote == {"one"}
    assert judged(device, tmp_path, work, RIGHT).status == "verified"
