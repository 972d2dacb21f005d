"""A model behind an OpenAI-compatible server: what is sent, and a defined answer to everything that a server can do."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.utils import formatdate
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cuda_agent.agent.models import Call, Limits, Message, Reply, Tool, Usage, endpoint, open_model
from cuda_agent.agent.models.endpoint import Endpoint
from cuda_agent.agent.models.wire import proxy_of
from cuda_agent.config import Settings
from cuda_agent.errors import Cancelled, ContextOverflow, ModelError, UsageError
from patience import patience
from scripted_model_server import Answer, Entry, Request, ScriptedModel, call, calls, events, flood, raw, refused, say

EDIT = Tool(
    "edit",
    "Replaces text.",
    {
        "type": "object",
        "properties": {"search": {"type": "string"}, "replace": {"type": "string"}, "line": {"type": "integer"}},
        "required": ["search", "replace"],
    },
)
FACTS = Tool("facts", "What the compiler made.", {"type": "object", "properties": {}})
TOOLS = (EDIT, FACTS)
ASKED = (Message("system", "You make kernels faster."), Message("user", "__global__ void k() {}"))
EDITED = Call("edit", {"search": "a", "replace": "b"})
SECRET = "sk-test-3f9c1e7a"

Opened = Callable[..., tuple[ScriptedModel, Endpoint]]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key and no proxy of this machine, and no waiting between tries."""
    for name in ("CUDA_AGENT_API_KEY", "OPENAI_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(endpoint, "BACKOFF", 0.01)


@pytest.fixture
def opened() -> Iterator[Opened]:
    """`opened(script…)`: a server that plays it, and a model that asks it."""
    with ExitStack() as stack:

        def start(*script: Entry, **how: Any) -> tuple[ScriptedModel, Endpoint]:
            server = stack.enter_context(ScriptedModel(script, **how))
            model = Endpoint("scripted", server.url)
            stack.callback(model.close)
            return server, model

        yield start


def ask(model: Endpoint, seconds: float = 60.0, tools: tuple[Tool, ...] = TOOLS, **limits: Any) -> Reply:
    return model.reply(ASKED, tools, Limits(seconds=seconds, **limits))


# What is sent, and what comes back.


def test_a_call_comes_back_with_its_id_and_its_tokens(opened: Opened) -> None:
    server, model = opened(call("edit", search="a", replace="b"))
    reply = ask(model, tokens=300)
    assert reply == Reply("", (Call("edit", EDITED.arguments, "call_1_0"),), Usage(100, 20))
    body = server.requests[0].body
    assert server.requests[0].path == "/v1/chat/completions"
    assert (body["model"], body["stream"], body["max_tokens"], body["tool_choice"]) == (
        "scripted",
        True,
        300,
        "required",
    )
    assert body["stream_options"] == {"include_usage": True}
    assert body["messages"] == [{"role": one.role, "content": one.text} for one in ASKED]
    assert body["tools"][0]["function"] == {"name": "edit", "description": EDIT.text, "parameters": EDIT.parameters}


def test_several_calls_and_their_text(opened: Opened) -> None:
    _, model = opened(calls(("facts", ""), ("edit", '{"search": "a", "replace": "b"}'), text="Both."))
    reply = ask(model)
    assert reply.text == "Both."
    assert [one.name for one in reply.calls] == ["facts", "edit"]


def test_nothing_is_forced_without_force_and_no_tools_are_sent_without_tools(opened: Opened) -> None:
    server, model = opened(say("a"), say('<think>hm</think>{"name": "facts", "arguments": {}}'))
    ask(model, force=False)
    assert "tool_choice" not in server.requests[0].body
    assert ask(model, tools=()).text == '{"name": "facts", "arguments": {}}'
    assert "tools" not in server.requests[1].body


def test_a_conversation_is_sent_as_the_api_has_it(opened: Opened) -> None:
    server, model = opened(say("done"))
    told = [
        *ASKED,
        Message("assistant", "", (Call("facts", {}), EDITED), ""),
        Message("tool", "40 registers", tool="facts"),
        Message("tool", "applied", tool="edit"),
        Message("assistant", "Next.", (Call("facts", {}, "x1"), Call("edit", {}, "x2"))),
        Message("tool", "no such text", call="x2", tool="edit"),
        Message("assistant", "", (Call("facts", {}),)),
        Message("user", "go on"),
    ]
    model.reply(told, TOOLS, Limits())
    sent = server.requests[0].body["messages"][2:]
    assert [one["id"] for one in sent[0]["tool_calls"]] == ["call00000", "call00001"]
    assert sent[0]["tool_calls"][1]["function"] == {"name": "edit", "arguments": '{"search": "a", "replace": "b"}'}
    assert [(one["role"], one["tool_call_id"]) for one in sent[1:3]] == [("tool", "call00000"), ("tool", "call00001")]
    assert sent[3]["content"] == "Next."
    assert [one["id"] for one in sent[3]["tool_calls"]] == ["x2"]  # nobody answered the other
    assert sent[4] == {"role": "tool", "tool_call_id": "x2", "content": "no such text"}
    assert sent[5:] == [{"role": "user", "content": "go on"}]


TEXTS = {
    "tags": '<tool_call>{"name": "edit", "arguments": {"search": "a", "replace": "b"}}</tool_call>',
    "bare": 'I edit. {"name": "edit", "arguments": {"search": "a", "replace": "b"}}',
    "fenced": '```json\n{"name": "edit", "arguments": {"search": "a", "replace": "b"}}\n```',
    "after reasoning": '<think>{"name": "facts"}</think>{"name":"edit","arguments":{"search":"a","replace":"b"}}',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_calls_in_the_text_of_a_server_that_does_not_read_them(opened: Opened, text: str) -> None:
    _, model = opened(say(text))
    assert ask(model).calls == (EDITED,)


def test_a_server_that_does_not_stream(opened: Opened) -> None:
    def whole(message: dict[str, Any], finish: str = "stop") -> Answer:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return raw(json.dumps({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}))

    function = {"name": "edit", "arguments": {"search": "a", "replace": "b"}}
    made = [{"id": "", "type": "function", "function": function}, {"type": "function", "function": {"name": "facts"}}]
    _, model = opened(whole({"content": None, "tool_calls": made}), raw("{not json"), raw("[1]"))
    reply = ask(model)
    assert reply.calls == (EDITED, Call("facts", {}))
    assert reply.usage == Usage(7, 3)
    assert "empty" in ask(model).complaint  # the broken one was asked again


# Servers differ.

NO_TOOLS = "registry.ollama.ai/library/gemma:2b does not support tools"
NO_AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


def test_a_server_that_forces_nothing_is_asked_without(opened: Opened) -> None:
    server, model = opened(call("facts"), call("facts"), refuses={"tool_choice=required": "tool_choice must be auto"})
    assert ask(model).calls
    assert ask(model).calls
    assert ["tool_choice" in one.body for one in server.requests] == [True, False, False]  # remembered
    assert all("tools" in one.body for one in server.requests)


@pytest.mark.parametrize("words", [NO_TOOLS, NO_AUTO, "tools param requires --jinja flag", "Bad Request"])
def test_a_server_without_tools_reads_them_in_the_system_message(opened: Opened, words: str) -> None:
    text = 'Yes. <tool_call>{"name": "edit", "arguments": {"search": "a", "replace": "b"}}</tool_call>'
    server, model = opened(say(text), say(text), refuses={"tools": words})
    reply = ask(model)
    assert (reply.text, reply.calls) == ("Yes.", (EDITED,))
    told = [*ASKED, Message("assistant", reply.text, reply.calls), Message("tool", "applied", tool="edit")]
    model.reply([*told, Message("user", "go on")], TOOLS, Limits())
    assert len([one for one in server.requests if "tools" in one.body]) == 2  # forced, then not; never again
    messages = server.requests[-1].body["messages"]
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user"]
    assert ASKED[0].text in messages[0]["content"]
    assert '"name": "edit"' in messages[0]["content"]
    assert messages[2]["content"] == 'Yes.\n{"name": "edit", "arguments": {"search": "a", "replace": "b"}}'
    schema = server.requests[-1].body["response_format"]["json_schema"]["schema"]
    jsonschema.validate({"name": "edit", "arguments": {"search": "a", "replace": "b"}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "edit", "arguments": {}}, schema)
    assert "applied" in messages[3]["content"]
    assert "go on" in messages[3]["content"]


def test_a_server_without_tools_and_schemas_is_told_the_tags(opened: Opened) -> None:
    refuses = {"tools": NO_TOOLS, "response_format": "response_format.type must be text"}
    server, model = opened(say(TEXTS["tags"]), say(TEXTS["tags"]), refuses=refuses)
    assert ask(model).calls == (EDITED,)
    model.reply([*ASKED, Message("assistant", "", (EDITED,))], TOOLS, Limits())
    system, _, assistant = server.requests[-1].body["messages"]
    assert "<tool_call>" in system["content"]
    assert assistant["content"] == TEXTS["tags"]
    assert "response_format" not in server.requests[-1].body


def test_an_error_that_passes_takes_no_tools_away(opened: Opened) -> None:
    server, model = opened(refused(500, "CUDA error in function softmax"), call("facts"))
    assert ask(model).calls
    assert "tool_choice" in server.requests[1].body


def test_a_server_that_says_so_with_500_is_asked_without_tools(opened: Opened) -> None:
    answers = [refused(500, "tools param requires --jinja flag")] * 2
    server, model = opened(*answers, say('{"name": "facts", "arguments": {}}'))
    assert ask(model).calls
    assert "tools" not in server.requests[2].body


def test_a_template_without_a_system_message(opened: Opened) -> None:
    def strict(request: Any) -> Answer:
        if any(one["role"] == "system" for one in request.body["messages"]):
            return refused(400, "System role not supported")
        return say('{"name": "facts", "arguments": {}}')

    server, model = opened(then=strict)
    assert ask(model).calls == (Call("facts", {}),)
    (message,) = server.requests[-1].body["messages"]
    assert message["role"] == "user"
    assert message["content"].startswith(ASKED[0].text)
    assert message["content"].endswith(ASKED[1].text)


def test_fields_that_a_server_does_not_know_are_left_out(opened: Opened) -> None:
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    server, model = opened(
        call("facts"), refuses={"stream_options": "unknown field stream_options", "max_tokens": words}
    )
    assert ask(model, tokens=9).calls
    body = server.requests[-1].body
    assert body["max_completion_tokens"] == 9
    assert not {"stream_options", "max_tokens"} & body.keys()
    assert body["tool_choice"] == "required"


ODD = {
    "calls without an index": events(
        {"choices": [{"delta": {"tool_calls": [{"id": "a", "function": {"name": "facts", "arguments": "{}"}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"id": "b", "function": {"name": "facts", "arguments": {}}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    ),
    "calls that all have the index 0": events(
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "facts"}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "b", "function": {"name": "facts"}}]}}]},
        "[DONE]",
    ),
    "what no API has": events(
        {"object": "ping"},
        [1, 2],
        "null",
        {"choices": "none", "usage": {"prompt_tokens": -1, "completion_tokens": "many"}},
        {"choices": [{"delta": {"content": 5, "tool_calls": "x", "reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"content": [{"type": "text", "text": '{"name": "facts", "arguments": {}} '}]}}]},
        {"choices": [{"delta": {"content": '{"name": "facts", "arguments": {}}'}, "finish_reason": "stop"}]},
    ),
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
def test_odd_servers_are_understood(opened: Opened, answer: Answer) -> None:
    _, model = opened(answer)
    reply = ask(model)
    assert [one.name for one in reply.calls] == ["facts", "facts"]
    assert reply.usage == Usage()
    assert not reply.complaint


# What a model does wrong is a complaint.

COMPLAINED = {
    "an unknown tool": (call("shell", command="rm"), "There is no tool `shell`: the tools are edit, facts."),
    "a missing argument": (call("edit", search="a"), "`replace` is missing"),
    "arguments that are no JSON": (calls(("edit", '{"search": "a" "b"')), "not JSON"),
    "arguments that are cut": (calls(("edit", '{"search": "a')).but(finish="length"), "`edit` is cut"),
    "an empty reply": (say(""), "it was empty; call one of edit, facts"),
    "an empty reply at the limit": (say("").but(finish="length"), "ended at the limit of tokens"),
    "nothing but reasoning": (
        events({"choices": [{"delta": {"reasoning": "hm"}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}),
        "all of it was reasoning",
    ),
    "arguments that nest deeply": (calls(("facts", '{"a": ' * 400 + "1" + "}" * 400)), "32 levels"),
    "arguments that nest for ever": (calls(("facts", '{"a": ' * 10_000)).but(piece=10_000), "nests too deeply"),
    "a call without a name": (
        events({"choices": [{"delta": {"tool_calls": [{"id": "a"}]}, "finish_reason": "stop"}]}),
        "There is no tool ``",
    ),
}


@pytest.mark.parametrize(("answer", "words"), COMPLAINED.values(), ids=COMPLAINED)
def test_what_the_model_does_wrong_is_said_to_it(opened: Opened, answer: Answer, words: str) -> None:
    _, model = opened(answer)
    reply = ask(model)
    assert reply.calls == ()
    assert words in reply.complaint
    assert reply.cut == (answer.finish == "length")


def test_one_wrong_call_does_not_hide_the_other(opened: Opened) -> None:
    _, model = opened(calls(("shell", {}), ("facts", {})))
    reply = ask(model)
    assert [one.name for one in reply.calls] == ["facts"]
    assert "`shell`" in reply.complaint


# What a server does wrong.


def test_what_may_pass_is_tried_again(opened: Opened) -> None:
    server, model = opened(refused(429), refused(500), refused(502), refused(503), call("facts"))
    assert ask(model).calls
    assert len(server.requests) == 5


def test_what_does_not_pass_ends_with_the_servers_words(opened: Opened) -> None:
    server, model = opened(then=refused(503, "The model is <b>loading</b>\n\x1b[31m" + "… " * 500))
    with pytest.raises(ModelError, match=r"scripted at 127.0.0.1:\d+ .* 503: The model is loading") as told:
        ask(model)
    assert len(server.requests) == endpoint.TRIES
    assert len(str(told.value)) < 450
    assert str(told.value).isprintable()


@pytest.mark.parametrize("date", [False, True])
def test_the_wait_that_a_server_asks_for_is_kept(opened: Opened, date: bool) -> None:
    def wait(request: Request) -> Answer:
        later = formatdate(time.time() + 2, usegmt=True)  # whole seconds: one to two from now
        return refused(429).but(headers={"Retry-After": later}) if date else refused(429, retry_after=1)

    _, model = opened(wait, call("facts"))
    start = time.monotonic()
    assert ask(model).calls
    assert time.monotonic() - start >= 0.9


def test_a_wait_past_the_limit_is_not_begun(opened: Opened) -> None:
    server, model = opened(refused(429, "Rate limit of 3 a day", retry_after=3600))
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"Rate limit of 3 a day.*wait 3600 s"):
        ask(model, seconds=20)
    assert time.monotonic() - start < patience(5)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (refused(401, "Invalid key"), "Invalid key. Set the environment variable CUDA_AGENT_API_KEY"),
        (refused(403, "no access"), "the key may not use this model"),
        (refused(404, "model not found"), "model not found. Check the model's name"),
        (refused(400, "temperature must be 1"), "temperature must be 1"),
        (
            refused(307, location="http://user:pw@evil.example/v1?key=1"),
            "sends requests on to evil.example, which is not",
        ),
        (refused(308, location="/api/v1/"), "sends requests on to another path"),
        (refused(429, "You exceeded your current quota, please check your plan"), "exceeded your current quota"),
        (raw("<html>hello</html>", "text/html"), "answered with text/html, not with a chat"),
        (raw(gzip.compress(b"{}")).but(headers={"Content-Encoding": "gzip"}), "compressed"),
        (say("no").but(finish="content_filter"), "content filter"),
    ],
    ids=["401", "403", "404", "400", "redirect", "path", "spent", "html", "gzip", "filter"],
)
def test_what_cannot_pass_is_told_at_once(opened: Opened, answer: Answer, advice: str) -> None:
    server, model = opened(answer)
    with pytest.raises(ModelError) as told:
        ask(model)
    assert advice.lower() in str(told.value).lower()
    assert "pw" not in str(told.value)
    assert len(server.requests) == 1


OVERFLOWS = [
    refused(400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."),
    raw('{"error":{"code":400,"message":"the request exceeds the available context size (8192 tokens)"}}').but(
        status=400
    ),
    raw('{"detail":[{"loc":["body","messages"],"msg":"prompt is too long: context window 8192"}]}').but(status=422),
    events({"error": {"message": "maximum context length is 8192 tokens", "code": 400}}),
]


@pytest.mark.parametrize("answer", OVERFLOWS, ids=["vLLM", "llama.cpp", "a list", "in the stream"])
def test_too_long_a_conversation_is_an_overflow(opened: Opened, answer: Answer) -> None:
    server, model = opened(answer)
    with pytest.raises(ContextOverflow, match="does not fit into scripted at"):
        ask(model)
    assert model.context == 8192
    assert len(server.requests) == 1


BROKEN = {
    "the connection is cut": (call("edit", search="a" * 400, replace="b").but(cut=4), "the connection was cut"),
    "an event is not JSON": (events('{"choices": [', "[DONE]"), "an event is not JSON"),
    "an event is not text": (raw(b'data: {"a": "\xff"}\n\n', "text/event-stream"), "an event is not JSON"),
    "the stream ends early": (say("I think").but(finish=None, usage=None, sent_as=("{}",)), "the connection ended"),
    "the stream is empty": (raw("", "text/event-stream"), "the connection ended"),
    "an error comes instead": (events({"error": {"message": "CUDA out of memory"}}), "CUDA out of memory"),
    "an error with status 200": (raw('{"error": "upstream is gone"}'), "upstream is gone"),
    "the answer is not JSON": (raw("{"), "the answer is not JSON"),
    "an event nests deeply": (events("[" * 100_000), "an event is not JSON"),
    "an error nests deeply": (events('{"error": ' + '{"error": ' * 400 + '"so"' + "}" * 401), "broke off: so"),
    "an answer nests deeply": (raw('{"a": ' * 100_000), "the answer is not JSON"),
}


@pytest.mark.parametrize(("answer", "words"), BROKEN.values(), ids=BROKEN)
def test_a_reply_that_breaks_off_is_asked_for_once_more(opened: Opened, answer: Answer, words: str) -> None:
    server, model = opened(answer, answer, answer, call("facts"))
    with pytest.raises(ModelError, match=words):
        ask(model)
    assert len(server.requests) == 2
    assert ask(model).calls


def test_a_connection_that_breaks_after_the_reply_is_no_matter(opened: Opened) -> None:
    _, model = opened(call("facts").but(cut=4))  # the role, two pieces of the call, the finish
    assert ask(model).calls


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        model = Endpoint("scripted", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ModelError, match=r"no server answers at 127.0.0.1:\d+ .*ollama serve"):
            ask(model)
        model.close()


def test_a_server_that_speaks_no_tls(opened: Opened) -> None:
    server, _ = opened()
    model = Endpoint("scripted", server.url.replace("http:", "https:"))
    with pytest.raises(ModelError, match="check https"):
        ask(model)
    model.close()


# Time and size.


@pytest.mark.parametrize(
    "answer",
    [call("facts").but(delay=60), say("x" * 4000).but(pause=0.2), call("facts").but(stall=1)],
    ids=["no answer", "a trickle", "silence"],
)
def test_the_limit_is_wall_time(opened: Opened, answer: Answer) -> None:
    _, model = opened(answer)
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"was not done after 0.6 s"):
        ask(model, seconds=0.6)
    assert 0.5 < time.monotonic() - start < patience(3)


def test_a_stream_that_falls_silent_is_left(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SILENCE", 0.3)
    _, model = opened(say("x" * 200).but(stall=3), call("facts").but(delay=0.5, stall=1, silence=0.5))
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"broke off after 80 characters: nothing came for 0.3 s"):
        ask(model)
    assert time.monotonic() - start < patience(3)
    assert ask(model).calls  # the first words may take longer


def test_ten_megabytes_are_not_read(opened: Opened) -> None:
    server, model = opened(call("facts"), flood(64_000_000))
    ask(model)
    tracemalloc.start()
    try:
        reply = ask(model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reply.cut
    assert len(reply.text) == 32 * 4096
    assert peak < 8_000_000
    assert server.requests[1].gone.wait(patience(5))
    assert server.requests[1].sent < 32_000_000  # what the sockets' buffers took


@pytest.mark.parametrize(
    "body", [b'data: {"a": "' + b"x" * 30_000_000, (b": " + b"x" * 1000 + b"\n") * 10_000], ids=["a line", "comments"]
)
def test_one_endless_line_is_not_kept(opened: Opened, body: bytes) -> None:
    _, model = opened(raw(body, "text/event-stream"))
    reply = ask(model)
    assert (reply.text, reply.calls, reply.cut) == ("", (), True)


def test_an_endless_refusal_is_not_read(opened: Opened) -> None:
    _, model = opened(raw(b"no " * 10_000_000, "text/plain").but(status=404))
    with pytest.raises(ModelError) as told:
        ask(model)
    assert len(str(told.value)) < 600


def cancelled_after(seconds: float) -> tuple[Callable[[], bool], Callable[[], float]]:
    """(a `cancelled` that turns True, how long ago that was)"""
    at = time.monotonic() + seconds
    return (lambda: time.monotonic() >= at), (lambda: time.monotonic() - at)


@pytest.mark.parametrize(
    "answer",
    [call("facts").but(delay=60), call("facts").but(stall=2), refused(503, retry_after=50)],
    ids=["before the headers", "in a silent stream", "between two tries"],
)
def test_cancel_does_not_wait(opened: Opened, answer: Answer) -> None:
    server, model = opened(answer, call("facts"))
    cancelled, since = cancelled_after(0.3)
    with pytest.raises(Cancelled):
        ask(model, cancelled=cancelled)
    assert since() < patience(0.5)
    assert ask(model).calls  # and the model can be asked again
    assert len(server.requests) == 2


def test_cancel_does_not_wait_for_a_connection() -> None:
    with socket.socket() as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # fills the queue of connections that nobody accepts
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        model = Endpoint("scripted", f"http://127.0.0.1:{full.getsockname()[1]}/v1")
        stack.callback(model.close)
        cancelled, since = cancelled_after(0.3)
        with pytest.raises(Cancelled):
            ask(model, cancelled=cancelled)
        assert since() < patience(0.5)


def test_who_is_cancelled_before_asking_sends_nothing(opened: Opened) -> None:
    server, model = opened(call("facts"))
    with pytest.raises(Cancelled):
        ask(model, cancelled=lambda: True)
    assert not server.requests


def test_a_model_that_is_closed_says_so(opened: Opened) -> None:
    _, model = opened(call("facts").but(delay=60))
    threading.Timer(0.2, model.close).start()
    with pytest.raises(ModelError, match="closed while it was answering"):
        ask(model)
    with pytest.raises(ModelError, match="closed"):
        ask(model)
    model.close()


# What leaves this machine.


@pytest.mark.parametrize(
    ("environment", "sent"),
    [
        ({"CUDA_AGENT_API_KEY": "one", "OPENAI_API_KEY": "two"}, "Bearer one"),
        ({"CUDA_AGENT_API_KEY": " ", "OPENAI_API_KEY": "two\n"}, "Bearer two"),
        ({}, "Bearer none"),
    ],
)
def test_the_key_comes_from_the_environment(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], sent: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    server, model = opened(call("facts"))
    ask(model)
    assert server.requests[0].headers["authorization"] == sent


def test_nothing_else_leaves(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the client's own environment variables add, not what describes this machine."""
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "admin-1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: 7\nAuthorization: Bearer other")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/elsewhere")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    server, model = opened(call("facts"))
    assert ask(model).calls
    assert server.requests[0].headers == {
        "host": server.url.removeprefix("http://").removesuffix("/v1"),
        "accept": "application/json",
        "content-type": "application/json",
        "content-length": server.requests[0].headers["content-length"],
        "accept-encoding": "identity",
        "authorization": "Bearer none",
        "user-agent": "cuda-agent",
    }


def test_a_proxy_is_for_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "gpu.example")
    assert proxy_of("https", "api.example") == "http://proxy.example:3128"
    assert proxy_of("https", "gpu.example") is None
    assert proxy_of("http", "api.example") is None


ECHOES: list[Entry] = [
    refused(401, f"Incorrect API key provided: {SECRET}. You can find it at …"),
    raw(f"<pre>Authorization: Bearer {SECRET}</pre>", "text/html").but(status=400),
    refused(307, location=f"http://{SECRET}@127.0.0.1:9/{SECRET}"),
    refused(429, f"{SECRET} is over its limit", retry_after=900),
    events({"error": {"message": f"bad key {SECRET}"}}),
    raw("{"),
    call("facts").but(cut=1),
]


def test_the_key_is_nowhere_to_be_seen(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in a log record at any level, an exception or what caused it, a repr, or a reply, even where the server
    repeats it."""
    monkeypatch.setenv("CUDA_AGENT_API_KEY", SECRET)
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "openai")
    seen: list[str] = []
    for answer in ECHOES:
        assert isinstance(answer, Answer)
        server, model = opened(then=answer)
        try:
            seen.append(repr(ask(model)))
        except ModelError as error:
            one: BaseException | None = error
            while one is not None:
                request = getattr(one, "request", None)
                seen += [str(one), repr(one), repr(one.args)] + ([repr(request.headers.raw)] if request else [])
                one = one.__cause__ or one.__context__
        assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
        seen += [repr(model), str(vars(model).get("_client")), model.name]
    _, model = opened(
        say(f"my key is {SECRET}"), calls(("edit", {"search": SECRET, "replace": f"x{SECRET}"})).but(piece=3)
    )
    seen += [repr(ask(model)), repr(ask(model))]
    seen += [f"{record.getMessage()} {record.args!r} {record.exc_text}" for record in caplog.records]
    assert {"openai._base_client", "httpx2"} <= {record.name for record in caplog.records}
    assert [one for one in seen if SECRET in one] == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://me:hunter2@127.0.0.1:1/v1", "holds a user or a password"),
        ("http://hunter2@127.0.0.1:1/v1", "holds a user or a password"),
        ("https://api.example/v1?key=hunter2", "ends in a query"),
        ("http://127.0.0.1:hunter2/v1", "is none"),
        ("ftp://hunter2/v1", "is none"),
        ("", "is none"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_repeating_it(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as told:
        Endpoint("scripted", url)
    assert "hunter2" not in str(told.value)


def test_a_key_that_no_header_can_carry_is_refused_without_repeating_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2\r\nX-Other: 1")
    with pytest.raises(ModelError, match="OPENAI_API_KEY holds no key") as told:
        Endpoint("scripted", "http://127.0.0.1:1")
    assert "hunter2" not in str(told.value)


def test_a_url_without_a_path_gets_the_usual_one() -> None:
    for url, used in [
        ("http://h:1", "http://h:1/v1"),
        ("https://h/", "https://h/v1"),
        ("http://h/api/v3/", "http://h/api/v3"),
    ]:
        model = Endpoint("scripted", url)
        assert model.url == used
        model.close()


def test_a_folder_on_the_server_is_no_name() -> None:
    model = Endpoint("/srv/models/qwen3-coder/", "http://127.0.0.1:1")
    assert model.name == "endpoint:qwen3-coder"
    model.close()


def test_the_setting_opens_it(opened: Opened) -> None:
    server, _ = opened(call("facts"))
    model = open_model(Settings(model=server.spec))
    assert model.name == "endpoint:scripted"
    assert model.reply(ASKED, TOOLS, Limits()).calls
    model.close()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delitem(sys.modules, "cuda_agent.agent.models.endpoint")
    with pytest.raises(ModelError, match=r"needs the package openai: pip install"):
        open_model(Settings(model="endpoint:scripted@http://127.0.0.1:1/v1"))


def test_only_an_endpoint_loads_the_client() -> None:
    code = "import sys, cuda_agent.agent.models, cuda_agent.agent.models.parse; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent).returncode == 0
