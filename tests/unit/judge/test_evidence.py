"""evidence.json: the schema, the way back, and sentences that claim no more than their level allows."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cuda_agent.errors import UsageError
from cuda_agent.judge import evidence
from cuda_agent.judge.gates import GATES
from cuda_agent.judge.gates.page import page
from cuda_agent.model import Assumption, Candidate, GateResult, LaunchMap, Proposal, Timing, Verdict

ROOT = Path(__file__).parent.parent.parent.parent
NUMBER = (int, float)
NONE = type(None)
SCHEMA: dict[str, Any] = {
    "schema": int,
    "status": ("verified", "rejected", "undecided"),
    "evidence_level": ("none", "emulated", "replayed", "in-program"),
    "faster": bool,
    "headline": str,
    "kernel": (str, NONE),
    "file": (str, NONE),
    "inputs": str,
    "numeric": (NONE, "bit-exact", "reassociated", "tolerance", "fast-math"),
    "gates": [
        {
            "id": str,
            "name": str,
            "status": ("pass", "fail", "not-run"),
            "detail": str,
            "seconds": NUMBER,
            "data": dict,
            "undecided": bool,
        }
    ],
    "timing": (
        NONE,
        {
            "ratio": NUMBER,
            "ci": [NUMBER],
            "original_us": NUMBER,
            "candidate_us": NUMBER,
            "device": str,
            "label": ("FASTER", "SLOWER", "SAME", "AMBIGUOUS"),
            "noise_floor": NUMBER,
            "warm_ratio": (*NUMBER, NONE),
            "cycles_ratio": (*NUMBER, NONE),
            "cycles_ci": (NONE, [NUMBER]),
            "samples": int,
            "per_launch": [{"shape": str, "ratio": NUMBER, "ci": [NUMBER]}],
        },
    ),
    "traffic": dict,
    "record": dict,
    "candidate": (
        NONE,
        {
            "id": str,
            "kernel": str,
            "origin": str,
            "numeric": str,
            "launch": {"grid": [str], "block": [str], "shared": str, "seen": bool},
            "assumptions": [{"text": str, "known": ("proved", "captured", "assumed")}],
        },
    ),
    "proposal": (NONE, {"id": str, "uri": str, "source_hash": str}),
    "diff": (str, NONE),
}


def misfits(value: Any, schema: Any, where: str = "$") -> list[str]:
    """Where a value does not follow the schema above: types, allowed words, objects with exactly these keys, lists."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where}: no object"]
        found = [f"{where}.{key}: missing or unknown" for key in value.keys() ^ schema.keys()]
        return found + [m for k in value.keys() & schema.keys() for m in misfits(value[k], schema[k], f"{where}.{k}")]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: no list"]
        return [m for i, item in enumerate(value) for m in misfits(item, schema[0], f"{where}[{i}]")]
    if isinstance(schema, tuple):
        choices = [misfits(value, choice, where) for choice in schema]
        return [] if any(not choice for choice in choices) else min(choices, key=len)
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{where}: {value!r} is no {schema.__name__}"]
    return [] if value == schema else [f"{where}: {value!r} is not {schema!r}"]


TIMING = Timing(
    2.31,
    (2.27, 2.35),
    100.0,
    43.3,
    "NVIDIA H200",
    "FASTER",
    0.002,
    2.1,
    2.3,
    120,
    (("<<<8, 256>>>", 2.31, 2.27, 2.35),),
)
ROW = {
    "launch": 0,
    "buffer": "out",
    "class": "reassociated",
    "elements": 8192,
    "differing": 12,
    "max_abs": 1e-7,
    "max_rel": 2e-6,
    "max_ulp": 3,
    "rel_l2": 1e-8,
    "allowed": 1e-5,
    "nan_mismatch": 0,
    "worst": {"index": 5, "expected": 0.5, "got": 0.50000006},
}


def verdict(**changes: Any) -> Verdict:
    gates = tuple(GateResult(gate.id, gate.name, "pass", "fine", 0.1) for gate in GATES)
    gates = tuple(replace(g, data={"numeric": [ROW]}) if g.id == "G3" else g for g in gates)
    base = Verdict("verified", "replayed", gates, "captured: 2 launches of NVIDIA H200", "reassociated", TIMING)
    return replace(base, record={"launches": {"judged": 2}}, **changes)


def failing(name: str, **more: Any) -> tuple[GateResult, ...]:
    return tuple(
        GateResult(
            g.id,
            g.name,
            "fail" if g.id == name and not more else "not-run",
            f"about {g.id}",
            **(more if g.id == name else {}),
        )
        for g in GATES
    )


EMULATED = verdict(level="emulated", timing=None, traffic={"sectors_before": 12.0e6, "sectors_after": 1.5e6})
VERDICTS = {
    "replayed": verdict(),
    "emulated": EMULATED,
    "slower": verdict(timing=replace(TIMING, ratio=0.5, ci=(0.49, 0.51), label="SLOWER")),
    "rejected": verdict(status="rejected", gates=failing("G3"), timing=None, numeric=None),
    "undecided": verdict(
        status="undecided", level="none", gates=failing("G2", undecided=True), timing=None, inputs="none"
    ),
}
CANDIDATE = Candidate(
    "softmax",
    "a",
    "b",
    (),
    "rule:x",
    "reassociated",
    LaunchMap(),
    (Assumption("rows fit", "captured"),),
    None,
    "0123456789ab",
)


