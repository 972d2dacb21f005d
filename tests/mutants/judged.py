"""Runs `cuda-agent verify` on a mutant archive, as a person would.

Settings: `kernel`, `args`, `timeout`; `expect` (emulator) and `expect_gpu`: the exit code and the gates that may stop
it, or `error` where there is no verdict; `says`: a regular expression on the gate's sentence; `fewer_sectors: yes`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from archive import Archive
from cuda_agent import cli


def check(archive: Archive, expected: str, device: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = archive.settings
    for name, text in archive.files.items():
        (folder / name).write_text(text)
    argv = ["verify", str(folder / "original.cu"), str(folder / "candidate.cu"), "--json", "--device", device]
    argv += ["--kernel", settings["kernel"], "--args", settings.get("args", "")]
    if "timeout" in settings:
        argv += ["--timeout", settings["timeout"]]
    code = cli.main(argv)
    out, err = capsys.readouterr()
    evidence = json.loads(out)
    wanted, _, gates = expected.partition(" ")
    told = f"{evidence.get('headline') or evidence.get('error')}\n{err}"
    assert code == int(wanted), told
    assert evidence["status"] == {0: "verified", 1: "rejected", 2: "undecided"}[code]
    sentence = stopped_by(evidence, gates, told)
    assert re.search(settings.get("says", ""), sentence), sentence
    if code == 0:
        check_accepted(evidence, settings, device)


def stopped_by(evidence: dict[str, Any], gates: str, told: str) -> str:
    """The sentence of the gate that stopped the candidate, or of the error."""
    if gates == "error":
        assert evidence["gates"] == []
        assert evidence["evidence_level"] == "none"
        return str(evidence["error"])
    stopping = [gate for gate in evidence["gates"] if gate["status"] == "fail" or gate.get("undecided")]
    first = stopping[0] if stopping else {"id": "", "detail": ""}
    assert first["id"] in gates.split("|"), told
    return str(first["detail"])


def check_accepted(evidence: dict[str, Any], settings: dict[str, str], device: str) -> None:
    assert evidence["evidence_level"] == ("emulated" if device == "emulator" else "replayed")
    assert evidence["diff"].startswith("--- a/original.cu")
    if device == "emulator":
        assert evidence["timing"] is None
        assert "not measured" in evidence["headline"]
        assert not evidence["faster"]
    elif evidence["timing"] is None:  # the compiler makes the same instructions of both: there is nothing to time
        assert not evidence["faster"]
        assert any("same instructions" in gate["detail"] for gate in evidence["gates"])
    else:
        assert evidence["timing"]["ratio"] > 0
    if settings.get("fewer_sectors") and device == "emulator":
        assert evidence["traffic"]["sectors_after"] < 0.5 * evidence["traffic"]["sectors_before"]
