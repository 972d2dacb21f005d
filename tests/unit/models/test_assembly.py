"""Whatever a stream's events are, a reply comes of them, in bounds and fit to be written down."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.agent.models import Tool
from cuda_agent.agent.models.assembly import Assembly
from cuda_agent.agent.models.parse import MOST_CALLS

FACTS = Tool("facts", "", {"type": "object", "properties": {}})
KEYS = (
    "choices delta message content tool_calls index id function name arguments finish_reason usage prompt_tokens text"
)
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "facts", "{}", "stop", "\ud800"])
)
anything = st.recursive(
    leaves,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split()), v, max_size=4),
    max_leaves=8,
)
functions = st.fixed_dictionaries({}, optional={"name": leaves, "arguments": anything})
made = st.lists(st.fixed_dictionaries({}, optional={"index": leaves, "id": leaves, "function": functions | anything}))
deltas = st.fixed_dictionaries({}, optional={"content": anything, "tool_calls": made | anything, "reasoning": leaves})
choices = st.fixed_dictionaries({}, optional={"delta": deltas | anything, "finish_reason": leaves, "message": deltas})
events = st.fixed_dictionaries({}, optional={"choices": st.lists(choices) | anything, "usage": anything}) | anything


@given(st.lists(events, max_size=6), st.booleans())
def test_no_event_raises(sent: list[Any], cut: bool) -> None:
    heard = Assembly(most=40)
    for event in sent:
        heard.add(event)
    reply = heard.reply((FACTS,), cut)
    assert len(reply.calls) <= MOST_CALLS
    assert sum(map(len, heard.pieces)) <= 40
    assert reply.calls or reply.text or reply.complaint
    assert reply.usage.prompt >= 0
    told = [reply.text, reply.complaint, [(call.id, dict(call.arguments)) for call in reply.calls]]
    assert json.dumps(told, ensure_ascii=False).encode()


def test_many_calls_are_bounded() -> None:
    heard = Assembly(most=1 << 20)
    for index in range(10_000):
        heard.add({"choices": [{"delta": {"tool_calls": [{"index": index, "function": {"name": "facts"}}]}}]})
    assert len(heard.asked) == MOST_CALLS + 1
    assert len(heard.reply((FACTS,), cut=False).calls) == MOST_CALLS
