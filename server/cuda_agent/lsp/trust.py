"""Whether code of this workspace may be compiled and run.

An editor with trust of its own (VS Code) says so. For the others the server asks once a folder and remembers the
answer in a file of the person, never in the workspace, which could otherwise trust itself."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)


def trust_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "cuda-agent" / "trust.json"


class Trust:
    """`trusted` is False until somebody said otherwise."""

    def __init__(self, root: Path | None, file: Path | None = None) -> None:
        self.root = root.resolve() if root is not None else None
        self.file = file or trust_file()
        self.told = False  # the editor decides; we neither ask nor remember
        self.trusted = self.remembered() or False

    def tell(self, trusted: bool) -> None:
        """The editor's word."""
        self.told, self.trusted = True, trusted

    def remembered(self) -> bool | None:
        """The answer for this folder or the nearest one above it; None when none was given."""
        if self.root is None:
            return None
        known = self._load()
        for folder in (self.root, *self.root.parents):
            if isinstance(answer := known.get(str(folder)), bool):
                return answer
        return None

    def remember(self, trusted: bool) -> None:
        """Keep a person's answer. When the file cannot be written it holds for this session, and that is logged."""
        self.trusted = trusted
        if self.root is None:
            return
        known = self._load()
        known[str(self.root)] = trusted
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.file.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            os.replace(fresh, self.file)
        except OSError as error:
            _log.warning("the answer cannot be kept in %s (%s); it holds until the server ends", self.file, error)

    def _load(self) -> dict[str, object]:
        try:
            known = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            _log.warning("%s cannot be read (%s); folders count as not trusted", self.file, error)
            return {}
        return known if isinstance(known, dict) else {}
