"""The trajectory of a search: one JSON line a step, enough to run it again and to train on it later.

docs/trajectories.md describes every field of `STEPS`. Nothing in it tells of the machine: no environment, no keys, no
absolute paths. The texts of the person's file and of a model are kept as they are; in everything else the source file's
folder reads `.`, and other folders `…`.
"""

from __future__ import annotations

import json
import logging
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cuda_agent import paths
from cuda_agent.agent.policies import Step
from cuda_agent.model import GateResult, Verdict
from cuda_agent.rewrite import labels_of

SCHEMA = 1
LIMIT = 64 << 20  # bytes of one trajectory; what comes after that is left out, but for its end

# Step → field → kind. A kind with a question mark may be missing or null. Every line has `step` and `time` too.
STEPS: Mapping[str, Mapping[str, str]] = {
    "start": {
        "schema": "whole",
        "date": "text",
        "kernel": "text",
        "file": "text",
        "source_hash": "text",
        "text": "text",
        "text_sha256": "text",
        "build": "text",
        "flags_sha256": "text",
        "inputs": "text",
        "inputs_sha256": "text",
        "inputs_device": "text",
        "launches": "whole",
        "device": "text",
        "device_kind": "text",
        "arch": "text",
        "policy": "text",
        "model": "text?",
        "prompts": "text?",
        "versions": "object",
        "budget": "object",
        "options": "object",
        "fresh": "flag",
    },
    "features": {"features": "numbers"},
    "prompts": {"hash": "text", "model": "text", "from": "text?"},
    "message": {
        "role": "text",
        "text": "text?",
        "calls": "calls?",
        "call": "text?",
        "tool": "text?",
        "usage": "pair?",
        "seconds": "number?",
        "complaint": "text?",
        "cut": "flag?",
    },
    "shortened": {"dropped": "whole"},
    "action": {"by": "text", "name": "text", "arguments": "object?", "candidates": "list?"},
    "candidate": {
        "id": "text",
        "parent": "text?",
        "origin": "text",
        "rules": "list",
        "reason": "text?",
        "text": "text",
        "launch": "object",
        "numeric": "text",
        "assumptions": "list",
        "status": "text?",
        "gates": "gates",
        "timing": "timing?",
        "traffic": "numbers",
        "seeds": "object",
        "score": "number?",
        "twin": "flag",
        "note": "text",
        "log": "text",
        "sass": "list",
        "mark": "text",
        "features": "numbers",
        "seconds": "number",
        "at": "number",
        "reward": "whole?",
    },
    "full": {
        "id": "text",
        "status": "text",
        "level": "text",
        "faster": "flag",
        "seeds": "object",
        "gates": "gates",
        "timing": "timing?",
        "traffic": "numbers",
        "seconds": "number",
        "reward": "whole?",
    },
    "cut": {"bytes": "whole"},
    "end": {
        "status": "text",
        "message": "text",
        "candidate": "text?",
        "tried": "whole",
        "seconds": "number",
        "faster": "flag",
        "timing": "timing?",
        "traffic": "numbers",
        "tokens": "pair",
        "cost": "number",
        "reward": "whole?",
        "rules": "object?",
        "remembered": "flag?",
    },
}
log = logging.getLogger(__name__)


class Trajectory:
    """Appends to its files; a disk that is full loses the record, never the search."""

    def __init__(self, files: Sequence[Path | None], folder: Path | None = None) -> None:
        """`folder` is the source file's: it is not written out."""
        self._files = {path: 0 for path in files if path is not None}
        self._hide = hider(folder)
        self._start = time.monotonic()

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(self._files)

    def also(self, path: Path | None) -> None:
        """Keep a record in this file too, from now on."""
        if path is not None:
            self._files[path] = 0

    def append(self, step: str, **fields: Any) -> None:
        if not self._files:
            return
        hidden = fields if step == "message" and fields.get("role") == "assistant" else self._hide(step, fields)
        line = {"step": step, "time": round(time.monotonic() - self._start, 3), **_plain(hidden)}
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        for path in self.files:
            self._write(path, step, data)

    def _write(self, path: Path, step: str, data: bytes) -> None:
        written = self._files[path]
        if written > LIMIT and step != "end":
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(data)
                self._files[path] = written + len(data)
                if written <= LIMIT < self._files[path] and step != "end":
                    cut = {"step": "cut", "time": round(time.monotonic() - self._start, 3), "bytes": LIMIT}
                    file.write((json.dumps(cut) + "\n").encode())
        except OSError as error:
            log.warning("the trajectory %s is not recorded any more: %s", path, error)
            del self._files[path]

    def candidate(self, step: Step, features: Mapping[str, float], reward: int | None) -> None:
        candidate, verdict = step.candidate, step.verdict
        self.append(
            "candidate",
            id=candidate.id,
            parent=candidate.parent,
            origin=candidate.origin,
            rules=applications(candidate.origin),
            reason=candidate.reason or None,
            text=candidate.text,
            launch=asdict(candidate.launch),
            numeric=candidate.numeric,
            assumptions=[asdict(a) for a in candidate.assumptions],
            status=verdict.status if verdict else None,
            gates=_gates(verdict.gates) if verdict else [],
            timing=asdict(verdict.timing) if verdict and verdict.timing else None,
            traffic=dict(verdict.traffic) if verdict else {},
            seeds=_seeds(verdict),
            score=step.score,
            twin=step.twin,
            note=step.note,
            log=step.log,
            sass=list(step.sass),
            mark=step.mark,
            features=dict(features),
            seconds=round(step.seconds, 3),
            at=round(step.at, 3),
            reward=reward,
        )

    def full(self, id: str, verdict: Verdict, seconds: float, reward: int | None) -> None:
        self.append(
            "full",
            id=id,
            status=verdict.status,
            level=verdict.level,
            faster=verdict.faster,
            seeds=_seeds(verdict),
            gates=_gates(verdict.gates),
            timing=asdict(verdict.timing) if verdict.timing else None,
            traffic=dict(verdict.traffic),
            seconds=round(seconds, 3),
            reward=reward,
        )


