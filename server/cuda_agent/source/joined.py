"""Several files as one text: a header, and the files that launch its kernels.

A kernel in a header is launched by the sources that include it, and a rewrite that changes the launch shape edits both.
Rules, gates, hashes and evidence then see one text: the header first, its offsets and lines as they are in the file,
and after it each other file behind a directive that names it, relative to the header's folder. No compiler ever sees
that directive (`toolchain/header.py` takes the files apart again). A text without one is a single file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from cuda_agent.errors import SourceError
from cuda_agent.model import Edit, Span

_MARK = re.compile(r'\n#pragma cuda_agent file "([^"\n]+)"\n')


class Part(NamedTuple):
    """One file of a joined text. `name` is None for the header itself; `start` its first byte in the joined text."""

    name: str | None
    text: str
    start: int


def join(own: str, others: Mapping[str, str]) -> str:
    """`own` and after it the other files, by their paths relative to its folder. Raises SourceError where a text has
    the directive in it already."""
    if any(_MARK.search(text) for text in (own, *others.values())):
        raise SourceError("the text has `#pragma cuda_agent file` in it, which is how texts are joined here: remove it")
    return own + "".join(f'\n#pragma cuda_agent file "{name}"\n{text}' for name, text in others.items())


def parts(text: str) -> tuple[Part, ...]:
    """The files of a text, the header first."""
    found: list[Part] = []
    name: str | None = None
    at = start = 0
    for mark in _MARK.finditer(text):
        found.append(Part(name, text[at : mark.start()], start))
        start += _size(text[at : mark.end()])
        name, at = mark[1], mark.end()
    return (*found, Part(name, text[at:], start))


def own(text: str) -> str:
    """The header's text alone."""
    mark = _MARK.search(text)
    return text[: mark.start()] if mark else text


def others(text: str) -> dict[str, str]:
    """The texts of the files after it, by name; empty for a single file."""
    return {part.name: part.text for part in parts(text) if part.name is not None}


def is_mark(token: str) -> bool:
    """Whether a directive, as one token, begins another file."""
    return token.startswith("#pragma cuda_agent file ")


def each(text: str) -> tuple[str, ...]:
    """The header beside each of the other files alone: what one of them defines means nothing in another. The text
    itself where there is at most one."""
    files = others(text)
    return tuple(join(own(text), {name: files[name]}) for name in files) if len(files) > 1 else (text,)


def again(like: str, own: str, read: Callable[[str], str]) -> str:
    """`own` with the files that are joined in `like`, as they are now. Raises what `read` raises for a name."""
    return join(own, {name: read(name) for name in others(like)})


def by_file(text: str, edits: Iterable[Edit]) -> dict[str | None, tuple[Edit, ...]]:
    """Edits of a joined text as edits of its files. Raises SourceError for one that lies in no single file."""
    files = parts(text)
    found: dict[str | None, list[Edit]] = {}
    for edit in edits:
        part = next((p for p in files if Span(p.start, p.start + _size(p.text)).holds(edit.span)), None)
        if part is None:
            raise SourceError("an edit reaches from one file into the next; optimise the kernel again")
        span = Span(edit.span.start - part.start, edit.span.end - part.start)
        found.setdefault(part.name, []).append(Edit(span, edit.text))
    return {name: tuple(of_file) for name, of_file in found.items()}


def path_of(header: Path, name: str) -> Path:
    """Where the file of that name in a joined text lies."""
    return Path(os.path.normpath(header.absolute().parent / name))


def files(header: Path, text: str) -> Iterator[tuple[Path, str]]:
    """Where each file of a joined text lies, and its text; the header first."""
    yield from ((header if part.name is None else path_of(header, part.name), part.text) for part in parts(text))


def name_of(header: Path, path: Path) -> str:
    """How the file is named in a text that begins with the header."""
    return Path(os.path.relpath(path, header.absolute().parent)).as_posix()


def shown(file: Path, text: str) -> str:
    """The file's name in a diff: alone, or with the folders that tell the joined files apart."""
    folder = file.absolute().parent
    top = os.path.commonpath([folder, *(path_of(file, name).parent for name in others(text))])
    return Path(os.path.relpath(file.absolute(), top)).as_posix()


def pairs(old: str, new: str) -> Iterator[tuple[Part, Part]]:
    """The files of two texts side by side; both texts whole where they are not made of the same files."""
    a, b = parts(old), parts(new)
    same = [part.name for part in a] == [part.name for part in b]
    yield from zip(a, b, strict=True) if same else [(Part(None, old, 0), Part(None, new, 0))]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
