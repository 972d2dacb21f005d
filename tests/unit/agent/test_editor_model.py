"""The editor's own language model: what it is asked, and what becomes of each answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from cuda_agent.agent.models import Call, Limits, Message, Tool, Usage
from cuda_agent.agent.models.editor import KINDS, Editor
from cuda_agent.errors import Cancelled, ContextOverflow, ModelError

NAMED = {"model": {"name": "gpt-x", "context": 8000}}
EDIT = Tool("edit", "Replace a text.", {"type": "object", "properties": {"old": {"type": "string"}}})
CALL = {"id": "1", "name": "edit", "arguments": {"old": "a"}}


class Client:
    """Answers in order; keeps what it was asked."""

    def __init__(self, *answers: Mapping[str, Any]) -> None:
        self.answers = [NAMED, *answers]
        self.asked: list[Mapping[str, Any]] = []

    def __call__(self, request: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
        self.asked.append(request)
        return self.answers.pop(0)


def failed(kind: str, message: str = "so it said.") -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message}}


def test_it_is_named_before_anything_is_sent() -> None:
    client = Client()
    model = Editor("fast", client)
    assert (model.name, model.context) == ("editor:gpt-x", 8000)
    assert client.asked[0]["messages"] == []
    assert client.asked[0]["id"] == "fast"


def test_messages_tools_and_force_go_out_and_calls_come_back() -> None:
    client = Client({**NAMED, "text": "I will.", "calls": [CALL], "usage": {"prompt": 7, "completion": 3}})
    messages = [
        Message("system", "s"),
        Message("assistant", "", (Call("edit", {"old": "x"}, "0"),)),
        Message("tool", "done", call="0", tool="edit"),
    ]
    reply = Editor("", client).reply(messages, [EDIT], Limits(tokens=99))
    assert reply.text == "I will."
    assert reply.calls == (Call("edit", {"old": "a"}, "1"),)
    assert reply.usage == Usage(7, 3)
    assert not reply.cut
    assert client.asked[1] == {
        "id": "",
        "messages": [
            {"role": "system", "text": "s", "calls": [], "call": "", "tool": ""},
            {
                "role": "assistant",
                "text": "",
                "calls": [{"id": "0", "name": "edit", "arguments": {"old": "x"}}],
                "call": "",
                "tool": "",
            },
            {"role": "tool", "text": "done", "calls": [], "call": "0", "tool": "edit"},
        ],
        "tools": [{"name": "edit", "description": "Replace a text.", "inputSchema": EDIT.parameters}],
        "force": True,
        "tokens": 99,
    }


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("tooLong", "other")])
def test_each_refusal_is_a_sentence_that_says_what_to_do(kind: str) -> None:
    with pytest.raises(ModelError) as told:
        Editor("", Client(failed(kind))).reply([Message("user", "u")], [], Limits())
    assert ": so it said. " in str(told.value)
    assert " editor:gpt-x" in str(told.value)
    assert "again" in str(told.value) or "cudaAgent.model" in str(told.value)


def test_no_provider_is_said_before_the_search() -> None:
    client = Client()
    client.answers = [failed("noProvider", "no extension here brings one")]
    with pytest.raises(
        ModelError, match=r"no language model editor:o1: no extension here brings one\. Sign in .*endpoint:NAME@URL"
    ):
        Editor("o1", client)


def test_an_editor_that_names_none() -> None:
    client = Client()
    client.answers = [{"text": ""}]
    with pytest.raises(ModelError, match="does not say which language model it has"):
        Editor("", client)


def test_too_many_messages_are_an_overflow() -> None:
    with pytest.raises(ContextOverflow, match="cannot hold so many messages: so it said"):
        Editor("", Client(failed("tooLong"))).reply([Message("user", "u")], [], Limits())


@pytest.mark.parametrize("kind", ["other", "something new", ["a list"]])
def test_what_fails_for_no_known_reason_is_tried_once_more(kind: Any) -> None:
    client = Client(failed(kind, "socket hang up"), {**NAMED, "text": "now"})
    assert Editor("", client).reply([Message("user", "u")], [], Limits()).text == "now"
    client = Client(failed(kind, "socket hang up"), failed(kind, "still"))
    with pytest.raises(ModelError, match="editor:gpt-x failed: still"):
        Editor("", client).reply([Message("user", "u")], [], Limits())
    client = Client(failed(kind, "socket hang up"))
    with pytest.raises(ModelError, match="editor:gpt-x failed: socket hang up"):  # no time for another try
        Editor("", client).reply([Message("user", "u")], [], Limits(seconds=0.5))


def test_a_cancel_ends_the_wait_for_another_try() -> None:
    model = Editor("", Client(failed("other")))
    began = time.monotonic()
    with pytest.raises(Cancelled):
        model.reply([Message("user", "u")], [], Limits(cancelled=lambda: True))
    assert time.monotonic() - began < 0.5


def test_ended_by_our_own_cancel() -> None:
    with pytest.raises(Cancelled):
        Editor("", Client(failed("cancelled"))).reply([Message("user", "u")], [], Limits(cancelled=lambda: True))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"name": "erase", "arguments": {}}, "no tool `erase`: the tools are edit"),
        ({"name": "edit", "arguments": [1]}, "its arguments must be a JSON object"),
        ({"name": "edit", "arguments": {"old": 3}}, "The call of `edit` was not run"),
        ("edit", "A call is a JSON object"),
    ],
)
def test_a_call_that_cannot_be_made_is_complained_about(call: Any, says: str) -> None:
    client = Client({**NAMED, "text": "", "calls": [call, CALL], "cut": True})
    reply = Editor("", client).reply([Message("user", "u")], [EDIT], Limits())
    assert says in reply.complaint
    assert reply.calls == (Call("edit", {"old": "a"}, "1"),)
    assert reply.cut


def test_a_provider_without_tools_writes_its_calls_into_the_text() -> None:
    text = 'I change it.\n<tool_call>{"name": "edit", "arguments": {"old": "a"}}</tool_call>'
    reply = Editor("", Client({**NAMED, "text": text})).reply([Message("user", "u")], [EDIT], Limits())
    assert reply.calls == (Call("edit", {"old": "a"}, "text-1"),)  # an editor matches results by ids
    assert reply.text == "I change it."
    reply = Editor("", Client({**NAMED, "text": "<tool_call>{'name': edit}"})).reply([], [EDIT], Limits())
    assert reply.calls == ()
    assert reply.complaint


def test_a_model_that_is_given_no_tools_finds_them_in_the_first_message() -> None:
    client = Client({"text": '<tool_call>{"name": "edit", "arguments": {"old": "a"}}</tool_call>'})
    client.answers[0] = {"model": {"name": "plain", "tools": False}}
    messages = [
        Message("system", "s"),
        Message("assistant", "So.", (Call("edit", {"old": "b"}, "example-1"),)),
        Message("tool", "done", call="example-1", tool="edit"),
    ]
    reply = Editor("", client).reply(messages, [EDIT], Limits())
    assert reply.calls == (Call("edit", {"old": "a"}, "text-1"),)
    asked = client.asked[1]
    assert asked["tools"] == []
    assert all(not message["calls"] for message in asked["messages"])
    system, example, result = (message["text"] for message in asked["messages"])
    assert system.startswith("s\n\n")
    assert '"name": "edit"' in system
    assert example == 'So.\n<tool_call>{"name": "edit", "arguments": {"old": "b"}}</tool_call>'
    assert "done" in result


@pytest.mark.parametrize("answer", [{"text": 3}, {"calls": "edit"}, {"usage": [1, 2]}])
def test_an_answer_without_form_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="does not have the form"):
        Editor("", Client({**NAMED, **answer})).reply([Message("user", "u")], [], Limits())


def test_a_plus_in_a_name_does_not_split_an_origin() -> None:
    client = Client()
    client.answers = [{"model": {"name": "m+"}}]
    assert Editor("", client).name == "editor:m-"
    assert Editor("", Client()).context == 8000
