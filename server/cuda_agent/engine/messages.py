"""What the server says to the engine and hears from it. `docs/protocol.md` lists the same; a test compares the two.

Every field is JSON. `path` is absolute; `text` is the editor's text, saved or not; `settings` are the person's, which
the job takes as its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cuda_agent.config import Settings

JobKind = Literal["capture", "optimize", "verify"]
JobStatus = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Initialize:
    """`root`: the workspace's folder, "" without one. `trusted`: the person's answer for each folder, as in
    `trust.Answers`."""

    root: str
    trusted: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trust:
    """All answers that hold now; where one was taken back, every job ends."""

    trusted: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class FactsOf:
    """Compile the text and read what the compiler made of every kernel. A newer text of the same path replaces one
    that waits."""

    path: str
    text: str
    version: int = 0
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class Optimize:
    """`unsaved`: texts of other open files that are not on disk, by path: they may launch a header's kernel."""

    path: str
    text: str
    kernel: str
    settings: Settings = field(default_factory=Settings)
    job: str = ""  # the caller's id; empty: the engine makes one
    unsaved: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capture:
    path: str
    text: str
    kernel: str | None = None
    settings: Settings = field(default_factory=Settings)
    job: str = ""


@dataclass(frozen=True, slots=True)
class Verify:
    """Judge `candidate` (a whole file, or joined files as `text` is) against `text`. `launch` is the candidate's launch
    map, `origin` who made it, `reason` why."""

    path: str
    text: str
    candidate: str
    kernel: str
    origin: str = "person"
    numeric: str = "bit-exact"
    launch: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    settings: Settings = field(default_factory=Settings)
    job: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    job: str


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The editor's answer to a `ModelAsk`."""

    job: str
    ask: int
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Nothing: ...


REQUESTS: dict[str, type] = {
    "initialize": Initialize,
    "trust": Trust,
    "facts": FactsOf,
    "capture": Capture,
    "optimize": Optimize,
    "verify": Verify,
    "cancel": Cancel,
    "model/answer": ModelAnswer,
    "jobs": Nothing,
    "shutdown": Nothing,
}

# ---------------------------------------------------------------- events, from the engine


@dataclass(frozen=True, slots=True)
class JobProgress:
    """`best`: one sentence on the best candidate so far, kept when the job is cancelled."""

    job: str
    percentage: int
    message: str
    best: str | None = None


@dataclass(frozen=True, slots=True)
class JobDone:
    """`message` is a sentence for the person. `outcome` depends on the kind; a cancelled job may still carry its
    best."""

    job: str
    kind: JobKind
    path: str
    kernel: str | None
    status: JobStatus
    message: str
    outcome: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ModelAsk:
    """A job asks the editor's language model; `request` is `cudaAgent/model/reply`'s without the job. `ask` numbers a
    job's requests."""

    job: str
    ask: int
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelStop:
    """The job no longer waits for that answer."""

    job: str
    ask: int


@dataclass(frozen=True, slots=True)
class Log:
    level: Literal["error", "warning", "info", "debug"]
    message: str


EVENTS: dict[str, type] = {
    "job/progress": JobProgress,
    "job/done": JobDone,
    "model/ask": ModelAsk,
    "model/stop": ModelStop,
    "log": Log,
}
