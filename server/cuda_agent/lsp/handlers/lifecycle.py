"""initialize, initialized: take what the client says; later warm what the first hover would otherwise wait for, and
listen for other programs."""

from __future__ import annotations

import asyncio

from lsprotocol import types

from cuda_agent.config import SECTION
from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.handlers.configuration import pull
from cuda_agent.lsp.protocol import reply
from cuda_agent.lsp.server import CudaAgentServer


def initialize(server: CudaAgentServer, params: types.InitializeParams) -> None:
    server.begin(params)


async def initialized(server: CudaAgentServer, params: types.InitializedParams) -> None:
    warm(server)
    server.tell_status()
    await server.attached.start()
    if server.client.configuration:
        await pull(server)
    if server.client.registers_configuration:
        method = types.WORKSPACE_DID_CHANGE_CONFIGURATION
        wanted = types.Registration("cuda-agent-configuration", method, {"section": SECTION})
        await reply(server.client_register_capability(types.RegistrationParams([wanted])))


async def folders_changed(server: CudaAgentServer, params: types.DidChangeWorkspaceFoldersParams) -> None:
    """An editor's own trust is about the folders that its workspace has now."""
    server.trust.open_folders(server.workspace_paths())
    await server.trust_changed()


def warm(server: CudaAgentServer) -> None:
    """Build the converter's code for the messages to come: the first use of each costs 5 to 58 ms."""
    converter = server.protocol._converter
    here = {"textDocument": {"uri": "file:///warm.cu"}, "position": {"line": 0, "character": 0}}
    zero = {"start": here["position"], "end": here["position"]}
    item = {"uri": "file:///warm.cu", "version": 1, "languageId": "cuda", "text": ""}
    change = {"textDocument": item, "contentChanges": [{"range": zero, "text": ""}, {"text": ""}]}
    action = {**here, "range": zero, "context": {"diagnostics": []}}
    requests = {
        types.TEXT_DOCUMENT_HOVER: here,
        types.TEXT_DOCUMENT_CODE_LENS: here,
        types.TEXT_DOCUMENT_CODE_ACTION: action,
        types.WORKSPACE_EXECUTE_COMMAND: {"command": "warm", "arguments": []},
    }
    for method, params in requests.items():
        message = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params}
        converter.structure(message, types.METHOD_TO_TYPES[method][0])
    for method, params in {
        types.TEXT_DOCUMENT_DID_CHANGE: change,
        types.TEXT_DOCUMENT_DID_OPEN: {"textDocument": item},
    }.items():
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        converter.structure(message, types.METHOD_TO_TYPES[method][0])
    where = types.Range(types.Position(0, 0), types.Position(0, 0))
    action_out = types.CodeAction(
        "warm", disabled=types.CodeActionDisabled("warm"), command=types.Command(title="", command="")
    )
    lens = types.CodeLens(where, types.Command(title="", command=""))
    hover = types.Hover(types.MarkupContent(types.MarkupKind.Markdown, ""), where)
    for answer in (
        types.HoverResponse(id=0, result=hover),
        types.CodeLensResponse(id=0, result=[lens]),
        types.CodeActionResponse(id=0, result=[action_out]),
    ):
        converter.unstructure(answer)


def register(server: CudaAgentServer) -> None:
    feature(server, types.INITIALIZE, initialize)
    feature(server, types.INITIALIZED, initialized)
    feature(server, types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS, folders_changed)
    asyncio.get_running_loop()  # registered inside the loop: tasks and timers need it
