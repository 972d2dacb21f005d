"""Servers for the headless tests: a workspace with our own softmax, a cache shared by the run, a config folder of its
own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from editor import Editor, children, start
from lsprotocol import types

CORPUS = Path(__file__).parents[1] / "corpus"
SMALL = {"device": "emulator", "arguments": "64 96 1", "budgetSeconds": 60, "budgetCandidates": 6}

Starter = Callable[..., Awaitable[Editor]]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with a copy of softmax_rows.cu."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(CORPUS / "softmax_rows.cu", folder)
    return folder


@pytest_asyncio.fixture
async def started(workspace: Path, cache: Path, tmp_path: Path) -> AsyncIterator[Starter]:
    """`await started(capabilities, settings=…, options=…, environment=…)`; every server is ended afterwards and must
    leave nothing behind."""
    editors: list[Editor] = []

    async def begin(capabilities: types.ClientCapabilities, **more: Any) -> Editor:
        environment = {"CUDA_AGENT_CACHE": str(cache), "XDG_CONFIG_HOME": str(tmp_path / "config")}
        more["environment"] = {**environment, **more.get("environment", {})}
        more.setdefault("options", {"trusted": True})
        settings = {**SMALL, **more.pop("settings", {})}
        more["options"] = {**more["options"], "settings": settings} if more["options"] is not None else None
        editor = await start(capabilities, more.pop("root", workspace), settings=settings, **more)
        editors.append(editor)
        return editor

    yield begin
    for editor in editors:
        below = children(editor.pid) if editor.exit_code is None else []
        if editor.exit_code is None:
            await asyncio.wait_for(editor.client.shutdown_session(), 10)
        await editor.client.stop()
        left = [pid for pid in below if Path(f"/proc/{pid}").exists() and "Z" not in _state(pid)]
        assert not left, f"the server left {left} behind"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
