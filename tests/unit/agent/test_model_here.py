"""What the transformers backend says before it needs any of its packages. With them: tests/models."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cuda_agent.agent.models import open_model
from cuda_agent.agent.models.transformers import Transformers, _called, _place, _while_importing
from cuda_agent.config import Settings
from cuda_agent.errors import ModelError


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ModelError, match=r"needs (torch|llguidance): pip install 'cuda-agent-lsp\[llm\]'"):
        open_model(Settings(model="transformers:owner/model"))


@pytest.mark.parametrize("where", ["/nowhere/at/all", "./nowhere", "~/nowhere-at-all", "a/b/c", "weights.gguf"])
def test_a_path_that_is_not_there(where: str) -> None:
    with pytest.raises(ModelError, match="there is no model"):
        Transformers(where)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds neither config\.json nor a \.gguf file"):
        _place(str(tmp_path))
    (tmp_path / "small.Q4_1.gguf").touch()
    assert _place(str(tmp_path)) == (str(tmp_path), "small.Q4_1.gguf")
    (tmp_path / "large.gguf").touch()
    with pytest.raises(ModelError, match=r"holds 2 \.gguf files: name one"):
        _place(str(tmp_path))
    assert _place(str(tmp_path / "large.gguf")) == (str(tmp_path), "large.gguf")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelError, match="is no model"):
        _place(str(tmp_path / "notes.txt"))
    (tmp_path / "config.json").touch()
    assert _place(str(tmp_path)) == (str(tmp_path), None)


def test_a_hub_id_is_left_alone() -> None:
    assert _place("Qwen/Qwen3-8B") == ("Qwen/Qwen3-8B", None)


def test_a_name_holds_no_path(tmp_path: Path) -> None:
    folder = tmp_path / "qwen3-8b"
    folder.mkdir()
    assert _called(f"{folder}/", str(folder), None) == "qwen3-8b"
    assert _called(str(folder), str(folder), "qwen3-8b.Q4_1.gguf") == "qwen3-8b.Q4_1"
    assert _called("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", None) == "Qwen/Qwen3-8B"


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with _while_importing(OMP_WAIT_POLICY="PASSIVE", TQDM_DISABLE="1"):
        assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE", "the person's own"
        assert os.environ["TQDM_DISABLE"] == "1"
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert "TQDM_DISABLE" not in os.environ