def _seeds(verdict: Verdict | None) -> dict[str, Any]:
    return dict(verdict.record.get("seeds") or {}) if verdict is not None else {}


def _gates(gates: Sequence[GateResult]) -> list[list[str]]:
    return [[gate.id, gate.status, gate.detail] for gate in gates]


def applications(origin: str) -> list[dict[str, Any]]:
    """`rule:a(x=1, y=z)+b` → `[{"rule": "a", "params": {"x": 1, "y": "z"}}, {"rule": "b", "params": {}}]`; a model's
    name is not among them. A parameter without a name has its number."""
    found = []
    for label in labels_of(origin):
        name, _, inside = label.partition("(")
        if label.startswith("model:") or not label:
            continue
        params = {}
        for number, part in enumerate(inside.removesuffix(")").split(",") if inside else ()):
            key, equals, value = part.strip().partition("=")
            params[key if equals else str(number)] = _number(value if equals else key)
        found.append({"rule": name, "params": params})
    return found


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


# ---------------------------------------------------------------- what is not written

_VERBATIM = {"start": ("text",), "candidate": ("text",)}  # the person's file and what was made of it
_FOLDERS = re.compile(r"(?<![\w.~/…])(?:/[\w.+@-]+)+/(?=[\w.+@-])")


def hider(folder: Path | None) -> Callable[[str, Mapping[str, Any]], dict[str, Any]]:
    """Takes the folders of this machine out of a line's strings. Of a conversation, which may quote code, only those
    that say something of the person."""
    own = str(folder.absolute()) if folder is not None else ""
    known = [(own, "."), (str(paths.cache_dir()), "…"), (str(Path.home()), "~"), (tempfile.gettempdir(), "…")]
    named = [(re.compile(rf"{re.escape(path)}(?![\w-])"), word) for path, word in known if path.strip("/")]

    def text(given: str, quotes: bool) -> str:
        for path, word in named:
            given = path.sub(word, given)
        return given if quotes else _FOLDERS.sub("…/", given)

    def walk(value: Any, quotes: bool) -> Any:
        if isinstance(value, str):
            return text(value, quotes)
        if isinstance(value, Mapping):
            return {key: walk(item, quotes) for key, item in value.items()}
        return [walk(item, quotes) for item in value] if isinstance(value, list | tuple) else value

    def line(step: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        kept = _VERBATIM.get(step, ())
        quotes = step in ("message", "action")
        return {key: value if key in kept else walk(value, quotes) for key, value in fields.items()}

    return line


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinities: their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


# ---------------------------------------------------------------- what is a line


def misfits(line: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a line that claims to be a step; nothing for those that we write."""
    fields = STEPS.get(str(line.get("step")))
    if fields is None:
        yield "is no step of a trajectory"
        return
    for name, kind in {"time": "number", **fields}.items():
        value = line.get(name)
        if value is None:
            if not kind.endswith("?"):
                yield f"has no {name}"
        elif not _is(kind.rstrip("?"), value):
            yield f"has {name} that is no {kind.rstrip('?')}"


def _is(kind: str, value: Any) -> bool:
    if kind in ("number", "whole"):
        return not isinstance(value, bool) and isinstance(value, (int, float) if kind == "number" else int)
    if kind == "timing":
        return isinstance(value, dict) and _is("number", value.get("ratio")) and _interval(value.get("ci"))
    if kind == "calls":
        return isinstance(value, list) and all(map(_call, value))
    if kind == "pair":
        return isinstance(value, list) and len(value) == 2 and all(_is("whole", number) for number in value)
    if kind == "gates":
        return isinstance(value, list) and all(isinstance(g, list) and [type(x) for x in g] == [str] * 3 for g in value)
    if kind == "numbers":
        return isinstance(value, dict) and all(_is("number", number) for number in value.values())
    return isinstance(value, {"text": str, "flag": bool, "list": list, "object": dict}[kind])


def _call(value: Any) -> bool:
    named = isinstance(value, dict) and isinstance(value.get("name"), str)
    return named and isinstance(value.get("arguments", {}), dict)


def _interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is("number", number) for number in value)
