"""Settings: parsing user input, and the pages made from the list."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cuda_agent import config
from cuda_agent.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_page_is_current() -> None:
    assert PAGE.read_text() == config.markdown(), "run `python -m cuda_agent.config` in the project's folder"


def test_defaults_pass_their_own_checks() -> None:
    defaults = {name: default for _, name, default, _ in config.fields()}
    assert config.parse(defaults) == config.Settings()


@pytest.mark.parametrize(
    "values",
    [
        {"budgetSeconds": 60},
        {"cudaAgent.budgetSeconds": 60},
        {"cudaAgent": {"budgetSeconds": 60, "trace": {"server": "off"}}},
    ],
)
def test_names_with_and_without_section(values: dict[str, object]) -> None:
    assert config.parse(values).budget_seconds == 60.0


def test_missing_and_null_keep_the_base() -> None:
    base = dataclasses.replace(config.Settings(), arch="sm_80", hints=("spills",))
    assert config.parse({"device": "emulator", "arch": None}, base) == dataclasses.replace(base, device="emulator")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"budgetSecond": 1}, ["cudaAgent.budgetSecond", "cudaAgent.budgetSeconds"]),
        ({"zzz": 1}, ["cudaAgent.zzz", "docs/configuration.md"]),
        ({"budgetSeconds": "long"}, ["cudaAgent.budgetSeconds", "number"]),
        ({"budgetSeconds": True}, ["cudaAgent.budgetSeconds", "number"]),
        ({"budgetCandidates": 1.5}, ["cudaAgent.budgetCandidates", "whole"]),
        ({"budgetCandidates": 0}, ["cudaAgent.budgetCandidates", "from 1 to"]),
        ({"sandbox": "on"}, ["cudaAgent.sandbox", "auto, off"]),
        ({"hints": ["speed"]}, ["cudaAgent.hints", "occupancy"]),
        ({"hints": "spills"}, ["cudaAgent.hints", "list"]),
        ({"arch": "sm_90; rm -rf"}, ["cudaAgent.arch", "sm_90"]),
        ({"device": 0}, ["cudaAgent.device", "text"]),
        ({"device": "gpu"}, ["cudaAgent.device", "cuda:N"]),
        ({"lens": 1}, ["cudaAgent.lens", "true or false"]),
        ({"runCommand": "make 'run"}, ["cudaAgent.runCommand", "No closing quotation"]),
    ],
)
def test_error_names_the_setting(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        config.parse(values)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_words_of_a_command_line() -> None:
    words = ["extraFlags=-DN='a b' -G", "budgetSeconds=9", "lens=false", "cudaAgent.runCommand=make run N=4"]
    made = config.parse(config.from_words(words))
    assert made == config.Settings(
        extra_flags=("-DN=a b", "-G"), budget_seconds=9.0, lens=False, run_command="make run N=4"
    )
    assert made.command == ("make", "run", "N=4")


@pytest.mark.parametrize("word", ["lens", "lens=perhaps", "budgetSeconds=soon", "budgetCandidates=1.5", "lense=true"])
def test_a_wrong_word_names_the_setting(word: str) -> None:
    with pytest.raises(UsageError, match=word.partition("=")[0]):
        config.parse(config.from_words([word]))


def test_untrusted_workspace_names_no_binary() -> None:
    given = {
        "cudaAgent": {"nvccPath": "/tmp/evil", "runCommand": "evil", "extraFlags": ["-ccbin=evil"], "arch": "sm_80"}
    }
    assert config.trusted_only(given, trusted=False) == {"arch": "sm_80"}
    assert config.parse(config.trusted_only(given, trusted=True)).nvcc_path == "/tmp/evil"


def test_contributes_and_schema_agree() -> None:
    made = json.loads(json.dumps(config.contributes()))["properties"]
    schema = json.loads(json.dumps(config.json_schema()))["properties"]
    assert {name.removeprefix("cudaAgent.") for name in made} == set(schema)
    assert made["cudaAgent.nvccPath"]["scope"] == "machine-overridable"
    assert made["cudaAgent.hints"]["items"]["enum"] == list(config.HINT_CATEGORIES)
    assert set(config.restricted()) <= set(made)


def test_main_writes_the_page(tmp_path: Path) -> None:
    assert config.main([str(tmp_path)]) == 0
    assert (tmp_path / "docs" / "configuration.md").read_text() == config.markdown()
