"""Recorded searches: what is written is read back, nothing of the machine is in it, and the page says what the code
does."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.agent import recorded, reward, trajectory
from cuda_agent.agent.recorded import Recorded
from cuda_agent.agent.reward import Rules
from cuda_agent.agent.trajectory import STEPS, Trajectory, applications, hider, misfits
from cuda_agent.errors import UsageError
from cuda_agent.model import Timing
from unit.agent.script import Script
from unit.agent.test_loop_timed import Bench, bench, made

__all__ = ["bench"]
ROOT = Path(__file__).parents[3]

# ---------------------------------------------------------------- lines

PLAIN = st.text(st.characters(exclude_characters="/"), max_size=20)  # nothing that could be a folder
NUMBER = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(PLAIN | NUMBER | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=3))
KINDS: Mapping[str, st.SearchStrategy[Any]] = {
    "text": PLAIN,
    "number": NUMBER,
    "whole": st.integers(-(2**40), 2**40),
    "flag": st.booleans(),
    "list": st.lists(JSON, max_size=3),
    "pair": st.lists(st.integers(0, 2**40), min_size=2, max_size=2),
    "object": st.dictionaries(PLAIN, JSON, max_size=3),
    "numbers": st.dictionaries(PLAIN, NUMBER, max_size=3),
    "gates": st.lists(st.lists(PLAIN, min_size=3, max_size=3), max_size=3),
    "timing": st.fixed_dictionaries({"ratio": NUMBER, "ci": st.lists(NUMBER, min_size=2, max_size=2)}),
    "calls": st.lists(st.fixed_dictionaries({"name": PLAIN, "arguments": st.dictionaries(PLAIN, JSON)}), max_size=2),
}


@st.composite
def steps(draw: st.DrawFn, name: str | None = None) -> tuple[str, dict[str, Any]]:
    step = name or draw(st.sampled_from([step for step in STEPS if step not in ("start", "cut")]))
    fields = {field: draw(KINDS[kind.rstrip("?")]) for field, kind in STEPS[step].items()}
    for field, kind in STEPS[step].items():
        if kind.endswith("?") and draw(st.booleans()):
            del fields[field]
    return step, fields | ({"schema": trajectory.SCHEMA} if step == "start" else {})


SEARCH = st.tuples(steps("start"), st.lists(steps(), max_size=6)).map(lambda pair: [pair[0], *pair[1]])


@given(st.lists(SEARCH, min_size=1, max_size=3), st.integers(0, 40))
def test_what_is_written_is_read_back(searches: list[list[tuple[str, dict[str, Any]]]], lost: int) -> None:
    """Also when the last line is cut off: that one is left out, and named."""
    folder = Path(os.environ["PYTEST_TRAJECTORIES"])
    path = folder / "t.jsonl"
    path.unlink(missing_ok=True)
    writer = Trajectory([path], Path("/nowhere/at/all"))
    for step, fields in (line for search in searches for line in search):
        writer.append(step, **fields)
    found = recorded.read(path)
    assert [[(line["step"], _own(line)) for line in one.lines] for one in found] == searches
    assert [one.skipped for one in found] == [()] * len(searches)
    assert [problem for one in found for line in one.lines for problem in misfits(line)] == []

    data = path.read_bytes()
    last = len(data) - data[:-1].rfind(b"\n") - 1
    path.write_bytes(data[: -min(lost + 2, last - 1)])
    lines = [line for search in searches for line in search][:-1]
    if lines:
        again = recorded.read(path)
        assert [(line["step"], _own(line)) for one in again for line in one.lines] == lines
        assert [sentence for one in again for sentence in one.skipped][-1].endswith(
            "cut off or no JSON: it is left out"
        )


def _own(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("step", "time")}


@pytest.fixture(autouse=True)
def trajectories_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_TRAJECTORIES", str(tmp_path_factory.mktemp("t")))


FOREIGN = {
    "[1, 2]": "is no step of a trajectory",
    '{"step": "walk", "time": 1}': "is no step of a trajectory",
    '{"step": "shortened", "time": 1}': "has no dropped",
    '{"step": "shortened", "time": 1, "dropped": "two"}': "has dropped that is no whole",
    '{"step": "message", "time": 1, "role": "assistant", "calls": [{}]}': "has calls that is no calls",
    '{"step": "start", "schema": 99}': "begins a search of another version (99; this one reads 1)",
    "[" * 100_000: "is cut off or no JSON",
    "\udc80": "is cut off or no JSON",
}


def test_foreign_lines_are_left_out_and_named(search: Recorded, tmp_path: Path) -> None:
    ours = [json.dumps(line) for line in search.lines]
    path = tmp_path / "mixed.jsonl"
    path.write_bytes("\n".join([*ours[:3], *FOREIGN, "", *ours[3:]]).encode("utf-8", "surrogateescape"))
    (found,) = recorded.read(path)
    assert found.lines == search.lines
    assert list(found.skipped) == [
        f"mixed.jsonl, line {number} {why}: it is left out" for number, why in enumerate(FOREIGN.values(), 4)
    ]


def test_a_file_without_a_search(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text('{"step": "end"}\n')
    with pytest.raises(UsageError, match=r"holds no recorded search: notes.txt, line 1 has no"):
        recorded.read(path)
    with pytest.raises(UsageError, match="No such file"):
        recorded.read(tmp_path / "gone.jsonl")


def test_no_folder_of_this_machine_is_written(tmp_path: Path) -> None:
    home = str(Path.home())
    fields = {
        "message": f"{tmp_path}/x.cu:3: error; {home}/.netrc; /opt/secret/place/y.h:1; 3/4 of a/b",
        "text": "/a/b",
    }
    hidden = hider(tmp_path)("end", fields)
    assert hidden == {"message": "./x.cu:3: error; ~/.netrc; …/y.h:1; 3/4 of a/b", "text": "…/b"}
    kept = f'#include "{tmp_path}/x.h"'
    assert hider(tmp_path)("candidate", {"text": kept, "log": kept}) == {"text": kept, "log": '#include "./x.h"'}
    code = "x = y /a/b; // in/out"
    assert hider(tmp_path)("message", {"role": "tool", "text": code}) == {"role": "tool", "text": code}


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    Trajectory([path]).append("features", features={"a": float("nan")}, inside=[float("-inf")])
    line = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert (line["features"], line["inside"]) == ({"a": "nan"}, ["-inf"])


def test_a_search_that_is_too_long_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory, "LIMIT", 200)
    writer = Trajectory([tmp_path / "t.jsonl"])
    for number in range(20):
        writer.append("shortened", dropped=number)
    writer.append("end", status="nothing")
    written = [json.loads(line)["step"] for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert written[-2:] == ["cut", "end"]
    assert 3 < len(written) < 10


def test_the_oldest_are_forgotten(tmp_path: Path, setting: Any) -> None:
    setting(cache_size_mb=16)  # two for trajectories
    where = recorded.folder()
    where.mkdir()
    for age, name in enumerate("abcd"):
        (where / f"{name}.jsonl").write_bytes(bytes(700 << 10))
        os.utime(where / f"{name}.jsonl", (10**9 - age, 10**9 - age))
    new = recorded.new("ns::kernel<float>")
    assert new is not None
    assert re.fullmatch(r"\d{8}-\d{6}-ns_kernel_float-[0-9a-f]{6}", new.stem)
    assert new.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in where.iterdir() if path != new) == ["a.jsonl", "b.jsonl"]


def test_applications() -> None:
    assert applications("rule:tile(x=32, y=a+b)+restrict+unroll(4)") == [
        {"rule": "tile", "params": {"x": 32, "y": "a+b"}},
        {"rule": "restrict", "params": {}},
        {"rule": "unroll", "params": {"0": 4}},
    ]
    assert applications("model:endpoint:x+restrict") == [{"rule": "restrict", "params": {}}]


# ---------------------------------------------------------------- the page


def test_the_page_names_every_field() -> None:
    page = (ROOT / "docs" / "trajectories.md").read_text()
    described: dict[str, dict[str, str]] = {}
    for part in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        table = rest.partition("\n## ")[0]
        described[name] = dict(re.findall(r"^\| `(\w+)` \| ([\w?]+) \|", table, re.MULTILINE))
    assert described == {step: dict(fields) for step, fields in STEPS.items()}


# ---------------------------------------------------------------- of a real search


@pytest.fixture
def search(bench: Bench) -> Recorded:
    outcome = bench.run(Script([made(90, "a(x=2)"), made(50, "b"), made(49, "c", "b[:] = a\nreturn 9")]))
    (path,) = recorded.find(())
    assert outcome.trajectory == path.stem
    return recorded.read(path)[0]


def test_a_search_is_recorded_without_being_asked_to(search: Recorded, bench: Bench) -> None:
    assert [line["step"] for line in search.lines] == [
        "start", "features", "action", "candidate", "candidate", "candidate", "full", "end"
    ]  # fmt: skip
    start, end = search.start, search.end
    assert (start["file"], start["kernel"], start["inputs"], start["launches"]) == ("x.cu", "axpy", "captured", 1)
    assert start["text"] == bench.path.read_text()
    assert start["budget"]["candidates"] == 200
    assert start["options"]["rounds"] == 12
    features = search.of("features")[0]["features"]
    assert (features["loads_4"], features["stores_4"], features["warp_sectors"]) == (1, 1, 8)
    assert (features["blocks"], features["threads"], features["limit_latency"]) == (1, 64, 1)
    assert features["headroom"] > 1
    assert end is not None
    assert (end["status"], end["tried"], end["reward"], end["faster"]) == ("verified", 3, 2, True)
    assert str(bench.path.parent) not in json.dumps(search.lines)


def test_each_candidate_has_what_it_takes_to_learn_from_it(search: Recorded) -> None:
    slow, fast, wrong = search.of("candidate")
    assert slow["rules"] == [{"rule": "a", "params": {"x": 2}}]
    assert (slow["status"], slow["reward"], fast["reward"]) == ("verified", 2, 2)
    assert fast["timing"]["ci"][0] <= fast["timing"]["ratio"] <= fast["timing"]["ci"][1]
    assert len(fast["sass"]) == 1
    assert fast["mark"] != slow["mark"]
    assert fast["features"]["loads_4"] == 1
    assert (wrong["status"], wrong["reward"], wrong["score"]) == ("rejected", -1, None)
    assert search.of("full")[0]["id"] == fast["id"]
    assert len(search.of("full")[0]["gates"]) == 15


def test_a_remembered_answer_is_no_search(search: Recorded, bench: Bench) -> None:
    again = bench.run(Script([made(90, "a(x=2)"), made(50, "b"), made(49, "c", "b[:] = a\nreturn 9")]))
    assert again.status == "verified"
    assert len(recorded.find(())) == 1


def test_it_can_be_turned_off(bench: Bench, setting: Any) -> None:
    setting(trajectories=False)
    assert bench.run(Script([made(50, "b")])).trajectory == ""
    assert recorded.find(()) == []


def test_a_search_that_breaks_has_an_end(bench: Bench) -> None:
    stopped: list[int] = []
    with pytest.raises(Exception, match="stopped"):
        bench.run(Script([], [made(50, "b")], before=stopped.append), cancelled=lambda: True)
    end = recorded.read(recorded.find(["last"])[0])[0].end
    assert end is not None
    assert (end["status"], end.get("reward")) == ("stopped", None)


def test_the_list(search: Recorded) -> None:
    ((name, start, end),) = recorded.summaries(recorded.find(()))
    row = recorded.row(name, start, end)
    assert (row["kernel"], row["policy"], row["tried"], row["reward"]) == ("axpy", start["policy"], 3, 2)
    assert row["gain"].startswith("2.0")
    assert recorded.row(name, start, None)["status"] == "not ended"
    assert recorded.find([name[-6:]]) == recorded.find(["last"]) == recorded.find([name])
    with pytest.raises(UsageError, match="is no recorded search"):
        recorded.find(["nothing like it"])


def test_export(search: Recorded) -> None:
    data = recorded.export(search)
    assert json.loads(json.dumps(data)) == data
    assert (data["kernel"], data["reward"], len(data["candidates"])) == ("axpy", 2, 3)
    assert data["verdicts"][0]["status"] == "verified"
    assert data["messages"] == []


def test_messages_in_the_usual_chat_format() -> None:
    call = {"name": "edit", "arguments": {"old": "a"}, "id": "1"}
    assert recorded.chat({"role": "assistant", "calls": [call]}) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "edit", "arguments": '{"old": "a"}'}}],
    }
    assert recorded.chat({"role": "tool", "text": "done", "call": "1", "tool": "edit"}) == {
        "role": "tool",
        "content": "done",
        "tool_call_id": "1",
        "name": "edit",
    }


# ---------------------------------------------------------------- rewards


def timing(low: float) -> Timing:
    return Timing(low + 0.01, (low, low + 0.02), 100.0, 50.0, "gpu", "FASTER")


@pytest.mark.parametrize(
    ("low", "rules", "earned"),
    [
        (0.9, None, 1),
        (1.05, None, 1),
        (1.06, None, 2),
        (9.0, None, 2),
        (1.06, Rules(1.0, "x"), 3),
        (1.5, Rules(1.45, "x"), 2),
        (1.53, Rules(1.45, "x"), 3),
        (1.04, Rules(0.5, "x"), 1),
    ],
)
def test_rewards(low: float, rules: Rules | None, earned: int) -> None:
    assert reward.of_timing(timing(low), rules) == earned


def test_the_emulator_earns_one_at_most() -> None:
    assert reward.of_timing(None, Rules(1.0, "x")) == 1


class Modelled(Script):
    """Rules first, then what a model might write."""

    def __init__(self, *rounds: Any) -> None:
        super().__init__(*rounds)
        self.name = "mixed:scripted"


def by_model(us: float) -> Any:
    return replace(made(us), origin="model:scripted")


def test_a_model_is_held_against_the_best_rule_search_that_is_known(bench: Bench, tmp_path: Path) -> None:
    rules = Script([made(50, "b")])
    rules.name = "search"
    known = bench.run(rules).trajectory
    bench.run(Modelled([by_model(49)], [by_model(30)]))
    found = recorded.read(recorded.find(["last"])[0])[0]
    assert [line["reward"] for line in found.of("candidate")] == [2, 3]
    assert found.end is not None
    assert found.end["reward"] == 3
    assert found.end["rules"]["from"] == known
    assert found.end["rules"]["ratio"] == pytest.approx(2, rel=0.03)


def test_or_against_the_rules_of_the_same_search(bench: Bench) -> None:
    bench.run(Modelled([made(40, "b")], [by_model(50)], [by_model(20)]))
    found = recorded.read(recorded.find(["last"])[0])[0]
    assert [line["reward"] for line in found.of("candidate")] == [2, 2, 3]
    assert found.end is not None
    assert found.end["rules"]["from"] == "this search"


def test_without_one_three_is_not_given(bench: Bench) -> None:
    bench.run(Modelled([by_model(10)]))
    found = recorded.read(recorded.find(["last"])[0])[0]
    assert found.end is not None
    assert (found.end["reward"], found.end.get("rules")) == (2, None)


def test_a_twin_earns_what_the_first_did(bench: Bench) -> None:
    one = made(50, "b")
    twin = replace(one, text=one.text.replace("//", "/* */ //"), id="twin", origin="rule:c")
    same = replace(one, text=one.original.replace("int i", "int  i"), id="same", origin="rule:d")
    bench.run(Script([one, twin, same]))
    found = recorded.read(recorded.find(["last"])[0])[0]
    assert [line["reward"] for line in found.of("candidate")] == [2, 2, 1]
    assert [line["twin"] for line in found.of("candidate")] == [False, True, False]
