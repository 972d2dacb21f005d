"""`verify --from`: the same project, a changed one, a moved one, another device, and what may be said then."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import judge, recheck
from cuda_agent.device.client import Device
from cuda_agent.errors import NoInputs, SourceError, UsageError
from cuda_agent.judge import JudgeOptions, evidence
from cuda_agent.judge.evidence import schema
from cuda_agent.model import Build
from cuda_agent.recheck import Recheck, RecheckRequest
from cuda_agent.source.edits import unified_diff
from cuda_agent.workload import bundle

from .conftest import VALUES, candidate, source, workload

Json = dict[str, Any]
ORIGINAL = source("b[:] = 2 * a + 1\nreturn 100.0")
FASTER = source("b[:] = 2 * a + 1\nreturn 50.0", "b[i] = 1 + 2 * a[i];")
LESS = FASTER.replace("return 50.0", "return 80.0")
OPTIONS = JudgeOptions(rounds=8, slower_deadline=0.0)


def project(folder: Path, text: str = ORIGINAL, values: tuple[float, ...] = VALUES) -> Path:
    """A folder with x.cu and a capture of its kernel."""
    folder.mkdir()
    (folder / "src").mkdir()
    (folder / "src" / "x.cu").write_text(text)
    work = workload(folder / "raw", values=values)
    bundle.save(folder / ".cuda-agent" / "captures" / "axpy", work)
    shutil.rmtree(folder / "raw")
    return folder


def judged(device: Device, folder: Path, text: str = FASTER, original: str = ORIGINAL) -> Json:
    """What `verify --json` would have written."""
    file = folder / "src" / "x.cu"
    made = candidate(text, original)
    found = bundle.load(folder / ".cuda-agent" / "captures" / "axpy")
    build = Build(file, file.parent, "nvcc", ("-std=c++17", "-O3", f"-I{file.parent}"), "default")
    verdict = judge.judge(device, build, found, original, made, options=OPTIONS)
    return evidence.to_json(verdict, candidate=made, diff=unified_diff(original, text, "x.cu"))


@pytest.fixture(scope="module")
def first(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Evidence of a kernel twice as fast, made in a project that is gone."""
    folder = project(tmp_path_factory.mktemp("first") / "p")
    found = judged(device, folder)
    assert found["status"] == "verified"
    assert found["faster"]
    assert found["file"] == "src/x.cu"
    assert found["record"]["bundle"]["path"] == ".cuda-agent/captures/axpy"
    shutil.rmtree(folder)
    return found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "moved")


