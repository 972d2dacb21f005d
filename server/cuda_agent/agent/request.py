"""What a search is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cuda_agent.agent.policies import Step
from cuda_agent.inputs import RUN_TIMEOUT_S
from cuda_agent.judge import JudgeOptions
from cuda_agent.model import Candidate, Verdict

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Request:
    """What to optimise and what may be spent. `args` run a file that has a main; `run_command` any other program."""

    path: Path
    text: str | None = None  # the editor's text, when it differs from the file
    kernel: str | None = None
    device: str = "auto"
    budget_s: float = 300.0  # the full verdict included; the program's own run for inputs is not
    max_candidates: int = 200
    max_tokens: int = 0  # of a model; 0: no limit
    max_cost: float = 0.0  # of a model, in the money of `price`; 0: no limit
    price: tuple[float, float] = (0.0, 0.0)  # of a million tokens, read and written
    args: tuple[str, ...] = ()
    run_command: tuple[str, ...] | None = None
    trajectory: Path | None = None  # a record beside the one in the cache
    options: JudgeOptions = field(default_factory=JudgeOptions)
    timeout_s: float = RUN_TIMEOUT_S  # for a run of the program
    fresh: bool = False  # nothing that an earlier search found is used
    unsaved: Mapping[Path, str] = field(default_factory=dict)  # texts of other files that an editor has open
    recorded: bool = True  # in the cache, where the settings let it
    foreign: bool = False  # all candidates are from a file that others may have written


@dataclass(frozen=True)
class Outcome:
    """The end of one search. `verified` has a candidate with a full verdict; `nothing` found no better kernel."""

    status: Literal["verified", "rejected", "undecided", "nothing"]
    kernel: str
    message: str
    candidate: Candidate | None = None
    verdict: Verdict | None = None
    diff: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    tried: int = 0
    source_hash: str = ""
    steps: tuple[Step, ...] = ()
    refused: int = 0  # candidates that passed the quick judge and not the full one, or were no win there
    seconds: float = 0.0
    share: float | None = None  # of the time that the searched kernels cost in the program, where that was measured
    limiter: str = ""  # what limited the original: a kind of `hints.limits`
    left: str = ""  # what limits the kernel as it is now, in a sentence; empty where that is not known
    tokens: int = 0  # of a model, read and written
    cost: float = 0.0  # of a model, in the money of `price`
    trajectory: str = ""  # the id of its record in the cache
