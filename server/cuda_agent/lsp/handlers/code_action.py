"""textDocument/codeAction: the same choices as the lens row, for the kernel or launch at the cursor. Nothing is
compiled to list them. A client without `workspace/applyEdit` gets the edit inside the action, one without literals
plain commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lsprotocol import types

from cuda_agent.errors import SourceError
from cuda_agent.lsp import editor_model, inputs, render
from cuda_agent.lsp.documents import OpenFile
from cuda_agent.lsp.edits import workspace_edit
from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.server import CudaAgentServer
from cuda_agent.model import Kernel, Proposal

OPTIMIZE = "refactor.rewrite.cudaAgent.optimize"
ACCEPT = "refactor.rewrite.cudaAgent.accept"
CAPTURE = "source.cudaAgent.capture"
VERIFY = "source.cudaAgent.verify"
SHOW_DIFF = "source.cudaAgent.showDiff"
REJECT = "source.cudaAgent.reject"
CANCEL = "source.cudaAgent.cancel"
TRUST = "source.cudaAgent.trust"
KINDS = (OPTIMIZE, ACCEPT, CAPTURE, VERIFY, SHOW_DIFF, REJECT, CANCEL, TRUST)


def code_action(server: CudaAgentServer, params: types.CodeActionParams) -> list[types.CodeAction | types.Command]:
    file = server.documents.get(params.text_document.uri)
    if file is None or not file.is_cuda:
        return []
    kernel = kernel_at(file, file.offset(params.range.start, server.documents.encoding))
    if kernel is None:
        return []
    only = [str(getattr(kind, "value", kind)) for kind in params.context.only or ()]
    found = [action for action in actions(server, file, kernel) if wanted(str(action.kind), only)]
    if not server.client.disabled_actions:
        found = [action for action in found if action.disabled is None]
    if not server.client.action_literals:
        return [action.command for action in found if action.command is not None]
    return list(found)


def kernel_at(file: OpenFile, offset: int) -> Kernel | None:
    """The kernel around the cursor, or the one that the launch at the cursor means."""
    kernel = file.module.kernel_at(offset)
    site = file.module.launch_at(offset)
    if kernel is None and site is not None:
        meant = file.module.kernels_of(site)
        kernel = meant[0] if len(meant) == 1 else None
    return kernel


def wanted(kind: str, only: list[str]) -> bool:
    """Kinds form a tree by their dots."""
    return not only or any(not prefix or kind == prefix or kind.startswith(prefix + ".") for prefix in only)


def actions(server: CudaAgentServer, file: OpenFile, kernel: Kernel) -> Iterator[types.CodeAction]:
    where = {"uri": file.uri, "kernel": kernel.id}
    job = server.jobs.running(file.uri, kernel.id)
    if job is not None:
        yield _action(f"Cancel: {job.title}", CANCEL, "cudaAgent.cancel", {"job": job.id})
        return
    proposal = server.proposals.of_kernel(file, kernel.id)
    if proposal is not None:
        yield from _proposal(server, file, proposal)
    reason = inputs.why_no_inputs(server, file, kernel) or editor_model.why_not(server)
    name = render.short_name(kernel)
    yield _action(f"Optimise kernel {name}", OPTIMIZE, "cudaAgent.optimize", where, reason)
    yield _action(
        f"Capture inputs of {name}",
        CAPTURE,
        "cudaAgent.capture",
        where,
        _why_no_capture(server, file, kernel),
    )
    trust = inputs.trust_title(server, file)
    if trust is not None:
        yield _action(f"{trust}: compile and run its code", TRUST, "cudaAgent.trust", {"uri": file.uri})


def _why_no_capture(server: CudaAgentServer, file: OpenFile, kernel: Kernel) -> str | None:
    reason = inputs.why_not(server, file, kernel)
    can_run = bool(server.settings.run_command) or file.module.has_main or server.client.custom("askRunCommand")
    if reason is None and not can_run:
        return "no run command yet: set cudaAgent.runCommand to what runs your program"
    return reason


def _proposal(server: CudaAgentServer, file: OpenFile, proposal: Proposal) -> Iterator[types.CodeAction]:
    which = {"uri": file.uri, "kernel": proposal.kernel, "proposal": proposal.id}
    title = render.proposal_title(proposal)
    if proposal.state == "fresh" and proposal.verdict.status == "verified":
        accept = _action(f"Accept: {title}", ACCEPT, "cudaAgent.accept", which)
        accept.is_preferred = True
        if render.model_of(proposal.candidate) and server.client.action_tags:
            accept.tags = [types.CodeActionTag.LlmGenerated]
        if not server.client.applies_edits:
            _carry_edit(server, file, proposal, accept)
        yield accept
    else:
        yield _action(f"Verify again: {proposal.kernel}", VERIFY, "cudaAgent.verify", which)
    yield _action(f"Show diff: {title}", SHOW_DIFF, "cudaAgent.showDiff", which)
    yield _action(f"Reject: {title}", REJECT, "cudaAgent.reject", which)


def _carry_edit(server: CudaAgentServer, file: OpenFile, proposal: Proposal, action: types.CodeAction) -> None:
    """The edit itself; the command after it only notes that it was accepted."""
    try:
        action.edit = workspace_edit(server, file, proposal)
    except SourceError as conflict:
        action.disabled = types.CodeActionDisabled(str(conflict))
        action.command = None
        return
    arguments: list[Any] = [{"uri": file.uri, "kernel": proposal.kernel, "proposal": proposal.id}]
    action.command = types.Command(title="Accepted", command="cudaAgent.accepted", arguments=arguments)


def _action(
    title: str, kind: str, command: str, argument: dict[str, Any], disabled: str | None = None
) -> types.CodeAction:
    if disabled is not None:
        return types.CodeAction(title, kind=kind, disabled=types.CodeActionDisabled(disabled))
    return types.CodeAction(title, kind=kind, command=types.Command(title=title, command=command, arguments=[argument]))


def register(server: CudaAgentServer) -> None:
    options = types.CodeActionOptions(code_action_kinds=list(KINDS), resolve_provider=False)
    feature(server, types.TEXT_DOCUMENT_CODE_ACTION, code_action, options, neutral=[])
