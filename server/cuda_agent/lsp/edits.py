"""A proposal as a `WorkspaceEdit`: the smallest edits, versioned where the client can check the version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from cuda_agent.lsp.documents import OpenFile, range_of
from cuda_agent.lsp.proposals import Beside, rebased
from cuda_agent.model import Proposal
from cuda_agent.source import joined

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer


def workspace_edit(server: CudaAgentServer, file: OpenFile, proposal: Proposal) -> types.WorkspaceEdit:
    """For the texts as they are now. SourceError when one changed where the proposal edits. All edits of one file in
    one TextDocumentEdit: one undo step. A file that is not open has no version: the client edits it as it is on disk.
    """
    encoding = server.documents.encoding
    whole = server.proposals.whole(proposal, file)
    edits: dict[Beside, list[types.TextEdit]] = {}
    for name, of_file in joined.by_file(whole, rebased(proposal, whole)).items():
        own = Beside(file.uri, file.document, file.document.version)
        place = own if name is None else server.proposals.beside(file, name)
        edits[place] = [types.TextEdit(range_of(place.document, edit.span, encoding), edit.text) for edit in of_file]
    if not server.client.document_changes:
        return types.WorkspaceEdit(changes={place.uri: of_file for place, of_file in edits.items()})
    return types.WorkspaceEdit(
        document_changes=[
            types.TextDocumentEdit(
                text_document=types.OptionalVersionedTextDocumentIdentifier(uri=place.uri, version=place.version),
                edits=list(of_file),
            )
            for place, of_file in edits.items()
        ]
    )
