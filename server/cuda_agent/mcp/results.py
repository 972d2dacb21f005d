"""Tool results: short pieces of what the command line's `--json` prints, and their JSON Schemas.

Nothing is worded anew here: an agent reads the same keys as docs/evidence.md names. What only a machine would keep (the
whole original, every sample, the numbers behind a gate's sentence) is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cuda_agent.judge.evidence import schema

Json = dict[str, Any]

VERDICT = (
    "status",
    "evidence_level",
    "faster",
    "headline",
    "kernel",
    "file",
    "inputs",
    "numeric",
    "gates",
    "timing",
    "traffic",
    "candidate",
)
STEPS = 12  # of a search's candidates, best first


def verdict(evidence: Mapping[str, Any]) -> Json:
    """The part of an evidence object that says what was found."""
    return {key: evidence[key] for key in VERDICT} | {"gates": [gate | {"data": {}} for gate in evidence["gates"]]}


def facts(found: Mapping[str, Any]) -> Json:
    return {**found, "kernels": [{key: row[key] for key in row if key != "lines"} for row in found["kernels"]]}


def capture(found: Mapping[str, Any]) -> Json:
    return {**found, "output": str(found["output"])[-2000:]}


def outcome(found: Mapping[str, Any]) -> Json:
    """Of what `optimize --json` prints for one kernel."""
    (row,) = found["kernels"]
    steps = sorted(row["steps"], key=lambda step: -(step["score"] or 0.0))[:STEPS]
    short = {key: found[key] for key in (*VERDICT, "message", "tried", "diff") if key in found}
    gates = [gate | {"data": {}} for gate in found["gates"]]
    return short | {"gates": gates, "limiter": row["limiter"], "left": row["left"], "steps": steps}


# ---------------------------------------------------------------- schemas


def _object(properties: Mapping[str, Any], required: list[str] | None = None) -> Json:
    return {"type": "object", "properties": dict(properties), "required": required or list(properties)}


def _list(of: Mapping[str, Any]) -> Json:
    return {"type": "array", "items": dict(of)}


def _text(description: str = "") -> Json:
    return {"type": "string", **({"description": description} if description else {})}


def _whole(description: str = "") -> Json:
    return {"type": "integer", **({"description": description} if description else {})}


_ANY_TEXT = {"type": ["string", "null"]}
_DIFF = {"type": ["string", "null"], "description": "unified diff of the whole file"}


def _with_definitions(wanted: Json) -> Json:
    """With those definitions of the evidence's schema that it refers to."""
    known, used = schema.schema()["$defs"], {}
    todo = list(_references(wanted))
    while todo:
        name = todo.pop()
        if name not in used:
            used[name] = known[name]
            todo += _references(known[name])
    return {**wanted, "$defs": used}


def _references(rule: Any) -> Iterator[str]:
    text = json.dumps(rule)
    for part in text.split('"#/$defs/')[1:]:
        yield part.partition('"')[0]


def _verdict() -> Json:
    return {key: schema.schema()["properties"][key] for key in VERDICT}


def verdict_schema() -> Json:
    return _with_definitions(_object(_verdict() | {"proposed": _text("where the person sees it")}, list(VERDICT)))


def outcome_schema() -> Json:
    step = _object({"origin": _text(), "score": {"type": ["number", "null"]}, "note": _text()})
    more = {
        "status": {"enum": ["verified", "rejected", "undecided", "nothing"]},
        "message": _text(),
        "tried": _whole("candidates"),
        "diff": _DIFF,
        "limiter": _text("what limited the original; empty where that is not known"),
        "left": _text("what limits the kernel as it is now"),
        "steps": _list(step) | {"description": "the best candidates; score: above one is better"},
        "proposed": _text("where the person sees it"),
    }
    required = ["status", "evidence_level", "kernel", "message", "tried", "gates", "timing", "diff", "steps"]
    return _with_definitions(_object(_verdict() | more, required))


def facts_schema() -> Json:
    row = _object(
        {
            "kernel": _text(),
            "demangled": _text(),
            "registers": _whole("a thread"),
            "shared_bytes": _whole("static, a block"),
            "stack_bytes": _whole(),
            "spill_stores": _whole("bytes"),
            "spill_loads": _whole("bytes"),
            "instructions": _whole("of machine code"),
            "occupancy": {"type": "object", "description": "with blocks of 256 threads"},
        }
    )
    return _object(
        {
            "status": {"const": "done"},
            "file": _text(),
            "arch": _text(),
            "flags": _list(_text()),
            "flags_from": _text(),
            "compiler": _text(),
            "kernels": _list(row),
        }
    )


def capture_schema() -> Json:
    kernel = _object({"kernel": _text(), "launches": _whole("seen"), "recorded": _whole(), "bundle": _ANY_TEXT})
    return _object(
        {
            "status": {"enum": ["done", "undecided"]},
            "device": _text(),
            "exit_code": _whole("of the program"),
            "launches": _whole("seen"),
            "recorded": _whole("kept as inputs"),
            "kernels": _list(kernel),
            "notes": _list(_text()),
            "output": _text("the end of what the program printed"),
        }
    )


def bench_schema() -> Json:
    number = {"type": "number"}
    row = _object({"shape": _text(), "us": number, "ratio": number, "ci": _list(number), "noise_floor": number})
    return _object(
        {
            "status": {"const": "done"},
            "kernel": _text(),
            "device": _text(),
            "inputs": _text(),
            "launches": _list(row) | {"description": "microseconds of one launch; ratio and floor are A against A"},
        }
    )


def proposals_schema() -> Json:
    row = _object(
        {
            "id": _text(),
            "file": _text(),
            "kernel": _text(),
            "origin": _text("rule:…, model:… or person"),
            "state": {"enum": ["fresh", "stale", "accepted", "rejected"]},
            "status": {"enum": ["verified", "rejected", "undecided"]},
            "title": _text(),
        }
    )
    evidence = {"type": "object", "properties": _verdict(), "required": list(VERDICT)}
    return _with_definitions(_object({"proposals": _list(row), "diff": _DIFF, "evidence": evidence}, ["proposals"]))
