"""Hints as diagnostics: off by category until the person turns one on, Information severity, pushed with the version.

One aggregator a file: each push replaces all of ours. They never repeat a compiler error, which is clangd's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from cuda_agent.lsp.documents import OpenFile

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer

SOURCE = "cuda-agent"


def collect(server: CudaAgentServer, file: OpenFile) -> list[types.Diagnostic]:
    """Findings of the categories that the person turned on, for kernels whose text was compiled as it stands."""
    wanted = set(server.settings.hints)
    found = []
    for kernel in file.module.kernels if wanted else ():
        facts = server.facts.of(file, kernel)
        if facts is None or not facts.current:
            continue
        for finding in facts.findings:
            if finding.get("category") in wanted:
                line = finding.get("line")
                span = file.document.lines.line_span(line - 1) if isinstance(line, int) else kernel.name_span
                where = file.range(span, server.documents.encoding)
                found.append(
                    types.Diagnostic(
                        range=where,
                        message=str(finding["message"]),
                        severity=types.DiagnosticSeverity.Information,
                        code=str(finding["category"]),
                        source=SOURCE,
                    )
                )
    return found


def publish(server: CudaAgentServer, file: OpenFile) -> None:
    """Nothing is sent while every category is off, except once to clear what stood there."""
    found = collect(server, file)
    if found or file.uri in server.published:
        (server.published.add if found else server.published.discard)(file.uri)
        params = types.PublishDiagnosticsParams(uri=file.uri, diagnostics=found, version=file.document.version)
        server.text_document_publish_diagnostics(params)
