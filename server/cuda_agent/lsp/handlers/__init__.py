"""One file a request; `register` puts them all on the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_agent.lsp.handlers import (
    code_action,
    code_lens,
    configuration,
    custom,
    execute_command,
    hover,
    inlay_hint,
    lifecycle,
    progress,
    sync,
    text_document_content,
)

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer


def register(server: CudaAgentServer) -> None:
    modules = (lifecycle, sync, hover, code_lens, code_action, execute_command, inlay_hint, progress, configuration)
    for module in (*modules, text_document_content, custom):
        module.register(server)
