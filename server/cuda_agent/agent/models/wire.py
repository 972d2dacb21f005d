"""What leaves this machine for an OpenAI-compatible server, and how much of its answer is read.

The key is added here and nowhere else, so that no client, exception or log record of the layers above holds it. Only
the headers that a request needs are sent: none that describe this machine, none from OPENAI_CUSTOM_HEADERS, no cookies.
"""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import AsyncIterator
from contextvars import ContextVar

import httpx2

SENT = ("host", "accept", "content-type", "content-length", "transfer-encoding")
MOST: ContextVar[int] = ContextVar("MOST", default=1 << 20)  # bytes of an answer that are read
ERROR = 1 << 16  # of an error's

logging.getLogger("httpcore2").setLevel(logging.INFO)  # below, it logs a server's headers as they come


class Bounded(httpx2.AsyncByteStream):
    """An answer's bytes that stop at `most`, as if the server had ended there: `cut` says so. `done`: the stream's own
    end mark went by."""

    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self.stream, self.most = stream, most
        self.cut = self.done = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, tail = 0, b""
        async for chunk in self.stream:
            read += len(chunk)
            if read > self.most:
                self.cut = True
                return
            tail = tail[-8:] + chunk
            self.done = self.done or b"[DONE]" in tail
            tail = tail[-8:]
            yield chunk

    async def aclose(self) -> None:
        await self.stream.aclose()


class Wire(httpx2.AsyncHTTPTransport):
    def __init__(self, key: str, proxy: str | None) -> None:
        # A connection a request: a server that restarts, or a reply that is abandoned, leaves nothing behind.
        super().__init__(proxy=proxy, limits=httpx2.Limits(max_keepalive_connections=0))
        self.authorization = f"Bearer {key}"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {name: request.headers[name] for name in SENT if name in request.headers}
        headers |= {"accept-encoding": "identity", "authorization": self.authorization, "user-agent": "cuda-agent"}
        sent = httpx2.Request(
            request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
        )
        response = await super().handle_async_request(sent)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.DecodingError("compressed", request=request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        bounded = Bounded(response.stream, ERROR if response.status_code >= 300 else MOST.get())
        response.stream = bounded
        response.extensions["bounded"] = bounded
        return response


def proxy_of(scheme: str, host: str) -> str | None:
    """HTTPS_PROXY for an https:// host that NO_PROXY does not name: it sees the host, not the text. http:// never goes
    through one."""
    # typeshed does not know `proxy_bypass_environment`.
    if scheme != "https" or urllib.request.proxy_bypass_environment(host):  # type: ignore[attr-defined]
        return None
    return urllib.request.getproxies_environment().get("https")
