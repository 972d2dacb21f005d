"""A recorded search as a policy: the rules' candidates in their order, then a model's replies through the tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from cuda_agent.agent.models import Call, Limits, Message, Reply, Tool, Usage
from cuda_agent.agent.policies import State
from cuda_agent.agent.policies.model import ModelPolicy
from cuda_agent.agent.recorded import Recorded
from cuda_agent.errors import UsageError
from cuda_agent.model import Assumption, Candidate, LaunchMap, NumericClass
from cuda_agent.rewrite.rule import Context
from cuda_agent.source.edits import minimal

END = Reply("", (Call("give_up", {"reason": "the record ends here"}),))


class Replayed:
    """A model that says again what it said, then gives up."""

    context = 0  # the conversation was made short, where it was, before these replies

    def __init__(self, name: str, replies: Sequence[Reply]) -> None:
        self.name = name
        self._left = list(replies)

    def reply(self, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> Reply:
        return self._left.pop(0) if self._left else END

    def close(self) -> None: ...


class Again:
    """Proposes what was proposed. Raises UsageError for a record that cannot be read so."""

    def __init__(self, found: Recorded) -> None:
        start = found.start
        self.name = f"replay:{start['policy']}"
        model = start.get("model")
        self._model: ModelPolicy | None = None
        if model is not None:
            begins = next((line.get("from") or "" for line in found.of("prompts")), "")
            self._model = ModelPolicy(Replayed(model, replies(found)), begin=begins)
        self._rules = [
            candidate_of(start, line)
            for line in found.of("candidate")
            if model is None or not line["origin"].startswith("model")
        ]

    def propose(self, state: State) -> Sequence[Candidate]:
        round_, self._rules = self._rules, []
        if round_ or self._model is None:
            return round_
        return self._model.propose(state)

    def ahead(self, context: Context) -> Sequence[Candidate]:
        return []


def replies(found: Recorded) -> list[Reply]:
    """What the model said itself: the worked example's messages have no usage."""
    said = [line for line in found.of("message") if line["role"] == "assistant" and line.get("usage")]
    return [
        Reply(
            line.get("text") or "",
            tuple(Call(c["name"], c.get("arguments") or {}, str(c.get("id") or "")) for c in line.get("calls") or ()),
            Usage(*line["usage"]),
            line.get("complaint") or "",
            bool(line.get("cut")),
        )
        for line in said
    ]


def candidate_of(start: Mapping[str, Any], line: Mapping[str, Any]) -> Candidate:
    launch = line["launch"]
    try:
        shape = LaunchMap(
            _axes(launch["grid"]), _axes(launch["block"]), str(launch["shared"]), bool(launch.get("seen"))
        )
        assumptions = tuple(Assumption(str(one["text"]), one["known"]) for one in line["assumptions"])
        if line["numeric"] not in get_args(NumericClass):
            raise ValueError(line["numeric"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the record of candidate {line['id']} is damaged: {error!r}") from error
    return Candidate(
        kernel=start["kernel"],
        original=start["text"],
        text=line["text"],
        edits=minimal(start["text"], line["text"]),
        origin=line["origin"],
        numeric=line["numeric"],
        launch=shape,
        assumptions=assumptions,
        parent=line.get("parent"),
        id=line["id"],
        reason=line.get("reason") or "",
    )


def _axes(given: Sequence[Any]) -> tuple[str, str, str]:
    x, y, z = map(str, given)
    return x, y, z
