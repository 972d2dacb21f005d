"""Shared by all tests: `--update` rewrites golden files; gpu tests are skipped, and counted, without a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from cuda_agent import config

settings.register_profile("suite", deadline=None)  # no assert on wall time
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def default_settings() -> Iterator[None]:
    """No test leaves settings behind."""
    yield
    config.use(config.Settings())


@pytest.fixture
def setting() -> Callable[..., None]:
    """`setting(sandbox="off")`: for the rest of the test."""

    def change(**values: Any) -> None:
        config.use(dataclasses.replace(config.current(), **values))

    return change


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden files with what the code says now")


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if not wanted:
        return
    from cuda_agent.device import probe

    if not any(one.info is not None and one.info.kind == "cuda" for one in probe()):
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
