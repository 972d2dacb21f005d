"""One emulator and one GPU for all archives."""

from __future__ import annotations

from collections.abc import Iterator

import judged
import pytest


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[judged.Bench]:
    bench = judged.open_bench("emulator", tmp_path_factory.mktemp("emulator"))
    with bench.device:
        yield bench


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[judged.Bench]:
    bench = judged.open_bench("cuda:0", tmp_path_factory.mktemp("gpu"))
    with bench.device:
        yield bench
