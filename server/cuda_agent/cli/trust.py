"""`cuda-agent trust FOLDER`."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent.cli import flags
from cuda_agent.cli.answers import print_json
from cuda_agent.errors import CudaAgentError, UsageError

if TYPE_CHECKING:
    from cuda_agent.progress import Progress


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser, device=False)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="default: this one")
    parser.add_argument("--revoke", action="store_true", help="not any longer")


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.trust import Trust, trust_file

    if not arguments.folder.is_dir():
        raise UsageError(f"{arguments.folder} is not a folder")
    trusted = not arguments.revoke
    folder = arguments.folder.resolve()
    Trust().remember(folder, trusted)
    if Trust().covers(folder) is not trusted:
        raise CudaAgentError(f"the answer cannot be kept in {trust_file()}: see above")
    if arguments.json:
        print_json({"status": "done", "folder": str(folder), "trusted": trusted})
    else:
        print(f"{folder} is {'trusted' if trusted else 'not trusted'} now ({trust_file()})")
    return 0
