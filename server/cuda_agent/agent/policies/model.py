"""The model policy: a language model works on the desk, and the loop judges what it hands over.

A round is as many replies as it takes until the model asks for a judgement. What it wrote is data until the edit
policy has passed it; whatever it answers, the search ends in its budget and keeps the best so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.agent import prompts
from cuda_agent.agent.briefing import briefing
from cuda_agent.agent.models import Call, Message, Model
from cuda_agent.agent.policies import State
from cuda_agent.agent.talk import Talk
from cuda_agent.agent.tools import TOOLS, Desk, act, result
from cuda_agent.model import Candidate
from cuda_agent.rewrite.rule import Context

IDLE = 6  # replies in a row that bring nothing: no call, a call that cannot be done, an idea that was judged before
CALLS = 8  # of one reply that are done
AGAIN = "Answer with one tool call: change the text and verify it, or submit."


class ModelPolicy:
    """`from_best`: begin with the best candidate of whoever searched before; `begin`: with the one of this id."""

    def __init__(self, model: Model, *, from_best: bool = False, begin: str = "") -> None:
        self.model, self.from_best, self.begin = model, from_best, begin
        self.name = f"model:{model.name}"
        self._desk: Desk | None = None
        self._talk: Talk | None = None
        self._asked: tuple[Call, Candidate] | None = None  # the judgement that the model waits for
        self._idle = 0
        self._over = False

    def propose(self, state: State) -> Sequence[Candidate]:
        desk, talk = self._desk, self._talk
        if desk is None or talk is None:
            desk, talk = self._begin(state)
        self._tell(state, talk)
        while not (self._over or state.budget.exhausted or self._idle >= IDLE):
            state.say(f"asking {self.model.name}")
            found = self._turn(state, desk, talk)
            if found is not None:
                return [found]
        return []

    def ahead(self, context: Context) -> Sequence[Candidate]:
        return []

    # ------------------------------------------------------------ turns

    def _begin(self, state: State) -> tuple[Desk, Talk]:
        desk = Desk(state, self.model.name)
        best = state.best if self.from_best else None
        if self.begin:
            best = next((step for step in state.steps if step.candidate.id == self.begin), None)
        if best is not None:
            desk.take(best.candidate)

        def opening() -> list[Message]:
            device = desk.original.device
            return [
                Message("system", prompts.system(device)),
                *prompts.example(),
                Message("user", briefing(desk)),
            ]

        self._desk, self._talk = desk, Talk(self.model, TOOLS, opening)
        state.record("prompts", hash=prompts.digest(), model=self.model.name, **{"from": desk.parent})
        return self._desk, self._talk

    def _turn(self, state: State, desk: Desk, talk: Talk) -> Candidate | None:
        """One reply and what it asks for; a candidate where it asks for a judgement."""
        reply = talk.ask(state)
        if not reply.calls:
            self._idle += 1
            cut = "Your reply was cut: answer shorter. " if reply.cut else ""
            talk.add(state, Message("user", f"{cut}{reply.complaint or ''} {AGAIN}".strip()))
            return None
        before = desk.text
        for number, call in enumerate(reply.calls):
            if number >= CALLS or self._over:
                self._answer(state, talk, call, "not done: one step at a time")
                continue
            answer = act(desk, call)
            asked = {"candidates": [answer.candidate.id]} if answer.candidate is not None else {}
            state.record("action", by=self.name, name=call.name, arguments=dict(call.arguments), **asked)
            self._over = self._over or answer.over
            if answer.candidate is not None:
                self._idle = 0
                self._asked = call, answer.candidate
                for left in reply.calls[number + 1 :]:
                    self._answer(state, talk, left, "not done: one judgement at a time")
                return answer.candidate
            self._answer(state, talk, call, answer.text)
        self._idle = 0 if desk.text != before else self._idle + 1
        return None

    def _tell(self, state: State, talk: Talk) -> None:
        """The answer to the judgement that the model asked for."""
        if self._asked is None:
            return
        (call, candidate), self._asked = self._asked, None
        step = next((step for step in reversed(state.steps) if step.candidate.text == candidate.text), None)
        text = result(state, step) if step is not None else "not judged: the budget is spent"
        self._answer(state, talk, call, text)

    @staticmethod
    def _answer(state: State, talk: Talk, call: Call, text: str) -> None:
        talk.add(state, Message("tool", text, call=call.id, tool=call.name))
