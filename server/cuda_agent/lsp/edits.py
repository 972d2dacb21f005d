"""A proposal as a `WorkspaceEdit`: the smallest edits, versioned where the client can check the version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from cuda_agent.lsp.documents import OpenFile
from cuda_agent.lsp.proposals import rebased
from cuda_agent.model import Proposal

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer


def workspace_edit(server: CudaAgentServer, file: OpenFile, proposal: Proposal) -> types.WorkspaceEdit:
    """For the text as it is now. SourceError when the file changed where the proposal edits. All edits of one file in
    one TextDocumentEdit: one undo step."""
    encoding = server.documents.encoding
    edits = [
        types.TextEdit(file.range(edit.span, encoding), edit.text) for edit in rebased(proposal, file.document.text)
    ]
    if not server.client.document_changes:
        return types.WorkspaceEdit(changes={file.uri: edits})
    document = types.OptionalVersionedTextDocumentIdentifier(uri=file.uri, version=file.document.version)
    return types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(text_document=document, edits=list(edits))])
