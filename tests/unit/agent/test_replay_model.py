"""A model's search on the emulator, run again from its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent import recorded
from cuda_agent.agent.policies.mixed import Mixed
from cuda_agent.agent.policies.model import ModelPolicy
from cuda_agent.agent.policies.replayed import replies
from cuda_agent.replay import Replay, ReplayRequest, replay
from cuda_agent.workload import bundle
from scripted_model import Scripted, both, call
from unit.agent.test_loop import GOOD, WRONG, Bench, bench, device, pytestmark

__all__ = ["bench", "device", "pytestmark"]
EVIL = "#include </etc/passwd>\n" + GOOD


def kernel(text: str) -> Any:
    return call("replace_kernel", code=text, why="neighbours touch neighbours")


LINES = (
    call("limits"),
    kernel(WRONG),
    both(call("verify"), call("read")),
    kernel(EVIL),
    call("verify"),
    call("start_from", which="original"),
    call("edit", old="i * 33 % n", new="i"),
    call("verify"),
    call("submit"),
)


def recording(bench: Bench, policy: Any) -> Path:
    bundle.save(bench.folder / ".cuda-agent" / "captures" / "twice", bench.workload(lambda i: 1.0 + i % 97))
    bench.run(policy, max_candidates=14)
    return recorded.find(["last"])[0]


def again(bench: Bench, record: Path) -> Replay:
    (done,) = replay(ReplayRequest(record), device=bench.device)
    return done


@pytest.fixture
def record(bench: Bench) -> Path:
    return recording(bench, ModelPolicy(Scripted(*LINES)))


def test_what_the_model_said_leads_to_the_same_verdicts(bench: Bench, record: Path) -> None:
    done = again(bench, record)
    assert [row.now for row in done.rows] == ["rejected by G3", "rejected by G0", "passes", "passes"]
    assert (done.holds, done.differs) == (True, ())


def test_the_record_has_what_the_model_did(record: Path) -> None:
    (found,) = recorded.read(record)
    assert [line["name"] for line in found.of("action")][:4] == ["limits", "replace_kernel", "verify", "replace_kernel"]
    ids = [line["id"] for line in found.of("candidate")]
    assert [line["candidates"][0] for line in found.of("action") if line.get("candidates")] == ids
    assert (found.start["policy"], found.start["model"]) == ("model:scripted", "scripted")
    assert found.start["prompts"] == found.of("prompts")[0]["hash"]
    assert [reply.calls[0].name for reply in replies(found)] == [line.calls[0].name for line in LINES]
    chat = recorded.export(found)["messages"]
    assert [message["role"] for message in chat[:2]] == ["system", "user"]
    asked = {call["id"] for message in chat for call in message.get("tool_calls", ())}
    assert {message["tool_call_id"] for message in chat if message["role"] == "tool"} <= asked


def test_other_words_of_the_model_are_found(bench: Bench, record: Path) -> None:
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    for line in lines:
        for said in line.get("calls", ()) if line["step"] == "message" else ():
            if said["name"] == "edit" and said["arguments"]["new"] == "i":
                said["arguments"]["new"] = "i + 0"
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = again(bench, record)
    assert done.holds is False
    assert "another text came of it" in done.rows[2].now


def test_a_mixed_search_begins_where_it_began(bench: Bench) -> None:
    scripted = Scripted(call("edit", old="i * 33 % n", new="i"), call("verify"), call("submit"))
    done = again(bench, recording(bench, Mixed(ModelPolicy(scripted, from_best=True))))
    assert done.holds, done.rows
    assert done.rows[-2].name.startswith("model:scripted")
    assert len(done.rows) > 2
