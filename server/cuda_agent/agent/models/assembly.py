"""A reply put together from the events of a stream. Servers differ, and some lie: whatever has another shape than the
API's is skipped, and what is kept has a bound."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.agent.models import Call, Reply, Tool, Usage
from cuda_agent.agent.models.parse import MOST_CALLS, checked, clean, cut_off, parse, without_reasoning
from cuda_agent.agent.models.refusals import hidden

REASONING = ("reasoning_content", "reasoning", "thinking")


@dataclass(slots=True)
class _Asked:
    """A tool call as it arrives: its arguments are JSON text in pieces."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)


class Assembly:
    """`most` is in characters of text and arguments; past it `full` is set and the rest is not wanted. `key` is blotted
    out, should the server repeat it."""

    def __init__(self, most: int, key: str = "") -> None:
        self.most, self.key, self.size = most, key, 0
        self.pieces: list[str] = []
        self.asked: list[_Asked] = []
        self.slots: dict[int, _Asked] = {}
        self.finish = ""
        self.usage = Usage()
        self.reasoned = False

    @property
    def full(self) -> bool:
        return self.size > self.most

    def add(self, event: object) -> None:
        """One event of a stream, or a whole completion."""
        if not isinstance(event, Mapping):
            return
        self.usage = _usage(event.get("usage")) or self.usage
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Mapping):
            return
        if isinstance(choice.get("finish_reason"), str):
            self.finish = choice["finish_reason"]
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, Mapping):
            return
        self.reasoned = self.reasoned or any(delta.get(name) for name in REASONING)
        for text in _texts(delta.get("content")):
            self.keep(self.pieces, text)
        made = delta.get("tool_calls")
        for place, one in enumerate(made if isinstance(made, list) else ()):
            if isinstance(one, Mapping):
                self.add_call(one, place, whole="delta" not in choice)

    def add_call(self, piece: Mapping[str, Any], place: int, whole: bool) -> None:
        function = piece.get("function")
        function = function if isinstance(function, Mapping) else {}
        name, id, index = _text(function.get("name")), _text(piece.get("id")), piece.get("index")
        # Servers that send whole calls give them all the index 0, or none: a new id, or a name, begins another one.
        slot = place if whole else index if isinstance(index, int) else -1
        asked = self.slots.get(slot)
        if asked is None or (id and asked.id and id != asked.id) or (slot == -1 and name):
            if len(self.asked) > MOST_CALLS:
                return
            asked = self.slots[slot] = _Asked()
            self.asked.append(asked)
        asked.id = asked.id or id[:100]
        asked.name = (asked.name or name)[:100]
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):  # some servers send an object instead of its text
            arguments = json.dumps(arguments)
        if isinstance(arguments, str):
            self.keep(asked.pieces, arguments)

    def keep(self, pieces: list[str], text: str) -> None:
        self.size += len(text)
        pieces.append(text[: max(0, len(text) - (self.size - self.most))] if self.full else text)

    def reply(self, tools: Sequence[Tool], cut: bool) -> Reply:
        """`cut`: the stream was left before its end."""
        cut = cut or self.finish == "length"
        text = self.joined(self.pieces)
        if not tools:
            return Reply(without_reasoning(text), usage=self.usage, cut=cut)
        parsed = parse(text, tools)
        calls, complaint, used = parsed.calls, parsed.complaint, set[str]()
        if self.asked:  # the server reads the calls: what is left in the text repeats them
            calls, complaint = (), ""
            for asked in self.asked[:MOST_CALLS]:
                id = clean(asked.id) if asked.id not in used else ""
                used.add(asked.id)
                outcome = checked(asked.name, self.joined(asked.pieces), tools, id)
                if isinstance(outcome, Call):
                    calls += (outcome,)
                else:
                    complaint = complaint or (cut_off(asked.name) if cut and asked is self.asked[-1] else outcome)
        if not (calls or complaint or parsed.prose):
            complaint = self.nothing(tools, cut)
        return Reply(parsed.prose, calls, self.usage, complaint, cut)

    def joined(self, pieces: list[str]) -> str:
        return clean(hidden("".join(pieces), self.key))

    def nothing(self, tools: Sequence[Tool], cut: bool) -> str:
        why = "it ended at the limit of tokens before it said anything" if cut else "it was empty"
        thought = ", all of it was reasoning" if self.reasoned else ""
        return f"The reply held no call: {why}{thought}; call one of {', '.join(tool.name for tool in tools)}."


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(content: object) -> Iterator[str]:
    """The text of a message: a string, or a list of parts of which some are text."""
    for part in content if isinstance(content, list) else (content,):
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str) and text:
            yield text


def _usage(value: object) -> Usage | None:
    if not isinstance(value, Mapping):
        return None
    counts = [value.get(name) for name in ("prompt_tokens", "completion_tokens")]
    return Usage(*(n if type(n) is int and 0 <= n < 1 << 40 else 0 for n in counts))