@pytest.mark.parametrize("name", VERDICTS)
def test_the_schema(name: str) -> None:
    proposal = Proposal("p1", "file:///x.cu", "softmax", "abc", CANDIDATE, VERDICTS[name], "--- a\n+++ b\n")
    for data in (
        evidence.to_json(VERDICTS[name]),
        evidence.to_json(VERDICTS[name], proposal),
        evidence.to_json(VERDICTS[name], candidate=CANDIDATE, diff="d", kernel="softmax", file="x.cu"),
    ):
        assert misfits(data, SCHEMA) == []
        assert data["schema"] == evidence.SCHEMA == 1


def test_the_check_itself_sees_a_misfit() -> None:
    data = evidence.to_json(verdict())
    assert misfits({**data, "status": "great"}, SCHEMA)
    assert misfits({**data, "extra": 1}, SCHEMA)
    assert misfits({k: v for k, v in data.items() if k != "gates"}, SCHEMA)
    assert misfits({**data, "timing": {**data["timing"], "ci": ["x"]}}, SCHEMA)


@pytest.mark.parametrize("name", VERDICTS)
def test_there_and_back(name: str) -> None:
    text = json.dumps(evidence.to_json(VERDICTS[name]))
    assert evidence.to_json(evidence.from_json(json.loads(text))) == json.loads(text)
    assert evidence.from_json(json.loads(text)).timing == VERDICTS[name].timing


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "evidence.md").read_text()
    for key in SCHEMA:
        assert f"`{key}`" in text, key


def test_numbers_json_does_not_know_stay_valid_json() -> None:
    gates = (GateResult("G3", "outputs", "fail", "x", data={"max_abs": math.inf, "where": Path("x"), "set": {2, 1}}),)
    data = evidence.to_json(verdict(gates=gates))
    assert json.loads(json.dumps(data, allow_nan=False))["gates"][0]["data"] == {
        "max_abs": "Infinity",
        "where": "x",
        "set": [1, 2],
    }


def test_another_schema_is_refused() -> None:
    with pytest.raises(UsageError, match="judge again"):
        evidence.from_json({"schema": 2})


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("replayed", "2.31× [2.27, 2.35] on NVIDIA H200, captured inputs"),
        (
            "emulated",
            "Same results on 2 launches (captured inputs); predicted sectors 12.0 M → 1.5 M (−88 %); not measured",
        ),
        ("slower", "Same results, slower: 0.50× [0.49, 0.51] on NVIDIA H200, captured inputs"),
        ("rejected", "Rejected by G3 (outputs): about G3"),
        ("undecided", "Could not decide: about G2"),
    ],
)
def test_headlines(name: str, sentence: str) -> None:
    assert evidence.headline(VERDICTS[name]) == sentence


def test_synthetic_inputs_are_called_so() -> None:
    assert "synthetic inputs" in evidence.headline(verdict(inputs="synthetic: 1 launch"))
    assert "synthetic inputs" in evidence.headline(replace(EMULATED, inputs="synthetic: 1 launch"))


def test_only_a_gpu_win_is_called_faster() -> None:
    assert evidence.to_json(verdict())["faster"] is True
    for name in ("emulated", "slower", "rejected", "undecided"):
        assert evidence.to_json(VERDICTS[name])["faster"] is False


def rendered(v: Verdict, **more: Any) -> str:
    out = io.StringIO()
    evidence.render_text(Console(file=out, width=120, color_system=None), evidence.to_json(v, **more))
    return out.getvalue()


@pytest.mark.parametrize("name", VERDICTS)
def test_one_screen(name: str) -> None:
    text = rendered(VERDICTS[name])
    assert len(text.splitlines()) < 40
    for gate in GATES:
        assert gate.id in text
        assert gate.name in text


def test_what_the_screen_shows() -> None:
    text = rendered(verdict(), candidate=CANDIDATE)
    assert "FASTER 2.310× [2.270, 2.350]" in text
    assert "100.00 µs → 43.30 µs on NVIDIA H200" in text
    assert "captured: rows fit" in text
    assert "8,192" in text
    assert "●" in text
    emulated = rendered(EMULATED)
    assert "time: not measured" in emulated
    assert "predicted sectors 12.0 M → 1.5 M (−88 %); not measured" in emulated


def test_the_screen_shows_what_a_gate_took() -> None:
    slow = replace(verdict().gates[3], seconds=12.34)
    quick = replace(verdict().gates[4], seconds=0.04)
    lines = rendered(replace(verdict(), gates=(slow, quick))).splitlines()
    assert any(slow.name in line and " 12.3 s " in line for line in lines)
    assert not any(quick.name in line and " 0.0 s " in line for line in lines)


def test_the_interval_bar_marks_one_and_the_ratio() -> None:
    bar = evidence.interval_bar(1.0, (0.99, 1.01))
    assert bar.count("●") == 1
    wide = evidence.interval_bar(2.0, (1.9, 2.1))
    assert wide.index("│") < wide.index("─") < wide.index("●")


def test_the_gates_page_is_current() -> None:
    """Made by `python -m cuda_agent.judge.gates.page > docs/gates.md`."""
    assert (ROOT / "docs" / "gates.md").read_text() == page()


def test_fifteen_gates_in_order_with_a_page_each() -> None:
    assert [gate.id for gate in GATES] == [f"G{number}" for number in range(15)]
    for gate in GATES:
        assert len((type(gate).__doc__ or "").split()) > 25
