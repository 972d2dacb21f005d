"""textDocument/inlayHint: registers and spills beside each kernel's name. Off by default, from cache only."""

from __future__ import annotations

from lsprotocol import types

from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.server import CudaAgentServer


def inlay_hint(server: CudaAgentServer, params: types.InlayHintParams) -> list[types.InlayHint]:
    file = server.documents.get(params.text_document.uri)
    if file is None or not file.is_cuda or not server.settings.inlay_hints:
        return []
    encoding = server.documents.encoding
    start, end = file.offset(params.range.start, encoding), file.offset(params.range.end, encoding)
    hints = []
    for kernel in file.module.kernels:
        facts = server.facts.of(file, kernel)
        if facts is not None and facts.current and facts.title and start <= kernel.name_span.end <= end:
            at = file.range(kernel.name_span, encoding).end
            hints.append(types.InlayHint(position=at, label=facts.title, padding_left=True))
    return hints


def register(server: CudaAgentServer) -> None:
    feature(server, types.TEXT_DOCUMENT_INLAY_HINT, inlay_hint, types.InlayHintOptions(), neutral=[])
