"""Archives with a twin on the simulated GPU: no way to look faster than one is gets through, and each gate of the
timing is needed for it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import judged
import pytest
import simulation

from archive import Archive
from cuda_agent import verify as verification
from cuda_agent.judge import floor, verdict
from cuda_agent.judge.gates import GATES
from cuda_agent.model import Binary, Candidate

SIMULATED = judged.having("expect_simulated")
TRICKS = [archive for archive in SIMULATED if "gate" in archive.settings]


@pytest.fixture(autouse=True)
def no_floor_of_earlier_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "of_day", lambda *_: None)
    monkeypatch.setattr(floor, "remember", lambda *_: None)


@judged.needs_compiler
@pytest.mark.parametrize("archive", SIMULATED, ids=judged.name)
def test_simulated(archive: Archive, emulator: judged.Bench) -> None:
    evidence = simulation.evidence(archive, emulator)
    wanted, _, rest = archive.settings["expect_simulated"].partition(" ")
    gate, sentence = judged.stopping(evidence)
    assert judged.exit_code(evidence) == int(wanted), json.dumps(evidence["gates"], indent=1)
    assert gate == ("" if wanted == "0" else rest)
    assert re.search(archive.settings.get("says_simulated", ""), sentence), sentence
    assert evidence["faster"] == (rest == "faster")


@judged.needs_compiler
@pytest.mark.parametrize("archive", TRICKS, ids=lambda archive: f"{archive.settings['gate']}-{archive.path.stem}")
def test_without_its_gate_it_is_called_faster(
    archive: Archive, emulator: judged.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "GATES", tuple(gate for gate in GATES if gate.id != archive.settings["gate"]))
    evidence = simulation.evidence(archive, emulator)
    assert evidence["status"] == "verified", json.dumps(evidence["gates"], indent=1)
    assert evidence["faster"] == (archive.settings.get("without_it") != "verified")  # G10 asks for fair clocks too


def test_every_gate_of_the_timing_has_such_a_trick() -> None:
    assert {archive.settings["gate"] for archive in TRICKS} == {gate.id for gate in GATES if gate.needs == "gpu"}


# ---------------------------------------------------------------- G14: what is offered is what was judged

FAIR = next(archive for archive in SIMULATED if archive.settings["expect_simulated"] == "0 faster")


def offer_another_text(candidate: Candidate) -> Candidate:
    """The edits, which a person accepts, lead to another text than the one that was judged."""
    first = candidate.edits[0]
    return replace(candidate, edits=(replace(first, text=first.text + " "), *candidate.edits[1:]))


def name_another_text(candidate: Candidate) -> Candidate:
    return replace(candidate, id=hashlib.sha256(b"another").hexdigest()[:12])


@judged.needs_compiler
@pytest.mark.parametrize("trick", [offer_another_text, name_another_text])
@pytest.mark.parametrize("gates", [GATES, GATES[:-1]], ids=["all gates", "without G14"])
def test_another_text_is_offered(
    trick: Any, gates: Any, emulator: judged.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = verdict.judge

    def tricked(device: Any, build: Any, workload: Any, original: str, candidate: Candidate, **more: Any) -> Any:
        return judge(device, build, workload, original, trick(candidate), **more)

    monkeypatch.setattr(verification.judge, "judge", tricked)
    monkeypatch.setattr(verdict, "GATES", gates)
    evidence = simulation.evidence(FAIR, emulator)
    assert evidence["status"] == ("rejected" if gates is GATES else "verified")
    assert judged.stopping(evidence)[0] == ("G14" if gates is GATES else "")


@judged.needs_compiler
@pytest.mark.parametrize("gates", [GATES, GATES[:-1]], ids=["all gates", "without G14"])
def test_another_binary_is_offered(gates: Any, emulator: judged.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that are offered are not those whose hash was verified and timed."""
    monkeypatch.setattr(verdict, "GATES", gates)

    def swapped(binary: Binary, is_original: bool) -> Binary:
        return binary if is_original else replace(binary, data=binary.data + b"# another\n")

    evidence = simulation.evidence(FAIR, emulator, swapped)
    assert judged.stopping(evidence)[0] == ("G14" if gates is GATES else "")
    assert evidence["faster"] == (gates is not GATES)


@judged.needs_compiler
@pytest.mark.parametrize("without", ["", "G1"])
def test_the_original_was_built_without_optimisation(
    without: str, emulator: judged.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow baseline makes everything fast: both sides must be built with the same flags."""
    monkeypatch.setattr(verdict, "GATES", tuple(gate for gate in GATES if gate.id != without))

    def slow(binary: Binary, is_original: bool) -> Binary:
        return replace(binary, flags=("-O0",)) if is_original else binary

    evidence = simulation.evidence(FAIR, emulator, slow)
    assert judged.stopping(evidence)[0] == ("" if without else "G1")
    assert evidence["faster"] == bool(without)
