"""textDocument/codeLens: a row above each kernel, from what is known now. Complete at once, no resolve: VS Code shows
no extension's lenses before the slowest has answered."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from cuda_agent.lsp import inputs, render
from cuda_agent.lsp.documents import OpenFile
from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.server import CudaAgentServer
from cuda_agent.model import Kernel, Proposal


def code_lens(server: CudaAgentServer, params: types.CodeLensParams) -> list[types.CodeLens]:
    file = server.documents.get(params.text_document.uri)
    if file is None or not file.is_cuda or not server.settings.lens:
        return []
    lenses, trust = [], inputs.trust_title(server, file)
    for kernel in file.module.kernels:
        where = file.range(kernel.name_span, server.documents.encoding)
        commands = row(server, file, kernel, trust)
        lenses += [types.CodeLens(_nth(where, n), command) for n, command in enumerate(commands)]
    return lenses


def _nth(name: types.Range, n: int) -> types.Range:
    """A character further for each lens: Neovim sorts a line's lenses by where they start, and equal ones as they
    come out of the sort."""
    start = types.Position(name.start.line, min(name.start.character + n, name.end.character))
    return types.Range(start, name.end)


def row(server: CudaAgentServer, file: OpenFile, kernel: Kernel, trust: str | None) -> Iterator[types.Command]:
    """The lenses of one kernel, left to right; each has an equal code action. `trust`: what the one that gives trust
    says, where that is missing."""
    where = {"uri": file.uri, "kernel": kernel.id}
    job = server.jobs.running(file.uri, kernel.id)
    proposal = server.proposals.of_kernel(file, kernel.id)
    if job is not None:
        yield _plain(render.job_title(job))
        yield types.Command(title="Cancel", command="cudaAgent.cancel", arguments=[{"job": job.id}])
        return
    if proposal is not None:
        yield from proposal_row(proposal)
        if proposal.state == "fresh" and proposal.verdict.status == "verified":
            return
    else:
        yield _plain(render.facts_title(file.module, kernel, server.facts.of(file, kernel)))
    if trust is not None:
        yield types.Command(title=trust, command="cudaAgent.trust", arguments=[{"uri": file.uri}])
    if inputs.why_no_inputs(server, file, kernel) is None:
        yield types.Command(title="Optimise", command="cudaAgent.optimize", arguments=[where])


def proposal_row(proposal: Proposal) -> Iterator[types.Command]:
    which = [{"uri": proposal.uri, "kernel": proposal.kernel, "proposal": proposal.id}]
    yield types.Command(title=render.lens_title(proposal), command="cudaAgent.showDiff", arguments=which)
    yield types.Command(title="Show diff", command="cudaAgent.showDiff", arguments=which)
    if proposal.state == "fresh" and proposal.verdict.status == "verified":
        yield types.Command(title="Accept", command="cudaAgent.accept", arguments=which)
    else:
        yield types.Command(title="Verify again", command="cudaAgent.verify", arguments=which)
    yield types.Command(title="Reject", command="cudaAgent.reject", arguments=which)


def _plain(title: str) -> types.Command:
    """A lens that only says something."""
    return types.Command(title=title, command="")


def register(server: CudaAgentServer) -> None:
    options = types.CodeLensOptions(resolve_provider=False)
    feature(server, types.TEXT_DOCUMENT_CODE_LENS, code_lens, options, neutral=[])
