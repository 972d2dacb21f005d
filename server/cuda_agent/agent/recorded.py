"""Recorded searches: one file each in the person's cache, the oldest go first when there is no more room; read back,
listed, exported.

A line that is cut off, or that nobody here wrote, is left out, and a sentence says so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent import config, paths
from cuda_agent.agent.reward import Rules
from cuda_agent.agent.trajectory import SCHEMA, misfits
from cuda_agent.errors import UsageError

Json = Mapping[str, Any]
SHARE = 8  # one part in so many of the cache's size is for trajectories
log = logging.getLogger(__name__)


def folder() -> Path:
    return paths.cache_dir() / "trajectories"


def new(kernel: str) -> Path | None:
    """A file for the search that begins, with room made for it. None where none can be kept, which is logged."""
    name = re.sub(r"\W+", "_", kernel)[:60].strip("_") or "kernel"
    where = folder()
    try:
        where.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_room(where)
        path = where / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{name}-{secrets.token_hex(3)}.jsonl"
        path.touch(mode=0o600)
    except OSError as error:
        log.warning("no trajectory is kept: %s", error)
        return None
    return path


def _make_room(where: Path) -> None:
    """The oldest searches are forgotten."""
    left = (config.current().cache_size_mb << 20) // SHARE
    for path, stat in reversed(_aged(where)):
        left -= stat.st_size
        if left < 0:
            path.unlink(missing_ok=True)


def _aged(where: Path) -> list[tuple[Path, os.stat_result]]:
    """The records, those written to last at the end."""
    found = []
    for path in where.glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # another process has just forgotten it
            found.append((path, path.stat()))
    return sorted(found, key=lambda pair: (pair[1].st_mtime_ns, pair[0]))


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class Recorded:
    """One search. `lines` are its steps in order, the first is its start; `skipped` says what was left out."""

    id: str
    lines: tuple[Json, ...]
    skipped: tuple[str, ...] = ()

    @property
    def start(self) -> Json:
        return self.lines[0]

    @property
    def end(self) -> Json | None:
        """None of a search that is still running, or was killed."""
        return next((line for line in reversed(self.lines) if line["step"] == "end"), None)

    def of(self, step: str) -> list[Json]:
        return [line for line in self.lines if line["step"] == step]


def read(path: Path) -> list[Recorded]:
    """The searches in one file. Raises UsageError for a file that cannot be read or holds none."""
    try:
        raw = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    groups: list[list[Json]] = []
    skipped: list[list[str]] = [[]]
    for number, data in enumerate(raw, 1):
        if not data.strip():
            continue
        line, wrong = _line(data)
        if line is not None and line["step"] == "start":
            groups.append([])
            skipped.append([])
        elif not wrong and not groups:
            wrong = "belongs to a search whose start is not here"
        if wrong:
            skipped[-1].append(f"{path.name}, line {number} {wrong}: it is left out")
        elif line is not None:
            groups[-1].append(line)
    if not groups:
        why = f": {skipped[0][0]}" if skipped[0] else ""
        raise UsageError(f"{path} holds no recorded search{why}")
    first = skipped.pop(0)
    skipped[0] = first + skipped[0]
    names = [path.stem] if len(groups) == 1 else [f"{path.stem}#{number}" for number in range(1, len(groups) + 1)]
    return [Recorded(name, tuple(group), tuple(left)) for name, group, left in zip(names, groups, skipped, strict=True)]


def _line(data: bytes) -> tuple[Json | None, str]:
    """The step, or what is wrong with it."""
    try:
        line = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None, "is cut off or no JSON"
    if not isinstance(line, dict):
        return None, "is no step of a trajectory"
    if line.get("step") == "start" and line.get("schema") != SCHEMA:
        return None, f"begins a search of another version ({line.get('schema', 'none')}; this one reads {SCHEMA})"
    wrong = next(misfits(line), "")
    return (None, wrong) if wrong else (line, "")


# ---------------------------------------------------------------- which there are


def find(words: Sequence[str]) -> list[Path]:
    """Files by id, a part of an id, a path, or `last`; without words all of them, oldest first. Raises UsageError for
    a word that means none or several."""
    kept = [path for path, _ in _aged(folder())]
    return [_find(word, kept) for word in words] if words else kept


def _find(word: str, kept: Sequence[Path]) -> Path:
    if word == "last" and kept:
        return kept[-1]
    if Path(word).is_file():
        return Path(word)
    found = [path for path in kept if path.stem == word] or [path for path in kept if word in path.stem]
    if len(found) != 1:
        many = f"means {len(found)} of the recorded searches" if found else "is no recorded search and no file"
        raise UsageError(f"{word} {many}: `cuda-agent trajectories` lists them")
    return found[0]


def summaries(paths_: Iterable[Path]) -> Iterator[tuple[str, Json, Json | None]]:
    """(id, start, end) of each file's search, without reading what lies between. A file of another version, or none of
    ours, is left out."""
    for path in paths_:
        try:
            with path.open("rb") as file:
                start, _ = _line(file.readline())
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL))
                last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        except OSError:
            continue  # another process has just forgotten it
        if start is None or start["step"] != "start":
            continue
        end, _ = _line(last)
        yield path.stem, start, end if end is not None and end["step"] == "end" else None


_TAIL = 1 << 16  # bytes: an `end` line is far shorter


def best_rules(start: Json) -> Rules | None:
    """The best rule search that is known here of the same kernel, flags, inputs and device."""
    same = ("source_hash", "flags_sha256", "inputs_sha256", "device")
    found = []
    for name, other, end in summaries(find(())):
        if end is None or other["policy"] != "search" or any(other[key] != start[key] for key in same):
            continue
        if end.get("timing") and end["faster"]:
            found.append(Rules(float(end["timing"]["ratio"]), name))
        elif end["status"] == "nothing" and end["tried"]:
            found.append(Rules(1.0, name))
    return max(found, key=lambda rules: rules.ratio, default=None)


def row(id: str, start: Json, end: Json | None) -> dict[str, Any]:
    """What the list shows of a search."""
    return {
        "id": id,
        "date": start["date"],
        "kernel": start["kernel"],
        "file": start["file"],
        "device": start["device"],
        "policy": start["policy"],
        "status": end["status"] if end else "not ended",
        "tried": end["tried"] if end else None,
        "gain": gain(end) if end else "",
        "reward": end.get("reward") if end else None,
        "seconds": end["seconds"] if end else None,
    }


def gain(line: Json) -> str:
    """`1.83× [1.80, 1.86]`, or `sectors −87 %` where nothing was timed; empty without either."""
    timing, traffic = line.get("timing"), line.get("traffic") or {}
    if timing:
        return f"{timing['ratio']:.2f}× [{timing['ci'][0]:.2f}, {timing['ci'][1]:.2f}]"
    before, after = traffic.get("sectors_before"), traffic.get("sectors_after")
    return f"sectors {100 * (after / before - 1):+.0f} %".replace("-", "−") if before and after is not None else ""


# ---------------------------------------------------------------- for training


def export(found: Recorded) -> dict[str, Any]:
    """One search as one object: messages in the usual chat format, and everything that was done, judged and
    measured."""
    start, end = found.start, found.end
    return {
        "schema": SCHEMA,
        "id": found.id,
        **{key: value for key, value in start.items() if key not in ("schema", "step", "time")},
        "messages": [chat(line) for line in found.of("message")],
        "actions": [_own(line) for line in found.of("action")],
        "features": next((line["features"] for line in found.of("features")), {}),
        "candidates": [_own(line) for line in found.of("candidate")],
        "verdicts": [_own(line) for line in found.of("full")],
        "reward": end.get("reward") if end else None,
        "end": _own(end) if end else None,
        "skipped": list(found.skipped),
    }


def _own(line: Json) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "step"}


def chat(line: Json) -> dict[str, Any]:
    """`{"role", "content", "tool_calls"?, "tool_call_id"?}`, as chat templates and servers take it."""
    message: dict[str, Any] = {"role": line["role"], "content": line.get("text") or ""}
    if line.get("calls"):
        message["tool_calls"] = [
            {
                "id": call.get("id", ""),
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call.get("arguments", {}))},
            }
            for call in line["calls"]
        ]
    if line["role"] == "tool":
        message |= {"tool_call_id": line.get("call") or "", "name": line.get("tool") or ""}
    return message
