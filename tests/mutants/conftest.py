"""One emulator and one GPU for all archives."""

from __future__ import annotations

from collections.abc import Iterator

import judged
import pytest


@pytest.fixture(scope="session")
def emulator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[judged.Bench]:
    bench = judged.open_bench("emulator", tmp_path_factory.mktemp("emulator"))
    mine = [item for item in request.session.items if "emulator" in getattr(item, "fixturenames", ())]
    coming = [item.callspec.params.get("archive") for item in mine if hasattr(item, "callspec")]
    with bench.device:
        ahead = bench.prepare_ahead([archive for archive in coming if archive is not None])
        yield bench
        ahead.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[judged.Bench]:
    bench = judged.open_bench("cuda:0", tmp_path_factory.mktemp("gpu"))
    with bench.device:
        yield bench
