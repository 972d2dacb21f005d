"""textDocument/hover: on kernels' names, launches, `__shared__` and `__launch_bounds__`, nowhere else; clangd has the
rest."""

from __future__ import annotations

import re

from lsprotocol import types

from cuda_agent.lsp import inputs, render
from cuda_agent.lsp.documents import OpenFile
from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.server import CudaAgentServer
from cuda_agent.model import Kernel, Span

_BOUNDS = re.compile(rb"__launch_bounds__\s*(\((?:[^()]|\([^()]*\))*\))?")
_GLOBAL = re.compile(rb"__global__")


def hover(server: CudaAgentServer, params: types.HoverParams) -> types.Hover | None:
    file = server.documents.get(params.text_document.uri)
    if file is None or not file.is_cuda:
        return None
    offset = file.offset(params.position, server.documents.encoding)
    found = _kernel(server, file, offset) or _launch(server, file, offset)
    if found is None:
        return None
    text, span = found
    kind = types.MarkupKind.Markdown if server.client.markdown else types.MarkupKind.PlainText
    return types.Hover(types.MarkupContent(kind, text), file.range(span, server.documents.encoding))


def _kernel(server: CudaAgentServer, file: OpenFile, offset: int) -> tuple[str, Span] | None:
    kernel = file.module.kernel_at(offset)
    if kernel is None:
        return None
    facts = server.facts.of(file, kernel)
    if _touches(kernel.name_span, offset):
        return _whole(server, file, kernel), kernel.name_span
    for array in kernel.shared:
        if _touches(array.span, offset):
            return render.shared_hover(array, kernel, facts), array.span
    head = Span(kernel.span.start, kernel.body.start)
    if offset in head:
        if (bounds := _find(_BOUNDS, file, head, offset)) is not None:
            return render.bounds_hover(kernel, facts), bounds
        if (word := _find(_GLOBAL, file, head, offset)) is not None:
            return _whole(server, file, kernel), word
    return None


def _launch(server: CudaAgentServer, file: OpenFile, offset: int) -> tuple[str, Span] | None:
    """On the name and the configuration of a launch; its arguments are ordinary C++."""
    site = file.module.launch_at(offset)
    if site is None or offset > site.config_span.end + len(">>>"):
        return None
    meant = file.module.kernels_of(site)
    kernel = meant[0] if len(meant) == 1 else None
    facts = server.facts.of(file, kernel) if kernel is not None else None
    return render.launch_hover(file.module, site, kernel, facts), Span(
        site.span.start, site.config_span.end + len(">>>")
    )


def _whole(server: CudaAgentServer, file: OpenFile, kernel: Kernel) -> str:
    if server.covers(file) or file.path is None:
        note = inputs.why_no_inputs(server, file, kernel)
    else:
        note = "facts of the text only: trust this folder (cudaAgent.trust) to see what the compiler makes of it"
    return render.kernel_hover(
        file.module,
        kernel,
        server.facts.of(file, kernel),
        server.facts.problem(file.uri),
        server.proposals.of_kernel(file, kernel.id),
        server.jobs.running(file.uri, kernel.id),
        note,
    )


def _touches(span: Span, offset: int) -> bool:
    return span.start <= offset <= span.end


def _find(pattern: re.Pattern[bytes], file: OpenFile, within: Span, offset: int) -> Span | None:
    for match in pattern.finditer(file.document.data, within.start, within.end):
        if match.start() <= offset <= match.end():
            return Span(match.start(), match.end())
    return None


def register(server: CudaAgentServer) -> None:
    feature(server, types.TEXT_DOCUMENT_HOVER, hover)
