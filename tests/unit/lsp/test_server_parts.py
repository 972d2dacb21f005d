"""Documents, client capabilities, titles: the parts of the server that need no connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lsprotocol import types

from cuda_agent.lsp import render
from cuda_agent.lsp.client import Client
from cuda_agent.lsp.documents import Documents
from cuda_agent.lsp.handlers import code_action, sync
from cuda_agent.model import Candidate, GateResult, Proposal, Timing, Verdict


def encodings(*offered: str) -> types.ClientCapabilities:
    return types.ClientCapabilities(general=types.GeneralClientCapabilities(position_encodings=list(offered)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [((), "utf-16"), (("utf-16",), "utf-16"), (("utf-16", "utf-8"), "utf-8"), (("utf-32", "utf-16"), "utf-16")],
)
def test_utf8_where_it_is_offered(offered: tuple[str, ...], chosen: str) -> None:
    assert Client(encodings(*offered)).encoding == chosen


def test_a_bare_client_can_nothing_and_is_asked_for_nothing() -> None:
    client = Client()
    assert client.encoding == "utf-16"
    can = [client.applies_edits, client.progress, client.refreshes_lenses, client.action_literals, client.configuration]
    assert not any(can)
    assert not client.custom("job")
    assert not client.says_trust


def test_changes_of_one_message_apply_in_order() -> None:
    documents = Documents("utf-16")
    file = documents.open(types.TextDocumentItem("file:///a.cu", "cuda", 1, "a🚀b\r\nc\n"))
    before = file.document

    def partial(line: int, start: int, end: int, text: str) -> types.TextDocumentContentChangePartial:
        where = types.Range(types.Position(line, start), types.Position(line, end))
        return types.TextDocumentContentChangePartial(where, text)

    changes = [partial(0, 3, 4, "B"), partial(0, 1, 3, ""), partial(1, 0, 1, "C")]
    params = types.DidChangeTextDocumentParams(
        types.VersionedTextDocumentIdentifier(version=7, uri="file:///a.cu"), changes
    )
    documents.change(params)
    assert (file.document.text, file.document.version) == ("aB\r\nC\n", 7)
    assert before.text == "a🚀b\r\nc\n"  # a snapshot never changes


def test_synchronisation_is_synchronous() -> None:
    """An asynchronous handler would see a later text than its version."""
    for handler in (sync.did_open, sync.did_change, sync.did_close, sync.did_save):
        assert not asyncio.iscoroutinefunction(handler)


@pytest.mark.parametrize(
    ("kind", "only", "shown"),
    [
        ("source.cudaAgent.capture", [], True),
        ("source.cudaAgent.capture", ["source"], True),
        ("source.cudaAgent.capture", ["source.cudaAgent.capture"], True),
        ("source.cudaAgent.capture", ["source.cuda"], False),
        ("source.cudaAgent.capture", ["quickfix", "refactor"], False),
        ("refactor.rewrite.cudaAgent.optimize", ["refactor.rewrite"], True),
        ("refactor.rewrite.cudaAgent.optimize", [""], True),
    ],
)
def test_kinds_form_a_tree(kind: str, only: list[str], shown: bool) -> None:
    assert code_action.wanted(kind, only) is shown


def shown(verdict: Verdict, state: str = "fresh") -> str:
    candidate = Candidate("k", "", "", (), "rule:r")
    return render.proposal_title(Proposal("1", "u", "k", "h", candidate, verdict, "", state))  # type: ignore[arg-type]


def test_titles_claim_no_more_than_the_verdict() -> None:
    timing = Timing(2.309, (2.27, 2.35), 10, 4, "NVIDIA H200", "FASTER")
    verified = Verdict("verified", "replayed", (), "captured", timing=timing)
    assert shown(verified) == "2.31× [2.27, 2.35] verified on NVIDIA H200"
    emulated = Verdict("verified", "emulated", (), "c", traffic={"sectors_before": 800.0, "sectors_after": 104.0})
    assert shown(emulated) == "verified on the emulator · predicted sectors −87 % · not measured"
    assert "×" not in shown(emulated)
    assert shown(verified, "stale") == "stale: the kernel changed since, verify again"
    rejected = Verdict("rejected", "emulated", (GateResult("G3", "outputs", "fail", "out[3] differs"),), "c")
    assert shown(rejected) == "rejected: G3 outputs: out[3] differs"
    assert shown(Verdict("undecided", "none", (), "c")) == "not fully verified: verify it again"


def test_a_proposal_says_who_wrote_it_and_why() -> None:
    verdict = Verdict("verified", "emulated", (), "c")

    def proposed(origin: str, reason: str = "") -> tuple[str, list[str]]:
        proposal = Proposal("1", "u", "k", "h", Candidate("k", "", "", (), origin, reason=reason), verdict, "")
        return render.lens_title(proposal), [line for line in render.proposal_hover(proposal) if line.startswith("- ")]

    by_rules, hover = proposed("rule:unroll(by=4)+restrict")
    assert by_rules.endswith("not measured · by rules")
    assert hover[0] == "- made by the rules `unroll(by=4)+restrict`"
    by_model, hover = proposed("model:endpoint:qwen:30b", "Each row is read\nonce.")
    assert by_model.endswith("· written by endpoint:qwen:30b")
    assert hover[:2] == ["- written by the language model `endpoint:qwen:30b`", "- why: `Each row is read once.`"]
    _, hover = proposed("model:x", "a ``` ![picture](https://elsewhere/`x`) [link](command:run)")
    assert hover[1] == "- why: ```` a ``` ![picture](https://elsewhere/`x`) [link](command:run) ````"
    by_both, hover = proposed("model:editor:gpt-x+unroll(by=4)")
    assert by_both.endswith("· written by editor:gpt-x")
    assert hover[0] == "- written by the language model `editor:gpt-x`, with the rules `unroll(by=4)`"
    by_person, hover = proposed("person")
    assert by_person.endswith("not measured")
    assert hover[0] == "- made by `person`"


@pytest.mark.parametrize(("tags", "knows"), [(None, False), ([], False), ([types.CodeActionTag.LlmGenerated], True)])
def test_the_tag_of_a_models_edit_needs_a_client_that_knows_it(tags: Any, knows: bool) -> None:
    support = types.CodeActionTagOptions(value_set=tags) if tags is not None else None
    action = types.CodeActionClientCapabilities(tag_support=support)
    capabilities = types.ClientCapabilities(text_document=types.TextDocumentClientCapabilities(code_action=action))
    assert Client(capabilities).action_tags is knows


def test_code_with_backticks() -> None:
    assert render.code("a\n  b") == "`a b`"
    assert render.code("a`b") == "`` a`b ``"
