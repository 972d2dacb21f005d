"""A job asks the editor's language model: whoever answers, however late, the job goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent.models import Limits
from cuda_agent.engine import wire
from cuda_agent.engine.job import Report
from cuda_agent.engine.runner import NO_EDITOR, JobProcess
from cuda_agent.errors import Cancelled, ModelError
from patience import patience

Said = list[tuple[str, Mapping[str, Any]]]


class Engine:
    """Takes what the job says and answers from another thread."""

    def __init__(self, answer: Callable[[Report, Mapping[str, Any]], None]) -> None:
        self.said: Said = []
        self._answer = answer
        self.report = Report(self)  # type: ignore[arg-type]

    def send(self, message: wire.Message) -> None:
        self.said.append((message["method"], message["params"]))
        if message["method"] == "ask":
            threading.Thread(target=self._answer, args=(self.report, message["params"])).start()

    def methods(self) -> list[str]:
        return [method for method, _ in self.said]


def silent(report: Report, asked: Mapping[str, Any]) -> None:
    return


def test_the_answer_comes_back() -> None:
    engine = Engine(lambda report, asked: report.answered(asked["ask"], {"text": asked["request"]["q"] * 2}))
    assert engine.report.ask({"q": "ab"}, Limits()) == {"text": "abab"}
    assert engine.methods() == ["ask"]


def test_two_threads_get_their_own_answers() -> None:
    both = threading.Barrier(2)

    def answer(report: Report, asked: Mapping[str, Any]) -> None:
        both.wait()
        report.answered(asked["ask"], asked["request"])

    engine = Engine(answer)
    found: dict[str, Mapping[str, Any]] = {}
    threads = [
        threading.Thread(target=lambda q=q: found.update({q: engine.report.ask({"q": q}, Limits())})) for q in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": {"q": "a"}, "b": {"q": "b"}}


def test_silence_ends_at_the_limit_and_is_called_off() -> None:
    engine = Engine(silent)
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"no answer within 0 s: .*cudaAgent\.model"):
        engine.report.ask({}, Limits(seconds=0.2))
    assert time.monotonic() - began < patience(1.0)
    assert engine.said[-1] == ("stop", {"ask": 1})
    engine.report.answered(1, {"text": "too late"})  # nobody waits: dropped


@pytest.mark.parametrize("who", ["person", "policy"])
def test_a_cancel_is_heard_at_once(who: str) -> None:
    engine, off = Engine(silent), threading.Event()
    cancel = (lambda: engine.report.stop(True)) if who == "person" else off.set
    threading.Timer(0.2, cancel).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        engine.report.ask({}, Limits(cancelled=off.is_set))
    assert time.monotonic() - began < patience(0.5)
    assert engine.methods() == ["ask", "stop"]


ASKS = """
from cuda_agent.agent.models import Limits

def run(kind, params, report):
    return report.ask({"q": params["q"]}, Limits(seconds=20))
"""


@pytest.mark.parametrize("asks", [True, False])
async def test_a_real_job_asks_and_where_no_editor_is_the_answer_is_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    (tmp_path / "asking.py").write_text(ASKS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    heard: Said = []

    def take(method: str, notice: Mapping[str, Any]) -> None:
        heard.append((method, notice))
        job.answer(notice["ask"], {"text": notice["request"]["q"] + "!"})

    job = JobProcess(take, "asking", asks=asks)
    try:
        answer = await job.run("any", {"q": "🚀"}, str(tmp_path), {})
    finally:
        await job.kill()
    assert answer == ({"text": "🚀!"} if asks else NO_EDITOR)
    assert heard == ([("ask", {"ask": 1, "request": {"q": "🚀"}})] if asks else [])
