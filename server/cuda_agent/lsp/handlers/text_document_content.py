"""workspace/textDocumentContent (LSP 3.18): the candidate's text under `cuda-agent-proposal:/ID/NAME`."""

from __future__ import annotations

from lsprotocol import types

from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.handlers.custom import proposal_text
from cuda_agent.lsp.server import CudaAgentServer


def content(server: CudaAgentServer, params: types.TextDocumentContentParams) -> types.TextDocumentContentResult:
    return types.TextDocumentContentResult(text=proposal_text(server, params.uri))


def register(server: CudaAgentServer) -> None:
    feature(server, types.WORKSPACE_TEXT_DOCUMENT_CONTENT, content, neutral=types.TextDocumentContentResult(text=""))
