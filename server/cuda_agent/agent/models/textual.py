"""Tools for a model whose server or template knows none: described in the system message, called in text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.agent.models import Call, Message, Role, Tool


def describe(tools: Sequence[Tool], bare: bool = False) -> str:
    """What a system message says about the tools and about how one is called: in tags after any words, or `bare`."""
    listed = "\n".join(
        json.dumps({"name": t.name, "description": t.text, "parameters": dict(t.parameters)}) for t in tools
    )
    call = '{"name": "NAME", "arguments": {…}}'
    how = f"Answer with one call: {call}" if bare else f"To call one, write exactly this: <tool_call>{call}</tool_call>"
    return (
        "You act by calling tools. These are all there are, one a line, with the JSON schema of their arguments:\n"
        f"{listed}\n{how}"
    )


def spell(call: Call, bare: bool = False) -> str:
    """A call as `parse` reads it."""
    text = json.dumps({"name": call.name, "arguments": dict(call.arguments)})
    return text if bare else f"<tool_call>{text}</tool_call>"


def call_schema(tools: Sequence[Tool]) -> Mapping[str, Any]:
    """The JSON schema of one bare call of any of these tools."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": dict(tool.parameters)},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in tools
        ]
    }


def as_text(
    messages: Sequence[Message], tools: Sequence[Tool], system: bool = True, bare: bool = False
) -> list[Message]:
    """The same conversation without calls and tool messages, user and assistant in turn, as the strictest templates
    want it. `system=False`: what the system says stands at the head of the first user message. `bare`: calls without
    tags."""
    head = [message.text for message in messages if message.role == "system"]
    if tools:
        head.append(describe(tools, bare))
    spoken: list[Message] = []
    for message in messages:
        if message.role == "system":
            continue
        text = "\n".join(part for part in (message.text, *(spell(call, bare) for call in message.calls)) if part)
        if message.role == "tool":
            text = f"<tool_response>\n{message.text}\n</tool_response>"
        role: Role = "assistant" if message.role == "assistant" else "user"
        if spoken and spoken[-1].role == role:
            spoken[-1] = Message(role, f"{spoken[-1].text}\n\n{text}")
        else:
            spoken.append(Message(role, text))
    opening = "\n\n".join(head)
    if not opening:
        return spoken
    if system:
        return [Message("system", opening), *spoken]
    first = [Message("user", f"{opening}\n\n{spoken[0].text}")] if spoken and spoken[0].role == "user" else []
    return [*first, *spoken[1:]] if first else [Message("user", opening), *spoken]
