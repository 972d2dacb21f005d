"""A client that speaks bytes: for what no well-behaved client would send, and for clocks."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from editor import SERVER


class Raw:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.others: list[dict[str, Any]] = []  # what the server sent of its own accord
        self.mute: set[str] = set()  # methods of server requests that get no answer
        self._next = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._stderr: list[bytes] = []
        # Both are read all the time: a full pipe would stop the server, and asyncio sees no end before all is read.
        self._reading = asyncio.create_task(self._read())
        self._logging = asyncio.create_task(self._log())

    @classmethod
    async def start(cls, root: Path, environment: dict[str, str], **initialize: Any) -> Raw:
        process = await asyncio.create_subprocess_exec(
            *SERVER, stdin=-1, stdout=-1, stderr=-1, env={**os.environ, **environment}, cwd=str(root)
        )
        raw = cls(process)
        params = {"processId": None, "rootUri": root.as_uri(), "capabilities": {}, **initialize}
        answer = await raw.request("initialize", params)
        assert "capabilities" in answer["result"]
        raw.notify("initialized", {})
        return raw

    def write(self, body: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def notify(self, method: str, params: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def send(self, method: str, params: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        self._next += 1
        self._waiting[self._next] = future = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": params}
        self.write(json.dumps(message).encode())
        return self._next, future

    async def request(self, method: str, params: Any, seconds: float = 20.0) -> dict[str, Any]:
        """The whole answer, with `result` or `error`."""
        return await asyncio.wait_for(self.send(method, params)[1], seconds)

    async def open(self, path: Path, text: str | None = None) -> str:
        text = path.read_text() if text is None else text
        item = {"uri": path.as_uri(), "languageId": "cuda", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return path.as_uri()

    async def hover(self, uri: str, line: int, character: int) -> str:
        where = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        answer = await self.request("textDocument/hover", where)
        return answer["result"]["contents"]["value"] if answer["result"] else ""

    async def command(self, name: str, *arguments: Any) -> Any:
        answer = await self.request("workspace/executeCommand", {"command": name, "arguments": list(arguments)})
        return answer["result"]

    async def wait_for(self, method: str, seconds: float = 20.0) -> dict[str, Any]:
        """The next message of that method which the server sends, or has sent."""
        for _ in range(int(seconds / 0.01)):
            for message in self.others:
                if message.get("method") == method:
                    self.others.remove(message)
                    return message
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {method} within {seconds} s among {[m.get('method') for m in self.others]}")

    async def finish(self) -> tuple[int, str]:
        """shutdown, exit; (exit code, stderr)."""
        await self.request("shutdown", None)
        self.notify("exit", None)
        return await self.ended()

    async def ended(self, seconds: float = 5.0) -> tuple[int, str]:
        code = await asyncio.wait_for(self.process.wait(), seconds)
        await asyncio.wait_for(self._logging, seconds)
        return code, b"".join(self._stderr).decode(errors="replace")

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self._reading.cancel()

    async def _log(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(1 << 16):
            self._stderr.append(chunk)

    async def _read(self) -> None:
        reader = self.process.stdout
        assert reader is not None
        while header := await reader.readline():
            if not header.lower().startswith(b"content-length:"):
                assert header.strip() == b"" or header.lower().startswith(b"content-type"), f"stray bytes: {header!r}"
                continue
            while (await reader.readline()).strip():
                pass
            message = json.loads(await reader.readexactly(int(header.split(b":")[1])))
            if "method" not in message:
                future = self._waiting.pop(message["id"], None) if message["id"] is not None else None
                if future is None:
                    self.others.append(message)
                else:
                    future.set_result(message)
                continue
            self.others.append(message)
            if "id" in message and message["method"] not in self.mute:
                self.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": None}).encode())
