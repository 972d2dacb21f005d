"""Judges a mutant archive as `cuda-agent verify` does. Originals with the same text share one capture and one device.

An archive holds `original.cu` and either `kernel.cu`, which takes the place of the kernel's definition there, or
`candidate.cu`, the whole file; any other file lies beside them. A kernel in a header has `original.cuh` instead, the
candidate's version of another file is `candidate/NAME`, and `run` says how the program is built and run. Its first
paragraph says why it matters. Settings: `kernel`, `args`, `timeout`, `in_program: yes`, `hidden_cases` (no more than so
many); `allow`: the precision that the person opted in to; `expect` (emulator) and `expect_gpu`: the exit code and the
gates that may stop it, or `error` where there is no verdict; `says`: a regular expression on the gate's sentence,
`says_emulator` one for the emulator only; `catalogue`: its line of the catalogue; `alone: yes`: no other gate sees it;
`rule`: the rewrite rule that a control stands for; `fewer_sectors: yes`; `never_faster: yes`. What runs on the
simulated GPU: `simulation.py`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, get_ident
from typing import Any

import pytest

from archive import Archive, archives
from cuda_agent.device import Device, open_device
from cuda_agent.errors import CudaAgentError
from cuda_agent.inputs import find_or_make
from cuda_agent.judge import JudgeOptions, to_json
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module as parse
from cuda_agent.toolchain.build import find_build
from cuda_agent.verify import VerifyRequest, verify

EXIT = {"verified": 0, "rejected": 1, "undecided": 2}
SOURCES = ("kernel.cu", "candidate.cu", "original.py", "candidate.py")
EDITED = "candidate/"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


@functools.cache
def having(setting: str = "kernel") -> tuple[Archive, ...]:
    """The archives with that setting."""
    found = (Archive.read(path) for path in archives(Path(__file__).parent))
    return tuple(archive for archive in found if setting in archive.settings)


def name(archive: Archive) -> str:
    return archive.path.stem


def original_name(archive: Archive) -> str:
    return "original.cu" if "original.cu" in archive.files else "original.cuh"


def candidate_text(archive: Archive) -> str:
    """The candidate's whole file."""
    if "candidate.cu" in archive.files:
        return archive.files["candidate.cu"]
    original = archive.files[original_name(archive)]
    span = parse(Document("original.cu", original)).kernel(archive.settings["kernel"]).span
    data = original.encode()
    return (data[: span.start] + archive.files["kernel.cu"].rstrip("\n").encode() + data[span.end :]).decode()


@dataclass
class Bench:
    """One device, and a folder for each original with what its program was seen to launch."""

    device: Device
    root: Path
    tried: dict[Path, Lock] = field(default_factory=dict)
    ahead: dict[Path, Future[None]] = field(default_factory=dict)

    def prepare_ahead(self, coming: Sequence[Archive]) -> ThreadPoolExecutor:
        """Captures and compiles in a second thread what will be judged: the cache has it then."""
        executor = ThreadPoolExecutor(1, "ahead")
        self.ahead = {archive.path: executor.submit(self.prepare, archive) for archive in coming}
        return executor

    def prepare(self, archive: Archive) -> None:
        with suppress(CudaAgentError):  # the judgement says what is wrong
            request = self.request(archive)
            self.capture(request, archive.settings)
            build, expected = find_build(request.original), archive.settings.get("expect", "")
            texts = [request.original, request.candidate] if expected and not expected.endswith(" G0") else []
            for path in texts:
                self.device.compile(build, path.read_text())

    def evidence(self, archive: Archive, tune: Callable[[JudgeOptions], JudgeOptions] = lambda o: o) -> dict[str, Any]:
        """The evidence object, or `{"error": sentence}` where nothing could be judged."""
        settings = archive.settings
        request = self.request(archive)
        if (future := self.ahead.get(archive.path)) is not None and not future.cancel():
            future.result()
        try:
            self.capture(request, settings)
            done = verify(
                replace(request, args=(), run_command=None, options=tune(request.options)), device=self.device
            )
        except CudaAgentError as error:
            return {"error": str(error)}
        return to_json(done.verdict, candidate=done.candidate, diff=done.diff)

    def request(self, archive: Archive) -> VerifyRequest:
        """The archive's files in their folder."""
        settings = archive.settings
        beside = {
            name: text for name, text in archive.files.items() if name not in SOURCES and not name.startswith(EDITED)
        }
        key = hashlib.sha256(repr((sorted(beside.items()), settings.get("args"))).encode()).hexdigest()[:12]
        folder = self.root / key
        for name, text in beside.items():
            write_once(folder / name, text)
        name, candidate = original_name(archive), folder / f"{archive.path.stem}.cu"
        if name.endswith(".cuh"):
            candidate = self.root / f"{key}-{archive.path.stem}" / name
        write_once(candidate, candidate_text(archive))
        for edited in (name for name in archive.files if name.startswith(EDITED)):
            write_once(candidate.parent / edited.removeprefix(EDITED), archive.files[edited])
        seconds = float(settings.get("timeout", 0))
        options = JudgeOptions(in_program="in_program" in settings)
        if seconds:
            options = replace(options, deadline_s=seconds)
        if most := int(settings.get("hidden_cases", 0)):
            options = replace(options, hidden_cases=most)
        if allow := settings.get("allow", "").split():
            options = replace(options, allow=frozenset(allow))  # type: ignore[arg-type]
        return VerifyRequest(
            folder / name,
            candidate,
            settings["kernel"],
            args=tuple(settings.get("args", "").split()),
            run_command=tuple(shlex.split(settings["run"])) if "run" in settings else None,
            timeout_s=seconds or 60.0,
            options=options,
        )

    def capture(self, request: VerifyRequest, settings: dict[str, str]) -> None:
        """Once for each folder; a later judgement finds what lies there."""
        folder = request.original.parent
        with self.tried.setdefault(folder, Lock()):
            if (folder / "captured").exists():
                return
            (folder / "captured").touch()
            module = parse(Document(str(request.original), request.original.read_text()))
            build, kind = find_build(request.original), self.device.info.kind
            run, kernel = request.run_command, settings["kernel"]
            find_or_make(
                request.original, module, kernel, build, kind, args=request.args, run_command=run, timeout_s=60.0
            )


