"""Whether a kernel can be run here, and if not, what is missing. Looks at a few paths only: it is asked on every
cursor move."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent.lsp.documents import OpenFile
from cuda_agent.model import Kernel
from cuda_agent.paths import project_folders

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer

KEEP_S = 1.0
_seen: dict[Path, tuple[float, bool]] = {}


def has_inputs(path: Path) -> bool:
    """An earlier capture where a search would look for it, or a kernels.toml beside the file. Remembered for a
    second."""
    now = time.monotonic()
    known = _seen.get(path)
    if known is not None and now - known[0] < KEEP_S:
        return known[1]
    found = (path.parent / "kernels.toml").is_file() or any(
        (folder / ".cuda-agent" / "captures").is_dir() for folder in project_folders(path)
    )
    _seen[path] = (now, found)
    return found


def why_not(server: CudaAgentServer, file: OpenFile, kernel: Kernel) -> str | None:
    """The reason an action on this kernel is disabled, in words that say what to do; None when it may run."""
    if file.path is None:
        return "the file is not on disk yet: save it first"
    if kernel.has_error:
        return "kernel has a syntax error"
    if server.trust.told is False:
        return "this folder is not trusted: nothing in it is compiled or run"
    return None


def trust_title(server: CudaAgentServer, file: OpenFile) -> str | None:
    """What an action that trusts the file's folder is called; None where it is trusted, or the editor said no. A folder
    that is not the workspace's is named."""
    if server.trust.told is False or file.path is None:
        return None
    folder = server.trust.missing(file.path)
    if folder is None:
        return None
    return "Trust this folder" if folder in server.trust.folders else f"Trust the folder {folder}"


def why_no_inputs(server: CudaAgentServer, file: OpenFile, kernel: Kernel) -> str | None:
    """As `why_not`, and the kernel needs inputs: its own main, a run command, or an earlier capture."""
    reason = why_not(server, file, kernel)
    if reason is not None or file.path is None:
        return reason
    if server.settings.run_command or server.client.custom("askRunCommand"):
        return None
    if file.module.has_main or has_inputs(file.path):
        return None
    return "no run command yet: set cudaAgent.runCommand to what runs your program, or capture its inputs once"
