"""Kernels in a header: they are compiled as a part of a source that includes it.

A header alone has neither the macros that stand before its `#include` nor the launches that make a template's
instantiations. So a header's `Build` names such a source (`through`), and what is compiled is that source with the
header's text in the directive's place, under `#line`: diagnostics and debug lines stay the header's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cuda_agent.model import Build
from cuda_agent.paths import project_folders
from cuda_agent.source import joined

MOST = 64  # sources that are looked through
LARGEST = 1 << 20  # bytes of a file that is looked through
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">].*$', re.MULTILINE)


def sources_around(header: Path) -> list[Path]:
    """Sources that may include it: beside it, one folder up, and in the folders there."""
    up = header.parent.parent
    found: dict[Path, None] = {}
    for folder in (header.parent, up, *sorted(path for path in up.iterdir() if path.is_dir())):
        try:
            found.update(dict.fromkeys(sorted(folder.glob("*.cu"))))
        except OSError:  # a folder that may not be read
            continue
    return list(found)[:MOST]


def including(header: Path, sources: Iterable[Path]) -> Path | None:
    """The first source that includes the header, itself or through other headers: by its place, else as a folder of
    the header's that the compiler is told of would find it."""
    contents = {header.resolve(): (header, "")}
    texts = [(source, text) for source in sources if (text := _read(source)) is not None]
    for folders in ((), tuple(project_folders(header))):
        for source, text in texts:
            if _spliced(text, source, contents, folders, set()) is not None:
                return source
    return None


def unit_of(build: Build, text: str) -> tuple[Build, str]:
    """What is compiled for `text` as the content of `build.file`: for a header the source that includes it, with its
    own build; for any other file, and where that source no longer includes it, the text as it is. Files that are joined
    with the header (`source/joined.py`) have their joined texts there, too."""
    if build.through is None:
        return build, text
    contents = {path.resolve(): (path, other) for path, other in joined.files(build.file, text)}
    folders = [Path(flag[2:]) for flag in build.flags if flag.startswith("-I")]
    _, source = contents.get(build.through.resolve(), (None, _read(build.through)))
    seen: set[Path] = set()
    spliced = _spliced(source, build.through, contents, folders, seen) if source is not None else None
    if spliced is None or build.file.resolve() not in seen:
        return replace(build, through=None), joined.own(text)
    return replace(build, file=build.through, through=None), spliced


def _spliced(
    text: str,
    path: Path,
    contents: Mapping[Path, tuple[Path, str]],
    folders: Sequence[Path],
    seen: set[Path],
) -> str | None:
    """`text`, the content of `path`, with the given contents (by real path: the path that messages name, and the text)
    where it first includes these files; None when it includes none of them."""
    seen.add(path.resolve())
    pieces: list[str] = []
    at = 0
    for match in _INCLUDE.finditer(text):
        found = next((f / match[1] for f in (path.parent, *folders) if (f / match[1]).is_file()), None)
        if found is None or (real := found.resolve()) in seen:
            continue
        name, content = contents.get(real, (found, _read(found)))
        inner = _spliced(content, found, contents, folders, seen) if content is not None else None
        if inner is None and real in contents:
            inner = content
        if inner is not None:
            line = text.count("\n", 0, match.start()) + 2
            pieces += (text[at : match.start()], f"{_line(1, name)}\n{inner}\n{_line(line, path)}")
            at = match.end()
    return "".join((*pieces, text[at:])) if pieces else None


def _line(number: int, path: Path) -> str:
    quoted = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'#line {number} "{quoted}"'


def _read(path: Path) -> str | None:
    try:
        if path.stat().st_size > LARGEST:
            return None
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
