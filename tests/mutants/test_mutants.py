"""Every archive is a rewrite with a known fault (or none): the right gate stops it, on the emulator and on a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import judged
import pytest

from archive import Archive, archives

ARCHIVES = [Archive.read(path) for path in archives(Path(__file__).parent)]
ON_EMULATOR = [archive for archive in ARCHIVES if "expect" in archive.settings]
ON_GPU = [archive for archive in ARCHIVES if "expect_gpu" in archive.settings]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


def name(archive: Archive) -> str:
    return archive.path.stem


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[judged.Bench]:
    bench = judged.open_bench("emulator", tmp_path_factory.mktemp("emulator"))
    with bench.device:
        yield bench


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[judged.Bench]:
    bench = judged.open_bench("cuda:0", tmp_path_factory.mktemp("gpu"))
    with bench.device:
        yield bench


@needs_compiler
@pytest.mark.parametrize("archive", ON_EMULATOR, ids=name)
def test_emulator(archive: Archive, emulator: judged.Bench) -> None:
    judged.check(archive, archive.settings["expect"], emulator)


@pytest.mark.gpu
@pytest.mark.parametrize("archive", ON_GPU, ids=name)
def test_gpu(archive: Archive, gpu: judged.Bench) -> None:
    judged.check(archive, archive.settings["expect_gpu"], gpu)
