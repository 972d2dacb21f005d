"""Immutable text snapshots and the index between byte offsets and editor positions.

Offsets are UTF-8 byte offsets everywhere. Positions are (line, character), both 0-based, where a line ends at `\\n`,
`\\r\\n` or `\\r` and nowhere else (LSP 3.17, "Text Documents"), and `character` counts code units of the named
encoding.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from cuda_agent.errors import SourceError
from cuda_agent.model import Span

Encoding = Literal["utf-8", "utf-16", "utf-32"]
Position = tuple[int, int]
Range = tuple[Position, Position]

_EOL = re.compile(rb"\r\n|\n|\r")


def encode(text: str) -> bytes:
    """UTF-8 bytes of `text`. Lone surrogates (an editor may send them) become three bytes, so every offset exists."""
    return text.encode("utf-8", "surrogatepass")


def text_id(text: str) -> str:
    """What a candidate is called: sha256 of its text, first 12 digits."""
    return hashlib.sha256(encode(text)).hexdigest()[:12]


def decode(data: bytes) -> str:
    """Inverse of `encode`. A slice that cuts a character in two shows U+FFFD there."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


class LineIndex:
    """Line starts of one text."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._starts = [0, *(match.end() for match in _EOL.finditer(data))]

    def __len__(self) -> int:
        return len(self._starts)

    def line_of(self, offset: int) -> int:
        """0-based line that holds `offset`; offsets outside the text are clamped."""
        return bisect_right(self._starts, max(0, offset)) - 1

    def line_span(self, line: int) -> Span:
        """Span of a 0-based line without its line ending; lines outside the text are clamped."""
        line = min(max(line, 0), len(self._starts) - 1)
        start = self._starts[line]
        end = self._starts[line + 1] if line + 1 < len(self._starts) else len(self._data)
        while end > start and self._data[end - 1] in b"\r\n":
            end -= 1
        return Span(start, end)

    def position(self, offset: int, encoding: Encoding = "utf-16") -> Position:
        """(line, character) of a byte offset. Inside a character it is that character's start, inside a line ending the
        line's end, outside the text the nearest end."""
        offset = min(max(offset, 0), len(self._data))
        line = self.line_of(offset)
        span = self.line_span(line)
        offset = min(offset, span.end)
        while offset > span.start and offset < span.end and self._data[offset] & 0xC0 == 0x80:
            offset -= 1
        return line, _units(self._data[span.start : offset], encoding)

    def offset(self, line: int, character: int, encoding: Encoding = "utf-16") -> int:
        """Byte offset of a position. A character past the line's end is the line's end, a line past the text the text's
        end (both as LSP asks); the second half of a surrogate pair is its character's start."""
        if line < 0:
            return 0
        if line >= len(self._starts):
            return len(self._data)
        span = self.line_span(line)
        return span.start + _bytes(self._data[span.start : span.end], max(0, character), encoding)


def _units(line: bytes, encoding: Encoding) -> int:
    if encoding == "utf-8" or line.isascii():
        return len(line)
    characters = sum(byte & 0xC0 != 0x80 for byte in line)
    return characters if encoding == "utf-32" else characters + sum(byte >= 0xF0 for byte in line)


def _bytes(line: bytes, units: int, encoding: Encoding) -> int:
    if encoding == "utf-8" or line.isascii():
        at = min(units, len(line))
        while at < len(line) and at > 0 and line[at] & 0xC0 == 0x80:
            at -= 1
        return at
    at = 0
    while at < len(line):
        lead = line[at]
        units -= 2 if lead >= 0xF0 and encoding == "utf-16" else 1
        if units < 0:
            break
        at += 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return min(at, len(line))


@dataclass(frozen=True)
class Document:
    """One version of one file."""

    path: str
    text: str
    version: int = 0

    @cached_property
    def data(self) -> bytes:
        """The text as UTF-8; what every `Span` points into."""
        return encode(self.text)

    @cached_property
    def lines(self) -> LineIndex:
        return LineIndex(self.data)

    def slice(self, span: Span) -> str:
        return decode(self.data[span.start : span.end])

    def change(
        self, range: Range | None, text: str, encoding: Encoding = "utf-16", version: int | None = None
    ) -> Document:
        """The next snapshot: `range` (None = everything) replaced by `text`. `version` defaults to this one's plus
        1."""
        version = self.version + 1 if version is None else version
        if range is None:
            return Document(self.path, text, version)
        start, end = sorted(self.lines.offset(line, character, encoding) for line, character in range)
        data = self.data
        return Document(self.path, decode(data[:start] + encode(text) + data[end:]), version)


def read(path: str | Path, version: int = 0) -> Document:
    """The file on disk, line endings kept. Bytes that are not UTF-8 become lone surrogates, and `write` turns them
    back. Raises SourceError when the file cannot be read."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SourceError(
            f"cannot read {path}: {error.strerror or error}; check the path and its permissions"
        ) from error
    return Document(str(path), data.decode("utf-8", "surrogateescape"), version)


def is_saved(path: str | Path, text: str) -> bool:
    """Whether the file on disk holds an editor's `text`. Raises SourceError when the file cannot be read."""

    # An editor leaves the byte order mark out and shows other characters for bytes that are not UTF-8.
    def shown(text: str) -> bytes:
        return text.removeprefix("\ufeff").encode("ascii", "replace")

    return shown(read(path).text) == shown(text)


def write(path: str | Path, text: str) -> None:
    """Write `text` byte for byte as `read` gave it. Raises SourceError when the file cannot be written."""
    try:
        Path(path).write_bytes(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise SourceError(
            f"cannot write {path}: character {error.start} is half a surrogate pair; remove it"
        ) from error
    except OSError as error:
        raise SourceError(f"cannot write {path}: {error.strerror or error}") from error
