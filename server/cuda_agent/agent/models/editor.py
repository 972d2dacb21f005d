"""The language model that the person already has in the editor (`vscode.lm` in VS Code), asked through the client.

`Ask` carries one JSON object there and one back; docs/protocol.md (`cudaAgent/model/reply`) has both. A model that is
given no tools by its provider finds them in the first message and writes its calls into the text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cuda_agent.agent.models import Ask, Call, Limits, Message, Reply, Tool, Usage
from cuda_agent.agent.models.parse import checked, clean, parse
from cuda_agent.agent.models.textual import as_text
from cuda_agent.errors import Cancelled, ContextOverflow, ModelError

FIND_S = 30.0  # for the name of the model: nothing is computed, but an editor that just started may still load it
RETRY_S = 1.0
OTHERS = "set cudaAgent.model to endpoint:NAME@URL or transformers:PATH"
# What a client says went wrong, and what the person is told; {model} and {message} are filled in.
KINDS = {
    "noProvider": "the editor has no language model {model}: {message}. Sign in to one there (in VS Code an extension "
    f"such as GitHub Copilot brings it), or {OTHERS}",
    "noPermission": "the editor does not let CUDA Agent use the language model {model}: {message}. Run the action "
    f"again and allow it, or {OTHERS}",
    "quota": "the editor's language model {model} is blocked or its quota is used up: {message}. Wait, choose another "
    f"(cudaAgent.model is editor:ID), or {OTHERS}",
    "tooLong": "the editor's language model {model} cannot hold so many messages: {message}",
    "cancelled": "the editor stopped the language model {model}: {message}. Run the action again",
    "other": "the editor's language model {model} failed: {message}. Run the action again, or choose another "
    "(cudaAgent.model)",
}


class Editor:
    """`id` chooses among the editor's models by id or family; empty: the editor's first. Raises ModelError at once when
    the editor has none."""

    def __init__(self, id: str, ask: Ask) -> None:
        self.id, self._ask, self._numbered = id, ask, 0
        self.name = f"editor:{id}" if id else "editor"
        answer = self._asked(request(id, (), (), Limits()), Limits(seconds=FIND_S))
        found = answer.get("model")
        if not isinstance(found, Mapping) or not found.get("name"):
            raise ModelError("the editor does not say which language model it has: " + OTHERS)
        self.name = f"editor:{str(found['name']).replace('+', '-')}"  # a plus joins the parts of a candidate's origin
        self.context = _count(found.get("context"))
        self._has_tools = found.get("tools") is not False

    def reply(self, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> Reply:
        """The next assistant message. What failed for no known reason is tried once more."""
        end = time.monotonic() + limits.seconds
        if self._has_tools:
            question = request(self.id, messages, tools, limits)
        else:
            question = request(self.id, as_text(messages, tools), (), limits)
        answer = self._ask(question, limits)
        if _kind(answer) == "other" and time.monotonic() + RETRY_S < end:
            self._wait(RETRY_S, limits)
            answer = self._ask(question, replace(limits, seconds=end - time.monotonic()))
        return self._read(self._checked(answer, limits), tools)

    def close(self) -> None:
        return

    # ------------------------------------------------------------ inside

    def _asked(self, question: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
        return self._checked(self._ask(question, limits), limits)

    def _checked(self, answer: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
        """The answer when it is none about an error."""
        kind = _kind(answer)
        if not kind:
            return answer
        if kind == "cancelled" and limits.cancelled():
            raise Cancelled("stopped while the editor's language model was writing")
        message = str(answer["error"].get("message") or "it does not say why").strip().rstrip(".")
        failure = ContextOverflow if kind == "tooLong" else ModelError
        raise failure(KINDS[kind].format(model=self.name, message=message))

    def _read(self, answer: Mapping[str, Any], tools: Sequence[Tool]) -> Reply:
        """Calls as the editor gives them, else those that stand in the text."""
        text, calls, usage = answer.get("text") or "", answer.get("calls") or (), answer.get("usage") or {}
        if not isinstance(text, str) or not isinstance(calls, list | tuple) or not isinstance(usage, Mapping):
            raise ModelError(f"the answer of the editor's language model {self.name} does not have the form it must")
        used, cut = Usage(_count(usage.get("prompt")), _count(usage.get("completion"))), answer.get("cut") is True
        if not calls:
            found = parse(text, tools)
            numbered = tuple(replace(call, id=self._new_id()) for call in found.calls)
            return Reply(found.prose, numbered, used, found.complaint, cut)
        read = [
            checked(str(one.get("name")), one.get("arguments"), tools, str(one.get("id") or ""))
            if isinstance(one, Mapping)
            else "A call is a JSON object with a name and its arguments."
            for one in calls
        ]
        complaint = next((one for one in read if isinstance(one, str)), "")
        return Reply(clean(text), tuple(one for one in read if isinstance(one, Call)), used, complaint, cut)

    def _new_id(self) -> str:
        """For a call out of the text: an editor matches calls and results by their ids."""
        self._numbered += 1
        return f"text-{self._numbered}"

    @staticmethod
    def _wait(seconds: float, limits: Limits) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if limits.cancelled():
                raise Cancelled("stopped while the editor's language model was asked again")
            time.sleep(0.05)


def request(id: str, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> dict[str, Any]:
    """The question as `cudaAgent/model/reply` has it. Without messages the model is only named."""
    return {
        "id": id,
        "messages": [
            {
                "role": message.role,
                "text": message.text,
                "calls": [
                    {"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in message.calls
                ],
                "call": message.call,
                "tool": message.tool,
            }
            for message in messages
        ],
        "tools": [
            {"name": tool.name, "description": tool.text, "inputSchema": dict(tool.parameters)} for tool in tools
        ],
        "force": limits.force,
        "tokens": limits.tokens,
    }


def _kind(answer: Mapping[str, Any]) -> str:
    """The kind of an error; "" for an answer that is none."""
    error = answer.get("error")
    if not isinstance(error, Mapping):
        return ""
    kind = str(error.get("kind"))
    return kind if kind in KINDS else "other"


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
