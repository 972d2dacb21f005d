"""An editor without a window: it keeps its own text, counts positions its own way, applies edits as real editors do.

Nothing of the server is used here: positions are converted with Python's codecs, not with `source.documents`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lsprotocol import types
from lsprotocol.converters import get_converter
from pygls.protocol.json_rpc import JsonRPCNotification, JsonRPCRequestMessage, JsonRPCResponseMessage
from pytest_lsp import LanguageClient, client_capabilities
from pytest_lsp.client import register_lsp_features

from patience import patience

SERVER = [sys.executable, "-m", "cuda_agent.cli", "serve", "--stdio"]
CUSTOM = {"job": True, "status": True, "showDiff": True}


def vscode() -> types.ClientCapabilities:
    """UTF-16 only, everything else; with what our extension announces."""
    capabilities = client_capabilities("visual-studio-code")
    capabilities.experimental = {"cudaAgent": dict(CUSTOM)}
    return capabilities


def neovim() -> types.ClientCapabilities:
    """UTF-8, no refresh of lenses, no disabled actions, plain `changes`."""
    return client_capabilities("neovim")


def bare() -> types.ClientCapabilities:
    """A client that can do nothing but show hovers, lenses and commands."""
    return types.ClientCapabilities()


def units(text: str, encoding: str) -> int:
    return len(text.encode("utf-16-le")) // 2 if encoding == "utf-16" else len(text.encode("utf-8"))


def to_position(text: str, index: int, encoding: str) -> types.Position:
    before = text[:index]
    return types.Position(before.count("\n"), units(before[before.rfind("\n") + 1 :], encoding))


def to_index(text: str, position: types.Position, encoding: str) -> int:
    lines = text.split("\n")
    start = sum(len(line) + 1 for line in lines[: position.line])
    line = lines[position.line]
    return start + next(i for i in range(len(line) + 1) if units(line[:i], encoding) == position.character)


def apply_edits(text: str, edits: list[types.TextEdit], encoding: str) -> str:
    spans = [
        (to_index(text, e.range.start, encoding), to_index(text, e.range.end, encoding), e.new_text) for e in edits
    ]
    for start, end, new in sorted(spans, reverse=True):
        text = text[:start] + new + text[end:]
    return text


@dataclass
class Editor:
    """One client with one server. `applied` lists every applyEdit that the server asked for."""

    client: LanguageClient
    encoding: str = "utf-16"
    texts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    applied: list[types.ApplyWorkspaceEditParams] = field(default_factory=list)
    notices: list[tuple[str, Any]] = field(default_factory=list)
    questions: list[types.ShowMessageRequestParams] = field(default_factory=list)
    answer: str | Callable[[str], str] | None = None  # to showMessageRequest: the title to press, or by its message
    refuse_edits: str | None = None
    refreshes: int = 0
    model: Callable[[Any], Awaitable[Any]] | None = None  # answers cudaAgent/model/reply
    asked: list[Any] = field(default_factory=list)  # what the language model was asked
    asked_in_vain: int = 0  # requests that the server called off

    @property
    def pid(self) -> int:
        assert self.client._server is not None
        return self.client._server.pid

    @property
    def exit_code(self) -> int | None:
        assert self.client._server is not None
        return self.client._server.returncode

    # ------------------------------------------------------------ texts

    def open(self, path: Path, language: str = "cuda", text: str | None = None) -> str:
        uri = path.as_uri()
        self.texts[uri] = path.read_bytes().decode() if text is None else text
        self.versions[uri] = 1
        item = types.TextDocumentItem(uri, language, 1, self.texts[uri])
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return uri

    def edit(self, uri: str, old: str, new: str) -> None:
        """Replace the first `old` as a person would, with an incremental change."""
        text = self.texts[uri]
        start = text.index(old)
        where = types.Range(to_position(text, start, self.encoding), to_position(text, start + len(old), self.encoding))
        self._changed(
            uri, text[:start] + new + text[start + len(old) :], [types.TextDocumentContentChangePartial(where, new)]
        )

    def replace(self, uri: str, text: str) -> None:
        self._changed(uri, text, [types.TextDocumentContentChangeWholeDocument(text)])

    def apply(self, uri: str, edits: list[types.TextEdit]) -> None:
        """The server's edits; a file that is not open is edited on disk."""
        if uri in self.texts:
            self.replace(uri, apply_edits(self.texts[uri], edits, self.encoding))
        else:
            path = Path(uri.removeprefix("file://"))
            path.write_bytes(apply_edits(path.read_bytes().decode(), edits, self.encoding).encode())

    def _changed(self, uri: str, text: str, changes: list[Any]) -> None:
        self.texts[uri] = text
        self.versions[uri] += 1
        document = types.VersionedTextDocumentIdentifier(version=self.versions[uri], uri=uri)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, changes))

    def at(self, uri: str, needle: str, inside: int = 0, occurrence: int = 0) -> types.Position:
        index = -1
        for _ in range(occurrence + 1):
            index = self.texts[uri].index(needle, index + 1)
        return to_position(self.texts[uri], index + inside, self.encoding)

    # ------------------------------------------------------------ requests

    async def hover(self, uri: str, position: types.Position) -> str:
        params = types.HoverParams(types.TextDocumentIdentifier(uri), position)
        found = await self.client.text_document_hover_async(params)
        return found.contents.value if found is not None else ""  # type: ignore[union-attr]

    async def lenses(self, uri: str) -> list[types.CodeLens]:
        params = types.CodeLensParams(types.TextDocumentIdentifier(uri))
        return list(await self.client.text_document_code_lens_async(params) or [])

    async def titles(self, uri: str) -> list[str]:
        return [lens.command.title for lens in await self.lenses(uri) if lens.command is not None]

    async def actions(self, uri: str, position: types.Position, only: list[str] | None = None) -> list[Any]:
        context = types.CodeActionContext(diagnostics=[], only=only)  # type: ignore[arg-type]
        params = types.CodeActionParams(types.TextDocumentIdentifier(uri), types.Range(position, position), context)
        found = await self.client.text_document_code_action_async(params) or []
        structure = self.client.protocol._converter.structure
        # A command is one whose "command" is a name; an action's is an object.
        shapes = [types.Command if isinstance(one.get("command"), str) else types.CodeAction for one in found]  # type: ignore[union-attr]
        return [structure(one, shape) for one, shape in zip(found, shapes, strict=True)]

    async def run(self, command: types.Command | str, *arguments: Any) -> Any:
        if isinstance(command, types.Command):
            command, arguments = command.command, tuple(command.arguments or ())
        params = types.ExecuteCommandParams(command, list(arguments))
        return await self.client.workspace_execute_command_async(params)

    async def press(self, uri: str, title: str) -> Any:
        """Click the lens that starts with `title`."""
        found = [
            lens.command for lens in await self.lenses(uri) if lens.command and lens.command.title.startswith(title)
        ]
        assert found, f"no lens {title!r} among {await self.titles(uri)}"
        return await self.run(found[0])

    async def ask(self, method: str, params: Any) -> Any:
        return await self.client.protocol.send_request_async(method, params)

    async def debug(self) -> Any:
        return await self.ask("cudaAgent/debugInformation", {})

    # ------------------------------------------------------------ waiting

    async def until(self, what: str, holds: Callable[[], Awaitable[Any]], seconds: float = 30.0) -> Any:
        """The first true value of `holds`, asked again and again; fails naming `what` and what the server said."""
        end = time.monotonic() + patience(seconds)
        while not (value := await holds()):
            said = [message.message for message in self.client.messages]
            assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}; the server said {said}"
            await asyncio.sleep(0.02)
        return value

    async def until_said(self, part: str, seconds: float = 30.0) -> str:
        async def said() -> str | None:
            return next((m.message for m in self.client.messages if part in m.message), None)

        return str(await self.until(f"a message with {part!r}", said, seconds))

    async def until_lens(self, uri: str, part: str, seconds: float = 30.0) -> str:
        async def found() -> str | None:
            return next((title for title in await self.titles(uri) if part in title), None)

        return str(await self.until(f"a lens with {part!r}", found, seconds))

    def progress(self) -> list[Any]:
        """Every progress value, of all tokens."""
        return [value for reports in self.client.progress_reports.values() for value in reports]


