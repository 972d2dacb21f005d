"""A small model drives a whole optimisation on the emulator, offline. No gain is expected of it: what it calls is done
or refused, the budget ends it, and nothing breaks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from e2e.command import Done, environment, run
from patience import patience

SOFTMAX = Path(__file__).parents[1] / "corpus" / "softmax_rows.cu"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def optimise(model: Path, folder: Path, cache: Path, *limits: str) -> tuple[Done, list[dict[str, Any]]]:
    """The answer, and the steps of its trajectory."""
    shutil.copy(SOFTMAX, folder)
    argv = ["optimize", SOFTMAX.name, "--device", "emulator", "--args", "256 96 1", "--json"]
    argv += ["--policy", "model", "--model", f"transformers:{model}", "--trajectory", "steps.jsonl", *limits]
    done = run(argv, folder, environment(cache), timeout=patience(200))
    return done, [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_tokens_end_it(converted: Path, cache: Path, tmp_path: Path) -> None:
    done, steps = optimise(converted, tmp_path, cache, "--tokens", "6000", "--budget", str(int(patience(100))))
    found = done.check(0).json
    assert found["status"] in ("nothing", "verified")
    assert found["status"] == "verified" or found["diff"] == ""
    assert steps[0]["policy"] == "model:transformers:smollm2-135m"
    assert steps[-1]["step"] == "end"
    replies = [step for step in steps if step.get("role") == "assistant" and "usage" in step]
    assert len(replies) > 1
    for reply in replies:
        assert reply.get("calls") or reply.get("complaint"), "forced: a call, or why there is none"
    answers = [step for step in steps[steps.index(replies[0]) :] if step.get("role") in ("tool", "user")]
    assert answers
    assert all(step["text"] for step in answers)
    used = [sum(reply["usage"]) for reply in replies]
    assert sum(used[:-1]) < 6000, "nothing is asked once they are spent"


def test_seconds_end_it(converted: Path, cache: Path, tmp_path: Path) -> None:
    """In the first reply, most likely: then there is no answer, and the message says so."""
    done, steps = optimise(converted, tmp_path, cache, "--budget", "8")
    assert done.code in (0, 2), done.err
    done.check(done.code)
    assert done.json["status"] == ("undecided" if done.code else "nothing")
    assert not done.code or "did not finish its reply within" in done.json["message"]
    assert steps[0]["step"] == "start"
    assert all(step["time"] < patience(20) for step in steps)
