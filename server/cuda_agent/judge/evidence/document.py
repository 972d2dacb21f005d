"""`evidence.json`, schema version 1: written, read back. The fields are described in docs/evidence.md and, for
machines, in `schema.json`.

The JSON is what `--json` prints; it holds the whole verdict (`from_json` gives it back) and the two texts, so that the
judgement can be made again (`recheck.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, cast

from cuda_agent.errors import SourceError, UsageError
from cuda_agent.judge.digest import sha256
from cuda_agent.judge.evidence.words import headline
from cuda_agent.model import Assumption, Candidate, Edit, GateResult, LaunchMap, Proposal, Span, Timing, Verdict
from cuda_agent.source import edits

SCHEMA = 1
Json = dict[str, Any]


def to_json(
    verdict: Verdict,
    proposal: Proposal | None = None,
    *,
    candidate: Candidate | None = None,
    diff: str | None = None,
    kernel: str | None = None,
    file: str | None = None,
) -> Json:
    """One JSON object. `candidate`, `diff` and `kernel` default to the proposal's, `file` to the record's; what is not
    known is null."""
    candidate = candidate or (proposal.candidate if proposal else None)
    diff = diff if diff is not None else (proposal.diff if proposal else None)
    data: Json = {
        "schema": SCHEMA,
        "status": verdict.status,
        "evidence_level": verdict.level,
        "faster": verdict.faster,
        "headline": headline(verdict),
        "kernel": kernel or (candidate.kernel if candidate else None),
        "file": file or verdict.record.get("file"),
        "inputs": verdict.inputs,
        "numeric": verdict.numeric,
        "gates": [_gate_json(gate) for gate in verdict.gates],
        "timing": _timing_json(verdict.timing),
        "traffic": dict(verdict.traffic),
        "record": dict(verdict.record),
        "candidate": _candidate_json(candidate),
        "proposal": {"id": proposal.id, "uri": proposal.uri, "source_hash": proposal.source_hash} if proposal else None,
        "diff": diff,
        "source": _source_json(candidate),
    }
    return cast(Json, json.loads(json.dumps(data, default=_plain, allow_nan=True), parse_constant=str))


def from_json(data: Mapping[str, Any]) -> Verdict:
    """The verdict inside an evidence object. Raises UsageError for another schema."""
    if data.get("schema") != SCHEMA:
        raise UsageError(f"this evidence has schema {data.get('schema')!r}; this version reads {SCHEMA}: judge again")
    timing = data["timing"]
    return Verdict(
        status=data["status"],
        level=data["evidence_level"],
        gates=tuple(GateResult(**gate) for gate in data["gates"]),
        inputs=data["inputs"],
        numeric=data["numeric"],
        timing=_timing_from_json(timing) if timing else None,
        traffic=dict(data["traffic"]),
        record=dict(data["record"]),
    )


def candidate_from_json(data: Mapping[str, Any]) -> Candidate:
    """The candidate inside an evidence object, with both texts. Raises UsageError when they are not in it or do not
    hash to what was judged."""
    about, source = data.get("candidate"), data.get("source")
    if not about or not source:
        raise UsageError("this evidence holds no candidate with its texts: judge again with this version")
    try:
        changes = tuple(Edit(Span(int(start), int(end)), str(text)) for start, end, text in source["edits"])
        text = edits.apply(source["original"], changes)
    except (SourceError, TypeError, ValueError) as error:
        raise UsageError(f"the edits in this evidence do not fit its text: {error}") from error
    for what, found in (("original", source["original"]), ("candidate", text)):
        if sha256(found) != source[f"{what}_sha256"]:
            raise UsageError(f"the {what}'s text in this evidence is not the one that was judged: it was changed since")
    return Candidate(
        about["kernel"],
        source["original"],
        text,
        changes,
        about["origin"],
        about["numeric"],
        launch_map_from_json(about["launch"]),
        tuple(Assumption(assumption["text"], assumption["known"]) for assumption in about["assumptions"]),
        id=about["id"],
        reason=about.get("reason", ""),
    )


def launch_map_from_json(data: Mapping[str, Any]) -> LaunchMap:
    """The map that `asdict` made this of; a KeyError or TypeError for anything else."""
    grid, block = data["grid"], data["block"]
    return LaunchMap(
        (grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), data["shared"], bool(data.get("seen"))
    )


def _source_json(candidate: Candidate | None) -> Json | None:
    """The whole original and the edits that lead to the candidate: all that is needed to make both again."""
    if candidate is None:
        return None
    changes = candidate.edits or edits.minimal(candidate.original, candidate.text)
    return {
        "original_sha256": sha256(candidate.original),
        "candidate_sha256": sha256(candidate.text),
        "original": candidate.original,
        "edits": [[edit.span.start, edit.span.end, edit.text] for edit in changes],
    }


def _gate_json(gate: GateResult) -> Json:
    return {
        "id": gate.id,
        "name": gate.name,
        "status": gate.status,
        "detail": gate.detail,
        "seconds": round(gate.seconds, 4),
        "data": dict(gate.data),
        "undecided": gate.undecided,
    }


def _timing_json(timing: Timing | None) -> Json | None:
    if timing is None:
        return None
    launches = [{"shape": shape, "ratio": ratio, "ci": [low, high]} for shape, ratio, low, high in timing.per_launch]
    return asdict(timing) | {"per_launch": launches}


def _timing_from_json(data: Mapping[str, Any]) -> Timing:
    """What another version of this program knew besides is left out."""
    known = {field.name for field in fields(Timing)}
    kept = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key in known}
    launches = tuple((row["shape"], row["ratio"], *row["ci"]) for row in data["per_launch"])
    return Timing(**(kept | {"per_launch": launches}))


def _candidate_json(candidate: Candidate | None) -> Json | None:
    if candidate is None:
        return None
    return {
        "id": candidate.id,
        "kernel": candidate.kernel,
        "origin": candidate.origin,
        "numeric": candidate.numeric,
        "launch": asdict(candidate.launch),
        "assumptions": [asdict(assumption) for assumption in candidate.assumptions],
        **({"reason": candidate.reason} if candidate.reason else {}),
    }


def _plain(value: Any) -> Any:
    """What json does not know: paths, tuples inside mappings, numpy scalars."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
