"""Messages as a chat template takes them: tools and calls where the template renders them, else as text.

A template is a program of the model's folder. What it does is found out by rendering a short conversation and looking
for what should be in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from cuda_agent.agent.models import Call, Message, Tool
from cuda_agent.agent.models.textual import as_text, spell
from cuda_agent.errors import ModelError

Render = Callable[..., str]  # (conversation, tools=None | [...], add_generation_prompt=bool) -> text; raises anything

# For tokenizers that have these tokens and no template.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = re.compile(r"<tool_call>\s*(?=\{)")
THINKS = re.compile(r"<think>\s*\Z")

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
        probe = self._try(_native(PROBE), [PROBE_TOOL.function])
        self.tools = probe is not None and all(word in probe for word in SEEN)
        # What a forced call begins and ends with: the template's own words where it writes calls this way.
        written = CALL.search(probe) if self.tools and probe else CALL.search(spell(PROBE[2].calls[0]))
        self.opening, self.closing = (written[0], "</tool_call>") if written else ("", "")

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool], force: bool = False) -> str:
        """The conversation up to where the assistant goes on; with `force`, up to the JSON object of its call.
        Raises ModelError where the template refuses it."""
        messages = [replace(message, text=self._escaped(message.text)) for message in messages]
        text = self._try(_native(messages), [tool.function for tool in tools] or None) if self.tools else None
        for system in (True, False):  # some templates know no system message
            if text is None:
                text = self._try(_native(as_text(messages, tools, system=system)))
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


def _native(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_one(message) for message in messages]


def _one(message: Message) -> dict[str, Any]:
    one: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.calls:
        one["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.calls
        ]
    if message.role == "tool":
        one |= {"name": message.tool, "tool_call_id": message.call}
    return one
