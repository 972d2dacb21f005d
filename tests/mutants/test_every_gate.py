"""Every gate is needed: judged without it, some mutant is verified that no other gate sees (`alone: yes`)."""

from __future__ import annotations

import judged
import pytest

from archive import Archive
from cuda_agent.judge import verdict
from cuda_agent.judge.gates import GATES

ALONE = [archive for archive in judged.having("alone") if "expect" in archive.settings]


def gate_of(archive: Archive) -> str:
    return archive.settings["expect"].partition(" ")[2]


@judged.needs_compiler
@pytest.mark.parametrize("archive", ALONE, ids=lambda archive: f"{gate_of(archive)}-{archive.path.stem}")
def test_without_its_gate_the_mutant_is_verified(
    archive: Archive, emulator: judged.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = tuple(gate for gate in GATES if gate.id != gate_of(archive))
    assert len(rest) == len(GATES) - 1
    monkeypatch.setattr(verdict, "GATES", rest)
    evidence = emulator.evidence(archive)
    assert evidence.get("status") == "verified", judged.stopping(evidence)


def test_every_gate_that_needs_no_gpu_has_such_a_mutant() -> None:
    simulated = {"G14"} | {gate.id for gate in GATES if gate.needs == "gpu"}  # on simulated devices: test_timing.py
    assert {gate_of(archive) for archive in ALONE} == {gate.id for gate in GATES} - simulated - {"G5"}
