"""Recorded searches run again, on the simulated GPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import cache, records
from cuda_agent.agent import loop, recorded
from cuda_agent.agent.memory import Memory
from cuda_agent.errors import Cancelled, NoInputs, SourceError, UsageError
from cuda_agent.model import Candidate
from cuda_agent.replay import Replay, ReplayRequest, Row, _same_in_full, holds, replay
from cuda_agent.workload import bundle
from unit.agent.conftest import memory
from unit.agent.script import Script
from unit.agent.test_loop_timed import Bench, bench, made

__all__ = ["bench", "memory"]
ROUNDS: Sequence[Candidate] = (
    made(90, "a(x=2)"),
    made(50, "b"),
    made(49, "c", "b[:] = a\nreturn 9"),
    made(50, "d", note="again"),
    made(1, "e", "syntax error return"),
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The record of a search with an accepted, a wrong, a twin and a broken candidate."""
    folder = tmp_path_factory.mktemp("recorded")
    path, kept = folder / "record.jsonl", cache.Cache(folder / "memory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Memory", partial(Memory, store=lambda: kept))
        outcome = Bench(folder).run(Script(ROUNDS[:2], ROUNDS[2:]), trajectory=path, recorded=False)
    kept.close()
    assert outcome.status == "verified"
    return path.read_bytes()


@pytest.fixture
def record(bench: Bench, lines: bytes) -> Path:
    """It and its inputs beside the file."""
    bundle.save(bench.path.parent / ".cuda-agent" / "captures" / "axpy", bench.workload)
    path = recorded.new("axpy")
    assert path is not None
    path.write_bytes(lines)
    return path


def again(bench: Bench, record: Path, **more: Any) -> Replay:
    device = bench.fresh_device()
    (done,) = replay(ReplayRequest(record, **more), device=device)
    return done


