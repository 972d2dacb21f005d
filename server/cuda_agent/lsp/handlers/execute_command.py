"""workspace/executeCommand. What takes long answers with a job id at once: cancelling the request itself stops nothing.

Each command takes one object: `{uri, kernel}`, `{uri, kernel, proposal}` or `{job}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from lsprotocol import types

from cuda_agent import paths
from cuda_agent.config import Settings, parse
from cuda_agent.engine.codec import to_json
from cuda_agent.engine.messages import Capture, Optimize, Verify
from cuda_agent.errors import SourceError, Untrusted, UsageError
from cuda_agent.lsp import editor_model, inputs, render
from cuda_agent.lsp.documents import OpenFile
from cuda_agent.lsp.edits import workspace_edit
from cuda_agent.lsp.guard import command
from cuda_agent.lsp.handlers.custom import proposal_text
from cuda_agent.lsp.jobs import Jobs
from cuda_agent.lsp.proposals import rebased
from cuda_agent.lsp.protocol import reply
from cuda_agent.lsp.server import SCHEME, CudaAgentServer
from cuda_agent.model import Kernel, Proposal
from cuda_agent.source import documents, edits, joined
from cuda_agent.source.documents import Document


async def optimize(server: CudaAgentServer, where: Any = None) -> dict[str, Any]:
    file, kernel = _kernel(server, where)
    await _ready(server, file, kernel)
    no_model = editor_model.why_not(server)
    if no_model is not None:
        raise UsageError(f"{kernel.name}: {no_model}")
    if not file.module.has_main and not (file.path and inputs.has_inputs(file.path)):
        await _need_run_command(server, file, kernel)
    params = Optimize(
        str(file.real_path),
        file.document.text,
        kernel.id,
        settings_for(server, where),
        Jobs.new_id(),
        _unsaved(server, file),
    )
    return {"job": server.jobs.start("optimize", file.uri, kernel.id, file.document, params).id}


async def capture(server: CudaAgentServer, where: Any = None) -> dict[str, Any]:
    file, kernel = _kernel(server, where)
    await _ready(server, file, kernel)
    if not file.module.has_main:
        await _need_run_command(server, file, kernel)
    params = Capture(str(file.real_path), file.document.text, kernel.id, settings_for(server, where), Jobs.new_id())
    return {"job": server.jobs.start("capture", file.uri, kernel.id, file.document, params).id}


async def verify(server: CudaAgentServer, where: Any = None) -> dict[str, Any]:
    """Judge the proposal's edits against the text as it is now."""
    file, proposal = _proposal(server, where)
    await _ready(server, file, file.module.kernel(proposal.kernel))
    text, candidate = server.proposals.whole(proposal, file), proposal.candidate
    params = Verify(
        str(file.real_path),
        text,
        edits.apply(text, rebased(proposal, text)),
        proposal.kernel,
        candidate.origin,
        candidate.numeric,
        to_json(candidate.launch),
        candidate.reason,
        settings_for(server, where),
        Jobs.new_id(),
    )
    judged = Document(file.document.path, text, file.document.version)
    return {"job": server.jobs.start("verify", file.uri, proposal.kernel, judged, params).id}


async def accept(server: CudaAgentServer, where: Any = None) -> dict[str, Any]:
    """One `workspace/applyEdit`; the proposal is accepted only when the client says that it applied it."""
    file, proposal = _proposal(server, where)
    if proposal.state != "fresh" or proposal.verdict.status != "verified":
        raise UsageError(f"this proposal is {render.proposal_title(proposal)}; verify it again before accepting")
    if not server.client.applies_edits:
        raise UsageError(
            "this editor does not apply a server's edits: use the code action Accept, which carries the edit"
        )
    version = server.proposals.version(proposal, file)
    label = f"CUDA Agent: {proposal.kernel}, {render.proposal_title(proposal)}"
    edit = workspace_edit(server, file, proposal)
    answer = await reply(server.workspace_apply_edit(types.ApplyWorkspaceEditParams(edit=edit, label=label)))
    if not answer.applied:
        reason = answer.failure_reason or "the editor did not say why"
        raise SourceError(f"the edit was not applied: {reason}. The proposal is kept")
    server.proposals.accept(proposal, version)
    server.refresh_soon()
    return {"applied": True}


async def accepted(server: CudaAgentServer, where: Any = None) -> None:
    """After a code action that carried the edit itself."""
    file, proposal = _proposal(server, where)
    server.proposals.accept(proposal, server.proposals.version(proposal, file))
    server.refresh_soon()


async def reject(server: CudaAgentServer, where: Any = None) -> None:
    _, proposal = _proposal(server, where)
    server.proposals.reject(proposal)
    server.refresh_soon()


async def show_diff(server: CudaAgentServer, where: Any = None) -> dict[str, Any]:
    """The client's own diff view where it has one of ours; else the candidate as a document; else the diff as text."""
    file, proposal = _proposal(server, where)
    title = f"{proposal.kernel}: {render.proposal_title(proposal)}"
    own = (file.uri, f"{SCHEME}:/{proposal.id}/{Path(file.path or 'candidate.cu').name}")
    shown = list(_changed_files(server, file, proposal, own)) or [own]
    if server.client.custom("showDiff"):
        files = [{"uri": uri, "candidate": virtual} for uri, virtual in shown]
        params = {**files[0], "proposal": proposal.id, "title": title, "files": files}
        server.protocol.notify("cudaAgent/showDiff", params)
    elif server.client.shows_documents:
        for _, virtual in shown:
            uri = virtual
            if not server.client.text_document_content:
                uri = _on_disk(proposal, PurePosixPath(virtual).name, proposal_text(server, virtual))
            await reply(server.window_show_document(types.ShowDocumentParams(uri=uri, take_focus=True)))
    else:
        server.say(proposal.diff)
    return {"diff": proposal.diff, "candidate": shown[0][1]}


