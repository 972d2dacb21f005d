"""What one OpenAI-compatible server takes. It is learnt: a request asks for everything, and each refusal that names a
field takes that field away, for as long as the model is open."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cuda_agent.agent.models import Limits, Message, Tool
from cuda_agent.agent.models.textual import as_text, call_schema

ABOUT_TOOLS = re.compile(r"tool|function|jinja|grammar|guided|structured output", re.IGNORECASE)
TOOLS_UNKNOWN = re.compile(r"jinja|tools?\b.{0,40}(support|require|enable)|support.{0,40}\btools?\b", re.IGNORECASE)
ABOUT_SCHEMA = re.compile(r"response_format|schema|grammar|guided|structured output", re.IGNORECASE)
ABOUT_ROLES = re.compile(r"alternat|system (role|message)|(role|roles).{0,40}(system|support)", re.IGNORECASE)
VAGUE = re.compile(r"(bad request|invalid request|unprocessable (entity|content)|)[.!]?", re.IGNORECASE)
ASKED_AGAIN = (400, 404, 405, 413, 415, 422, 500, 501)


@dataclass(frozen=True, slots=True)
class Dialect:
    """`required`: a call may be forced. `tools`: tools are a field of the request, not text in the system message;
    `schema`: then an answer may be held to the JSON schema of a call."""

    required: bool = True
    tools: bool = True
    schema: bool = True
    usage: bool = True
    system: bool = True
    limit: str = "max_tokens"

    def request(self, model: str, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> dict[str, Any]:
        """The body of a chat request."""
        body: dict[str, Any] = {"model": model, "stream": True, self.limit: limits.tokens}
        if self.usage:
            body["stream_options"] = {"include_usage": True}
        if not self.tools:
            held = bool(tools) and limits.force and self.schema
            spoken = as_text(messages, tools, system=self.system, bare=held)
            if held:
                call = {"name": "call", "schema": call_schema(tools)}
                body["response_format"] = {"type": "json_schema", "json_schema": call}
            return body | {"messages": [{"role": one.role, "content": one.text} for one in spoken]}
        body["messages"] = _api_messages(messages)
        if tools:
            body["tools"] = [tool.function for tool in tools]
            if limits.force and self.required:
                body["tool_choice"] = "required"
        return body

    def easier(self, status: int, words: str, body: Mapping[str, Any]) -> Dialect | None:
        """What to speak after the server refused `body` with these words; None when it is not the dialect that it
        refuses, or there is nothing easier."""
        if status not in ASKED_AGAIN:
            return None
        vague = status in (400, 422, 501) and VAGUE.fullmatch(words.strip()) is not None
        if self.usage and ("stream_options" in words or "include_usage" in words):
            return replace(self, usage=False)
        if self.limit == "max_tokens" and "max_completion_tokens" in words:
            return replace(self, limit="max_completion_tokens")
        about_tools = (TOOLS_UNKNOWN if status >= 500 else ABOUT_TOOLS).search(words)  # a 500 may be about anything
        if "tools" in body and (vague or about_tools):
            return replace(self, required=False) if "tool_choice" in body else replace(self, tools=False)
        if "response_format" in body and (vague or ABOUT_SCHEMA.search(words)):
            return replace(self, schema=False)
        if self.tools and ABOUT_ROLES.search(words):
            return replace(self, tools=False)
        if self.system and ABOUT_ROLES.search(words):
            return replace(self, tools=False, system=False)
        return replace(self, usage=False) if vague and self.usage else None


def _api_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as the API has them: every call has an id of its own (nine letters and digits where it came without, as
    the strictest servers want it) and is followed by its answer; a call that nobody answered is left out."""
    sent: list[dict[str, Any]] = []
    ids: set[str] = set()
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        if not message.calls:
            stray = message.role == "tool"
            text = f"Result of {message.tool}:\n{message.text}" if stray else message.text
            sent.append({"role": "user" if stray else message.role, "content": text})
            continue
        asked: dict[str, Any] = {"role": message.role, "content": message.text}
        sent.append(asked)
        waiting = list(message.calls)
        while waiting and at < len(messages) and messages[at].role == "tool":
            answer, at = messages[at], at + 1
            call = next((one for one in waiting if one.id and one.id == answer.call), waiting[0])
            waiting.remove(call)
            id = call.id if call.id and call.id not in ids else f"call{len(ids):05d}"
            ids.add(id)
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
            asked.setdefault("tool_calls", []).append({"id": id, "type": "function", "function": function})
            sent.append({"role": "tool", "tool_call_id": id, "content": answer.text})
        if "tool_calls" not in asked and not message.text:
            sent.remove(asked)
    return sent