@pytest.fixture(autouse=True)
def on_the_host(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(spec: str) -> Iterator[Device]:
        yield device

    monkeypatch.setattr(recheck, "open_device", opened)


def again(data: Json, folder: Path, **more: Any) -> Recheck:
    file = folder.parent / "evidence.json"
    file.write_text(json.dumps(data))
    found = recheck.recheck(RecheckRequest(file, **{"source": folder, **more}))
    assert list(schema.misfits(found.evidence)) == []
    assert found.evidence["again"]["holds"] is found.holds
    assert found.evidence["again"]["sentence"] == found.sentence
    return found


def test_a_moved_project_holds(first: Json, here: Path) -> None:
    found = again(first, here)
    assert found.holds is True
    assert (
        found.sentence == "holds: still FASTER, 2.00× [2.00, 2.00] now, 2.00× [2.00, 2.00] then; the intervals overlap"
    )
    assert found.evidence["again"]["differs"] == []
    assert found.evidence["again"]["then"]["headline"] == first["headline"]
    assert found.evidence["diff"] == first["diff"]
    assert found.evidence["record"]["options"] == first["record"]["options"]


def test_the_file_is_found_below_the_folder_of_the_evidence(first: Json, here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "evidence.json").write_text(json.dumps(first))
    assert recheck.recheck(RecheckRequest(here / "out" / "evidence.json")).holds is True


def test_an_accepted_edit_holds(first: Json, here: Path) -> None:
    (here / "src" / "x.cu").write_text(FASTER)
    found = again(first, here)
    assert found.holds is True
    assert found.evidence["again"]["differs"] == [
        "x.cu holds the candidate now: it is judged against the original in the evidence"
    ]


@pytest.mark.parametrize("accepted", [False, True])
def test_a_change_elsewhere_is_judged_as_it_is_now(first: Json, here: Path, accepted: bool) -> None:
    (here / "src" / "x.cu").write_text((FASTER if accepted else ORIGINAL) + "// a new line\nint other;\n")
    found = again(first, here)
    assert found.holds is True
    assert "changed elsewhere" in found.evidence["again"]["differs"][0]
    assert found.evidence["source"]["original"] == ORIGINAL + "// a new line\nint other;\n"
    assert found.evidence["source"]["candidate_sha256"] != first["source"]["candidate_sha256"]


def test_a_change_of_the_edited_lines_ends_it(first: Json, here: Path) -> None:
    (here / "src" / "x.cu").write_text(ORIGINAL.replace("2 * a[i] + 1;", "3 * a[i] + 1;"))
    found = again(first, here)
    assert found.holds is False
    assert "changed where the edit is" in found.sentence
    assert found.evidence["status"] == "verified"  # the earlier one, with the answer beside it


def test_an_original_that_computes_something_else_now_cannot_be_judged(first: Json, here: Path) -> None:
    """The edit still fits, but the inputs were captured with another kernel: capture again."""
    (here / "src" / "x.cu").write_text(ORIGINAL.replace("a, b = floats(x, n)", "a, b = 2 * floats(x, n)"))
    found = again(first, here)
    assert found.holds is None
    assert found.sentence.startswith("cannot decide: the capture does not replay: b[0]")


def test_other_inputs_are_named(first: Json, tmp_path: Path) -> None:
    folder = project(tmp_path / "other", values=tuple(v * 3 for v in VALUES))
    found = again(first, folder)
    assert found.holds is True
    assert found.evidence["again"]["differs"] == [
        "the inputs are others: this kernel was captured again, or its specification changed"
    ]


def test_inputs_that_are_gone_cannot_be_judged(first: Json, here: Path) -> None:
    blobs = here / ".cuda-agent" / "captures" / "axpy" / "blobs"
    next(blobs.iterdir()).unlink()
    with pytest.raises(NoInputs, match=r"1 blobs of the inputs .* are gone"):
        again(first, here)
    shutil.rmtree(here / ".cuda-agent")
    with pytest.raises(NoInputs, match="say where with --inputs"):
        again(first, here)


def test_inputs_elsewhere(first: Json, here: Path) -> None:
    shutil.move(here / ".cuda-agent" / "captures" / "axpy", here.parent / "kept")
    assert again(first, here, inputs=here.parent / "kept").holds is True


def test_a_file_that_is_gone(first: Json, here: Path, tmp_path: Path) -> None:
    (here / "src" / "x.cu").unlink()
    with pytest.raises(SourceError, match="--source"):
        again(first, here)


def test_another_driver_and_other_flags_are_named(first: Json, here: Path) -> None:
    data = json.loads(json.dumps(first))
    data["record"]["device"]["driver"] = "12.4"
    data["record"]["device"]["name"] = "NVIDIA L4"
    data["record"]["flags"] = ["-std=c++17", "-O2", "-I./src"]
    data["record"]["compiler"] = "host 0.9"
    found = again(data, here)
    assert found.holds is True
    assert found.evidence["again"]["differs"] == [
        "the flags are others: without -O2 and with -O3",
        "device: NVIDIA L4 then, NVIDIA H200 now",
        "driver: 12.4 then, none now",
        "compiler: host 0.9 then, host 1.0 now",
    ]


def test_less_and_nothing_left_of_a_gain(device: Device, first: Json, here: Path) -> None:
    """The same evidence with another time behind it: the machine, not the text, has changed."""
    for text, holds, words in (
        (LESS, True, "holds, by less: still FASTER, 1.25×"),
        (FASTER.replace("return 50.0", "return 100.01"), False, "no longer holds: SAME, 1.00×"),
        (FASTER.replace("return 50.0", "return 130.0"), False, "no longer holds: SLOWER, 0.77×"),
    ):
        data = judged(device, here, text)
        data["timing"] = first["timing"]
        data["faster"] = True
        found = again(data, here)
        assert found.holds is holds
        assert found.sentence.startswith(words)


@pytest.mark.parametrize(
    "spoil",
    [
        {"record": {"record": 1}},
        {"record": {"quick": True}},
        {"source": None},
        {"source": {"original": ORIGINAL + " "}},
        {"source": {"candidate_sha256": "0" * 64}},
    ],
)
def test_evidence_that_was_touched_is_refused(first: Json, here: Path, spoil: Json) -> None:
    data = {**first}
    for key, value in spoil.items():
        data[key] = {**first[key], **value} if isinstance(value, dict) else value
    (here / "e.json").write_text(json.dumps(data))
    with pytest.raises(UsageError):
        recheck.recheck(RecheckRequest(here / "e.json"))


# ---------------------------------------------------------------- what may be said


def gates(**status: str) -> list[Json]:
    return [
        {"id": f"G{n}", "name": f"gate {n}", "status": status.get(f"G{n}", "pass"), "detail": f"about G{n}"}
        for n in range(15)
    ]


def said(status: str = "verified", timing: Json | None = None, faster: bool = False, **more: Any) -> Json:
    return {
        "status": status,
        "headline": "what it says",
        "gates": gates(**more.pop("gates", {})),
        "timing": timing,
        "faster": faster,
        "traffic": more.pop("traffic", {}),
        "record": {"same_code": more.pop("same", False), "device": {"name": "emulator"}},
    }


def time(ratio: float, low: float, high: float, label: str = "FASTER") -> Json:
    return {"ratio": ratio, "ci": [low, high], "label": label, "device": "NVIDIA H200"}


WIN = said(timing=time(2.0, 1.9, 2.1), faster=True)
SAME = said(timing=time(1.0, 0.995, 1.005, "SAME"))
NO_TIME = {f"G{n}": "not-run" for n in range(8, 13)}
DROP, KEPT = {"sectors_before": 10.0, "sectors_after": 5.0}, {"sectors_before": 10.0, "sectors_after": 10.0}


@pytest.mark.parametrize(
    ("then", "now", "holds", "words"),
    [
        (WIN, WIN, True, "the intervals overlap"),
        (WIN, said(timing=time(2.5, 2.4, 2.6), faster=True), True, "by more"),
        (WIN, said(timing=time(1.5, 1.4, 1.6), faster=True), True, "holds, by less"),
        (WIN, SAME, False, "no longer holds: SAME"),
        (WIN, said(same=True, gates=NO_TIME), False, "no longer holds"),
        (WIN, said(gates=NO_TIME), None, "measured on NVIDIA H200 and emulator measures none"),
        (WIN, said("rejected", gates={"G3": "fail"}), False, "no longer holds: verified then"),
        (WIN, said("undecided"), None, "cannot decide"),
        (SAME, SAME, True, "holds"),
        (SAME, said(timing=time(0.8, 0.79, 0.81, "SLOWER")), False, "slower now"),
        (said(traffic=DROP), said(traffic=DROP), True, "holds"),
        (said(traffic=DROP), said(traffic=KEPT), False, "does not drop any more"),
        (said(traffic=KEPT), said(traffic=KEPT), True, "holds"),
        (said(), said(gates={"G13": "not-run"}), None, "G13 (gate 13) passed then and did not run now: about G13"),
        (said(gates={"G7": "not-run"}), said(), True, "holds"),
        (said("rejected", gates={"G3": "fail"}), said("rejected", gates={"G3": "fail"}), True, "rejected again, by G3"),
        (said("rejected", gates={"G3": "fail"}), said("rejected", gates={"G4": "fail"}), True, "by G4 (by G3 then)"),
        (said("rejected", gates={"G3": "fail"}), said(), False, "no longer holds: rejected then"),
        (said("undecided"), said(), None, "decided nothing"),
    ],
)
def test_what_is_said(then: Json, now: Json, holds: bool | None, words: str) -> None:
    found, sentence = recheck.compare(then, now)
    assert found is holds
    assert words in sentence
    assert sentence.startswith({True: "holds", False: "no longer holds", None: "cannot decide"}[holds])


def test_evidence_of_the_emulator_is_checked_there() -> None:
    made = {"device": {"kind": "emulator"}}
    assert recheck.device_of("auto", made) == "emulator"
    assert recheck.device_of("cuda:0", made) == "cuda:0"
    assert recheck.device_of("auto", {"device": {"kind": "cuda"}}) == "auto"
