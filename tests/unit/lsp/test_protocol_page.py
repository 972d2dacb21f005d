"""docs/protocol.md says what the code does, no more and no less."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from cuda_agent.agent.models import Limits, editor
from cuda_agent.agent.models.editor import KINDS, request
from cuda_agent.engine import messages
from cuda_agent.engine.server import Engine
from cuda_agent.lsp import attach
from cuda_agent.lsp.handlers import code_action, custom, execute_command

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")


def table(section: str, head: str) -> dict[str, str]:
    """First cell (without backticks) → second cell of the table in `section` whose first heading is `head`."""
    body = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.split(rf"^\| {head} \|.*\n\|[-|]+\|\n", body, flags=re.MULTILINE)[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.strip().splitlines()]
    return {row[0].strip("`"): row[1] for row in cells}


def fields(shape: type) -> str:
    return ", ".join(field.name for field in dataclasses.fields(shape))


def test_commands() -> None:
    assert list(table("Commands", "command")) == list(execute_command.COMMANDS)


def test_code_action_kinds() -> None:
    assert sorted(table("Code action kinds", "kind")) == sorted(code_action.KINDS)


def test_methods_from_the_client() -> None:
    assert list(table("Methods of ours, from the client", "method")) == list(custom.REQUESTS)


def test_methods_to_the_client_and_their_announcements() -> None:
    assert list(table("Methods of ours, to the client", "method")) == list(custom.SENT)
    for method in custom.SENT:
        assert f"`{method.removeprefix('cudaAgent/')}`" in PAGE.split("`capabilities.experimental.cudaAgent`")[1][:200]


def test_sent_methods_are_all_the_source_sends() -> None:
    source = "".join(path.read_text() for path in Path(custom.__file__).parents[1].rglob("*.py"))
    sent = set(re.findall(r'(?:notify|send_request)\(\s*"(cudaAgent/[\w/]+)"', source))
    assert sent == set(custom.SENT)


def test_what_other_programs_ask() -> None:
    assert list(table("Other programs", "asked")) == list(attach.REQUESTS)


@pytest.mark.parametrize("method", messages.REQUESTS)
def test_engine_requests(method: str) -> None:
    page = table("Server and engine", "request")
    assert page[method] == fields(messages.REQUESTS[method])
    assert set(page) == set(messages.REQUESTS) == set(Engine(lambda message: None).handlers)


@pytest.mark.parametrize("event", messages.EVENTS)
def test_engine_events(event: str) -> None:
    page = table("Server and engine", "event")
    assert page[event] == fields(messages.EVENTS[event])
    assert set(page) == set(messages.EVENTS)


def test_the_language_models_question_and_answer() -> None:
    section = "The editor's language model"
    asked = request("", (), (), Limits())
    assert list(table(section, "request")) == ["job", *asked]
    assert list(table(section, "kind")) == list(KINDS)
    # Every field of an answer is read by the backend, and no other.
    read = set(re.findall(r'answer(?:\.get\(|\[)"(\w+)"', Path(editor.__file__).read_text()))
    assert read == set(table(section, "answer"))
