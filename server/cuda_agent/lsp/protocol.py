"""pygls's protocol with the parts replaced that do not hold for us; each override says why.

Text synchronisation is ours (`documents.py`): pygls would keep a second copy of every text and split it on every
change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

from cattrs import Converter
from lsprotocol import types
from lsprotocol.converters import get_converter
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.protocol import LanguageServerProtocol
from pygls.protocol.json_rpc import JsonRPCNotification, JsonRPCRequestMessage, JsonRPCResponseMessage
from pygls.protocol.language_server import lsp_method

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer

_log = logging.getLogger(__name__)


def converter() -> Converter:
    """lsprotocol's, with the params and results of unknown methods left as the JSON they are: pygls's own turns them
    into named tuples and drops a key called "type_name"."""
    made = get_converter()
    for shape in (JsonRPCRequestMessage, JsonRPCResponseMessage, JsonRPCNotification):
        made.register_structure_hook(shape, lambda value, cls: cls(**value))
    return made


class Protocol(LanguageServerProtocol):
    """One connection. `exited` is set by `exit`; `on_shutdown` ends our jobs before the answer goes out."""

    _server: CudaAgentServer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.exited = asyncio.Event()
        self.on_shutdown: Callable[[], Awaitable[None]] | None = None
        super().__init__(*args, **kwargs)

    @property
    def was_shut_down(self) -> bool:
        return self._shutdown

    def receive(self, data: Any) -> None:
        """One JSON value from the client. pygls drops a request whose params do not fit without an answer and
        structures any nested object that has a "jsonrpc" key; here the whole message is structured once and always
        answered."""
        if not isinstance(data, dict):
            _log.warning("ignoring a message that is not an object")
            return
        method = data.get("method")
        if isinstance(method, str) and self.get_message_type(method) is None:
            data.setdefault("params", None)
        try:
            message = self.structure_message(data)
        except JsonRpcException as problem:
            _log.warning("cannot read a %s message: %s", method or "response", problem)
            if method is not None and "id" in data:
                self._send_response(data["id"], error=JsonRpcInvalidParams(str(problem)).to_response_error())
            return
        self._server.trace_message(message)
        self.handle_message(message)

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams) -> Generator[Any, Any, types.InitializeResult]:
        """pygls takes the client's first encoding; ours is UTF-8 wherever it is offered."""
        general = params.capabilities.general
        if general is not None and general.position_encodings:
            general.position_encodings = sorted(general.position_encodings, key=lambda kind: kind != "utf-8")
        result = yield from super().lsp_initialize(params)
        self._server.complete_capabilities(result.capabilities)
        return result

    @lsp_method(types.SHUTDOWN)
    async def lsp_shutdown(self, *args: Any) -> None:  # type: ignore[override]
        """pygls changes the table of pending requests while it walks over it, which raises when one is pending."""
        if self.on_shutdown is not None:
            await self.on_shutdown()
        current = self.msg_id
        for id, future in list(self._request_futures.items()):
            if id != current and not future.done():
                future.cancel()
        self._shutdown = True

    @lsp_method(types.EXIT)
    def lsp_exit(self, *args: Any) -> None:  # type: ignore[override]
        """pygls raises SystemExit inside a callback and its caller turns the code into 0; `main` returns ours."""
        self.exited.set()

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> Any:
        return self._user(types.TEXT_DOCUMENT_DID_OPEN, params)

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> Any:
        return self._user(types.TEXT_DOCUMENT_DID_CHANGE, params)

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> Any:
        return self._user(types.TEXT_DOCUMENT_DID_CLOSE, params)

    @lsp_method(types.WINDOW_WORK_DONE_PROGRESS_CANCEL)
    def lsp_work_done_progress_cancel(self, params: types.WorkDoneProgressCancelParams) -> Any:
        return self._user(types.WINDOW_WORK_DONE_PROGRESS_CANCEL, params)

    def _user(self, method: str, params: Any) -> Any:
        """Our handler, called here and now: a snapshot must be taken before the next message is read."""
        handler = self.fm.features.get(method)
        return handler(params) if handler is not None else None


async def reply(future: Any) -> Any:
    """A client's answer. Shielded: when we stop waiting, pygls must still find its future pending, or the late answer
    raises InvalidStateError in the read loop."""
    return await asyncio.shield(asyncio.wrap_future(future))
