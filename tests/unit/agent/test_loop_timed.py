"""The loop with scripted policies on the simulated GPU: scores are measured ratios, judgements take milliseconds."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import cache, judge
from cuda_agent.agent import loop
from cuda_agent.agent.request import Outcome, Request
from cuda_agent.device.jobs import Job
from cuda_agent.errors import Cancelled
from cuda_agent.hints.limits import Limiter
from cuda_agent.judge import JudgeOptions
from cuda_agent.model import Binary, Build, Candidate, Verdict, Workload
from cuda_agent.rewrite.order import rule_order
from patience import patience
from simulated import WEATHERS, SimulatedDevice
from unit.agent.script import Script
from unit.judge.conftest import assemble, candidate, source, workload

WORK = "b[:] = 2 * a + 1\n"
ORIGINAL = source(WORK + "return 100.0")
OPTIONS = JudgeOptions(rounds=12, timing_budget_s=60.0, hidden_cases=0)


def made(us: float, origin: str = "", machine: str = WORK, note: str = "") -> Candidate:
    """A candidate that takes `us` microseconds. Its text differs, its origin names rules."""
    code = machine if "return" in machine else f"{machine}return {us}"
    text = source(code, "b[i] = 1 + 2 * a[i];", note=f"// {us} {note}")
    return replace(candidate(text, ORIGINAL), origin=f"rule:{origin or f'r{us}'}")


class Counting(SimulatedDevice):
    """Counts what it is asked to run."""

    jobs = 0

    def run(self, job: Job, blobs: Any = None) -> list[dict[str, Any]]:
        self.jobs += 1
        return super().run(job, blobs)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "x.cu"
        self.path.write_text(ORIGINAL)
        self.workload: Workload = workload(folder)
        self.events: list[Mapping[str, Any]] = []
        self.device = self.fresh_device()

    def fresh_device(self) -> Counting:
        return Counting(WEATHERS["quiet"], 7, assemble)

    def run(self, policy: Script | None, *, cancelled: Callable[[], bool] | None = None, **request: Any) -> Outcome:
        self.device, self.events = self.fresh_device(), []
        return loop.optimize(
            Request(self.path, kernel="axpy", **{"options": OPTIONS, **request}),
            on_event=self.events.append,
            cancelled=cancelled,
            device=self.device,
            workload=self.workload,
            policy=policy,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def origin(outcome: Outcome) -> str | None:
    return outcome.candidate.origin.removeprefix("rule:") if outcome.candidate else None


def test_the_fastest_is_verified(bench: Bench) -> None:
    outcome = bench.run(Script([made(90, "a"), made(50, "b"), made(120, "c")]))
    assert (outcome.status, origin(outcome), outcome.tried) == ("verified", "b", 3)
    assert outcome.verdict is not None
    assert outcome.verdict.faster
    assert outcome.evidence["timing"]["ratio"] == pytest.approx(2, rel=0.02)


def test_what_limits_the_kernel_is_said_first_decides_the_order_and_what_is_left_is_said_last(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, orders = "1 block on 132 SMs: most of the GPU is idle", []

    class Recording(Script):
        name = "recording"

        def __init__(self, order: Sequence[str] = ()) -> None:
            super().__init__([made(50, "b")])
            orders.extend([order] * bool(order))

    monkeypatch.setattr(loop, "Search", Recording)
    outcome = bench.run(None)
    assert bench.events[0]["message"] == f"latency: {idle}"
    assert orders == [rule_order(Limiter("latency", "", 2.0))]
    assert (outcome.status, outcome.limiter) == ("verified", "latency")
    assert outcome.left == f"{idle}; up to 20× left"


def test_candidates_are_compiled_while_the_original_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of an original with large inputs takes seconds."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    first, compiled = made(50, "b"), threading.Event()

    class Eager(Script):
        def ahead(self, context: Any) -> Sequence[Candidate]:
            return [first] if context.base is None else []

    class Watched(Counting):
        def compile(self, build: Build, text: str, **options: Any) -> Binary:
            if text == first.text:
                compiled.set()
            return super().compile(build, text, **options)

        def run(self, job: Job, blobs: Any = None) -> list[dict[str, Any]]:
            assert compiled.wait(patience(20))
            return super().run(job, blobs)

    monkeypatch.setattr(bench, "fresh_device", lambda: Watched(WEATHERS["quiet"], 7, assemble))
    assert bench.run(Eager([first])).status == "verified"


def test_the_smaller_of_two_within_one_per_cent(bench: Bench) -> None:
    outcome = bench.run(Script([made(50, "a(x=1)+b"), made(50.2, "a(x=1)"), made(51, "c")]))
    assert origin(outcome) == "a(x=1)"


def test_the_same_question_is_answered_at_once(bench: Bench) -> None:
    first = bench.run(Script([made(90, "a"), made(50, "b")]))
    ran = bench.device.jobs
    again = bench.run(Script([made(90, "a"), made(50, "b")]))
    assert ran > 0
    assert bench.device.jobs == 0
    assert again.evidence == first.evidence
    assert [event["origin"] for event in bench.events if event["event"] == "candidate"] == ["rule:a", "rule:b"]
    assert any("searched before" in event.get("message", "") for event in bench.events)


def test_fresh_asks_everything_again(bench: Bench) -> None:
    bench.run(Script([made(50, "b")]))
    ran = bench.device.jobs
    bench.run(Script([made(50, "b")]), fresh=True)
    assert bench.device.jobs == ran


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: {"options": replace(OPTIONS, seed=1)},
        lambda bench: setattr(bench, "workload", workload(bench.path.parent, tuple(float(n) for n in range(64)))) or {},
        lambda bench: setattr(bench, "workload", replace(bench.workload, tolerance={"b": 0.1})) or {},
    ],
    ids=["other options", "other inputs", "another tolerance"],
)
def test_another_question_is_not(bench: Bench, change: Callable[[Bench], dict[str, Any]]) -> None:
    bench.run(Script([made(50, "b")]))
    bench.run(Script([made(50, "b")]), **change(bench))
    assert bench.device.jobs > 0


def test_a_stopped_search_goes_on_where_it_was(bench: Bench) -> None:
    """What was judged before the stop is not judged again; the answer is the whole search's."""
    stop: list[int] = []
    rounds = [made(90, "a"), made(80, "b")], [made(50, "c")]
    stopped = bench.run(Script(*rounds, before=lambda n: stop.extend([n] * n)), cancelled=lambda: bool(stop))
    assert (stopped.status, origin(stopped)) == ("undecided", "b")
    quick: list[str] = []

    def count(*args: Any, **more: Any) -> Verdict:
        quick.append(args[4].origin)
        return original(*args, **more)

    original = judge.quick
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "quick", count, raising=False)
        outcome = bench.run(Script(*rounds))
    assert quick == ["rule:c"]
    assert (outcome.status, origin(outcome), outcome.tried) == ("verified", "c", 3)


