"""Proposals by (uri, kernel, source hash): fresh while the kernel and its launches stand as they were judged, then
stale.

Kept in the person's cache, one JSON file a source file, so that they outlive the server. Never in the workspace: a
cloned repository must not bring "verified" claims of its own."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlparse

from cuda_agent import paths
from cuda_agent.engine.codec import CodecError, from_json, to_json
from cuda_agent.errors import SourceError
from cuda_agent.lsp.documents import OpenFile
from cuda_agent.model import Candidate, Edit, Kernel, Proposal
from cuda_agent.source import documents, edits, joined, symbols
from cuda_agent.source.documents import Document

State = Literal["fresh", "stale", "accepted", "rejected"]

_log = logging.getLogger(__name__)
KEPT_PER_FILE = 20


def source_hash(module: symbols.Module, kernel: Kernel) -> str:
    """sha256 over the definition and its launches: what the candidate's edits replace and what its verdict is about."""
    digest = hashlib.sha256(module.kernel_hash(kernel).encode())
    for site in module.launches_of(kernel):
        digest.update(b"\0" + module.document.data[site.span.start : site.span.end])
    return digest.hexdigest()


def judged_hash(path: str, candidate: Candidate) -> str:
    """`source_hash` of the text that the candidate was judged against, with the files that are joined with it."""
    module = symbols.module(Document(path, candidate.original))
    return source_hash(module, module.kernel(candidate.kernel))


class Beside(NamedTuple):
    """Another file that a proposal is about: as the editor has it, else as it is on disk, with no version."""

    uri: str
    document: Document
    version: int | None


def rebased(proposal: Proposal, text: str) -> tuple[Edit, ...]:
    """The candidate's edits for `text`, which may differ from the judged text elsewhere. SourceError when a change
    since then touches a place that the candidate edits."""
    found = edits.rebase(proposal.candidate.edits, proposal.candidate.original, text)
    if found is None:
        raise SourceError(
            "the text changed since in a place that this proposal edits; undo that change, or optimise the kernel again"
        )
    return found


@dataclass
class _Kept:
    """A proposal and at which version of the text it was accepted: until the client's change arrives the text still
    looks as it did before."""

    proposal: Proposal
    accepted_at: int | None = None


