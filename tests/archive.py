"""Marker archives: one text file holds a test's settings, its sources and its golden results.

free text: why this case exists
key: value
-- before.cu --
…
-- after.diff --
…
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_HEAD = re.compile(r"^-- (\S+) --$", re.M)
_SETTING = re.compile(r"^([a-z_]+): (.*)$", re.M)


@dataclass
class Archive:
    path: Path
    comment: str
    files: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Archive:
        parts = _HEAD.split(path.read_text(encoding="utf-8"))
        return cls(path, parts[0], dict(zip(parts[1::2], (p.removeprefix("\n") for p in parts[2::2]), strict=True)))

    @property
    def settings(self) -> dict[str, str]:
        return dict(_SETTING.findall(self.comment))

    def write(self) -> None:
        body = "".join(f"-- {name} --\n{text}" for name, text in self.files.items())
        self.path.write_text(self.comment + body, encoding="utf-8")


def archives(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.txt"))
    assert found, f"no archives in {folder}"
    return found
