"""didOpen, didChange, didSave, didClose. All synchronous: the snapshot of a version is taken before the next message
is read."""

from __future__ import annotations

from lsprotocol import types

from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.server import CudaAgentServer


def did_open(server: CudaAgentServer, params: types.DidOpenTextDocumentParams) -> None:
    file = server.documents.open(params.text_document)
    if server.root is None:
        server.configure({})  # a trusted file is what restricted settings wait for
    server.facts.schedule(file, 0.0)


def did_change(server: CudaAgentServer, params: types.DidChangeTextDocumentParams) -> None:
    file = server.documents.change(params)
    if file is not None:
        server.facts.schedule(file)


def did_save(server: CudaAgentServer, params: types.DidSaveTextDocumentParams) -> None:
    file = server.documents.get(params.text_document.uri)
    if file is not None:
        server.facts.schedule(file, 0.0)


def did_close(server: CudaAgentServer, params: types.DidCloseTextDocumentParams) -> None:
    uri = params.text_document.uri
    server.documents.close(uri)
    server.facts.forget(uri)
    server.proposals.forget(uri)
    if uri in server.published:
        server.published.discard(uri)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri=uri, diagnostics=[]))


def register(server: CudaAgentServer) -> None:
    feature(server, types.TEXT_DOCUMENT_DID_OPEN, did_open)
    feature(server, types.TEXT_DOCUMENT_DID_CHANGE, did_change)
    feature(server, types.TEXT_DOCUMENT_DID_SAVE, did_save, types.SaveOptions(include_text=False))
    feature(server, types.TEXT_DOCUMENT_DID_CLOSE, did_close)
