"""Tools for a model that is given none: they are described in the first message, and calls and results are text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cuda_agent.agent.models import Call, Message, Tool

HOW = """You have tools. To call one, end your message with

<tool_call>{"name": "the tool", "arguments": {…}}</tool_call>

The result is in the next message. The tools, each with the JSON schema of its arguments:
"""


def written(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
    """The same conversation without tools. What a model wrote itself stays as it is."""
    if not tools:
        return tuple(messages)
    made = [_written(message) for message in messages]
    listed = HOW + "\n".join(f"- {tool.name}: {tool.text} {json.dumps(dict(tool.parameters))}" for tool in tools)
    if made and made[0].role == "system":
        return Message("system", f"{made[0].text}\n\n{listed}"), *made[1:]
    return Message("system", listed), *made


def _written(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", f"Result of {message.tool}:\n{message.text}")
    return Message(message.role, "\n".join(part for part in (message.text, *map(_call, message.calls)) if part))


def _call(call: Call) -> str:
    arguments = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>{arguments}</tool_call>"
