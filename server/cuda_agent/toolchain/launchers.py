"""The other files of a project that name a header's kernels, where they are launched.

A launch counts wherever a source that includes the header, or any file included there, may say it. Everything below the
project's folder is looked through; in a project too large for that, a launch that nobody saw could be left as it is, so
the header then stays alone, and rules that change launches refuse it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from cuda_agent import trust
from cuda_agent.model import Build, Kernel
from cuda_agent.paths import project_folders
from cuda_agent.source import joined
from cuda_agent.source.documents import Document
from cuda_agent.source.lexical import lex
from cuda_agent.source.symbols import module
from cuda_agent.toolchain.options import HEADERS, SOURCES

MOST_FILES, MOST_BYTES = 20_000, 256 << 20  # of a project that is looked through
_SUFFIXES = tuple(SOURCES | HEADERS | {".cu", ".hxx", ".ipp", ".tpp", ".inc"})
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_LEFT_OUT = frozenset(("node_modules", "__pycache__", "site-packages"))


def with_launches(build: Build, text: str, unsaved: Mapping[Path, str] | None = None) -> str:
    """`text`, a header's, joined with every file of the project that names one of its kernels; `text` itself where
    there is none, for a file that is no header, and where not every launch can be seen. `unsaved`: texts of files that
    an editor has open, which count instead of what is on disk. Raises Untrusted when one of the
    files is not covered."""
    if build.through is None or joined.others(text):
        return text
    own = module(Document(str(build.file), text))
    found = _naming(build, own.kernels, unsaved or {}) if own.kernels else {}
    if not found:
        return text
    for path in sorted(found):
        trust.need(path)
    whole = joined.join(text, {joined.name_of(build.file, path): found[path] for path in sorted(found)})
    both = module(Document(str(build.file), whole))
    elsewhere = {header.name for header in both.tree.headers if header.body and header.name_span.start > both.own_end}
    if elsewhere & {kernel.name for kernel in own.kernels}:
        return text  # which one a launch means is not known
    alike = [(kernel.id, kernel.span, kernel.has_error) for kernel in both.kernels]
    return whole if alike == [(kernel.id, kernel.span, kernel.has_error) for kernel in own.kernels] else text


def _naming(build: Build, kernels: Iterable[Kernel], unsaved: Mapping[Path, str]) -> dict[Path, str]:
    """Path → text; empty where the project is too large."""
    header, source = os.path.abspath(build.file), os.path.abspath(build.through or build.file)
    texts = _texts(_root(header, source), {os.path.abspath(path): text for path, text in unsaved.items()})
    if texts is None:
        return {}
    names = "|".join(re.escape(kernel.name) for kernel in kernels)
    word = re.compile(rf"\b(?:{names})\b".encode("utf-8", "surrogateescape"))
    folders = [os.path.join(build.directory, flag[2:]) for flag in build.flags if flag.startswith("-I")]
    includes = _includes(texts, folders)
    users = _closure([header], _inverse(includes)) - {header}
    return {
        Path(path): texts[path].decode("utf-8", "surrogateescape")
        for path in _closure(users, includes) - {header}
        if word.search(texts[path]) and word.search(lex(texts[path]).code)
    }


def _root(header: str, source: str) -> str:
    """The outermost folder that is marked as a project's, or what the header and the source that includes it have in
    common."""
    marks = (".git", ".cuda-agent", "compile_commands.json")
    marked = [f for f in project_folders(Path(header)) if any((f / mark).exists() for mark in marks)]
    return os.path.commonpath([*map(str, marked[-1:]), os.path.dirname(header), os.path.dirname(source)])


def _texts(root: str, unsaved: Mapping[str, str]) -> dict[str, bytes] | None:
    """Every source and header below a folder; None where there are too many."""
    found: dict[str, bytes] = {}
    size = 0
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".") and name not in _LEFT_OUT]
        for name in files:
            if not name.endswith(_SUFFIXES):
                continue
            path = os.path.join(folder, name)
            try:
                data = unsaved[path].encode("utf-8", "surrogatepass") if path in unsaved else Path(path).read_bytes()
            except OSError:  # a link to nowhere: no compiler reads it either
                continue
            found[path] = data
            size += len(data)
            if len(found) > MOST_FILES or size > MOST_BYTES:
                return None
    return found


def _includes(texts: Mapping[str, bytes], folders: Iterable[str]) -> dict[str, set[str]]:
    """File → the project's files that it includes. Where the compiler would look by a flag that is not known here,
    every file of that name is taken for included."""
    named: dict[str, list[str]] = {}
    for path in texts:
        named.setdefault(os.path.basename(path), []).append(path)

    def meant(path: str, name: str) -> Iterable[str]:
        if os.path.basename(name) not in named:
            return ()
        places = (os.path.normpath(os.path.join(folder, name)) for folder in (os.path.dirname(path), *folders))
        found = next((place for place in places if place in texts), None)
        if found is not None:
            return (found,)
        return (other for other in named[os.path.basename(name)] if other.endswith(os.sep + name))

    return {
        path: {
            one for match in _INCLUDE.finditer(data) for one in meant(path, match[1].decode("utf-8", "surrogateescape"))
        }
        for path, data in texts.items()
    }


def _inverse(includes: Mapping[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path, inner in includes.items():
        for one in inner:
            found.setdefault(one, set()).add(path)
    return found


def _closure(first: Iterable[str], more: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = list(first)
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += more.get(path, ())
    return found
