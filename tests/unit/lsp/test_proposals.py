"""States of a proposal, rebasing, and what survives on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lsprotocol import types

from cuda_agent.errors import SourceError
from cuda_agent.lsp.documents import Documents, OpenFile
from cuda_agent.lsp.proposals import Proposals, rebased, source_hash
from cuda_agent.model import Candidate, Proposal, Verdict
from cuda_agent.source import edits

TEXT = """#include <a.h>
// é 🚀
__global__ void k(float *x, int n) { x[0] = n; }
__global__ void other(float *x) { x[1] = 2; }
void go(float *d) { k<<<1, 32>>>(d, 3); other<<<1, 1>>>(d); }
"""
BETTER = TEXT.replace("x[0] = n;", "x[0] = (float)n;").replace("k<<<1, 32>>>", "k<<<1, 64>>>")
URI = "file:///project/a.cu"


def opened(text: str, version: int = 1) -> tuple[Documents, OpenFile]:
    documents = Documents("utf-8")
    return documents, documents.open(types.TextDocumentItem(URI, "cuda", version, text))


def change(documents: Documents, text: str, version: int) -> None:
    document = types.VersionedTextDocumentIdentifier(version=version, uri=URI)
    whole = [types.TextDocumentContentChangeWholeDocument(text)]
    documents.change(types.DidChangeTextDocumentParams(document, whole))


def proposal(id: str = "p1", text: str = TEXT, better: str = BETTER) -> Proposal:
    _, file = opened(text)
    candidate = Candidate("k", text, better, edits.minimal(text, better), "rule:cast")
    hash = source_hash(file.module, file.module.kernel("k"))
    return Proposal(id, URI, "k", hash, candidate, Verdict("verified", "emulated", (), "captured"), "diff")


def test_fresh_until_the_kernel_or_its_launch_changes(tmp_path: Path) -> None:
    kept = Proposals(tmp_path)
    kept.put(proposal())
    documents, file = opened(TEXT)
    changes = {
        "elsewhere": (TEXT.replace("x[1] = 2", "x[1] = 3"), "fresh"),
        "kernel": (TEXT.replace("x[0] = n", "x[0] = n + 1"), "stale"),
        "launch": (TEXT.replace("k<<<1, 32>>>", "k<<<2, 32>>>"), "stale"),
        "kernel gone": (TEXT.replace("void k(", "void renamed("), "stale"),
        "half typed": (TEXT[:60], "stale"),
        "undone": (TEXT, "fresh"),
    }
    for version, (what, (text, state)) in enumerate(changes.items(), 2):
        change(documents, text, version)
        found = kept.of_kernel(file, "k")
        assert found is not None, what
        assert found.state == state, what
    assert kept.of_kernel(file, "other") is None


def test_accepted_is_not_shown_and_comes_back_when_undone(tmp_path: Path) -> None:
    kept = Proposals(tmp_path)
    kept.put(proposal())
    documents, file = opened(TEXT)
    kept.accept(proposal(), file.document.version)
    assert kept.of_kernel(file, "k") is None  # the client's change has not arrived yet: still not shown
    change(documents, BETTER, 2)
    assert kept.of_kernel(file, "k") is None
    change(documents, TEXT, 3)
    found = kept.of_kernel(file, "k")
    assert found is not None
    assert found.state == "fresh"


def test_rejected_is_gone_and_a_new_one_replaces_the_old(tmp_path: Path) -> None:
    kept = Proposals(tmp_path)
    _, file = opened(TEXT)
    kept.put(proposal("p1"))
    kept.put(proposal("p2"))
    assert kept.find("p1", [file]) is None
    found = kept.of_kernel(file, "k")
    assert found is not None
    assert found.id == "p2"
    kept.reject(found)
    assert kept.of_kernel(file, "k") is None
    again = kept.find("p2", [file])
    assert again is not None
    assert again[1].state == "rejected"


def test_rebased_follows_changes_elsewhere() -> None:
    now = TEXT.replace("// é 🚀", "// é 🚀 more 𝔸\n// lines").replace("x[1] = 2", "x[1] = 22")
    expected = BETTER.replace("// é 🚀", "// é 🚀 more 𝔸\n// lines").replace("x[1] = 2", "x[1] = 22")
    assert edits.apply(now, rebased(proposal(), now)) == expected
    assert rebased(proposal(), TEXT) == proposal().candidate.edits


@pytest.mark.parametrize("touch", [("x[0] = n", "x[0] = m"), ("k<<<1, 32>>>", "k<<<1, 33>>>")])
def test_rebased_refuses_where_the_proposal_edits(touch: tuple[str, str]) -> None:
    with pytest.raises(SourceError, match="changed since in a place that this proposal edits"):
        rebased(proposal(), TEXT.replace(*touch))


def test_survives_a_restart_and_a_broken_file(tmp_path: Path) -> None:
    Proposals(tmp_path).put(proposal())
    _, file = opened(TEXT)
    found = Proposals(tmp_path).of_kernel(file, "k")
    assert found == proposal()
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(kept.read_text()[:-20])
    assert Proposals(tmp_path).of_kernel(file, "k") is None
    kept.write_text('[{"id": 3}]')
    assert Proposals(tmp_path).of_kernel(file, "k") is None


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    kept = Proposals(blocked / "sub")
    kept.put(proposal())
    _, file = opened(TEXT)
    assert kept.of_kernel(file, "k") is not None


def test_lone_surrogates_are_kept(tmp_path: Path) -> None:
    odd = TEXT.replace("🚀", "\ud83d")
    Proposals(tmp_path).put(proposal(text=odd, better=BETTER.replace("🚀", "\ud83d")))
    _, file = opened(odd)
    found = Proposals(tmp_path).of_kernel(file, "k")
    assert found is not None
    assert found.candidate.original == odd
    assert replace(found, state="fresh").state == "fresh"


def test_what_another_program_adds_is_seen_when_the_file_is_opened_again(tmp_path: Path) -> None:
    kept, (_, file) = Proposals(tmp_path), opened(TEXT)
    assert kept.of_kernel(file, "k") is None
    Proposals(tmp_path).put(proposal())
    assert kept.of_kernel(file, "k") is None, "what is open is not read again"
    kept.forget(URI)
    assert kept.of_kernel(file, "k") is not None
    assert [one.id for one in kept.of_file(file)] == ["p1"]
    assert kept.paths() == [Path("/project/a.cu")]


def test_proposals_that_are_on_no_disk_outlive_a_closed_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept, (_, file) = Proposals(tmp_path / "file" / "no folder"), opened(TEXT)
    kept.put(proposal())
    kept.forget(URI)
    assert kept.of_kernel(file, "k") is not None
