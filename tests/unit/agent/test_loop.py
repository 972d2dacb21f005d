"""The loop with a scripted policy over a real device: the emulator, a kernel of four lines, nothing replaced."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent import loop
from cuda_agent.agent.policies import Policy
from cuda_agent.agent.request import Outcome, Request
from cuda_agent.agent.trajectory import misfits
from cuda_agent.device import Device, open_device
from cuda_agent.errors import Cancelled, DeviceMissing, SourceError, ToolMissing
from cuda_agent.model import Arg, Buffer, Candidate, Launch, Pointer, Workload
from cuda_agent.source import edits
from cuda_agent.workload.bundle import BlobStore
from unit.agent.script import Script

COUNT = 1024
# Neighbours in a warp touch elements 33 apart: 32 sectors a request where 4 would do.
ORIGINAL = """\
__global__ void twice(const float *in, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = i * 33 % n;
    if (i < n)
        out[j] = 2.0f * in[j];
}
"""
GOOD = ORIGINAL.replace("i * 33 % n", "i")
RESTRICT = GOOD.replace("float *out", "float *__restrict__ out").replace("2.0f * in[j]", "in[j] + in[j]")
WRONG = ORIGINAL.replace("2.0f", "3.0f")
BROKEN = ORIGINAL.replace("int j", "imt j")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles with g++")


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    try:
        opened = open_device("emulator")
    except (DeviceMissing, ToolMissing) as error:
        pytest.skip(f"no emulator here: {error}")
    with opened:
        yield opened


def candidate(text: str, origin: str, parent: str | None = None) -> Candidate:
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Candidate(
        "twice", ORIGINAL, text, edits.minimal(ORIGINAL, text), origin, "bit-exact", parent=parent, id=name
    )


class Bench:
    """One kernel in a folder, and its inputs."""

    def __init__(self, device: Device, folder: Path) -> None:
        self.device, self.folder = device, folder
        self.path = folder / "twice.cu"
        self.path.write_text(ORIGINAL)
        self.events: list[Mapping[str, Any]] = []

    def workload(self, value: Callable[[int], float]) -> Workload:
        store = BlobStore(self.folder / "blobs")
        data = struct.pack(f"{COUNT}f", *map(value, range(COUNT)))
        buffers = (
            Buffer(0x10000, len(data), store.put(data), None),
            Buffer(0x20000, len(data), store.put(bytes(len(data))), None),
        )
        args = [Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in range(2)]
        args.append(Arg(16, COUNT.to_bytes(4, "little")))
        name, words = "_Z5twicePKfPfi", "twice(float const*, float*, int)"
        launch = Launch(name, words, (COUNT // 128, 1, 1), (128, 1, 1), 0, tuple(args), buffers)
        return Workload("twice", "captured", (launch,), self.folder, store.path, "")

    def run(
        self,
        policy: Policy | None,
        *,
        value: Callable[[int], float] = lambda i: 1.0 + i % 97,
        cancelled: Callable[[], bool] | None = None,
        **request: Any,
    ) -> Outcome:
        return loop.optimize(
            Request(self.path, kernel="twice", **request),
            on_event=self.events.append,
            cancelled=cancelled,
            device=self.device,
            workload=self.workload(value),
            policy=policy,
        )


@pytest.fixture
def bench(device: Device, tmp_path: Path) -> Bench:
    return Bench(device, tmp_path)


def test_the_best_is_judged_in_full(bench: Bench) -> None:
    outcome = bench.run(Script([candidate(WRONG, "wrong"), candidate(GOOD, "good")]))
    assert outcome.status == "verified"
    assert outcome.candidate is not None
    assert outcome.candidate.text == GOOD
    assert outcome.verdict is not None
    assert not outcome.verdict.record["quick"]
    assert outcome.verdict.traffic["sectors_after"] < outcome.verdict.traffic["sectors_before"] / 4
    assert "-    int j = i * 33 % n;" in outcome.diff
    assert outcome.tried == 2
    assert outcome.steps[0].score is None
    assert outcome.steps[0].note.startswith("G3 outputs")


def test_the_same_machine_code_is_judged_once(bench: Bench) -> None:
    commented = GOOD.replace("int j = i;", "int j = i; // as it is")
    outcome = bench.run(Script([candidate(GOOD, "good"), candidate(commented, "comment")]))
    assert outcome.tried == 1
    assert [step.note for step in outcome.steps] == ["", "same machine code as good"]
    assert outcome.candidate is not None
    assert outcome.candidate.origin == "good"


def test_the_same_code_as_the_original_is_not_tried(bench: Bench) -> None:
    outcome = bench.run(Script([candidate(ORIGINAL.replace("% n;", "% n; // mixed"), "comment")]))
    assert (outcome.status, outcome.tried, outcome.candidate) == ("nothing", 0, None)


def test_only_wrong_candidates(bench: Bench) -> None:
    outcome = bench.run(Script([candidate(WRONG, "wrong")]))
    assert outcome.status == "nothing"
    assert outcome.diff == ""
    assert "nothing better found for twice after 1 candidates" in outcome.message


def test_a_compile_error_is_a_step_with_a_note(bench: Bench) -> None:
    outcome = bench.run(Script([candidate(BROKEN, "broken"), candidate(GOOD, "good")]))
    broken = outcome.steps[0]
    assert broken.note.startswith("does not compile: ")
    assert "error: 'imt'" in broken.note.replace("‘", "'").replace("’", "'")
    assert str(bench.folder) not in broken.note
    assert (broken.verdict, broken.score) == (None, None)
    assert outcome.tried == 1
    assert outcome.status == "verified"


def test_the_budget_of_candidates(bench: Bench) -> None:
    outcome = bench.run(Script([candidate(WRONG, "wrong"), candidate(GOOD, "good")]), max_candidates=1)
    assert outcome.tried == 1
    assert [step.candidate.origin for step in outcome.steps] == ["wrong"]


def test_the_budget_of_seconds(bench: Bench) -> None:
    policy = Script([candidate(GOOD, "good")])
    outcome = bench.run(policy, budget_s=1e-6)
    assert (outcome.status, outcome.tried, policy.asked) == ("nothing", 0, 0)


def test_a_stop_keeps_the_best_so_far(bench: Bench) -> None:
    stop: list[int] = []
    policy = Script([candidate(GOOD, "good")], [candidate(RESTRICT, "more")], before=lambda n: stop.extend([n] * n))
    outcome = bench.run(policy, cancelled=lambda: bool(stop))
    assert outcome.status == "undecided"  # it has no full verdict
    assert outcome.candidate is not None
    assert outcome.candidate.origin == "good"
    assert "stopped after 1 candidates" in outcome.message
    assert outcome.diff
    assert outcome.evidence["status"] == "undecided"


def test_a_stop_before_anything_good(bench: Bench) -> None:
    stop: list[int] = []
    policy = Script([candidate(WRONG, "wrong")], [candidate(GOOD, "good")], before=lambda n: stop.extend([n] * n))
    with pytest.raises(Cancelled, match="nothing better"):
        bench.run(policy, cancelled=lambda: bool(stop))


def test_an_edit_that_adds_nothing_is_dropped(bench: Bench) -> None:
    good = candidate(GOOD, "good")
    outcome = bench.run(Script([good], [candidate(RESTRICT, "good+restrict", parent=good.id)]))
    assert outcome.tried == 2
    first, second = outcome.steps
    assert first.score == pytest.approx(second.score)
    assert outcome.candidate is not None
    assert outcome.candidate.origin == "good"


def test_weak_inputs_end_the_search(bench: Bench) -> None:
    """Twice nothing is nothing: writing zeros would pass, whatever the candidate."""
    rounds = [candidate(WRONG, "wrong")], [candidate(GOOD, "good")]
    outcome = bench.run(Script(*rounds), value=lambda i: 0.0)
    assert outcome.status == "undecided"
    assert outcome.tried == 1
    assert "writes zeros" in outcome.message


def test_the_trajectory_has_every_text(bench: Bench) -> None:
    path = bench.folder / "log" / "steps.jsonl"
    texts = {"wrong": WRONG, "broken": BROKEN, "good": GOOD}
    bench.run(Script([candidate(text, name) for name, text in texts.items()]), trajectory=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    tried = [line for line in lines if line["step"] == "candidate"]
    steps = ["start", "features", "action", "candidate", "candidate", "candidate", "full", "end"]
    assert [line["step"] for line in lines] == steps
    assert {line["origin"]: line["text"] for line in tried} == texts
    assert [line["reward"] for line in tried] == [-1, -1, 1]
    assert lines[0]["file"] == "twice.cu"
    assert lines[0]["text"] == ORIGINAL
    assert lines[2]["candidates"] == [line["id"] for line in tried]
    assert [gate[:2] for gate in tried[2]["gates"]][3] == ["G3", "pass"]
    assert lines[-1]["candidate"] == tried[2]["id"]
    assert lines[-1]["reward"] == 1  # nothing is timed
    assert [problem for line in lines for problem in misfits(line)] == []
    assert lines == sorted(lines, key=lambda line: line["time"])
    assert str(bench.folder) not in path.read_text()


def test_events_say_no_time_on_the_emulator(bench: Bench) -> None:
    bench.run(Script([candidate(WRONG, "wrong"), candidate(GOOD, "good")]))
    told = {event["origin"]: event for event in bench.events if event["event"] == "candidate"}
    assert told["good"]["message"].startswith("good: predicted sectors")
    assert "×" not in told["good"]["message"]
    assert told["wrong"]["gain"] == ""
    assert "G3" in told["wrong"]["message"]
    shares = [event["percentage"] for event in bench.events if event.get("percentage") is not None]
    assert shares == sorted(shares)
    assert shares[-1] == 100


def test_a_kernel_with_a_syntax_error(bench: Bench) -> None:
    bench.path.write_text(ORIGINAL.replace("2.0f *", "2.0f * ;"))
    with pytest.raises(SourceError, match="syntax error"):
        bench.run(Script([candidate(GOOD, "good")]))