class Proposals:
    def __init__(self, folder: Path | None = None, documents: Callable[[], Iterable[OpenFile]] = tuple) -> None:
        """`documents`: the open files."""
        self.folder = folder or paths.cache_dir() / "proposals"
        self.documents = documents
        self._by_uri: dict[str, dict[str, _Kept]] = {}

    def put(self, proposal: Proposal) -> None:
        """Replaces what was proposed for this kernel in the same state of its text."""
        kept = self._of(proposal.uri)
        for id, other in list(kept.items()):
            if other.proposal.kernel == proposal.kernel and other.proposal.state != "accepted":
                del kept[id]
        kept[proposal.id] = _Kept(proposal)
        while len(kept) > KEPT_PER_FILE:
            del kept[next(iter(kept))]
        self._save(proposal.uri)

    def find(self, id: str, files: Iterable[OpenFile]) -> tuple[OpenFile, Proposal] | None:
        """The proposal as it stands against the open file's text."""
        for file in files:
            kept = self._of(file.uri).get(id)
            if kept is not None:
                return file, replace(kept.proposal, state=self._state(kept, file))
        return None

    def of_kernel(self, file: OpenFile, kernel: str) -> Proposal | None:
        """The newest proposal a person should see: fresh before stale; accepted and rejected ones are not shown."""
        stale = None
        for kept in reversed(list(self._of(file.uri).values())):
            if kept.proposal.kernel == kernel:
                state = self._state(kept, file)
                if state == "fresh":
                    return replace(kept.proposal, state=state)
                if state == "stale" and stale is None:
                    stale = replace(kept.proposal, state=state)
        return stale

    def beside(self, file: OpenFile, name: str) -> Beside:
        """The file of that name in a text that is joined with `file`. SourceError when it cannot be read."""
        path = joined.path_of(Path(file.document.path), name)
        open_ = next((other for other in self.documents() if other.path == path), None)
        if open_ is not None:
            return Beside(open_.uri, open_.document, open_.document.version)
        return Beside(path.as_uri(), documents.read(path), None)

    def whole(self, proposal: Proposal, file: OpenFile) -> str:
        """The text that the proposal is about, as it is now. SourceError when a file of it cannot be read."""
        like = proposal.candidate.original
        return joined.again(like, file.document.text, lambda name: self.beside(file, name).document.text)

    def version(self, proposal: Proposal, file: OpenFile) -> int:
        """Grows with every change of a file that the proposal is about."""
        others = (self.beside(file, name).version or 0 for name in joined.others(proposal.candidate.original))
        return file.document.version + sum(others)

    def of_file(self, file: OpenFile) -> list[Proposal]:
        """All that are kept, as they stand against the file's text, oldest first."""
        return [replace(kept.proposal, state=self._state(kept, file)) for kept in self._of(file.uri).values()]

    def paths(self) -> list[Path]:
        """The files that have proposals on disk."""
        found = set()
        for file in self.folder.glob("*.json"):
            found |= {kept.proposal.uri for kept in self._read(file).values()}
        parts = [urlparse(uri) for uri in sorted(found)]
        return [Path(unquote(part.path)) for part in parts if part.scheme == "file"]

    def forget(self, uri: str) -> None:
        """A file was closed: what lies on disk counts when it is opened again, where another program may have added to
        it."""
        if self._file(uri).exists():
            self._by_uri.pop(uri, None)

    def accept(self, proposal: Proposal, version: int) -> None:
        self._set(proposal, "accepted", version)

    def reject(self, proposal: Proposal) -> None:
        self._set(proposal, "rejected", None)

    def _set(self, proposal: Proposal, state: State, version: int | None) -> None:
        kept = self._of(proposal.uri).get(proposal.id)
        if kept is not None:
            kept.proposal, kept.accepted_at = replace(kept.proposal, state=state), version
            self._save(proposal.uri)

    def _state(self, kept: _Kept, file: OpenFile) -> State:
        proposal = kept.proposal
        if proposal.state == "rejected":
            return "rejected"
        try:
            text = self.whole(proposal, file)
            module = file.module if text == file.document.text else symbols.module(Document(file.document.path, text))
            same = source_hash(module, module.kernel(proposal.kernel)) == proposal.source_hash
        except SourceError:  # the kernel is gone or half typed, or another file is
            same = False
        if proposal.state == "accepted":
            at = kept.accepted_at
            if not (same and at is not None and self.version(proposal, file) > at):
                return "accepted"
            kept.proposal, kept.accepted_at = replace(proposal, state="fresh"), None  # undone
        return "fresh" if same else "stale"

    # ------------------------------------------------------------ disk

    def _file(self, uri: str) -> Path:
        return self.folder / f"{hashlib.sha256(uri.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"

    def _of(self, uri: str) -> dict[str, _Kept]:
        if uri not in self._by_uri:
            self._by_uri[uri] = self._load(uri)
        return self._by_uri[uri]

    def _load(self, uri: str) -> dict[str, _Kept]:
        return self._read(self._file(uri))

    def _read(self, file: Path) -> dict[str, _Kept]:
        try:
            items = json.loads(file.read_text(encoding="utf-8", errors="surrogatepass"))
            found = [from_json(Proposal, item) for item in items]
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, CodecError) as error:
            _log.warning("earlier proposals in %s cannot be read (%s) and are left out", file, error)
            return {}
        return {proposal.id: _Kept(proposal) for proposal in found}

    def _save(self, uri: str) -> None:
        items = [to_json(kept.proposal) for kept in self._by_uri[uri].values()]
        file = self._file(uri)
        fresh = file.with_suffix(f".{os.getpid()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.write_text(json.dumps(items), encoding="utf-8", errors="surrogatepass")
            os.replace(fresh, file)
        except OSError as error:
            _log.warning("proposals cannot be kept in %s (%s); they last until the server ends", self.folder, error)
