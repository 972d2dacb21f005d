"""A model behind an OpenAI-compatible server, through the official client: vLLM, Ollama, llama.cpp, transformers serve,
hosted ones. docs/models.md is the page for people.

The client runs on an event loop in a thread of its own, so that a connect or a silent stream can be left at any moment
from whatever thread `reply` is called in.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import random
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from cuda_agent import keys
from cuda_agent.agent.models import Limits, Message, Reply, Tool
from cuda_agent.agent.models.assembly import Assembly
from cuda_agent.agent.models.dialect import Dialect
from cuda_agent.agent.models.refusals import (
    ADVICE,
    OVERFLOW,
    SPENT,
    advice,
    context_of,
    retry_after,
    shortened,
    site,
    words_in,
    words_of,
)
from cuda_agent.errors import Cancelled, ContextOverflow, ModelError, UsageError

try:
    import httpx2
    import openai

    from cuda_agent.agent.models.wire import MOST, Bounded, Wire, proxy_of
except ImportError as error:
    raise ModelError(
        f"an `endpoint:` model needs the package {error.name}: pip install 'cuda-agent-lsp[llm]', or 'openai>=3.57,<4'."
    ) from None

CONNECT = 10.0  # seconds
SILENCE = 30.0  # seconds between two events of a reply that has begun
PASSING = (408, 429, 500, 502, 503, 504, 529)  # statuses that may pass
TRIES = 6
BACKOFF = 0.5  # seconds before the second try, twice as long before each after it
POLL = 0.05  # seconds between two looks at `cancelled`
END = object()


class _Passing(Exception):
    """What may go well at another try: `tries` in all, `wait` seconds later where the server says so."""

    def __init__(self, why: str, tries: int = 2, wait: float = 0.0) -> None:
        super().__init__(why)
        self.why, self.tries, self.wait = why, tries, wait


class Endpoint:
    """`name` is the server's name of the model, `url` its base URL, such as http://localhost:11434/v1. One reply at a
    time. `context` is learnt from the server's refusal. Raises UsageError for a URL that is none, ModelError for a key
    that no header can carry."""

    def __init__(self, name: str, url: str) -> None:
        self.url = _base(url)
        if not name:
            raise UsageError("the model has no name: give endpoint:NAME@URL.")
        short = name.rstrip("/").rpartition("/")[2] if name.startswith(("/", "~", ".")) else name  # a server's folder
        self.name, self.context = f"endpoint:{short}", 0
        self._model, self._where = name, f"{short} at {site(self.url)}"
        self._key, self._dialect, self._heard = _key(), Dialect(), Assembly(0)
        parts = urlsplit(self.url)
        try:
            wire = Wire(self._key or "none", proxy_of(parts.scheme, parts.hostname or ""))
        except (ValueError, ImportError):
            raise ModelError("HTTPS_PROXY names no proxy that can be used: give http://host:port.") from None
        self._client = openai.AsyncOpenAI(
            api_key="added on the wire",
            base_url=self.url,
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=wire, trust_env=False, follow_redirects=False),
        )
        self._closed, self._door = False, threading.Lock()  # nothing is begun on a loop that is being closed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="model endpoint", daemon=True)
        self._thread.start()

    def reply(self, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> Reply:
        if limits.cancelled():
            raise Cancelled("stopped before the model was asked.")
        with self._door:
            if self._closed:
                raise ModelError(f"{self.name} is closed.")
            future = asyncio.run_coroutine_threadsafe(self._within(messages, tools, limits), self._loop)
        try:
            while not concurrent.futures.wait([future], POLL).done:
                if limits.cancelled():
                    raise Cancelled("stopped while the model was answering.")
            return future.result()
        except concurrent.futures.CancelledError:
            raise ModelError(f"{self.name} was closed while it was answering.") from None
        finally:
            future.cancel()

    def close(self) -> None:
        with self._door:
            if self._closed:
                return
            self._closed = True
        concurrent.futures.wait([asyncio.run_coroutine_threadsafe(self._client.close(), self._loop)], 1.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)

    def _run(self) -> None:
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.wait(left) if left else asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _within(self, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> Reply:
        try:
            async with asyncio.timeout(limits.seconds):
                return await self._insist(messages, tools, limits)
        except TimeoutError:
            so_far = f", after {self._heard.size} characters of the reply" if self._heard.size else ""
            raise ModelError(f"{self._where} was not done after {limits.seconds:g} s{so_far}.") from None

    async def _insist(self, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> Reply:
        """Asks until there is a reply: in an easier dialect where the server refuses this one, again what may pass."""
        end = time.monotonic() + limits.seconds
        dialect, tries = self._dialect, 0
        while True:
            body = dialect.request(self._model, messages, tools, limits)
            try:
                reply = await self._ask(body, tools, limits)
                self._dialect = dialect
                return reply
            except openai.APIStatusError as refusal:
                status, words = refusal.status_code, words_of(refusal.response.content, self._key)
                failed = self._refused(status, words, refusal.response.headers)
                easier = None if isinstance(failed, ContextOverflow) else dialect.easier(status, words, body)
                if easier:
                    dialect = easier
                    continue
            except openai.APIConnectionError as failure:
                failed = self._unreached(failure)
            except openai.APIError as error:  # an event of the stream
                failed = self._complained(error.body)
            except _Passing as broken:
                failed = broken
            # Raised here, outside the handlers: no cause goes along that holds what the server sent.
            if isinstance(failed, ModelError):
                raise failed
            tries += 1
            wait = max(failed.wait, BACKOFF * 2 ** (tries - 1) * random.uniform(0.8, 1.2))
            if tries >= failed.tries:
                raise ModelError(f"{failed.why} It was tried {tries} times.")
            if (left := end - time.monotonic()) < wait:
                raise ModelError(f"{failed.why} Another try would have to wait {wait:.0f} s, {left:.0f} s are left.")
            await asyncio.sleep(wait)

    async def _ask(self, body: dict[str, Any], tools: Sequence[Tool], limits: Limits) -> Reply:
        most = max(1 << 16, 32 * limits.tokens)
        MOST.set(32 * most + (1 << 20))  # an event has a few hundred bytes around each token
        heard = self._heard = Assembly(most, self._key)
        stream = await self._client.post(
            "/chat/completions",
            cast_to=object,
            body=body,
            options={"timeout": httpx2.Timeout(None, connect=CONNECT)},
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        response = stream.response
        bounded: Bounded = response.extensions["bounded"]
        kind = response.headers.get("content-type", "text/event-stream").partition(";")[0].strip().lower()
        try:
            if kind == "application/json":  # a server that does not stream
                self._whole(await response.aread(), heard)
            elif kind == "text/event-stream":
                await self._listen(stream, heard)
                if not (heard.finish or heard.full or bounded.done or bounded.cut):
                    raise _Passing(self._broke_off("the connection ended"))
            else:
                raise ModelError(f"{self._where} answered with {kind[:40]}, not with a chat: {ADVICE[404]}.")
        finally:
            await response.aclose()
        if heard.finish == "content_filter":
            raise ModelError(f"{self._where} stopped its reply: the server's content filter refused it.")
        return heard.reply(tools, cut=heard.full or bounded.cut)

    async def _listen(self, stream: openai.AsyncStream[object], heard: Assembly) -> None:
        try:
            while not heard.full:
                # The first words may take as long as the whole reply: a model is loaded, a long prompt is read.
                async with asyncio.timeout(SILENCE if heard.size or heard.reasoned else None):
                    event = await anext(stream, END)
                if event is END:
                    return
                heard.add(event)
        except TimeoutError:
            raise ModelError(self._broke_off(f"nothing came for {SILENCE:g} s")) from None
        except openai.APIConnectionError:
            if not heard.finish:
                raise _Passing(self._broke_off("the connection was cut")) from None
        except (ValueError, RecursionError):
            if not heard.finish:
                raise _Passing(self._broke_off("an event is not JSON")) from None

    def _whole(self, data: bytes, heard: Assembly) -> None:
        try:
            body = json.loads(data)
            heard.add(body)
        except (ValueError, RecursionError):
            raise _Passing(self._broke_off("the answer is not JSON")) from None
        if isinstance(body, dict) and body.get("error"):
            raise self._complained(body["error"])

    # What went wrong, and whether it may pass.

    def _refused(self, status: int, words: str, headers: Mapping[str, str]) -> _Passing | ModelError:
        if status in (400, 413, 422, 500) and OVERFLOW.search(words):
            return self._overflow(words)
        why = f"{self._where} refused the request with status {status}{f': {words}' if words else ''}"
        if status in PASSING and not SPENT.search(words):
            return _Passing(_sentence(why), TRIES, retry_after(headers))
        return ModelError(_sentence(why, advice(status, headers.get("location", ""))))

    def _unreached(self, failure: openai.APIConnectionError) -> _Passing | ModelError:
        cause, server = failure.__cause__, site(self.url)
        said = shortened(str(cause), self._key)
        if isinstance(cause, httpx2.ConnectTimeout):
            return ModelError(f"no server answers at {server} within {CONNECT:g} s: check the URL.")
        if isinstance(cause, ssl.SSLError) or "SSL" in said or "CERTIFICATE" in said:
            return ModelError(f"{server} cannot be trusted ({said}): check https and its certificate.")
        if isinstance(cause, httpx2.ConnectError | httpx2.ProxyError | httpx2.UnsupportedProtocol):
            return ModelError(
                f"no server answers at {server} ({said}): start it (`ollama serve`, `vllm serve`, `llama-server`), or "
                "change the URL of the model."
            )
        if isinstance(cause, httpx2.DecodingError):
            return ModelError(f"{self._where} sends compressed text though it was asked not to.")
        return _Passing(self._broke_off("the connection was cut"))

    def _complained(self, error: object) -> _Passing | ModelError:
        """An error that came instead of a reply, with status 200."""
        words = words_in(error, self._key)
        return self._overflow(words) if OVERFLOW.search(words) else _Passing(self._broke_off(words))

    def _overflow(self, words: str) -> ContextOverflow:
        self.context = context_of(words) or self.context
        return ContextOverflow(_sentence(f"the conversation does not fit into {self._where}: {words}"))

    def _broke_off(self, why: str) -> str:
        after = f" after {self._heard.size} characters" if self._heard.size else ""
        return _sentence(f"{self._where} broke off{after}: {why}")


def _sentence(*parts: str) -> str:
    """Parts that become one sentence each."""
    ended = [f"{part.rstrip('. ')}." for part in parts if part]
    return " ".join([ended[0], *(one[0].upper() + one[1:] for one in ended[1:])])


def _key() -> str:
    """The key in the environment, or empty."""
    for name in (keys.OURS, keys.PERSONS):
        if key := keys.get(name).strip():
            if not (key.isascii() and key.isprintable()) or " " in key:
                raise ModelError(f"{name} holds no key: a key is printable ASCII without spaces.")
            return key
    return ""


def _base(url: str) -> str:
    """A base URL without its last slash, /v1 where it names no path."""
    try:
        parts = urlsplit(url)
        port_is_a_number = parts.port is None or parts.port >= 0
    except ValueError:
        port_is_a_number = False
    if not port_is_a_number or parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("the model's URL is none: give endpoint:NAME@http://HOST:PORT/v1.")
    if "@" in parts.netloc:
        raise UsageError("the model's URL holds a user or a password: put the key into CUDA_AGENT_API_KEY instead.")
    if parts.query or parts.fragment:
        raise UsageError("the model's URL ends in a query: give it without; a key belongs into CUDA_AGENT_API_KEY.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
