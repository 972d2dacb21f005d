"""A real OpenAI-compatible server, `transformers serve`, with the small model behind it, and the endpoint backend."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.agent.models import Call, Limits, Message, Model, Tool, open_model
from cuda_agent.config import Settings
from cuda_agent.errors import ModelError
from patience import patience

WEATHER = Tool(
    "weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)


def example(city: str, number: str) -> list[Message]:
    return [
        Message("user", f"What is the weather in {city}?"),
        Message("assistant", "", (Call("weather", {"city": city}, number),)),
        Message("tool", "sunny", call=number, tool="weather"),
        Message("assistant", f"It is sunny in {city}."),
    ]


# So small a model calls a tool when it has seen it done, and not otherwise.
TALK = [
    Message("system", "Answer with one tool call."),
    *example("Rome", "call00000"),
    *example("Oslo", "call00001"),
    Message("user", "What is the weather in Paris?"),
]


@pytest.fixture(scope="module")
def url(converted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    program = Path(sys.executable).with_name("transformers")
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [program, "serve", converted.name, *options], cwd=converted.parent, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


def _wait(health: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + patience(90)
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(health, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.3)
    pytest.fail(f"the server did not come up: {log.read_text()}")


@pytest.fixture(scope="module")
def model(url: str, converted: Path) -> Iterator[Model]:
    opened = open_model(Settings(model=f"endpoint:{converted.name}@{url}"))
    yield opened
    opened.close()


def test_a_turn_with_a_tool_call(model: Model) -> None:
    assert model.name == "endpoint:smollm2-135m"
    reply = model.reply(TALK, [WEATHER], Limits(tokens=60, seconds=patience(60)))
    (call,) = reply.calls
    assert (call.name, call.arguments, reply.complaint) == ("weather", {"city": "Paris"}, "")
    assert call.id, "the server read the call out of the text and named it"
    assert reply.usage.prompt > 100
    assert 10 < reply.usage.completion <= 60
    answered = [*TALK, Message("assistant", reply.text, reply.calls)]
    answered.append(Message("tool", "rain", call=call.id, tool="weather"))
    last = model.reply(answered, [WEATHER], Limits(tokens=30, seconds=patience(60), force=False))
    assert last.text or last.calls


def test_a_reply_is_cut_at_its_tokens(model: Model) -> None:
    reply = model.reply([Message("user", "Tell a long story.")], [], Limits(tokens=4, seconds=patience(60)))
    assert reply.cut
    assert reply.text


def test_a_model_that_the_server_does_not_have(url: str) -> None:
    other = open_model(Settings(model=f"endpoint:other@{url}"))
    try:
        with pytest.raises(ModelError, match="other"):
            other.reply([Message("user", "Hello.")], [], Limits(tokens=4, seconds=patience(60)))
    finally:
        other.close()