def write_once(path: Path, text: str) -> None:
    """Two threads may write the same text, and one read it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{get_ident()}")
        fresh.write_text(text)
        fresh.replace(path)


def open_bench(device: str, root: Path) -> Bench:
    from cuda_agent.device.quarantine import Quarantine

    # Not the person's: a mutant that killed a worker yesterday is run again today.
    return Bench(open_device(device, quarantine=Quarantine()), root)


def stopping(evidence: dict[str, Any]) -> tuple[str, str]:
    """The gate that stopped the candidate with its sentence, ("error", …) where there was no verdict, ("", "")."""
    if "error" in evidence:
        return "error", str(evidence["error"])
    stopped = [gate for gate in evidence["gates"] if gate["status"] == "fail" or gate.get("undecided")]
    return (str(stopped[0]["id"]), str(stopped[0]["detail"])) if stopped else ("", "")


def exit_code(evidence: dict[str, Any]) -> int:
    return 2 if "error" in evidence else EXIT[evidence["status"]]


def check(archive: Archive, expected: str, bench: Bench) -> None:
    """The right gate stops it, with the right words; a control passes with what may be said about it."""
    settings, evidence = archive.settings, bench.evidence(archive)
    wanted, _, gates = expected.partition(" ")
    gate, sentence = stopping(evidence)
    told = json.dumps(evidence, indent=1)
    assert exit_code(evidence) == int(wanted), told
    assert gate in gates.split("|"), told
    assert re.search(settings.get("says", ""), sentence), sentence
    if bench.device.info.kind == "emulator":
        assert re.search(settings.get("says_emulator", ""), sentence), sentence
    if exit_code(evidence) == 0:
        check_accepted(evidence, settings, bench.device.info.kind == "emulator")


def check_accepted(evidence: dict[str, Any], settings: dict[str, str], emulated: bool) -> None:
    level = "emulated" if emulated else "replayed"
    assert evidence["evidence_level"] == ("in-program" if "in_program" in settings else level)
    if emulated:
        assert evidence["timing"] is None
        assert "not measured" in evidence["headline"] or evidence["headline"].startswith("No change")
        assert not evidence["faster"]
    elif evidence["timing"] is None:  # the compiler makes the same instructions of both: there is nothing to time
        assert not evidence["faster"]
        assert any("same instructions" in gate["detail"] for gate in evidence["gates"])
    else:
        assert evidence["timing"]["ratio"] > 0
    if settings.get("never_faster"):
        assert not evidence["faster"]
    if settings.get("fewer_sectors") and emulated:
        assert evidence["traffic"]["sectors_after"] < 0.5 * evidence["traffic"]["sectors_before"]