def changed(record: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the record with each line changed."""
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    for line in lines:
        change(line)
    copy = record.with_name("changed.jsonl")
    copy.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return copy


def test_the_same_verdicts(bench: Bench, record: Path) -> None:
    done = again(bench, record)
    assert (done.holds, done.sentence, done.differs) == (True, "the same verdicts: 6 verdicts", ())
    assert [(row.name, row.then) for row in done.rows] == [
        ("a(x=2)", "passes"),
        ("b", "passes"),
        ("c", "rejected by G3"),
        ("d", "same machine code as b"),
        ("e", "does not compile"),
        ("full verdict on b", "passes, faster"),
    ]
    assert all(row.now == row.then for row in done.rows)
    assert len(recorded.find(())) == 1, "a replay is not recorded"


def test_nothing_from_memory_is_used(bench: Bench, record: Path) -> None:
    device = bench.fresh_device()
    replay(ReplayRequest(record), device=device)
    assert device.jobs > 10


def test_it_does_not_answer_a_later_search(bench: Bench, record: Path) -> None:
    again(bench, record)
    bench.run(Script(ROUNDS[:2], ROUNDS[2:]))
    assert not any("searched before" in event.get("message", "") for event in bench.events)


def test_a_text_that_is_not_what_its_id_says(bench: Bench, record: Path) -> None:
    def tamper(line: dict[str, Any]) -> None:
        if line["step"] == "candidate" and line["origin"] == "rule:b":
            line["text"] = line["text"].replace("a[i]", "a[0]")

    done = again(bench, changed(record, tamper))
    assert done.holds is False
    assert done.rows[1].now == "its text in the record was changed since"
    assert done.sentence == f"1 of the recorded texts were changed since: {ROUNDS[1].id}"


def test_a_verdict_that_is_not_what_it_was(bench: Bench, record: Path) -> None:
    def tamper(line: dict[str, Any]) -> None:
        if line.get("origin") == "rule:c":
            line["status"], line["gates"] = "verified", []

    done = again(bench, changed(record, tamper))
    assert (done.holds, done.sentence) == (False, "1 of 6 verdicts differ")
    assert [row for row in done.rows if not row.same] == [
        Row(ROUNDS[2].id, "c", "passes", "rejected by G3", False),
    ]


def test_another_original(bench: Bench, record: Path) -> None:
    def tamper(line: dict[str, Any]) -> None:
        if line["step"] == "start":
            line["text"] += "\n"

    done = again(bench, changed(record, tamper))
    assert (done.holds, done.rows) == (False, ())
    assert "not the one that its hash was made of" in done.sentence


def test_a_file_that_was_changed(bench: Bench, record: Path) -> None:
    bench.path.write_text("// other\n")
    done = again(bench, record)
    assert done.holds
    assert done.differs == ("x.cu was changed since: the recorded text is taken",)


def test_a_file_that_is_gone(bench: Bench, record: Path) -> None:
    bench.path.unlink()
    done = again(bench, record, inputs=bench.path.parent / ".cuda-agent" / "captures" / "axpy")
    assert done.holds
    assert done.differs[0] == "x.cu was not found here or beside the record: the recorded text is taken"
    with pytest.raises(SourceError, match="--source"):
        again(bench, record, source=bench.path)
    with pytest.raises(NoInputs, match="--inputs FOLDER"):
        again(bench, record)


def test_other_inputs_are_named(bench: Bench, record: Path) -> None:
    def tamper(line: dict[str, Any]) -> None:
        if line["step"] == "start":
            line["inputs_sha256"], line["flags_sha256"], line["device"] = "1", "2", "NVIDIA A100"

    done = again(bench, changed(record, tamper))
    assert done.holds
    assert done.differs == (
        "the compiler's flags are others",
        "the inputs are others than the recorded",
        "device: NVIDIA A100 then, NVIDIA H200 now",
    )


def test_what_the_edit_policy_refuses_is_not_compiled(
    bench: Bench, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote the record, and whoever they say made the candidate."""
    evil = made(50, "b").text.replace("int i", 'asm("trap;"); int i')
    digest = hashlib.sha256(evil.encode()).hexdigest()[:12]

    def tamper(line: dict[str, Any]) -> None:
        if line.get("origin") == "rule:b":
            line["text"], line["id"] = evil, digest

    device = bench.fresh_device()
    compiled: list[str] = []
    real = device.compile
    monkeypatch.setattr(device, "compile", lambda build, text, **more: compiled.append(text) or real(build, text))
    (done,) = replay(ReplayRequest(changed(record, tamper)), device=device)
    assert done.rows[1].now == "rejected by G0"
    assert compiled
    assert evil not in compiled


def test_a_stop_is_no_difference(bench: Bench, record: Path) -> None:
    with pytest.raises(Cancelled):
        replay(ReplayRequest(record), device=bench.fresh_device(), cancelled=lambda: True)


def test_a_gain_that_cannot_be_measured_here_is_not_told() -> None:
    then = {"status": "verified", "gates": [], "faster": True, "timing": {"ratio": 2.0}}
    assert _same_in_full(then, then | {"timing": None, "faster": False}) is None
    assert _same_in_full(then, then | {"faster": False}) is False
    assert _same_in_full(then, then | {"status": "undecided"}) is None
    assert _same_in_full(then, then | {"status": "rejected"}) is False
    assert holds([Replay("", "", True, ""), Replay("", "", None, "")]) is None
    assert holds([Replay("", "", False, ""), Replay("", "", None, "")]) is False


def test_on_a_terminal(bench: Bench, record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.show_replays([again(bench, record)])
    told = capsys.readouterr().out.splitlines()
    assert told[1:3] == ["✓ a(x=2): passes", "✓ b: passes"]
    assert told[-1] == "✓ the same verdicts: 6 verdicts"
    records.show(recorded.read(record))
    shown = capsys.readouterr().out
    assert "axpy in x.cu" in shown
    assert "✗ c: rejected by G3 · reward −1" in shown
    assert "error: expected a ;" in shown or "does not compile" in shown
    records.table(records.rows([]))
    assert "verified" in capsys.readouterr().out


def test_an_export_names_what_it_left_out(record: Path, tmp_path: Path) -> None:
    other = record.with_name("20200101-000000-old-abcdef.jsonl")
    other.write_text('{"step": "start", "kernel": "k"}\n')
    count, skipped = records.export([], tmp_path / "all.jsonl")
    assert (count, skipped) == (1, [f"{other.name} is of another version, or damaged: it is left out"])
    (line,) = (tmp_path / "all.jsonl").read_text().splitlines()
    assert [one["id"] for one in json.loads(line)["candidates"]] == [one.id for one in ROUNDS]


@pytest.mark.parametrize(
    ("step", "change", "words"),
    [
        ("start", {"options": {"rounds": "many"}}, "its option rounds, 'many'"),
        ("start", {"options": {"allow": ["anything"]}}, "its option allow, "),
        ("candidate", {"numeric": "roughly"}, "is damaged"),
        ("candidate", {"launch": {"grid": ["1"]}}, "is damaged"),
        ("candidate", {"assumptions": [1]}, "is damaged"),
    ],
)
def test_a_damaged_record_is_said_to_be(
    bench: Bench, record: Path, step: str, change: dict[str, Any], words: str
) -> None:
    copy = changed(record, lambda line: line.update(change) if line["step"] == step else None)
    with pytest.raises(UsageError, match=words):
        again(bench, copy)


def test_a_conversation_to_be_read(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = {"name": "edit", "arguments": {"old": "a\nb", "new": "c"}}
    said = [
        {"role": "user", "text": "Make it faster."},
        {"role": "assistant", "text": "An example."},
        {"role": "assistant", "text": "x" * 10_000, "calls": [call], "usage": [5, 7]},
        {"role": "tool", "text": "done", "tool": "edit"},
    ]
    lines = record.read_text().splitlines()
    lines[2:2] = [json.dumps({"step": "message", "time": 1.0, **one}) for one in said]
    record.write_text("\n".join(lines) + "\n")
    records.show(records.searches(["last"]))
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    at = shown.index("user")
    assert shown[at + 1] == "  Make it faster."
    assert shown[at + 3] == "model (in the example)"
    assert shown[at + 6 : at + 8] == ["model (7 tokens)", f"  {'x' * 1000}… 9,000 more characters"]
    assert shown[at + 8 : at + 12] == ["  → edit", "    old: a", "      b", "    new: c"]
    assert "  edit" in shown[at + 12 :]