def test_what_cannot_be_decided_is_not_kept(bench: Bench, memory: cache.Cache) -> None:
    bench.workload = workload(bench.path.parent, values=(-0.5,) * 64, before=(0.0,) * 64)  # y = 0 everywhere
    outcome = bench.run(Script([made(50, "b")]))
    assert outcome.status == "undecided"
    assert not [key for key in memory._store if str(key).startswith(("search", "verdict"))]


def test_what_does_not_stand_in_a_fresh_process_is_not_shown(bench: Bench) -> None:
    bad = made(20, "bad", machine="b[:] = 2 * a + 1\nreturn 20.0 if process == 1 else 100.0")
    outcome = bench.run(Script([bad, made(50, "good")]))
    assert (outcome.status, origin(outcome)) == ("verified", "good")
    alone = bench.run(Script([bad]))
    assert (alone.status, alone.diff, alone.candidate) == ("nothing", "", None)


def test_what_is_built_on_a_refused_one_is_not_asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def full(*args: Any, **more: Any) -> Verdict:
        asked.append(args[4].origin.removeprefix("rule:"))
        found = original(*args, **more)
        return replace(found, status="rejected") if "bad" in asked[-1] else found

    original = judge.judge
    monkeypatch.setattr(judge, "judge", full, raising=False)
    outcome = bench.run(Script([made(20, "bad"), made(19, "bad+more"), made(50, "good")]))
    assert asked == ["bad+more", "bad", "good"]
    assert origin(outcome) == "good"
    asked.clear()
    bench.run(Script([made(20, "bad"), made(19.9, "bad+more"), made(50, "good")]), fresh=True)
    assert asked == ["bad", "good"]


def test_slower_ones_are_nothing(bench: Bench) -> None:
    outcome = bench.run(Script([made(110, "a"), made(100, "b")]))
    assert (outcome.status, outcome.candidate) == ("nothing", None)
    idle = "1 block on 132 SMs: most of the GPU is idle"
    assert outcome.message == f"nothing better found for axpy after 2 candidates: {idle}; up to 40× left"


def test_events_have_the_numbers_of_the_moment(bench: Bench) -> None:
    bench.run(Script([made(90, "a"), made(50, "b"), made(50, "b", note="again")]), budget_s=60)
    told = [event for event in bench.events if event["event"] == "candidate"]
    assert [event["tried"] for event in told] == [1, 2, 2]
    assert re.fullmatch(r"1\.1\d× by a", told[0]["best"])
    assert re.fullmatch(r"(2\.0\d|1\.9\d)× by b", told[1]["best"])
    assert told[2]["note"] == "same machine code as b"
    assert 60 > told[0]["left_s"] > told[1]["left_s"] > 0
    assert told[1]["ci"][0] < told[1]["ratio"] < told[1]["ci"][1]
    trying = [event["origin"] for event in bench.events if event["event"] == "trying"]
    assert trying == ["rule:a", "rule:b"]


