"""Every archive is a rewrite with a known fault (or none): the right gate stops it, on the emulator and on a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import judged
import pytest

from archive import Archive, archives

ARCHIVES = [Archive.read(path) for path in archives(Path(__file__).parent)]
ON_GPU = [archive for archive in ARCHIVES if "expect_gpu" in archive.settings]


def name(archive: Archive) -> str:
    return archive.path.stem


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
@pytest.mark.parametrize("archive", ARCHIVES, ids=name)
def test_emulator(archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged.check(archive, archive.settings["expect"], "emulator", tmp_path, capsys)


@pytest.mark.gpu
@pytest.mark.parametrize("archive", ON_GPU, ids=name)
def test_gpu(archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged.check(archive, archive.settings["expect_gpu"], "cuda:0", tmp_path, capsys)


def test_the_catalogue_has_controls() -> None:
    """A judge that rejects everything would pass the rest."""
    expected = [archive.settings["expect"] for archive in ARCHIVES]
    assert sum(one == "0" for one in expected) >= 4
    assert {"G0", "G1", "G3", "G4"} <= {gate for one in expected for gate in one.partition(" ")[2].split("|")}
