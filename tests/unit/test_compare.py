"""Policies side by side, on the simulated GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent import cache, records
from cuda_agent.agent.policies import Policy
from cuda_agent.agent.policies.chosen import several
from cuda_agent.agent.recorded import find, read
from cuda_agent.agent.request import Request
from cuda_agent.compare import CompareRequest, Comparison, Search, compare, gain_of, mean
from cuda_agent.compare_page import APART, apart, course, document
from cuda_agent.config import Settings
from cuda_agent.device import Device
from cuda_agent.errors import ModelError, UsageError
from cuda_agent.model import Candidate, Verdict
from cuda_agent.workload import bundle
from unit.agent.conftest import memory
from unit.agent.script import Script
from unit.agent.test_loop_timed import OPTIONS, Bench, bench, made

__all__ = ["bench", "memory"]


def script(name: str, *rounds: list[Candidate]) -> Callable[[], Policy | None]:
    def make() -> Script:
        policy = Script(*rounds)
        policy.name = name
        return policy

    return make


def by_model(us: float) -> Candidate:
    return replace(made(us), origin="model:scripted")


SEARCH = script("search", [made(80, "a")], [made(50, "b")])
MODEL = script("model:scripted", [by_model(97)])
MIXED = script("mixed:scripted", [made(50, "b")], [by_model(25)])


@pytest.fixture
def files(bench: Bench) -> tuple[Path, ...]:
    """A file with inputs, and one without."""
    bundle.save(bench.path.parent / ".cuda-agent" / "captures" / "axpy", bench.workload)
    empty = bench.path.parent / "empty.cu"
    empty.write_text("int none;\n")
    return bench.path, empty


def run(bench: Bench, files: tuple[Path, ...], **more: Any) -> Comparison:
    @contextmanager
    def opened() -> Iterator[Device]:
        yield bench.fresh_device()

    policies = more.pop("policies", {"search": SEARCH, "model": MODEL, "mixed": MIXED})
    request = CompareRequest(files, Request(bench.path, budget_s=60.0, max_candidates=9, options=OPTIONS))
    return compare(request, policies, open_=opened, on_event=bench.events.append, **more)


def test_each_kernel_with_each_policy(bench: Bench, files: tuple[Path, ...]) -> None:
    found = run(bench, files)
    assert (found.timed, found.device, found.complete) == (True, "NVIDIA H200", True)
    assert found.budget == {"seconds": 60.0, "candidates": 9, "tokens": 0}
    assert [(one.kernel, one.policy, one.status) for one in found.searches] == [
        ("axpy", "search", "verified"),
        ("axpy", "model", "verified"),
        ("axpy", "mixed", "verified"),
    ]
    gains = [one.gain for one in found.searches]
    assert gains == [pytest.approx(2, rel=0.03), pytest.approx(1.03, rel=0.03), pytest.approx(4, rel=0.03)]
    assert found.notes == ("empty.cu: there is no kernel in empty.cu",)
    totals = {total.policy: total for total in found.totals}
    assert (totals["mixed"].kernels, totals["mixed"].share, totals["mixed"].tried) == (1, 1.0, 2)
    assert totals["mixed"].mean == pytest.approx(4, rel=0.03)
    assert [gain for _, gain in found.searches[0].course] == [pytest.approx(1.25, rel=0.03), pytest.approx(2, rel=0.03)]


def test_the_records_know_of_each_other(bench: Bench, files: tuple[Path, ...]) -> None:
    """A model is held against the rule search of the same comparison."""
    found = run(bench, files[:1])
    ends = [read(path)[0].end for one in found.searches for path in find([one.trajectory])]
    assert [end["reward"] for end in ends if end] == [2, 1, 3]
    assert ends[1] is not None
    assert ends[1]["rules"]["from"] == found.searches[0].trajectory


def test_nothing_is_shared_between_searches(bench: Bench, files: tuple[Path, ...]) -> None:
    seen: list[cache.Cache] = []

    class Looking(Script):
        name = "search"

        def propose(self, state: Any) -> Any:
            seen.append(cache.default())
            return super().propose(state)

    before = cache.default()
    one = {"search": lambda: Looking([made(50, "b")]), "model": lambda: Looking([made(50, "b")])}
    run(bench, files[:1], policies=one)
    assert len({id(kept) for kept in (before, *seen)}) == 3
    assert not any(kept.folder.exists() for kept in seen)
    assert cache.default() is before
    assert not any("searched before" in event.get("message", "") for event in bench.events)


def test_a_policy_that_breaks_is_a_row(bench: Bench, files: tuple[Path, ...]) -> None:
    class Broken(Script):
        name = "model:gone"

        def propose(self, state: Any) -> Any:
            raise ModelError("connection refused")

    found = run(bench, files[:1], policies={"search": SEARCH, "model": Broken})
    assert [(one.status, one.gain) for one in found.searches][1] == ("undecided", 1.0)
    assert found.notes == ("axpy with model: connection refused",)
    assert found.totals[1].mean == 1.0


def test_what_is_finished_is_kept(bench: Bench, files: tuple[Path, ...]) -> None:
    stopped = False

    def stopping() -> Script:
        nonlocal stopped
        stopped = True
        return Script([made(50, "b")])

    found = run(bench, files, policies={"search": SEARCH, "mixed": stopping}, cancelled=lambda: stopped)
    assert not found.complete
    assert [one.policy for one in found.searches] == ["search"]
    assert found.kernels == ()
    assert found.notes == ("stopped: what was finished by then is shown",)
    assert "not finished" in document(found)


def test_gains() -> None:
    assert gain_of(None) == 1.0
    fewer = Verdict("verified", "emulated", (), "", traffic={"sectors_before": 80.0, "sectors_after": 20.0})
    assert gain_of(fewer) == 4.0
    assert gain_of(replace(fewer, traffic={"sectors_before": 20.0, "sectors_after": 80.0})) == 1.0
    assert gain_of(replace(fewer, status="rejected")) == 1.0
    assert mean([4.0, 1.0]) == 2.0
    assert mean([]) == 1.0


# ---------------------------------------------------------------- shown

COMPARISON = Comparison(
    ("search", "mixed"),
    "emulator (NVIDIA H200)",
    False,
    {"seconds": 60.0, "candidates": 9, "tokens": 100},
    (
        Search("x.cu", "<axpy>", "search", "nothing", "nothing better found", tried=4, seconds=3.0),
        Search("x.cu", "<axpy>", "mixed", "verified", "", 4.0, None, 5, 1200, 0.0, 9.0, "model:m", "t", ((2.0, 4.0),)),
        Search("y.cu", "other", "search", "verified", "", 9.0, (8.0, 10.0)),
    ),
)


def test_the_page() -> None:
    html = document(COMPARISON)
    assert "Nothing is timed" in html
    assert "fewer predicted sectors" in html
    assert "&lt;axpy&gt;" in html
    assert "<axpy>" not in html
    assert "mixed 4.00×" in html
    assert "search 1.00×" in html
    assert "1,200 tokens" in html
    assert "not finished" in html
    assert html.count('class="course"') == 2
    assert "http" not in html.replace("http-equiv", "")


def test_the_terminal_and_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    records.show_comparison(COMPARISON)
    told = capsys.readouterr().out
    assert "1 of 1 (100%)" in told
    assert "nothing is timed" in told
    assert "4.00× fewer sectors" in told
    data = json.loads(json.dumps(COMPARISON.to_json()))
    assert data["gain"].endswith("nothing is timed")
    assert [(row["policy"], row["share"], row["mean"], row["tokens"]) for row in data["policies"]] == [
        ("search", 0.0, 1.0, 0),
        ("mixed", 1.0, 4.0, 1200),
    ]
    assert data["searches"][1]["course"] == [[2.0, 4.0]]


def test_the_course_over_several_kernels() -> None:
    a = Search("x", "a", "p", "verified", "", course=((1.0, 2.0), (5.0, 4.0)), seconds=6.0)
    b = Search("x", "b", "p", "verified", "", course=((2.0, 4.0),), seconds=9.0)
    assert course([a, b]) == [
        (0.0, 1.0),
        (1.0, pytest.approx(2**0.5)),
        (2.0, pytest.approx(8**0.5)),
        (5.0, 4.0),
        (9.0, 4.0),
    ]


@given(st.lists(st.floats(14, 176), max_size=4))
def test_names_of_lines_do_not_overlap(heights: list[float]) -> None:
    placed = apart(heights)
    rows = sorted(placed)
    assert all(b - a >= APART - 1e-9 for a, b in pairwise(rows))
    assert all(height <= 176 for height in placed)
    assert sorted(range(len(placed)), key=placed.__getitem__) == sorted(range(len(heights)), key=heights.__getitem__)


def test_one_model_for_all_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    class Model:
        name, context = "m", 0

        def close(self) -> None:
            opened.append("closed")

    monkeypatch.setattr(
        "cuda_agent.agent.policies.chosen.open_model", lambda settings, ask: opened.append("opened") or Model()
    )
    settings = Settings(model="endpoint:m@http://localhost:1/v1")
    with several(settings, ["search", "model", "mixed"]) as policies:
        made_ = {name: make() for name, make in policies.items()}
    assert made_["search"] is None
    assert [policy.name for policy in made_.values() if policy is not None] == ["model:m", "mixed:m"]
    assert opened == ["opened", "closed"]
    with pytest.raises(UsageError, match="needs a language model"), several(Settings(), ["search", "mixed"]):
        pass