async def start(
    capabilities: types.ClientCapabilities,
    root: Path,
    *,
    environment: dict[str, str] | None = None,
    options: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    workspace: bool = True,
) -> Editor:
    """A server for `root`, initialized; without a `workspace` it is only started there."""
    client = LanguageClient(converter_factory=_converter)
    register_lsp_features(client)
    client._configuration = {"": {"cudaAgent": settings or {}}}
    editor = Editor(client)
    _answer_requests(editor)
    await client.start_io(*SERVER, env={**os.environ, **(environment or {})}, cwd=str(root))
    params = types.InitializeParams(
        capabilities=capabilities,
        process_id=os.getpid(),
        root_uri=root.as_uri() if workspace else None,
        workspace_folders=[types.WorkspaceFolder(root.as_uri(), root.name)] if workspace else None,
        initialization_options=options,
    )
    answer = await client.initialize_session(params)
    editor.encoding = str(
        getattr(answer.capabilities.position_encoding, "value", answer.capabilities.position_encoding)
    )
    return editor


def _converter() -> Any:
    """pygls's turns the JSON of our own methods into named tuples; here it stays JSON."""
    converter = get_converter()
    for shape in (JsonRPCRequestMessage, JsonRPCResponseMessage, JsonRPCNotification):
        converter.register_structure_hook(shape, lambda value, cls: cls(**value))
    # lsprotocol reads an action that has a command as a bare command: keep the JSON.
    converter.register_structure_hook(
        types.CodeActionResponse, lambda value, cls: cls(id=value["id"], result=value.get("result"))
    )
    return converter


