"""The command line on a real GPU: capture, optimise, verify, bench over tests/corpus/softmax_rows.cu."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import cli
from cuda_agent.judge.evidence import schema

SOFTMAX = Path(__file__).parents[1] / "corpus" / "softmax_rows.cu"
GPU = ["--device", "cuda:0", "--json"]
SIZES = ["--args", "8192 1024 3"]

pytestmark = pytest.mark.gpu


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copy(SOFTMAX, tmp_path))


def ask(argv: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    got = cli.main(argv)
    out, err = capsys.readouterr()
    assert got == code, err + out
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_optimize_then_verify(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = source.parent / "original.cu"
    shutil.copy(source, original)
    argv = ["optimize", str(source), *GPU, *SIZES, "--candidates", "12", "--budget", "120", "--apply"]
    found = ask(argv, capsys)
    assert found["status"] == "verified"
    assert found["evidence_level"] == "replayed"
    assert found["faster"]
    assert found["timing"]["ci"][0] > 1.5
    assert found["timing"]["device"]
    failed = [gate for gate in found["gates"] if gate["status"] == "fail"]
    assert not failed
    again = ask(["verify", str(original), str(source), "--kernel", "softmax_rows", *GPU, *SIZES], capsys)
    assert again["status"] == "verified"
    assert again["faster"]
    assert again["candidate"]["launch"] != {"grid": ["gx", "gy", "gz"], "block": ["bx", "by", "bz"], "shared": "shared"}
    # Back again: one thread's serial sum of 1,024 terms is less exact than a warp's, which the float64 shadow sees.
    worse = ask(["verify", str(source), str(original), "--kernel", "softmax_rows", *GPU, *SIZES], capsys, 1)
    assert not worse["faster"]
    assert "float64 shadow" in next(gate["detail"] for gate in worse["gates"] if gate["status"] == "fail")


def test_evidence_is_drawn_holds_and_becomes_a_test(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every sample of a real timing is in the evidence and on the page; the gain is found again; the exported test
    passes with the accepted kernel and fails with a broken one."""
    page, saved = source.parent / "page.html", source.parent / "evidence.json"
    argv = [
        "optimize",
        str(source),
        *GPU,
        *SIZES,
        "--candidates",
        "12",
        "--budget",
        "120",
        "--apply",
        "--html",
        str(page),
    ]
    found = ask(argv, capsys)
    assert list(schema.misfits(found)) == []
    measured = found["record"]["measurements"]
    assert len(measured) == len(found["timing"]["per_launch"])
    assert sum(len(m["original_us"]) + len(m["candidate_us"]) for m in measured) == found["timing"]["samples"]
    assert page.read_text().count('class="dot') == found["timing"]["samples"]
    assert found["record"]["device"]["driver"]
    saved.write_text(json.dumps(found))
    again = ask(["verify", "--from", str(saved), "--source", str(source), *GPU], capsys)
    assert again["again"]["holds"] is True, again["again"]
    assert again["faster"]
    argv = ["export-test", str(saved), "--source", str(source), "--into", str(source.parent / "t"), *GPU]
    assert ask(argv, capsys)["kernel"] == "softmax_rows"
    assert ask(["verify", "--test", str(source.parent / "t"), *GPU], capsys)["status"] == "verified"
    text = source.read_text()
    source.write_text(text.replace("/= sum", "/= sum + 1e-3f"))
    assert source.read_text() != text
    assert ask(["verify", "--test", str(source.parent / "t"), *GPU], capsys, 1)["status"] == "rejected"


def test_bench(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(["bench", str(source), *GPU, *SIZES], capsys)
    assert found["kernel"] == "softmax_rows"
    for row in found["launches"]:
        assert row["us"] > 0
        assert row["ratio"] == pytest.approx(1, abs=0.1)
        assert 0 <= row["noise_floor"] < 0.1
        assert row["label"] in ("SAME", "AMBIGUOUS")


def test_a_candidate_that_kills_the_worker(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A candidate that faults on the GPU is rejected, and what comes after it runs on a fresh worker."""
    bad = source.parent / "bad.cu"
    bad.write_text(source.read_text().replace("out[row * cols + c] = e;", "out[(1ll << 40) + c] = e;"))
    found = ask(["verify", str(source), str(bad), "--kernel", "softmax_rows", *GPU, "--args", "512 64 1"], capsys, 1)
    assert found["status"] == "rejected"
    stopped = next(gate for gate in found["gates"] if gate["status"] == "fail")
    assert stopped["id"] in ("G3", "G4")
    assert "crashed" in stopped["detail"] or "illegal" in stopped["detail"]
    found = ask(["optimize", str(source), *GPU, "--args", "512 64 1", "--candidates", "2"], capsys)
    assert found["status"] in ("verified", "nothing")
