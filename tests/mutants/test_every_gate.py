"""Every gate is needed: judged without it, some mutant is verified that no other gate sees (`alone: yes`)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import judged
import pytest

from archive import Archive
from cuda_agent.judge import JudgeOptions, verdict
from cuda_agent.judge.gates import GATES

HIDDEN = [archive for archive in judged.having("expect") if archive.settings["expect"] == "1 G5"]
ALONE = [*judged.having("alone"), *(archive for archive in HIDDEN if archive.path.stem == "hidden_multiples_of_32")]


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
    # G5 begins with the recorded sizes, so that it repeats G3 and G4 while it has time: here it has none.
    no_time: dict[str, Any] = {field.name: 0 for field in fields(JudgeOptions) if field.name == "hidden_cases"}
    evidence = emulator.evidence(archive, lambda options: replace(options, **no_time))
    assert evidence.get("status") == "verified", judged.stopping(evidence)


def test_every_gate_that_needs_no_gpu_has_such_a_mutant() -> None:
    simulated = {"G14"} | {gate.id for gate in GATES if gate.needs == "gpu"}  # on simulated devices: test_timing.py
    not_built = set() if HIDDEN else {"G5"}
    assert {gate_of(archive) for archive in ALONE} == {gate.id for gate in GATES} - simulated - not_built