def _answer_requests(editor: Editor) -> None:
    client = editor.client

    @client.feature(types.WORKSPACE_APPLY_EDIT)
    def apply(params: types.ApplyWorkspaceEditParams) -> types.ApplyWorkspaceEditResult:
        editor.applied.append(params)
        if editor.refuse_edits is not None:
            return types.ApplyWorkspaceEditResult(applied=False, failure_reason=editor.refuse_edits)
        for change in params.edit.document_changes or ():
            assert isinstance(change, types.TextDocumentEdit)
            if change.text_document.version != editor.versions.get(change.text_document.uri):
                return types.ApplyWorkspaceEditResult(applied=False, failure_reason="the version is not the open one")
        for change in params.edit.document_changes or ():
            assert isinstance(change, types.TextDocumentEdit)
            editor.apply(change.text_document.uri, list(change.edits))  # type: ignore[arg-type]
        for uri, edits in (params.edit.changes or {}).items():
            editor.apply(uri, list(edits))
        return types.ApplyWorkspaceEditResult(applied=True)

    @client.feature(types.WINDOW_SHOW_MESSAGE_REQUEST)
    def question(params: types.ShowMessageRequestParams) -> types.MessageActionItem | None:
        editor.questions.append(params)
        title = editor.answer(params.message) if callable(editor.answer) else editor.answer
        return next((item for item in params.actions or () if item.title == title), None)

    @client.feature(types.WORKSPACE_CODE_LENS_REFRESH)
    def refresh(params: None) -> None:
        editor.refreshes += 1

    @client.feature(types.CLIENT_REGISTER_CAPABILITY)
    def register(params: types.RegistrationParams) -> None:
        editor.notices.append(("client/registerCapability", params))

    @client.feature("cudaAgent/model/reply")
    async def model_reply(params: Any) -> Any:
        editor.asked.append(params)
        assert editor.model is not None
        try:
            return await editor.model(params)
        except asyncio.CancelledError:
            editor.asked_in_vain += 1
            raise

    for method in ("cudaAgent/job", "cudaAgent/status", "cudaAgent/showDiff"):

        def notice(params: Any, method: str = method) -> None:
            editor.notices.append((method, params))

        client.feature(method)(notice)


def children(pid: int) -> list[int]:
    """Every process below `pid` that is not a zombie, from /proc."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            parents.setdefault(int(fields[1]), []).append(int(name))
    found, queue = [], [pid]
    while queue:
        below = parents.get(queue.pop(), [])
        found += below
        queue += below
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
