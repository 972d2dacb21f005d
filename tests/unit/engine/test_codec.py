"""Dataclasses ↔ JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cuda_agent.config import Settings
from cuda_agent.engine.codec import CodecError, from_json, to_json
from cuda_agent.engine.messages import Optimize
from cuda_agent.model import Assumption, Candidate, Edit, GateResult, LaunchMap, Proposal, Span, Timing, Verdict


def proposal() -> Proposal:
    timing = Timing(2.0, (1.9, 2.1), 10.0, 5.0, "NVIDIA H200", "FASTER", per_launch=(("8×256", 2.0, 1.9, 2.1),))
    gates = (GateResult("G3", "outputs", "pass", "equal", 0.5, {"max_ulp": 1}),)
    verdict = Verdict(
        "verified", "replayed", gates, "captured: 2 launches", "reassociated", timing, {"sectors_before": 8.0}
    )
    edits = (Edit(Span(3, 4), "x\n𝔸"),)
    candidate = Candidate("k", "abcd", "abcx", edits, "rule:r", "reassociated", LaunchMap(block=("32", "1", "1")))
    return Proposal("1", "file:///a.cu", "k", "h", candidate, verdict, "diff", "accepted")


def test_a_proposal_survives() -> None:
    assert from_json(Proposal, json.loads(json.dumps(to_json(proposal())))) == proposal()


def test_settings_survive() -> None:
    ask = Optimize(
        "/a.cu", "text", "k", Settings("emulator", "make run", "4 8", 5.0, 3, extra_flags=("-DN=4", "-G")), "id"
    )
    assert from_json(Optimize, json.loads(json.dumps(to_json(ask)))) == ask


def test_missing_fields_take_their_default_and_unknown_ones_are_ignored() -> None:
    assert from_json(Span, {"start": 1, "end": 2, "colour": "red"}) == Span(1, 2)
    assert from_json(Settings, {}) == Settings()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"text": "t", "known": "maybe"}, "Assumption.known: 'maybe' is not one of"),
        ({"text": 3, "known": "proved"}, "Assumption.text: str expected, got int"),
        ({"known": "proved"}, "the field 'text' is missing"),
        ([], "an object expected, got list"),
    ],
)
def test_what_does_not_fit_is_named(value: object, says: str) -> None:
    with pytest.raises(CodecError, match=says):
        from_json(Assumption, value)


@dataclass(frozen=True)
class Odd:
    data: bytes
    where: Path | None = None
    pair: tuple[int, float] = (0, 0.0)
    flags: list[bool] = field(default_factory=list)


def test_bytes_paths_and_fixed_tuples() -> None:
    odd = Odd(b"\x00\xff", Path("/a"), (3, 4.0), [True])
    assert from_json(Odd, json.loads(json.dumps(to_json(odd)))) == odd
    with pytest.raises(CodecError, match=r"Odd\.pair: 2 elements expected"):
        from_json(Odd, {"data": "", "pair": [1]})
    with pytest.raises(CodecError, match="an integer expected, got bool"):
        from_json(Odd, {"data": "", "pair": [True, 1]})


def test_a_type_without_json_form_is_refused() -> None:
    with pytest.raises(CodecError, match="object has no JSON form"):
        to_json({"a": object()})
