"""Folders: the one that this package keeps outside projects (`CUDA_AGENT_CACHE` or `~/.cache/cuda-agent`), and a
project's own."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

# What editors take for the root of a project (docs/editors), and where a build is looked for.
MARKS = ("compile_commands.json", "build/compile_commands.json", ".git", "Makefile")


def cache_dir() -> Path:
    """The cache's folder; not created here. Follows CUDA_AGENT_CACHE, then XDG_CACHE_HOME, then ~/.cache."""
    chosen = os.environ.get("CUDA_AGENT_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cuda-agent"


def native_dir() -> Path:
    """Folder for native libraries built on first use (capture injection, emulator runtime). Created; raises OSError."""
    folder = cache_dir() / "native"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def project_folders(source_file: Path) -> Iterator[Path]:
    """The file's folder and those above it, up to a repository's root. A folder above that anyone may write to (/tmp)
    ends the search: what lies there is not this project's."""
    for folder in source_file.parents:
        with contextlib.suppress(OSError):
            if folder != source_file.parent and folder.stat().st_mode & stat.S_IWOTH:
                return
        yield folder
        if (folder / ".git").exists():
            return


def folders_above(source_file: Path) -> Iterator[Path]:
    """The file's folder and all above it, up to one like /tmp, in which everybody has files of their own."""
    everybodys = stat.S_IWOTH | stat.S_ISVTX
    for folder in source_file.parents:
        with contextlib.suppress(OSError):
            if folder != source_file.parent and folder.stat().st_mode & everybodys == everybodys:
                return
        yield folder


def project(source_file: Path) -> Path:
    """The nearest of `project_folders` that is marked as a project's, else the file's own."""
    folders = project_folders(source_file)
    return next((f for f in folders if any((f / mark).exists() for mark in MARKS)), source_file.parent)


def run_dir() -> Path:
    """Folder of the running servers' sockets, ours alone. In the cache, not in XDG_RUNTIME_DIR: whoever is started with
    a short environment must find the same one. Created; OSError when it is somebody else's or cannot be made."""
    folder = cache_dir() / "run"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of yours")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder
