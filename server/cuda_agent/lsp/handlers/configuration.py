"""workspace/didChangeConfiguration: pulled where the client answers `workspace/configuration`, else taken from the
notification."""

from __future__ import annotations

from collections.abc import Mapping

from lsprotocol import types

from cuda_agent.config import SECTION
from cuda_agent.lsp import diagnostics
from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.protocol import reply
from cuda_agent.lsp.server import CudaAgentServer


async def pull(server: CudaAgentServer) -> None:
    params = types.ConfigurationParams(items=[types.ConfigurationItem(section=SECTION)])
    answer = await reply(server.workspace_configuration(params))
    if answer and isinstance(answer[0], Mapping):
        _take(server, answer[0])


async def did_change(server: CudaAgentServer, params: types.DidChangeConfigurationParams) -> None:
    if server.client.configuration:
        await pull(server)
    elif isinstance(params.settings, Mapping):
        _take(server, params.settings.get(SECTION, params.settings))


def _take(server: CudaAgentServer, values: object) -> None:
    before = server.settings
    server.configure(values)
    server.tell_status()
    server.refresh_soon()
    for file in server.documents:
        diagnostics.publish(server, file)
        if server.settings != before:  # another compiler, other flags: the facts are of those
            server.facts.schedule(file, 0.0)


def register(server: CudaAgentServer) -> None:
    feature(server, types.WORKSPACE_DID_CHANGE_CONFIGURATION, did_change)
