"""The catch-all around every handler: a fault is logged and told, the request is answered, the server lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer


def feature(
    server: CudaAgentServer,
    method: str,
    handler: Callable[[CudaAgentServer, Any], Any],
    options: Any = None,
    neutral: Any = None,
) -> None:
    """Register `handler(server, params)`; `neutral` is the answer when it fails. A coroutine is cancelled by
    `$/cancelRequest`."""

    async def later(params: Any) -> Any:
        try:
            return await handler(server, params)
        except Exception as failure:  # the catch-all
            server.failed(method, failure)
            return neutral

    def now(params: Any) -> Any:
        try:
            return handler(server, params)
        except Exception as failure:  # the catch-all
            server.failed(method, failure)
            return neutral

    server.feature(method, options)(later if asyncio.iscoroutinefunction(handler) else now)


def command(server: CudaAgentServer, name: str, handler: Callable[..., Any]) -> None:
    """Register `async handler(server, *arguments)`. A failure is told to the person and returned as {"error":
    sentence}."""

    async def run(*arguments: Any) -> Any:
        try:
            return await handler(server, *arguments)
        except Exception as failure:  # the catch-all
            return {"error": server.failed(name, failure, command=True)}

    server.command(name)(run)
