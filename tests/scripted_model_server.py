"""A model that says what a test tells it to: an OpenAI-compatible chat server on loopback that plays a script.

    with ScriptedModel([call("facts"), say("I think so."), refused(429, retry_after=1), flood(10_000_000)]) as server:
        model = Endpoint("scripted", server.url)
        ...
        assert server.requests[0].body["tools"][0]["function"]["name"] == "facts"

The script is a list. Each chat request takes the next entry; an entry is one of
    say(text)                        the text
    call(name, **arguments)          one tool call
    calls((name, {…}), …, text="")   several, after a text; arguments may also be a string, sent as it is
    refused(status, words, …)        an error with a body as the servers write it; `retry_after` seconds, `location`
    raw(data, content_type)          these bytes as the answer's body, whatever they are
    events(*objects)                 these objects (or strings, sent as they are) as the stream's events
    flood(size)                      a text that goes on for `size` bytes
    lambda request: entry            chosen by what was asked: `request.body["messages"]`, or `request.text`, all their
                                     text
and any of them may be changed: `call("facts").but(delay=2)`. The changes are the fields of `Answer`: `delay` and
`pause` (seconds before the headers, between events), `stall` (after so many events nothing for `silence` seconds),
`cut` (after so many events the connection is dropped), `finish`, `usage`, `piece` (characters an event), `headers`.

A request past the end of the script gets a 400 that says so; `then=entry` answers all of those instead.
`refuses={"tools": words}` answers 400 to every request that has the field `tools` and takes nothing from the script;
"tool_choice=required" means a field with that value. Requests without `"stream": true` get one JSON object. Everything
asked is in `requests`; leaving the block wakes whoever still sleeps, so that no test waits for a delay.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Calls = tuple[tuple[str, "Mapping[str, Any] | str"], ...]


@dataclass(frozen=True)
class Answer:
    """What one request gets. Made by the functions below."""

    text: str = ""
    calls: Calls = ()
    finish: str | None = ""  # the finish_reason; empty: the one that fits, None: none is sent
    usage: tuple[int, int] | None = (100, 20)  # tokens read and written; None: not said
    piece: int = 40
    delay: float = 0.0
    pause: float = 0.0
    stall: int | None = None
    silence: float = 3600.0
    cut: int | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None  # instead of all the above
    content_type: str = "application/json"
    sent_as: tuple[str, ...] | None = None  # events instead of those made of text and calls
    repeat: int = 0  # bytes of one endless text

    def but(self, **changes: Any) -> Answer:
        return replace(self, **changes)


Entry = Answer | Callable[["Request"], Answer]


@dataclass
class Request:
    """What was asked. `sent` grows while the answer is written; `gone` is set when the client closed before its end."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    sent: int = 0
    gone: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        return "\n".join(str(message.get("content") or "") for message in self.body.get("messages", ()))


def say(text: str) -> Answer:
    return Answer(text)


def call(name: str, /, **arguments: Any) -> Answer:
    return Answer(calls=((name, arguments),))


def calls(*made: tuple[str, Mapping[str, Any] | str], text: str = "") -> Answer:
    return Answer(text, made)


def refused(
    status: int, words: str = "refused, as scripted", retry_after: float | None = None, location: str = ""
) -> Answer:
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    if location:
        headers["Location"] = location
    body = {"error": {"message": words, "type": "scripted", "code": status}}
    return Answer(status=status, headers=headers, body=json.dumps(body).encode())


def raw(data: bytes | str, content_type: str = "application/json") -> Answer:
    return Answer(body=data.encode() if isinstance(data, str) else data, content_type=content_type)


def events(*sent: object) -> Answer:
    return Answer(sent_as=tuple(one if isinstance(one, str) else json.dumps(one) for one in sent))


def flood(size: int) -> Answer:
    return Answer(repeat=size)


