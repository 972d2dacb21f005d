"""The open files: one immutable snapshot a version, taken in the synchronous part of each notification."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lsprotocol import types
from pygls.uris import to_fs_path

from cuda_agent.model import Span
from cuda_agent.source import symbols
from cuda_agent.source.documents import Document, Encoding

SUFFIXES = (".cu", ".cuh")
LANGUAGES = ("cuda", "cuda-cpp")


@dataclass
class OpenFile:
    """One open file. `document` is replaced on every change, never altered."""

    uri: str
    path: Path | None  # None: not a file (untitled:, a diff's left side …)
    language: str
    document: Document
    _module: symbols.Module | None = field(default=None, repr=False)

    @property
    def real_path(self) -> Path | None:
        """`path` with the links to its folder followed: a build and captures are looked for in the folders above a
        file, and a link from elsewhere must not bring in those above itself."""
        return Path(os.path.realpath(self.path.parent), self.path.name) if self.path is not None else None

    @property
    def is_cuda(self) -> bool:
        """Any language id on .cu and .cuh; elsewhere only CUDA's own ids, never `cpp`."""
        name = self.path.name if self.path is not None else self.uri
        return name.endswith(SUFFIXES) or self.language in LANGUAGES

    @property
    def module(self) -> symbols.Module:
        """Kernels and launches of this version; parsed at the first question, not at each keystroke."""
        if self._module is None:
            self._module = symbols.module(self.document)
        return self._module

    def replace(self, document: Document) -> None:
        self.document, self._module = document, None

    def range(self, span: Span, encoding: Encoding) -> types.Range:
        return range_of(self.document, span, encoding)

    def offset(self, position: types.Position, encoding: Encoding) -> int:
        return self.document.lines.offset(position.line, position.character, encoding)


def range_of(document: Document, span: Span, encoding: Encoding) -> types.Range:
    start, end = (document.lines.position(offset, encoding) for offset in (span.start, span.end))
    return types.Range(types.Position(*start), types.Position(*end))


class Documents:
    """By URI. Positions are in the negotiated encoding."""

    def __init__(self, encoding: Encoding = "utf-16") -> None:
        self.encoding: Encoding = encoding
        self._files: dict[str, OpenFile] = {}

    def __iter__(self) -> Iterator[OpenFile]:
        return iter(list(self._files.values()))

    def get(self, uri: str) -> OpenFile | None:
        return self._files.get(uri)

    def open(self, item: types.TextDocumentItem) -> OpenFile:
        name = to_fs_path(item.uri) if item.uri.startswith("file:") else None
        path = Path(name) if name else None
        document = Document(str(path or item.uri), item.text, item.version)
        self._files[item.uri] = file = OpenFile(item.uri, path, item.language_id, document)
        return file

    def change(self, params: types.DidChangeTextDocumentParams) -> OpenFile | None:
        """Apply the changes in order, each to the text the one before left. None: the file was never opened."""
        file = self._files.get(params.text_document.uri)
        if file is None:
            return None
        document = file.document
        for change in params.content_changes:
            if isinstance(change, types.TextDocumentContentChangePartial):
                start, end = change.range.start, change.range.end
                where = ((start.line, start.character), (end.line, end.character))
                document = document.change(where, change.text, self.encoding)
            else:
                document = document.change(None, change.text, self.encoding)
        file.replace(Document(document.path, document.text, params.text_document.version))
        return file

    def close(self, uri: str) -> None:
        self._files.pop(uri, None)