def test_the_full_verdict_is_in_the_budget(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick judgement takes 4 s here and a full one five times as long and 12 s: of 60 s half are kept for it, so
    that trying ends once 30 s are gone."""
    now = [time.monotonic()]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def slow(ask: Callable[..., Verdict], seconds: float) -> Callable[..., Verdict]:
        def asked(*args: Any, **more: Any) -> Verdict:
            now[0] += seconds
            return ask(*args, **more)

        return asked

    monkeypatch.setattr(judge, "quick", slow(judge.quick, 4.0), raising=False)
    monkeypatch.setattr(judge, "judge", slow(judge.judge, 25.0), raising=False)
    outcome = bench.run(Script([made(90 - n, f"r{n}") for n in range(20)]), budget_s=60.0)
    assert outcome.tried == 8
    assert outcome.seconds == pytest.approx(57.0, abs=1)
    assert outcome.status == "verified"


def test_an_answer_tells_how_long_others_had_the_device(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: Counting, job: Job, blobs: Any = None) -> list[dict[str, Any]]:
        self.waited += 10.0
        return SimulatedDevice.run(self, job, blobs)

    slow = made(110, "a")
    assert "others" not in bench.run(Script([slow]), budget_s=0.01).message
    monkeypatch.setattr(Counting, "run", late)
    message = bench.run(Script([slow]), budget_s=0.01, fresh=True).message
    assert re.search(r"after \d candidates, when its time was over \(\d+0 s of it others had the device\)", message)


def test_stopped_before_anything_good(bench: Bench) -> None:
    with pytest.raises(Cancelled, match="nothing better"):
        bench.run(Script([made(50, "a")]), cancelled=lambda: True)


def test_what_is_far_slower_is_not_timed(bench: Bench) -> None:
    slow = made(100, "slow", machine="import time\ntime.sleep(0.3)\nb[:] = 2 * a + 1\nreturn 300000.0")
    outcome = bench.run(Script([slow, made(50, "b")]))
    assert re.fullmatch(r"not timed: a launch takes \d+ ms where the original's takes \d+ ms", outcome.steps[0].note)
    assert outcome.steps[0].score is None
    assert origin(outcome) == "b"


def test_the_same_program_captured_again_is_the_same_question(bench: Bench) -> None:
    """Buffers lie elsewhere in every run."""
    bench.run(Script([made(50, "b")]))
    (launch,) = bench.workload.launches
    buffers = tuple(replace(buffer, address=buffer.address + (1 << 20)) for buffer in launch.buffers)
    args = (replace(launch.args[0], data=b"\1" * 8), *launch.args[1:])
    bench.workload = replace(bench.workload, launches=(replace(launch, buffers=buffers, args=args),))
    bench.run(Script([made(50, "b")]))
    assert bench.device.jobs == 0


def test_one_rule_is_to_blame(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds is improved on as long as there are better ones; the record has one end."""

    def full(*args: Any, **more: Any) -> Verdict:
        found = original(*args, **more)
        return replace(found, status="rejected") if "c" in args[4].origin.removeprefix("rule:").split("+") else found

    original = judge.judge
    monkeypatch.setattr(judge, "judge", full, raising=False)
    path = bench.path.parent / "steps.jsonl"
    outcome = bench.run(Script([made(20, "a+b+c"), made(25, "a+b"), made(40, "a"), made(60, "b")]), trajectory=path)
    assert (outcome.status, origin(outcome), outcome.refused) == ("verified", "a+b", 1)
    said = [event["message"] for event in bench.events if event.get("message", "").startswith("full verdict")]
    assert [words.removeprefix("full verdict on ") for words in said] == ["a+b+c", "a", "a+b"]
    assert [line["step"] for line in map(json.loads, path.read_text().splitlines())].count("end") == 1


def test_nothing_found_in_too_small_a_budget_is_no_answer(bench: Bench) -> None:
    """Asked again, the search goes on with what it knows."""
    rounds = [made(110, "a")], [made(50, "b")]
    assert bench.run(Script(*rounds), max_candidates=1).status == "nothing"
    bench.run(Script(*rounds), max_candidates=1)
    assert not any("searched before" in event.get("message", "") for event in bench.events)
    assert bench.run(Script(*rounds)).status == "verified"
    assert bench.run(Script([made(110, "a")])).status == "nothing"
    bench.run(Script([made(110, "a")]))
    assert any("searched before" in event.get("message", "") for event in bench.events)
