"""A model that says what it is told to say: replies, errors, or functions of the conversation so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cuda_agent.agent.models import Call, Limits, Message, Reply, Tool, Usage

Line = Reply | Exception | Callable[[Sequence[Message]], Reply]


class Scripted:
    """A model that says these lines, then gives up."""

    name = "scripted"

    def __init__(self, *lines: Line, context: int = 0) -> None:
        self.lines, self.context = list(lines), context
        self.seen: list[list[Message]] = []
        self.limits: list[Limits] = []

    def reply(self, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> Reply:
        self.seen.append(list(messages))
        self.limits.append(limits)
        line = self.lines.pop(0) if self.lines else call("give_up", reason="nothing left")
        if isinstance(line, Exception):
            raise line
        return line(messages) if callable(line) else line

    def close(self) -> None: ...


def call(name: str, /, **arguments: Any) -> Reply:
    return Reply("", (Call(name, arguments, f"id-{name}"),), Usage(100, 10))


def both(*replies: Reply) -> Reply:
    return Reply("", tuple(call for reply in replies for call in reply.calls))
