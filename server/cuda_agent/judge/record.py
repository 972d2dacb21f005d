"""What G14 writes down, as far as the judgement got."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from cuda_agent.judge.case import sha256
from cuda_agent.model import Binary, Launch

if TYPE_CHECKING:
    from cuda_agent.judge.case import Case

VERSION = 1


def make(case: Case, *, quick: bool) -> dict[str, Any]:
    """The record of one judgement; what was not reached is null. Never compiles or runs anything."""
    info = case.device.info
    original: Binary | None = case.__dict__.get("original_binary")
    candidate: Binary | None = case.__dict__.get("candidate_binary")
    return {
        "record": VERSION,
        "quick": quick,
        "original": {"text_sha256": sha256(case.original), **_binary(original)},
        "candidate": {"text_sha256": sha256(case.candidate.text), **_binary(candidate)},
        "verified_sha256": _one(case.ran["verified"]),
        "timed_sha256": _one(case.ran["timed"]),
        "offered_sha256": candidate.sha256 if candidate else None,
        "same_code": bool(case.__dict__.get("same_code")),
        "device": {"name": info.name, "kind": info.kind, "arch": info.arch, "driver": info.driver},
        "compiler": candidate.compiler if candidate else None,
        "flags": list(case.build.flags),
        "build_origin": case.build.origin,
        "inputs": _inputs(case),
        "launches": {
            "total": len(case.workload.launches),
            "judged": len(case.launches) if case.workload.launches else 0,
            "timed": len(case.times.launches) if case.timed else 0,
        },
        "seeds": {"judge": case.options.seed, "timing": case.times.seed if case.timed else None},
    }


def _binary(binary: Binary | None) -> dict[str, Any]:
    if binary is None:
        return {"binary_sha256": None, "sass": None, "path": None}
    return {
        "binary_sha256": binary.sha256,
        "sass": {name: facts.sass_hash for name, facts in binary.kernels.items() if facts.sass_hash},
        "path": binary.path,
    }


def _one(hashes: set[str]) -> str | None:
    return " ".join(sorted(hashes)) or None


def _inputs(case: Case) -> str:
    """One hash over the launches and the bytes they start from."""
    text = json.dumps([_launch(launch) for launch in case.workload.launches], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _launch(launch: Launch) -> list[Any]:
    args = [(arg.offset, arg.data.hex(), [(p.at, p.buffer, p.offset) for p in arg.pointers]) for arg in launch.args]
    buffers = [(buffer.size, list(buffer.before)) for buffer in launch.buffers]
    return [launch.mangled, launch.grid, launch.block, launch.shared, args, buffers, [list(g) for g in launch.globals]]