def _changed_files(
    server: CudaAgentServer, file: OpenFile, proposal: Proposal, own: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """URI and virtual document of every file that the proposal changes; `own` are the kernel's file's."""
    for number, (was, now) in enumerate(joined.pairs(proposal.candidate.original, proposal.candidate.text)):
        if was.text == now.text:
            continue
        if was.name is None:
            yield own
        else:
            path = joined.path_of(Path(file.document.path), was.name)
            open_ = next((other.uri for other in server.documents if other.path == path), path.as_uri())
            yield open_, f"{SCHEME}:/{proposal.id}/{number}/{path.name}"


async def cancel(server: CudaAgentServer, which: Any = None) -> dict[str, Any]:
    """Answers when the job and all its processes are gone."""
    return {"cancelled": await server.jobs.cancel(str(_field(which, "job")))}


async def trust(server: CudaAgentServer, where: Any = None) -> dict[str, Any]:
    """The folder of `where`'s file, else the workspace's."""
    if server.trust.told is False:
        raise Untrusted("the editor has not trusted this folder: use its own command for that")
    place = _file(server, where).path if isinstance(where, Mapping) and "uri" in where else server.root
    if place is None:
        raise UsageError("there is no folder to trust: name a file that is on disk")
    folder = server.trust.missing(place)
    if folder is not None:
        server.trust.remember(folder, True)
        await server.trust_changed()
    return {"trusted": server.trust.covers(place)}


async def restart_engine(server: CudaAgentServer, where: Any = None) -> None:
    await server.engine.restart()
    for file in server.documents:
        server.facts.schedule(file, 0.0)


COMMANDS = {
    "cudaAgent.optimize": optimize,
    "cudaAgent.capture": capture,
    "cudaAgent.verify": verify,
    "cudaAgent.accept": accept,
    "cudaAgent.accepted": accepted,
    "cudaAgent.reject": reject,
    "cudaAgent.showDiff": show_diff,
    "cudaAgent.cancel": cancel,
    "cudaAgent.trust": trust,
    "cudaAgent.restartEngine": restart_engine,
}


def settings_for(server: CudaAgentServer, where: Any) -> Settings:
    """The person's settings; a command's argument may override the run command for this once."""
    line = where.get("runCommand") if isinstance(where, Mapping) else None
    return parse({"runCommand": line}, server.settings) if line else server.settings


def _field(where: Any, name: str) -> Any:
    if not isinstance(where, Mapping) or name not in where:
        raise UsageError(f"this command needs an argument object with {name!r}")
    return where[name]


def _file(server: CudaAgentServer, where: Any) -> OpenFile:
    uri = str(_field(where, "uri"))
    file = server.documents.get(uri)
    if file is None:
        raise UsageError(f"{uri} is not open: open it first")
    return file


def _kernel(server: CudaAgentServer, where: Any) -> tuple[OpenFile, Kernel]:
    file = _file(server, where)
    name = where.get("kernel")
    kernels = file.module.kernels
    if name is None and len(kernels) == 1:
        return file, kernels[0]
    return file, file.module.kernel(str(name or ""))


def _proposal(server: CudaAgentServer, where: Any) -> tuple[OpenFile, Proposal]:
    """By id, else the one that is shown for the kernel."""
    if isinstance(where, Mapping) and where.get("proposal"):
        found = server.proposals.find(str(where["proposal"]), server.documents)
        if found is None:
            raise UsageError("there is no such proposal any more: optimise the kernel again")
        return found
    file, kernel = _kernel(server, where)
    proposal = server.proposals.of_kernel(file, kernel.id)
    if proposal is None:
        raise UsageError(f"there is no proposal for {kernel.name}: optimise it first")
    return file, proposal


async def _ready(server: CudaAgentServer, file: OpenFile, kernel: Kernel) -> None:
    if file.path is not None and not await server.ensure_trust(file.path):
        folder = server.trust.missing(file.path) if server.trust.told is not False else None
        raise Untrusted(f"{folder or 'this folder'} is not trusted: nothing in it is compiled or run")
    reason = inputs.why_not(server, file, kernel)
    if reason is not None:
        raise UsageError(f"{kernel.name}: {reason}")


async def _need_run_command(server: CudaAgentServer, file: OpenFile, kernel: Kernel) -> None:
    """Ask a client that can (`cudaAgent/askRunCommand`) and keep the answer for this session; UsageError without
    one."""
    if server.settings.run_command:
        return
    if server.client.custom("askRunCommand"):
        question = {"uri": file.uri, "kernel": kernel.id}
        answer = await reply(server.protocol.send_request("cudaAgent/askRunCommand", question))
        command = answer.get("command") if isinstance(answer, Mapping) else None
        if command:
            server.configure({"runCommand": str(command)})
            return
    raise UsageError(f"{kernel.name}: no run command yet: set cudaAgent.runCommand to what runs your program")


def _unsaved(server: CudaAgentServer, file: OpenFile) -> dict[str, str]:
    """Texts of the other open files that are not on disk like that."""

    def saved(other: OpenFile) -> bool:
        try:
            return other.path is None or documents.is_saved(other.path, other.document.text)
        except SourceError:  # not there
            return False

    return {
        str(other.real_path): other.document.text
        for other in server.documents
        if other is not file and not saved(other)
    }


def _on_disk(proposal: Proposal, name: str, text: str) -> str:
    """The candidate as a file in the cache, for editors that open only files."""
    folder = paths.cache_dir() / "shown" / proposal.id
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    return file.as_uri()


def register(server: CudaAgentServer) -> None:
    for name, handler in COMMANDS.items():
        command(server, name, handler)
