"""Which folders' code may be compiled and run.

An answer is about a folder and all below it; of several the nearest one above a file holds. A file is covered when
both the folder that it lies in and the one that it leads to, where it is a link, are trusted: real folders, whatever
links the path goes through.

Answers are kept in a file of the person, never in the workspace, which could otherwise trust itself. A job has those
of its request (`use`); on the command line the person runs their own code, and nothing is asked.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from cuda_agent.errors import Untrusted
from cuda_agent.paths import project

_log = logging.getLogger(__name__)
Answers = Mapping[str, bool]  # real folder → may its code be compiled and run?


def trust_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "cuda-agent" / "trust.json"


def uncovered(path: Path, answers: Answers) -> Path | None:
    """The place, without links, that is in no trusted folder: where `path` lies, or where it leads to. None when it is
    covered. `path` may be a folder."""
    path = path.absolute()
    lies = Path(os.path.realpath(path.parent), path.name)
    for place in (lies, Path(os.path.realpath(path))):
        if not _nearest(place, answers)[1]:
            return place
    return None


def _nearest(place: Path, answers: Answers) -> tuple[Path | None, bool]:
    """The nearest folder with an answer, and the answer."""
    for folder in (place, *place.parents):
        if (answer := answers.get(str(folder))) is not None:
            return folder, answer
    return None, False


def refusal(folder: Path) -> str:
    return (
        f"{folder} is not trusted: nothing in it is compiled or run. Trust it (command `cudaAgent.trust` in a file of "
        f"it, or `cuda-agent trust {shlex.quote(str(folder))}` in a terminal) and try again"
    )


# ---------------------------------------------------------------- of a job's process

_current: Answers | None = None


def use(answers: Answers | None) -> None:
    """Make these the answers of this process. None: a person's own command line, where everything is covered."""
    global _current
    _current = answers


def need(path: Path) -> None:
    """Untrusted, which names the folder, when what is to be compiled or run is not covered."""
    place = uncovered(path, _current) if _current is not None else None
    if place is not None:
        raise Untrusted(refusal(place if place.is_dir() else project(place)))


# ---------------------------------------------------------------- the person's answers


class Trust:
    """The answers that were remembered, in whatever program they were given, and what an editor with trust of its own
    says about the folders of its workspace."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or trust_file()
        self.told: bool | None = None  # the editor's word; None: it has no trust of its own
        self.folders: tuple[Path, ...] = ()  # of the workspace, real
        self._not_kept: dict[str, bool] = {}
        self._read: dict[str, bool] = {}
        self._stamp: tuple[int, int, int] | None = None

    def open_folders(self, folders: Iterable[Path]) -> None:
        """These are the workspace's now."""
        self.folders = tuple(Path(os.path.realpath(folder)) for folder in folders)

    def tell(self, trusted: bool) -> None:
        """The editor's word on its workspace, whose folders we then neither ask about nor remember."""
        self.told = trusted

    @property
    def answers(self) -> dict[str, bool]:
        """All that hold now. While the editor says no there are none: it shows everything in this window as text."""
        if self.told is False:
            return {}
        known = {**self._load(), **self._not_kept}
        if self.told is None:
            return known
        inside = {place: yes for place, yes in known.items() if not self._of_workspace(Path(place))}
        return inside | {str(folder): True for folder in self.folders}

    def covers(self, path: Path) -> bool:
        return uncovered(path, self.answers) is None

    def missing(self, path: Path) -> Path | None:
        """The folder to ask about before `path` may be compiled; None when it is covered. It is the workspace's folder
        around the file, else the file's project; a folder between with a no of its own comes first."""
        answers = self.answers
        place = uncovered(path, answers)
        if place is None:
            return None
        folder = self._of_workspace(place) or project(place)
        refused, _ = _nearest(place, answers)
        return refused if refused is not None and refused.is_relative_to(folder) else folder

    def remember(self, folder: Path, trusted: bool) -> None:
        """Keep a person's answer. When the file cannot be written it holds until this process ends, and that is
        logged."""
        name = os.path.realpath(folder)
        known = {**self._load(), name: trusted}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.file.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            os.replace(fresh, self.file)
            self._not_kept.pop(name, None)
        except OSError as error:
            self._not_kept[name] = trusted
            _log.warning("the answer cannot be kept in %s (%s); it holds until the server ends", self.file, error)

    def _of_workspace(self, place: Path) -> Path | None:
        around = [folder for folder in self.folders if place.is_relative_to(folder)]
        return max(around, key=lambda folder: len(folder.parts), default=None)

    def _load(self) -> dict[str, bool]:
        """The file's answers, read again when it was written since."""
        try:
            found = self.file.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp != self._stamp:
                self._read = _answers(json.loads(self.file.read_text(encoding="utf-8")))
                self._stamp = stamp
        except FileNotFoundError:
            self._read, self._stamp = {}, None
        except (OSError, ValueError) as error:
            self._read, self._stamp = {}, None
            _log.warning("%s cannot be read (%s); folders count as not trusted", self.file, error)
        return self._read


def _answers(known: object) -> dict[str, bool]:
    pairs = known.items() if isinstance(known, dict) else ()
    return {str(folder): answer for folder, answer in pairs if isinstance(answer, bool)}
