"""What a person may choose about a judgement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cuda_agent import config

Precision = Literal["fast-math", "half", "bf16", "tf32"]


def _allowed() -> frozenset[Precision]:
    return frozenset({"fast-math"}) if config.current().fast_math else frozenset()


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """Defaults are what "verified" means; `allow` and `accept_slower_shapes` loosen it, by the person's word only."""

    allow: frozenset[Precision] = field(default_factory=_allowed)  # precision downgrades the person opted in to
    accept_slower_shapes: bool = False  # G12: a win may be > 2 % slower at some captured shape
    max_launches: int = 4  # judged, distinct shapes first
    max_timed: int = 4  # timed
    poisons: int = 2  # G3: patterns, one run each
    mutants: int = 8  # G2: one-token mutants of the original that the inputs must show; 0 asks for none
    shadow: Literal["all", "wide"] = "all"  # G3: which differences a float64 shadow judges: those beyond 1e-5 only?
    hidden_cases: int = 80  # G5: at most so many
    hidden_budget_s: float = 4.0  # G5: no new hidden case after so many seconds on a GPU,
    hidden_budget_emulated_s: float = 16.0  # and on the emulator
    repeats: int = 3  # G6
    rounds: int = 30  # timing rounds of four samples
    min_us: float = 20.0  # a sample times at least this long (a batch of launches below it)
    timing_budget_s: float = 8.0  # one launch's rounds end after this
    floor_of_day: bool = False  # a noise floor known from today's A/A runs on this GPU saves one of its own
    brief: bool = False  # timing for a search: none with a warm L2, and few rounds of what is plainly slower
    deadline_s: float = 120.0  # a job of the original
    slower_deadline: float = 30.0  # a candidate may take this many times the original's job, and ten seconds
    seed: int = 0
    in_program: bool = False  # G13: rebuild the program with the edit and run it
    program_timeout_s: float = 600.0  # G13: one build and run of the program
    emulator_s: float = 15.0  # G7 on a GPU: for the emulator's checkers beside it; 0 does not ask them
    checkers_timeout_s: float = 60.0  # G7 on a GPU: half of it for the candidate, the rest for the original
    checker_bytes: int = 512 << 20  # of the launch they see
    checker_quick_bytes: int = 32 << 20  # of a captured launch that is not worth replacing by a smaller, derived one
    traffic: bool = True  # trace on the emulator: needed by G7 and for predicted sectors
