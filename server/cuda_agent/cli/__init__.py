"""The command line: `cuda-agent COMMAND`. One file here a command, with its arguments and what it does; `parser` lists
them, `flags` has the flags that several share, `answers` how results and errors are told.

With `--json` one JSON object goes to stdout; progress always goes to stderr. What no flag says is the setting's value
(`--set`, docs/configuration.md). Exit codes: 0 verified, holds or done, 1 rejected or holds no longer, 2 could not
decide (no inputs, no compiler, no device), 3 usage. Nothing is imported before it is needed, not even the files of the
other commands: a worker and the language server start often.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cuda_agent import keys
from cuda_agent.errors import Cancelled, CudaAgentError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point. Returns the exit code; Ctrl-C stops the work, keeps the best so far and ends with 130."""
    keys.take()
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["serve"]:
        gc.disable()  # importing the protocol makes objects that all stay: `serve` starts collecting after that
        from cuda_agent.lsp.app import main as serve

        return serve(given[1:])
    if given[:1] == ["worker"]:
        from cuda_agent.device.worker import main as work

        return work(given[1:])
    from cuda_agent.cli import parser

    arguments = parser.parse(given)
    if arguments.command == "mcp":
        from cuda_agent.cli import mcp

        return mcp.serve(arguments)
    from cuda_agent.cli import answers, flags
    from cuda_agent.progress import Progress

    stop = threading.Event()
    with _interrupts(stop):
        try:
            flags.settle(arguments)
            with Progress(quiet=False) as progress:
                code = parser.command(arguments.command).run(arguments, progress, stop)
        except Cancelled as error:
            return answers.fail(arguments, error, INTERRUPTED)
        except CudaAgentError as error:
            return answers.fail(arguments, error, error.exit_code)
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # the reader of our output has gone (`| head`): there is nobody to tell
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return INTERRUPTED
    return INTERRUPTED if stop.is_set() and code != 0 else code


@contextmanager
def _interrupts(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) sets `stop`, the second raises KeyboardInterrupt."""

    def handler(signum: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        print("\nstopping: the best so far is kept (press Ctrl-C again to leave at once)", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
