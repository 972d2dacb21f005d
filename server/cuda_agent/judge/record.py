"""What G14 writes down, as far as the judgement got: all that is needed to make it again.

Paths are relative to the project and flags name it `.`: a record says nothing about the machine's folders, and a
project that was moved is still found.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent import __version__
from cuda_agent.judge.digest import sha256
from cuda_agent.judge.options import JudgeOptions
from cuda_agent.model import Binary, Launch, Workload
from cuda_agent.paths import project_folders

if TYPE_CHECKING:
    from cuda_agent.device import DeviceInfo
    from cuda_agent.judge.case import Case
    from cuda_agent.judge.timing import LaunchTime

VERSION = 2


def make(case: Case, *, quick: bool) -> dict[str, Any]:
    """The record of one judgement; what was not reached is null. Never compiles or runs anything."""
    original: Binary | None = case.__dict__.get("original_binary")
    candidate: Binary | None = case.__dict__.get("candidate_binary")
    file = Path(os.path.abspath(case.build.file))
    project = project_of(file)
    launches = case.launches if case.workload.launches else ()
    return {
        "record": VERSION,
        "version": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "file": file.relative_to(project).as_posix(),
        "original": {"text_sha256": sha256(case.original), **_binary(original)},
        "candidate": {"text_sha256": sha256(case.candidate.text), **_binary(candidate)},
        "verified_sha256": _one(case.ran["verified"]),
        "timed_sha256": _one(case.ran["timed"]),
        "offered_sha256": candidate.sha256 if candidate else None,
        "same_code": bool(case.__dict__.get("same_code")),
        "device": device_json(case.device.info),
        "compiler": candidate.compiler if candidate else None,
        "flags": flags(case.build.flags, project),
        "build_origin": case.build.origin,
        "inputs": inputs(case.workload),
        "bundle": _bundle(case.workload, launches, project),
        "launches": {
            "total": len(case.workload.launches),
            "judged": len(launches),
            "timed": len(case.times.launches) if case.timed else 0,
        },
        "seeds": {"judge": case.options.seed, "timing": case.times.seed if case.timed else None},
        "options": asdict(case.options) | {"allow": sorted(case.options.allow)},
        "measurements": [_measurement(launch) for launch in case.times.launches] if case.timed else [],
    }


def project_of(file: Path) -> Path:
    """The folder that paths are relative to: the repository's root, else the nearest folder with captures or a
    compilation database, else the file's own."""
    folders = list(project_folders(file))
    for marks in ((".git",), (".cuda-agent", "compile_commands.json")):
        for folder in folders:
            if any((folder / mark).exists() for mark in marks):
                return folder
    return file.parent


def flags(given: tuple[str, ...], project: Path) -> list[str]:
    """A build's flags, or a command's words, with the project's folder spelled `.` and the one above it `..`."""
    folders = [(re.compile(rf"{re.escape(str(project))}(?=/|$)"), ".")]
    if project.parent != project.parent.parent:  # not the root of everything
        folders.append((re.compile(rf"{re.escape(str(project.parent))}(?=/)"), ".."))
    found = []
    for flag in given:
        for folder, spelled in folders:
            flag = folder.sub(spelled, flag)
        found.append(flag)
    return found


def options_from_json(data: Mapping[str, Any]) -> JudgeOptions:
    """The recorded options; what another version of this program knew besides is left out."""
    known = {field.name for field in fields(JudgeOptions)}
    kept = {name: value for name, value in data.items() if name in known}
    return JudgeOptions(**(kept | {"allow": frozenset(kept.get("allow", ()))}))


def inputs(workload: Workload) -> str:
    """One hash over the launches and the bytes they start from."""
    text = json.dumps([_launch(launch) for launch in workload.launches], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def device_json(info: DeviceInfo) -> dict[str, Any]:
    peaks = {"peak_gflops_f32": info.peak_flops("f32") / 1e9, "peak_gflops_f64": info.peak_flops("f64") / 1e9}
    told = {name: value for name, value in asdict(info).items() if name != "uuid"}  # evidence is shown to others
    return told | peaks


def _bundle(workload: Workload, launches: tuple[Launch, ...], project: Path) -> dict[str, Any]:
    """Where the inputs lie and what they are. A bundle outside the project keeps its whole path."""
    root = Path(os.path.abspath(workload.root))
    needed = {
        name
        for launch in launches
        for chunks in (*(buffer.before for buffer in launch.buffers), *(names for _, names in launch.globals))
        for name in chunks
    }
    return {
        "path": root.relative_to(project).as_posix() if root.is_relative_to(project) else str(root),
        "origin": workload.origin,
        "device": workload.device,
        "command": flags(workload.command, project),
        "launches": [
            {
                "seq": launch.seq,
                "kernel": launch.demangled or launch.mangled,
                "grid": list(launch.grid),
                "block": list(launch.block),
                "shared": launch.shared,
                "bytes": launch.held_bytes,
            }
            for launch in launches
        ],
        "blobs": sorted(needed),
    }


def _measurement(launch: LaunchTime) -> dict[str, Any]:
    """Every timed sample of one launch, in the order taken: microseconds of one launch."""
    samples = launch.raw["samples"]
    return {
        "shape": launch.shape,
        "batch": launch.raw.get("batch"),
        "rounds": launch.raw.get("rounds"),
        "original_us": [round(s["us"], 4) for s in samples if s["side"] == "a"],
        "candidate_us": [round(s["us"], 4) for s in samples if s["side"] == "b"],
        "clock_mhz": list(launch.clock_mhz) if launch.clock_mhz else None,
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


def _launch(launch: Launch) -> list[Any]:
    args = [(arg.offset, arg.data.hex(), [(p.at, p.buffer, p.offset) for p in arg.pointers]) for arg in launch.args]
    buffers = [(buffer.size, list(buffer.before)) for buffer in launch.buffers]
    return [launch.mangled, launch.grid, launch.block, launch.shared, args, buffers, [list(g) for g in launch.globals]]
