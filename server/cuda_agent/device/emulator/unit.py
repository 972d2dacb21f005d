"""A translation unit for g++: the file and every project header it includes, translated into a private folder.

Headers are translated too because kernels live in them. A directive whose header was translated names the copy beside
it; every copy begins with `#line 1 "original"`: diagnostics, `__FILE__` and debug lines stay the person's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.device.emulator.translate import translate_lenient
from cuda_agent.errors import SourceError

_INCLUDE = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)([<\"])([^>\"\n]+)[>\"]", re.MULTILINE)


@dataclass(slots=True)
class Unit:
    """`main` is what g++ compiles; `copies` maps each translated file to the file it came from.

    `refused` lists what the emulator cannot run in them; it matters only when g++ fails, for it may be behind an `#if`.
    """

    main: Path
    copies: dict[Path, Path] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def named(self, text: str) -> str:
        """`text` (diagnostics, dependencies) with the person's files in place of the copies."""
        for copy, original in self.copies.items():
            text = text.replace(str(copy), str(original))
        return text


def translate_unit(
    source: Path,
    folder: Path,
    *,
    text: str | None = None,
    include_dirs: Sequence[Path] = (),
    quote_dirs: Sequence[Path] = (),
    shims: Path,
) -> Unit:
    """Translate `source` (its `text`, when given, instead of what is on the disk) into `folder`.

    `include_dirs` are the -I folders in order, `shims` the emulator's own headers, which win over a toolkit's.
    Raises SourceError when the file cannot be read, Unsupported as `translate` does.
    """
    walk = _Walk(folder, tuple(include_dirs), tuple(quote_dirs), shims)
    walk.unit.main = walk.copy(source.absolute(), text)
    return walk.unit


class _Walk:
    def __init__(self, folder: Path, include_dirs: tuple[Path, ...], quote_dirs: tuple[Path, ...], shims: Path) -> None:
        self.folder, self.shims = folder, shims
        self.include_dirs = [d for d in include_dirs if not is_toolkit(d)]
        self.quote_dirs = quote_dirs
        self.unit = Unit(folder)
        self.done: dict[Path, Path] = {}

    def copy(self, file: Path, text: str | None = None) -> Path:
        key = file.resolve()
        if key in self.done:
            return self.done[key]
        name = f"{len(self.done)}_{file.stem}{'.cpp' if not self.done else file.suffix}"
        target = self.done[key] = self.folder / name
        if text is None:
            try:
                text = file.read_text(encoding="utf-8", errors="surrogateescape")
            except OSError as error:
                raise SourceError(f"cannot read {file}: {error.strerror}") from error
        translated, refused = translate_lenient(text, str(file))
        self.unit.refused += refused
        self.unit.copies[target] = file
        translated = _INCLUDE.sub(lambda found: self._directive(found, file.parent), translated)
        quoted = str(file).replace("\\", "\\\\").replace('"', '\\"')
        target.write_text(f'#line 1 "{quoted}"\n{translated}', encoding="utf-8", errors="surrogateescape")
        return target

    def _directive(self, found: re.Match[str], here: Path) -> str:
        name = found.group(3)
        resolved = self._resolve(name, here, quoted=found.group(2) == '"')
        if resolved is None:
            return found.group()
        return f'{found.group(1)}"{self.copy(resolved).name}"'

    def _resolve(self, name: str, here: Path, quoted: bool) -> Path | None:
        """The project header a directive means; None for the system's, the toolkit's and the emulator's own."""
        if quoted:
            for folder in (here, *self.quote_dirs):
                if (folder / name).is_file() and not is_toolkit(folder):
                    return folder / name
        if (self.shims / name).is_file():
            return None
        for folder in self.include_dirs:
            if (folder / name).is_file():
                return folder / name
        return None


def is_toolkit(folder: Path) -> bool:
    """Whether a folder is a CUDA toolkit's include folder, whose headers would clash with the emulator's."""
    return (folder / "cuda_runtime_api.h").is_file()
