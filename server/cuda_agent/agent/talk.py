"""The conversation with a model: messages, what a reply may cost, and how it is made short when it grows too long."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence

from cuda_agent.agent.models import Limits, Message, Model, Reply, Tool
from cuda_agent.agent.policies import State
from cuda_agent.errors import ContextOverflow, ModelError

REPLY_TOKENS = 6000  # a kernel and a sentence
REPLY_S = 180.0
_CHARS = 3.0  # of code a token, about: an estimate for what a backend has not counted
_KEPT = 6  # messages that survive when a conversation is made short


class Talk:
    """`opening` gives the messages that begin it, with the state as it is then."""

    def __init__(self, model: Model, tools: Sequence[Tool], opening: Callable[[], list[Message]]) -> None:
        self.model, self.tools, self.opening = model, tools, opening
        self.messages: list[Message] = []
        self._fixed = 0  # messages of the opening

    def ask(self, state: State) -> Reply:
        """The model's next message, which is in the conversation from then on. Raises ModelError, Cancelled."""
        if not self.messages:
            self._open(state)
        if self.model.context and self._estimate() + self._reply_tokens(state) > self.model.context:
            self._shorten(state, _KEPT)
        began = time.monotonic()
        reply = self._reply(state)
        read = reply.usage.prompt or self._estimate()
        written = reply.usage.completion or _tokens(_said(Message("assistant", reply.text, reply.calls)))
        state.budget.read += read
        state.budget.written += written
        self.add(
            state,
            Message("assistant", reply.text, reply.calls),
            usage=[read, written],
            seconds=round(time.monotonic() - began, 3),
            **({"complaint": reply.complaint} if reply.complaint else {}),
            **({"cut": True} if reply.cut else {}),
        )
        return reply

    def add(self, state: State, message: Message, **more: object) -> None:
        self.messages.append(message)
        state.record("message", **_line(message), **more)

    def _reply(self, state: State) -> Reply:
        try:
            return self._once(state)
        except ContextOverflow as error:
            too_long = ModelError(f"{error}; the kernel alone is too long for it: choose a model with a longer context")
            if not self._shorten(state, 0):
                raise too_long from error
            try:
                return self._once(state)
            except ContextOverflow:
                raise too_long from error

    def _once(self, state: State) -> Reply:
        limits = Limits(self._reply_tokens(state), min(REPLY_S, max(1.0, state.budget.to_try)), True, state.cancelled)
        return self.model.reply(self.messages, self.tools, limits)

    def _reply_tokens(self, state: State) -> int:
        budget = state.budget
        most = min(REPLY_TOKENS, self.model.context // 3) if self.model.context else REPLY_TOKENS
        return max(16, min(most, budget.tokens - budget.used) if budget.tokens else most)

    # ------------------------------------------------------------ length

    def _open(self, state: State) -> None:
        for message in self.opening():
            self.add(state, message)
        self._fixed = len(self.messages)

    def _shorten(self, state: State, keep: int) -> bool:
        """The opening again, with the best, the failures and the ideas tried by now, and the last few messages. False
        when there is nothing to leave out."""
        tail = self.messages[self._fixed :]
        kept = tail[len(tail) - keep :] if keep else []
        while kept and kept[0].role == "tool":  # an answer without its call is refused by servers
            kept = kept[1:]
        if len(kept) == len(tail):
            return False
        state.record("shortened", dropped=len(tail) - len(kept))
        self.messages = []
        self._open(state)
        self.messages += kept
        return True

    def _estimate(self) -> int:
        tools = (len(tool.text) + len(json.dumps(dict(tool.parameters))) + 40 for tool in self.tools)
        return _tokens("".join(map(_said, self.messages))) + math.ceil(sum(tools) / _CHARS)


def _said(message: Message) -> str:
    calls = "".join(f"{call.name}{json.dumps(dict(call.arguments))}" for call in message.calls)
    return f"{message.role}: {message.text}{calls}\n"


def _tokens(text: str) -> int:
    return math.ceil(len(text) / _CHARS)


def _line(message: Message) -> dict[str, object]:
    calls = [{"name": c.name, "arguments": dict(c.arguments), "id": c.id} for c in message.calls]
    fields = {"role": message.role, "text": message.text, "calls": calls, "call": message.call, "tool": message.tool}
    return {key: value for key, value in fields.items() if value}