class ScriptedModel:
    """The server, as a context manager. `url` ends in /v1."""

    def __init__(
        self,
        script: Sequence[Entry] = (),
        then: Entry | None = None,
        refuses: Mapping[str, str] | None = None,
        model: str = "scripted",
    ) -> None:
        self.script, self.then, self.refuses, self.model = list(script), then, dict(refuses or {}), model
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler, bind_and_activate=True)
        self._server.daemon_threads, self._server.block_on_close = True, False
        self._server.scripted = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    @property
    def spec(self) -> str:
        """The setting `cudaAgent.model` that names this server."""
        return f"endpoint:{self.model}@{self.url}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            for field_, words in self.refuses.items():
                name, _, value = field_.partition("=")
                if name in request.body and value in ("", request.body[name]):
                    return refused(400, words)
            entry = self.script.pop(0) if self.script else self.then
        if entry is None:
            return refused(400, f"the script is at its end (request {len(self.requests)})")
        return entry if isinstance(entry, Answer) else entry(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def scripted(self) -> ScriptedModel:
        return self.server.scripted  # type: ignore[attr-defined, no-any-return]

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that goes away is part of the game
            super().handle()

    def do_GET(self) -> None:
        found = self.path.endswith("/models")
        body = {"object": "list", "data": [{"id": self.scripted.model, "object": "model"}]}
        self.plain(Answer(status=200 if found else 404, body=json.dumps(body if found else {}).encode()), None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        request = Request(self.path, dict(self.headers.items()), body)
        answer = self.scripted.next(request)
        try:
            self.wait(answer.delay)
            if answer.body is not None or not body.get("stream"):
                self.plain(answer, request)
            else:
                self.stream(answer, request)
        except (BrokenPipeError, ConnectionResetError):
            request.gone.set()
            self.close_connection = True

    def plain(self, answer: Answer, request: Request | None) -> None:
        body = answer.body if answer.body is not None else json.dumps(self.whole(answer)).encode()
        self.send_response(answer.status)
        for name, value in {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(body)),
            **answer.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.write(body, request)

    def stream(self, answer: Answer, request: Request) -> None:
        self.send_response(answer.status)
        for name, value in {
            "Content-Type": "text/event-stream",
            "Transfer-Encoding": "chunked",
            **answer.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        for n, event in enumerate(self.events(answer, request)):
            if n == answer.cut:
                self.close_connection = True
                return  # no last chunk: the connection was dropped
            if n == answer.stall:
                self.wait(answer.silence)
            elif n:
                self.wait(answer.pause)
            data = f"data: {event}\n\n".encode()
            self.write(b"%x\r\n%s\r\n" % (len(data), data), request)
        self.write(b"0\r\n\r\n", request)

    def write(self, data: bytes, request: Request | None) -> None:
        self.wfile.write(data)
        self.wfile.flush()
        if request is not None:
            request.sent += len(data)

    def wait(self, seconds: float) -> None:
        if seconds and self.scripted.stopping.wait(seconds):
            raise ConnectionResetError

    def events(self, answer: Answer, request: Request) -> Iterator[str]:
        if answer.sent_as is not None:
            yield from answer.sent_as
            return
        yield self.chunk({"role": "assistant", "content": ""})
        if answer.repeat:
            event = self.chunk({"content": "x" * 1000})
            for _ in range(answer.repeat // 1000):
                yield event
        for at in range(0, len(answer.text), answer.piece):
            yield self.chunk({"content": answer.text[at : at + answer.piece]})
        for index, (name, arguments) in enumerate(answer.calls):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            begun = {"index": index, "id": self.id(index), "type": "function"}
            yield self.chunk({"tool_calls": [{**begun, "function": {"name": name, "arguments": ""}}]})
            for at in range(0, len(text), answer.piece):
                part = {"index": index, "function": {"arguments": text[at : at + answer.piece]}}
                yield self.chunk({"tool_calls": [part]})
        if answer.finish is not None:
            yield self.chunk({}, finish=answer.finish or ("tool_calls" if answer.calls else "stop"))
        if answer.usage and (request.body.get("stream_options") or {}).get("include_usage"):
            yield json.dumps({**self.head("chat.completion.chunk"), "choices": [], "usage": self.usage(answer)})
        yield "[DONE]"

    def chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return json.dumps({**self.head("chat.completion.chunk"), "choices": [choice]})

    def whole(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": self.id(index),
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                    },
                }
                for index, (name, arguments) in enumerate(answer.calls)
            ]
        finish = answer.finish if answer.finish != "" else "tool_calls" if answer.calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        usage = {"usage": self.usage(answer)} if answer.usage else {}
        return {**self.head("chat.completion"), "choices": [choice], **usage}

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": self.scripted.model}

    def usage(self, answer: Answer) -> dict[str, int]:
        read, written = answer.usage or (0, 0)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def id(self, index: int) -> str:
        return f"call_{len(self.scripted.requests)}_{index}"
