"""G6, determinism: repeats agree as far as the original's do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cuda_agent.device import jobs
from cuda_agent.errors import WorkerDied
from cuda_agent.judge import numeric
from cuda_agent.judge.baseline import buffer_name, dtypes, mask, need, poison_of, repeat_steps, spread_of
from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, passed
from cuda_agent.model import GateResult

MORE_RUNS = 12


class Determinism:
    """The candidate runs again and again from the same bytes; where the original gives the same bits every time, so
    must the candidate. Where the original varies (float atomics), the candidate may vary by at most twice as much. On
    the emulator every repeat runs the threads of a block in another order between barriers. A race that a few repeats
    do not lose is not seen here; the emulator's checkers (G7) are for those."""

    id: ClassVar[str] = "G6"
    name: ClassVar[str] = "determinism"
    cost: ClassVar[float] = 1.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        varied = False
        for index in range(len(case.launches)):
            rows = self._repeat(case, index)
            if isinstance(rows, str):
                return failed(self, f"launch {case.launch_name(index)}: {rows}")
            base = case.baseline(index)
            for row in rows:
                limit = 2 * base.spread[row["buffer"]]
                varied |= not row["equal"]
                if not numeric.accepts(row, limit) and (limit or case.uses_atomics):
                    spread = self._original_spread(case, index)
                    limit = 2 * spread[row["buffer"]]
                if not numeric.accepts(row, limit):
                    name = buffer_name(case, index, row["buffer"])
                    first = row["first"] or {}
                    own = f"the original by at most {limit / 2:.3g}" if limit else "the original never does"
                    return failed(
                        self,
                        f"launch {case.launch_name(index)}: two runs of the candidate differ in "
                        f"{name}[{first.get('index')}] "
                        f"({numeric.show(first.get('expected'))}, then {numeric.show(first.get('got'))}); {own}",
                    )
        count = case.options.repeats
        if varied:
            return passed(self, f"{count} repeats vary no more than twice what the original's do")
        return passed(self, f"{count} repeats agree bit for bit")

    def _original_spread(self, case: Case, index: int) -> tuple[float, ...]:
        """The original's spread over more runs: two or four may have shown only part of it."""
        base, kinds = case.baseline(index), dtypes(case, index)
        poison = poison_of(case, index, base.poisoned, 0)
        entries = [
            {"buffer": b, "dtype": dtype, **mask(b, base.poisoned, base.written)} for b, dtype in enumerate(kinds)
        ]
        steps = [
            *case.load_steps(candidate=False),
            case.original_launch("first", index, poison=poison),
            jobs.changed_step("first", "changed"),
            jobs.unpoisoned_step("first", "written"),
            *repeat_steps(case, index, MORE_RUNS, entries, poison, seed=100),
        ]
        results = need(case.run(steps, deadline_s=case.options.deadline_s, tag="the original's spread"), "it failed")
        return spread_of(case, index, [row for result in results for row in _rows(result)])

    def _repeat(self, case: Case, index: int) -> list[Mapping[str, Any]] | str:
        base = case.baseline(index)
        poison = poison_of(case, index, base.poisoned, 0)
        entries = [
            {"buffer": b, "dtype": dtype, **mask(b, base.poisoned, base.written)}
            for b, dtype in enumerate(dtypes(case, index))
        ]
        steps = [
            *case.load_steps(),
            case.candidate_launch("first", index, poison=poison),
            jobs.changed_step("first", "changed"),
            jobs.unpoisoned_step("first", "written"),
        ]
        for turn in range(1, case.options.repeats):
            steps += [
                {**case.candidate_launch("again", index, poison=poison), "seed": turn},
                jobs.compare_step("first", "again", entries),
                jobs.free_step("again"),
            ]
        deadline = case.deadline(index, case.options.repeats)
        try:
            results = case.run(steps, deadline_s=deadline, tag="repeating the candidate", candidate=True)
        except WorkerDied as error:
            if error.module != case.candidate_binary.sha256:
                raise
            return f"a repeat of the candidate crashed: {error}"
        faults = [result["error"] for result in results if result.get("fault")]
        if faults:
            return f"a repeat of the candidate, its threads in another order, did not end well: {faults[0]}"
        need(results, "repeating the candidate failed")
        return [row for result in results for row in _rows(result)]


def _rows(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in result.get("buffers", ()) if isinstance(row, Mapping) and "equal" in row]
