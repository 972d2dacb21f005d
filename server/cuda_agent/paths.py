"""Where this package keeps things outside a project: one folder, `CUDA_AGENT_CACHE` or `~/.cache/cuda-agent`."""

from __future__ import annotations

import os
from pathlib import Path


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
