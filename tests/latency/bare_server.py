"""An empty pygls server: what the same requests cost before any of ours. The gate compares with it, not with a
clock."""

from __future__ import annotations

from lsprotocol import types
from pygls.lsp.server import LanguageServer

server = LanguageServer("bare", "1")


@server.feature(types.TEXT_DOCUMENT_HOVER)
def hover(params: types.HoverParams) -> types.Hover:
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, "bare"))


@server.feature(types.TEXT_DOCUMENT_CODE_LENS)
def lens(params: types.CodeLensParams) -> list[types.CodeLens]:
    where = types.Range(types.Position(0, 0), types.Position(0, 1))
    return [types.CodeLens(where, types.Command(title="bare", command="")) for _ in range(80)]


@server.feature(types.TEXT_DOCUMENT_CODE_ACTION)
def action(params: types.CodeActionParams) -> list[types.CodeAction]:
    return [types.CodeAction("bare", command=types.Command(title="bare", command="bare"))] * 2


@server.feature("bare/nothing")
def nothing(params: types.LSPAny) -> list[str]:
    return []


if __name__ == "__main__":
    server.start_io()
