"""`export-test` and `verify --test` over Python kernels: what a test holds, and every way it must fail."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import recheck, regression
from cuda_agent.device.client import Device
from cuda_agent.errors import UsageError
from cuda_agent.regression import ExportRequest
from cuda_agent.workload import bundle

from .conftest import VALUES, source
from .test_recheck import FASTER, ORIGINAL, judged, project

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def on_the_host(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(spec: str) -> Iterator[Device]:
        yield device

    monkeypatch.setattr(regression, "open_device", opened)
    monkeypatch.setattr(recheck, "open_device", opened)


@pytest.fixture(scope="module")
def accepted(device: Device, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    """A project whose file holds the accepted kernel, and its evidence."""
    folder = project(tmp_path_factory.mktemp("accepted") / "p")
    found = judged(device, folder)
    (folder / "src" / "x.cu").write_text(FASTER)
    return folder, found


@pytest.fixture
def tested(accepted: tuple[Path, Json], tmp_path: Path) -> Path:
    """A copy of the project with an exported test in tests/axpy."""
    folder = tmp_path / "p"
    shutil.copytree(accepted[0], folder)
    done = export(folder, accepted[1])
    assert done.launches == 1
    assert str(done.launches) in done.sentence
    shutil.rmtree(folder / ".cuda-agent")  # a repository does not have the captures
    return folder


def export(folder: Path, data: Json, **more: Any) -> regression.Exported:
    (folder / "evidence.json").write_text(json.dumps(data))
    request = ExportRequest(folder / "evidence.json", **{"into": folder / "tests" / "axpy", "source": folder, **more})
    return regression.export(request)


def broken(tested: Path, text: str) -> Any:
    (tested / "src" / "x.cu").write_text(text)
    return regression.run(tested / "tests" / "axpy")


def test_the_accepted_kernel_passes(tested: Path) -> None:
    verdict = regression.run(tested / "tests" / "axpy")
    assert verdict.status == "verified"
    assert verdict.numeric == "bit-exact"
    assert {gate.id for gate in verdict.gates if gate.status == "pass"} == {"G1", "G3", "G4"}
    assert len(verdict.gates) == 15


def test_the_folder_can_be_moved_with_its_project_and_tells_nothing_else(tested: Path, tmp_path: Path) -> None:
    shutil.move(tested, tmp_path / "elsewhere")
    folder = tmp_path / "elsewhere" / "tests" / "axpy"
    assert regression.run(folder).status == "verified"
    for file in folder.rglob("*.*"):
        if file.suffix in (".json", ".py", ".txt"):
            assert str(tmp_path) not in file.read_text()
    saved = bundle.load(folder / "inputs")
    assert (saved.command, dict(saved.environment)) == ((), {})


def test_the_expected_outputs_are_the_originals_not_the_captures(tested: Path) -> None:
    """What the original leaves here, poison included where it writes nothing."""
    saved = bundle.load(tested / "tests" / "axpy" / "inputs")
    after = bundle.BlobStore(saved.blobs).get(saved.launches[0].buffers[1].after or ())
    assert struct.unpack("64f", after) == tuple(2 * v + 1 for v in VALUES)


WRONG = {
    "another value": (FASTER.replace("b[:] = 2 * a + 1", "b[:] = 2 * a + 2"), "G3", "b[0]: expected"),
    "one element not written": (FASTER.replace("b[:] = 2 * a + 1", "b[:-1] = 2 * a[:-1] + 1"), "G3", "b[63]: expected"),
    "nothing written": (FASTER.replace("b[:] = 2 * a + 1", "pass"), "G3", "got nan"),
    "an input written": (FASTER.replace("return", "a[3] = 0\n    return"), "G3", "a[3]: expected"),
    "beyond the end": (FASTER.replace("return", "floats(y, n + 1)[n] = 1\n    return"), "G4", "a write after b"),
    "a crash": (FASTER.replace("return", "ctypes.string_at(8)\n    return"), "G3", "crashed"),
    "a refused launch": (FASTER.replace("return", "raise StepFailed('too large')\n    return"), "G3", "too large"),
    "does not compile": (FASTER + "syntax error", "G1", "does not compile"),
    "another kernel": (FASTER.replace("_Z4axpy", "_Z4blas"), "G3", "holds no axpy"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_kernel_fails(tested: Path, name: str) -> None:
    text, gate, words = WRONG[name]
    verdict = broken(tested, text)
    assert verdict.status == "rejected"
    found = next(g for g in verdict.gates if g.status == "fail")
    assert found.id == gate
    assert words in found.detail


def test_any_kernel_with_the_same_outputs_passes(tested: Path) -> None:
    assert broken(tested, source("b[:] = a + a + 1\nreturn 1.0", "b[i] = a[i] + a[i] + 1;")).status == "verified"


def test_a_test_that_lost_something_is_a_usage_error(tested: Path) -> None:
    folder = tested / "tests" / "axpy"
    whole = (folder / "case.json").read_text()
    for text, words in (
        ("{", "broken"),
        (json.dumps({**json.loads(whole), "case": 9}), "version 9"),
        (json.dumps({**json.loads(whole), "launch": {"warp": 1}}), "broken"),
        (json.dumps({**json.loads(whole), "source": "gone.cu"}), "which is not there"),
    ):
        (folder / "case.json").write_text(text)
        with pytest.raises(UsageError, match=words):
            regression.run(folder)
    (folder / "case.json").write_text(whole)
    shutil.rmtree(folder / "inputs" / "blobs")
    with pytest.raises(UsageError, match="lost its inputs"):
        regression.run(folder)
    with pytest.raises(UsageError, match="no folder that"):
        regression.run(tested)


# ---------------------------------------------------------------- what is not exported


def test_only_an_accepted_verified_candidate_into_a_new_folder(accepted: tuple[Path, Json], tmp_path: Path) -> None:
    folder = tmp_path / "p"
    shutil.copytree(accepted[0], folder)
    file = folder / "src" / "x.cu"
    for text in (ORIGINAL, FASTER.replace("<<<1, 64>>>", "<<<2, 64>>>"), "int x;"):
        file.write_text(text)
        with pytest.raises(UsageError, match="does not hold the accepted axpy"):
            export(folder, accepted[1])
    file.write_text(FASTER)
    with pytest.raises(UsageError, match="not of a verified candidate"):
        export(folder, {**accepted[1], "status": "rejected"})
    with pytest.raises(UsageError, match="not empty"):
        export(folder, accepted[1], into=folder / "src")
    with pytest.raises(UsageError, match="not empty"):
        export(folder, accepted[1], into=file)
    assert not (folder / "tests").exists()


def test_a_test_that_would_not_pass_is_not_written(accepted: tuple[Path, Json], tmp_path: Path) -> None:
    """The file holds the accepted kernel, but something beside it broke it."""
    folder = tmp_path / "p"
    shutil.copytree(accepted[0], folder)
    (folder / "src" / "x.cu").write_text(FASTER + "syntax error\n")
    with pytest.raises(UsageError, match="would not pass this test"):
        export(folder, accepted[1])
    assert not (folder / "tests" / "axpy").exists()
