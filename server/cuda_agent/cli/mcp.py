"""`cuda-agent mcp FOLDER …`: without the progress and the signal handlers of the other commands, since whoever started
it ends it by closing its input."""

from __future__ import annotations

import argparse
from pathlib import Path

from cuda_agent import config
from cuda_agent.cli import flags
from cuda_agent.cli.answers import fail
from cuda_agent.errors import CudaAgentError, ToolMissing


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser)
    parser.add_argument(
        "folders", type=Path, nargs="*", metavar="FOLDER", help="where it may read files (default: the client's roots)"
    )
    parser.add_argument(
        "--any-command", action="store_true", help="let it capture with any command, not only the setting runCommand"
    )


def serve(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    try:
        values = {"device": arguments.device} if arguments.device else {}
        settings = config.parse({**config.from_words(arguments.set), **values})
        try:
            from cuda_agent.mcp.app import main
        except ModuleNotFoundError as missing:
            raise ToolMissing(
                f"the MCP server needs the protocol's official SDK ({missing}): pip install 'cuda-agent-lsp[mcp]'"
            ) from missing
        return main(arguments.folders, settings, arguments.any_command)
    except CudaAgentError as error:
        return fail(arguments, error, error.exit_code)
