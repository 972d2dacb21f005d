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

from cuda_agent import judge
from cuda_agent.device.client import Device
from cuda_agent.errors import UsageError
from cuda_agent.judge import JudgeOptions, evidence, record
from cuda_agent.judge.evidence import schema
from cuda_agent.judge.gates import GATES
from cuda_agent.judge.gates.page import page
from cuda_agent.model import Assumption, Candidate, GateResult, LaunchMap, Proposal, Timing, Verdict

from .conftest import GOOD, build, candidate, source, workload

ROOT = Path(__file__).parent.parent.parent.parent

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
    "dtype": "f32",
    "class": "reassociated",
    "elements": 8192,
    "differing": 12,
    "max_abs": 1e-7,
    "max_rel": 2e-6,
    "max_ulp": 3,
    "rel_l2": 1e-8,
    "allowed": 1e-5,
    "nan_mismatch": 0,
    "within": True,
    "histogram": [8180, 8, 3, 1],
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
        assert list(schema.misfits(data)) == []
        assert data["schema"] == evidence.SCHEMA == schema.schema_version()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"status": "great"}, "$.status is 'great', not one of verified, rejected, undecided"),
        ({"schema": True}, "$.schema is True, not 1"),
        ({"faster": 1}, "$.faster is no boolean"),
        ({"gates": [{}]}, "$.gates[0].data is missing"),
        ({"traffic": {"sectors_before": "many"}}, "$.traffic.sectors_before is no number"),
        ({"timing": {"ratio": 2.0}}, "$.timing.ci is missing"),
        ({"record": {"inputs": "abc"}}, "$.record.inputs does not match ^[0-9a-f]{64}$"),
        ({"source": {"edits": [[1, 2]]}}, "$.source.edits[0] has 2 items, at least 3 are needed"),
    ],
)
def test_the_check_sees_a_misfit(change: dict[str, Any], sentence: str) -> None:
    assert sentence in list(schema.misfits({**evidence.to_json(verdict()), **change}))


def test_the_check_agrees_with_a_full_json_schema_validator() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator
    validator.check_schema(schema.schema())
    good = evidence.to_json(verdict(), candidate=CANDIDATE, diff="d")
    assert validator(schema.schema()).is_valid(good)
    for key in good:
        for data in ({k: v for k, v in good.items() if k != key}, {**good, key: [1.5]}):
            assert validator(schema.schema()).is_valid(data) == (not list(schema.misfits(data))), key


def test_a_judgement_has_the_schema_and_leads_back_to_its_candidate(device: Device, tmp_path: Path) -> None:
    original, text = source("b[:] = 2 * a + 1\nreturn 100.0"), source(GOOD, "b[i] = 1 + 2 * a[i];")
    made, options = candidate(text, original), JudgeOptions(rounds=8)
    found = judge.judge(device, build(tmp_path), workload(tmp_path), original, made, options=options)
    data = evidence.to_json(found, candidate=made)
    assert list(schema.misfits(data)) == []
    assert data["file"] == "x.cu"
    assert data["status"] == "verified"
    assert str(tmp_path) not in json.dumps(data)
    back = evidence.candidate_from_json(json.loads(json.dumps(data)))
    assert (back.original, back.text, back.launch, back.id) == (original, text, made.launch, made.id)
    timed = data["record"]["measurements"][0]
    assert len(timed["original_us"]) == len(timed["candidate_us"]) == 16
    assert data["record"]["bundle"]["path"] == "."
    assert len(data["record"]["bundle"]["blobs"]) == 2  # x, and y's zeros
    assert record.options_from_json(data["record"]["options"]) == options
    spoiled: list[Any] = [[], [[0, 1 << 30, ""]], [["a", 1, ""]], [[0, 1, ""], [0, 1, ""]], [[3, 1, "x"]]]
    for change in ({"original": original + " "}, *({"edits": edits} for edits in spoiled)):
        with pytest.raises(UsageError):
            evidence.candidate_from_json({**data, "source": {**data["source"], **change}})


def test_flags_name_the_project_and_no_folder_of_the_machine() -> None:
    given = ("-I/home/me/p/include", "-I/home/me/pool", "-I/home/meadow", "-DX=1", "-include=/home/me/p")
    wanted = ["-I./include", "-I../pool", "-I/home/meadow", "-DX=1", "-include=."]
    assert record.flags(given, Path("/home/me/p")) == wanted
    assert record.flags(("-I/p/x", "-I/usr"), Path("/p")) == ["-I./x", "-I/usr"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", r"\$ is no object"),
        ('{"schema": 7}', "has schema 7; this version reads 1: judge again"),
        ('{"status": "verified"}', "is missing"),
    ],
)
def test_what_is_no_evidence_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "e.json").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        schema.read(tmp_path / "e.json")
    with pytest.raises(UsageError, match="cannot be read"):
        schema.read(tmp_path / "none.json")


@pytest.mark.parametrize("name", VERDICTS)
def test_there_and_back(name: str) -> None:
    text = json.dumps(evidence.to_json(VERDICTS[name]))
    assert evidence.to_json(evidence.from_json(json.loads(text))) == json.loads(text)
    assert evidence.from_json(json.loads(text)).timing == VERDICTS[name].timing


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "evidence.md").read_text()
    for key in schema.schema()["properties"]:
        assert f"`{key}`" in text, key
    for key in schema.schema()["$defs"]["record"]["properties"].keys() - {"record"}:
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


def test_a_misplaced_nan_is_not_called_reassociated() -> None:
    row = {**ROW, "max_abs": 0.0, "max_ulp": 0, "rel_l2": 0.0, "nan_mismatch": 1, "within": False}
    gates = tuple(replace(g, data={"numeric": [row]}) if g.id == "G3" else g for g in failing("G3"))
    text = rendered(verdict(status="rejected", gates=gates, timing=None, numeric=None))
    assert "1 NaN or Inf misplaced" in text
    assert "reassociated" not in text
    gates = tuple(replace(g, data={"numeric": [{**ROW, "within": False}]}) if g.id == "G3" else g for g in gates)
    text = rendered(verdict(status="rejected", gates=gates, timing=None, numeric=None))
    assert "beyond what is allowed" in text
    assert "reassociated" not in text


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
