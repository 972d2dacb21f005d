"""Every archive is a rewrite with a known fault (or none): the right gate stops it, on the emulator and on a GPU."""

from __future__ import annotations

import judged
import pytest

from archive import Archive


@judged.needs_compiler
@pytest.mark.parametrize("archive", judged.having("expect"), ids=judged.name)
def test_emulator(archive: Archive, emulator: judged.Bench) -> None:
    judged.check(archive, archive.settings["expect"], emulator)


@pytest.mark.gpu
@pytest.mark.parametrize("archive", judged.having("expect_gpu"), ids=judged.name)
def test_gpu(archive: Archive, gpu: judged.Bench) -> None:
    judged.check(archive, archive.settings["expect_gpu"], gpu)
