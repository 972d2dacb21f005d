"""Messages as a chat template takes them: tools and calls where the template renders them, else as text in the
`<tool_call>` convention, which `parse` reads.

A template is a program of the model's folder. What it does is found out by rendering a short conversation and looking
for what should be in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cuda_agent.agent.models import Call, Message, Tool
from cuda_agent.errors import ModelError

Render = Callable[..., str]  # (conversation, tools=None | [...], add_generation_prompt=bool) -> text; raises anything

# For tokenizers that have these tokens and no template.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL_OPEN, CALL_CLOSE = "<tool_call>\n", "\n</tool_call>"
THINKS = re.compile(r"<think>\s*\Z")
HOW = """{system}

# Tools
These are the tools, one JSON object a line:
<tools>
{tools}
</tools>
Call one with a JSON object inside <tool_call></tool_call>, its arguments as the tool's parameters say:
<tool_call>
{{"name": "the tool's name", "arguments": {{}}}}
</tool_call>"""

PROBE_TOOL = Tool("probe_tool", "probe text", {"type": "object", "properties": {"probe_key": {"type": "string"}}})
PROBE = (
    Message("system", "probe system"),
    Message("user", "probe question"),
    Message("assistant", "", (Call("probe_tool", {"probe_key": "probe value"}, "probe0id0"),)),
    Message("tool", "probe result", call="probe0id0", tool="probe_tool"),
)
SEEN = ("probe_tool", "probe text", "probe system", "probe question", "probe_key", "probe value", "probe result")


class Template:
    """`special` are the tokenizer's control tokens: in a message they are text, and no message ends early."""

    def __init__(self, render: Render, special: Iterable[str] = ()) -> None:
        self._render = render
        words = sorted({re.escape(token) for token in special if len(token) > 1}, key=len, reverse=True)
        self._special = re.compile("|".join(words)) if words else None
        probe = self._try(self._native(PROBE), [_tool(PROBE_TOOL)])
        self.tools = probe is not None and all(word in probe for word in SEEN)
        # What a forced call begins and ends with: the template's own words where it writes calls this way.
        tagged = not self.tools or "<tool_call>" in (probe or "")
        self.opening, self.closing = (CALL_OPEN, CALL_CLOSE) if tagged else ("", "")

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool], force: bool = False) -> str:
        """The conversation up to where the assistant goes on; with `force`, up to the JSON object of its call.
        Raises ModelError where the template refuses it."""
        if self.tools:
            text = self._try(self._native(messages), [_tool(tool) for tool in tools] or None)
        else:
            plain = _plain(messages, tools, self._escaped)
            text = self._try(plain)
            if text is None:  # some templates know no system message
                text = self._try(_without_system(plain))
        if text is None:
            raise ModelError("the model's chat template refuses the conversation: choose another model.")
        if not force:
            return text
        return text + ("\n</think>\n\n" if THINKS.search(text) else "") + self.opening

    def after_reply(self) -> str:
        """What the template writes behind an assistant's message: it begins with the token that ends a turn."""
        conversation = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "probe reply"}]
        return (self._try(conversation, prompt=False) or "").rpartition("probe reply")[2].lstrip()

    def _try(
        self, conversation: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, prompt: bool = True
    ) -> str | None:
        """None where the template raises: it may raise anything, on purpose or because it lacks a role or a key."""
        try:
            return self._render(conversation, tools=tools, add_generation_prompt=prompt)
        except Exception:
            return None

    def _escaped(self, text: str) -> str:
        return self._special.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text) if self._special else text

    def _native(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        return [_native(message, self._escaped(message.text)) for message in messages]


def _native(message: Message, text: str) -> dict[str, Any]:
    one: dict[str, Any] = {"role": message.role, "content": text}
    if message.calls:
        one["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.calls
        ]
    if message.role == "tool":
        one |= {"name": message.tool, "tool_call_id": message.call}
    return one


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.text, "parameters": dict(tool.parameters)},
    }


def written(call: Call) -> str:
    """A call as text."""
    return CALL_OPEN + json.dumps({"name": call.name, "arguments": dict(call.arguments)}) + CALL_CLOSE


def _plain(messages: Sequence[Message], tools: Sequence[Tool], escaped: Callable[[str], str]) -> list[dict[str, Any]]:
    """System, user and assistant only, in turns: many templates refuse two messages of one role in a row."""
    plain: list[dict[str, Any]] = []
    if tools and not (messages and messages[0].role == "system"):
        messages = (Message("system", ""), *messages)
    for message in messages:
        text = escaped(message.text)
        role = "user" if message.role == "tool" else message.role
        if message.role == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
        if message.role == "system" and not plain and tools:
            text = HOW.format(system=text, tools="\n".join(json.dumps(_tool(tool)["function"]) for tool in tools))
        text = "\n".join([*([text] if text else []), *(written(call) for call in message.calls)]).strip()
        if plain and plain[-1]["role"] == role:
            plain[-1]["content"] += f"\n{text}"
        else:
            plain.append({"role": role, "content": text})
    return plain


def _without_system(plain: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The system's words at the head of the first message of the user."""
    if len(plain) < 2 or plain[0]["role"] != "system":
        return plain
    first = {"role": "user", "content": f"{plain[0]['content']}\n\n{plain[1]['content']}"}
    return [first, *plain[2:]] if plain[1]["role"] == "user" else plain


def call_schema(tools: Sequence[Tool]) -> Mapping[str, Any]:
    """The JSON schema of one call of any of these tools."""
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
