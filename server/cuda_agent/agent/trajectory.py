"""The trajectory: one JSON line a step, enough to replay a search or to train on it later.

Lines: `{"step": "start"|"candidate"|"end", "time": seconds since start, …}`. A candidate line has its whole text, where
it came from, the gates, the timing, the score and the seconds that its judgement took. No environment, no paths: the
source file's folder reads `.`.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cuda_agent.agent.policies import Step

log = logging.getLogger(__name__)


class Trajectory:
    """Appends to `path`; a disk that is full loses the record, never the search."""

    def __init__(self, path: Path | None, folder: Path | None = None) -> None:
        """`folder` is the source file's: it is not written out."""
        self.path = path
        self._folder = json.dumps(str(folder.absolute()))[1:-1] if folder else ""
        self._start = time.monotonic()

    def append(self, step: str, **fields: Any) -> None:
        if self.path is None:
            return
        line = json.dumps({"step": step, "time": round(time.monotonic() - self._start, 3), **fields})
        if self._folder.strip("/"):
            line = line.replace(self._folder, ".")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            log.warning("the trajectory %s is not recorded any more: %s", self.path, error)
            self.path = None

    def candidate(self, step: Step) -> None:
        candidate, verdict = step.candidate, step.verdict
        self.append(
            "candidate",
            id=candidate.id,
            parent=candidate.parent,
            origin=candidate.origin,
            text=candidate.text,
            launch=asdict(candidate.launch),
            assumptions=[asdict(a) for a in candidate.assumptions],
            gates=[[g.id, g.status, g.detail] for g in verdict.gates] if verdict else [],
            timing=asdict(verdict.timing) if verdict and verdict.timing else None,
            traffic=dict(verdict.traffic) if verdict else {},
            score=step.score,
            note=step.note,
            seconds=round(step.seconds, 3),
        )
