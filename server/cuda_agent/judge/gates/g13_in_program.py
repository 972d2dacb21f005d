"""G13, in the program: not built yet, and named in every verdict, so that nobody takes its silence for a pass."""

from __future__ import annotations

from typing import ClassVar

from ...model import GateResult
from ..case import Case
from ..gate import Needs, not_run


class InProgram:
    """G13 rebuilds the person's program with the edit, runs it, and compares exit code, output and every captured
    launch. Until it is built, launch sites are checked by their text (G0) and by the recorded launches only."""

    id: ClassVar[str] = "G13"
    name: ClassVar[str] = "in the program"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        return not_run(self, "not built yet: the program was not rebuilt with the edit")
