"""G14, record: what was verified is what was timed is what is offered."""

from __future__ import annotations

import hashlib
from typing import ClassVar

from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, passed
from cuda_agent.model import GateResult
from cuda_agent.source import edits


class Record:
    """A verdict about one binary says nothing about another. The candidate's text must be the original with the
    candidate's edits applied, its id that text's hash, and the binary made from it the only candidate binary that was
    verified and the only one that was timed. Hashes, device, driver, compiler, flags, inputs and seeds go into the
    record (`record.py`), so that the judgement can be made again."""

    id: ClassVar[str] = "G14"
    name: ClassVar[str] = "record"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "binary"

    def check(self, case: Case) -> GateResult:
        candidate, binary = case.candidate, case.candidate_binary
        digest = hashlib.sha256(candidate.text.encode("utf-8", "surrogateescape")).hexdigest()
        if candidate.original != case.original:
            return failed(self, "the candidate was made from another text than the one it was judged against")
        if candidate.edits and edits.apply(case.original, candidate.edits) != candidate.text:
            return failed(self, "the candidate's edits do not lead to the text that was judged")
        if candidate.id and candidate.id != digest[:12]:
            return failed(self, f"the candidate is named {candidate.id}, its text hashes to {digest[:12]}")
        offered = hashlib.sha256(binary.data).hexdigest()
        for what, hashes in case.ran.items():
            if hashes - {offered}:
                return failed(self, f"the binary that was {what} is not the one that is offered")
        timed = " = timed" if case.ran["timed"] else ""
        return passed(self, f"verified{timed} = offered: binary {offered[:12]}, text {digest[:12]}")
