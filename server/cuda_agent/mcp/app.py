"""`cuda-agent mcp`: this program's tools for any agent that speaks the Model Context Protocol, on stdin and stdout.

Stdout is the protocol's alone: the SDK's transport keeps private copies of both streams and leaves stderr in their
place, and every child has streams of its own. The protocol ends with its input; every job ends with it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from cuda_agent import __version__
from cuda_agent.config import Settings
from cuda_agent.engine import processes
from cuda_agent.errors import CompileError, CudaAgentError, UsageError
from cuda_agent.judge.evidence import schema
from cuda_agent.mcp import roots
from cuda_agent.mcp.calls import Arguments, Caller, Calls
from cuda_agent.mcp.tools import INSTRUCTIONS, tools

_log = logging.getLogger(__name__)
Context = ServerRequestContext[Any, Any]


class Tools:
    """One client's calls."""

    def __init__(self, calls: Calls, folders: Sequence[Path]) -> None:
        self.calls, self.folders = calls, folders
        self.tools = tools()

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(self.tools.values()))

    async def call(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Never raises but for a cancel: what goes wrong is the tool's answer, in a sentence."""
        try:
            result = await self._call(context, params.name, params.arguments or {})
        except CudaAgentError as problem:
            more = f"\n{problem.diagnostics}" if isinstance(problem, CompileError) and problem.diagnostics else ""
            return _failed(f"{problem}{more}")
        except Exception as failure:  # the catch-all
            traceback.print_exception(failure, file=sys.stderr)
            return _failed(f"internal error: {failure!r}; the server's stderr says more")
        text = _sendable(json.dumps(result, ensure_ascii=False, separators=(",", ":")))
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(content=content, structured_content=json.loads(text))

    async def _call(self, context: Context, name: str, given: Arguments) -> Arguments:
        tool = self.tools.get(name)
        if tool is None:
            raise UsageError(f"there is no tool {name!r}; there are {', '.join(self.tools)}")
        _check(given, tool.input_schema)
        session = context.session
        client = session.client_params.client_info.name if session.client_params is not None else ""

        async def say(percentage: float, message: str) -> None:
            await session.report_progress(percentage, 100, message)

        caller = Caller(await roots.folders(self.folders, session), client, say)
        return await self.calls.handlers[name](caller, given)


def _check(given: Arguments, takes: dict[str, Any]) -> None:
    """UsageError names what does not fit."""
    if unknown := given.keys() - takes["properties"].keys():
        raise UsageError(f"unknown: {', '.join(sorted(unknown))}; this tool takes {', '.join(takes['properties'])}")
    rules = {key: rule for key, rule in takes.items() if key != "additionalProperties"}
    if wrong := list(schema.misfits(dict(given), rules, "arguments")):
        raise UsageError("; ".join(wrong))


def _failed(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=_sendable(sentence))], is_error=True)


def _sendable(text: str) -> str:
    """Bytes of a file that is not UTF-8 are lone surrogates in our texts, which the protocol cannot carry."""
    return text.encode("utf-8", "replace").decode()


async def serve(folders: Sequence[Path], settings: Settings, run_any: bool) -> None:
    tools = Tools(Calls(settings, run_any), folders)
    server: Server[Any] = Server(
        "cuda-agent",
        version=__version__,
        title="CUDA Agent",
        instructions=INSTRUCTIONS,
        on_list_tools=tools.list,
        on_call_tool=tools.call,
    )
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def main(folders: Sequence[Path], settings: Settings, run_any: bool) -> int:
    """UsageError for a folder that is not there."""
    missing = next((folder for folder in folders if not folder.is_dir()), None)
    if missing is not None:
        raise UsageError(f"{missing} is not a folder")
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("cuda_agent").setLevel(settings.log_level.upper())
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a blocked read of stdin would hold back Python's own; jobs see us go
    processes.adopt_orphans()
    asyncio.run(serve(folders, settings, run_any))
    sys.stderr.flush()
    os._exit(0)  # nothing of a library's threads may delay the end
