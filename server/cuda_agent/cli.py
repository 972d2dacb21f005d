"""The command line: facts · capture · verify · bench · optimize · compare · trajectories · replay · export-test ·
serve · mcp · trust · worker · doctor.

With `--json` one JSON object goes to stdout; progress always goes to stderr. What no flag says is the setting's value
(`--set`, docs/configuration.md). Exit codes: 0 verified, holds or done, 1 rejected or holds no longer, 2 could not
decide (no inputs, no compiler, no device), 3 usage. `serve` and `worker` import their world only when called.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cuda_agent import __version__, config, keys
from cuda_agent.errors import Cancelled, CudaAgentError, SourceError, ToolMissing, UsageError

if TYPE_CHECKING:
    from cuda_agent.agent.loop import Outcome
    from cuda_agent.agent.program import Together
    from cuda_agent.judge import JudgeOptions
    from cuda_agent.progress import Progress


INTERRUPTED = 130
# A person who waits at a terminal lets a search take longer than one who edits meanwhile.
DEFAULTS = config.Settings(budget_seconds=300.0, budget_candidates=200)
EXIT = {"verified": 0, "rejected": 1, "undecided": 2}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"cuda-agent: {message}", file=sys.stderr)
        raise SystemExit(3)


def _parser() -> _Parser:
    parser = _Parser(prog="cuda-agent", description="Makes CUDA kernels faster and proves it.")
    parser.add_argument("--version", action="version", version=f"cuda-agent {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, help: str, *, device: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        if device:
            sub.add_argument("--device", help="auto (default), cuda:0, emulator, ssh://host")
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a setting of docs/configuration.md, such as nvccPath=/opt/cuda/bin/nvcc or extraFlags='-DN=4 -G'",
        )
        return sub

    def inputs(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--kernel", help="name of the kernel (default: the one with inputs)")
        sub.add_argument("--args", help="arguments for the file's own main when it has to be run")
        sub.add_argument("--run", help="run command that launches the kernel, when the file has no main")
        sub.add_argument(
            "--timeout",
            type=_seconds,
            metavar="SECONDS",
            help="for one run of the program (default 600) and for one job of the original kernel (default 120)",
        )

    def in_program(sub: argparse.ArgumentParser, whose: str) -> None:
        sub.add_argument(
            "--in-program",
            action="store_true",
            help=f"also rebuild your program in a copy of its folder with {whose} and compare a run of it (gate G13)",
        )

    def html(sub: argparse.ArgumentParser, what: str) -> None:
        sub.add_argument("--html", type=Path, metavar="FILE", help=f"also write {what} as one HTML page")

    facts = command("facts", "Registers, spills, shared memory and occupancy of every kernel in a file.")
    facts.add_argument("file", type=Path)
    facts.add_argument("--kernel")
    facts.add_argument("--arch", help="sm_90, … (default: the device's, else the build's)")

    capture = command("capture", "Run a program as it is and keep the inputs of its kernel launches.")
    capture.add_argument("--kernel", help="regular expression on the kernel's name")
    capture.add_argument("--first", type=int, metavar="N", help="launches to keep for each kernel (default 2)")
    capture.add_argument("--select", choices=("first", "smallest", "largest"), default="first")
    capture.add_argument("--cap", type=_size, metavar="BYTES", help="largest launch to keep, e.g. 256M (default 1G)")
    capture.add_argument(
        "--stop",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="end the program once everything asked for is recorded (default on the emulator)",
    )
    capture.add_argument("cmd", nargs=argparse.REMAINDER, metavar="-- COMMAND")

    verify = command("verify", "Judge a rewrite: same results, no faults, and how fast.")
    verify.add_argument("original", type=Path, nargs="?")
    verify.add_argument("candidate", type=Path, nargs="?")
    again = verify.add_mutually_exclusive_group()
    again.add_argument(
        "--from", dest="evidence", type=Path, metavar="EVIDENCE", help="judge again what an evidence.json is about"
    )
    again.add_argument("--test", type=Path, metavar="FOLDER", help="run a regression test that `export-test` wrote")
    verify.add_argument("--source", type=Path, help="with --from: the source file (or its project), when it was moved")
    verify.add_argument("--inputs", type=Path, help="with --from: the folder of the inputs, when it was moved")
    inputs(verify)
    in_program(verify, "the candidate")
    html(verify, "the evidence")

    bench = command("bench", "Time a kernel against itself on its inputs: its time and this machine's noise.")
    bench.add_argument("file", type=Path)
    inputs(bench)

    optimize = command("optimize", "Rewrite, judge, time and show what is faster.")
    optimize.add_argument("file", type=Path)
    inputs(optimize)
    in_program(optimize, "the winner")
    optimize.add_argument(
        "--all", action="store_true", help="also kernels that take less than 1 %% of the program's kernel time"
    )
    optimize.add_argument(
        "--budget", type=_seconds, metavar="SECONDS", help="for all kernels, full verdicts included (default 300)"
    )
    optimize.add_argument(
        "--candidates", type=int, metavar="N", help="candidates to judge at most for each kernel (default 200)"
    )
    optimize.add_argument(
        "--policy",
        choices=("auto", "search", "model", "mixed"),
        help="the rules, a language model, or both in turn",
    )
    optimize.add_argument(
        "--model", metavar="SPEC", help="endpoint:NAME@URL, transformers:PATH or hub id (docs/configuration.md)"
    )
    optimize.add_argument("--tokens", type=int, metavar="N", help="that a model may use for each kernel")
    optimize.add_argument("--fresh", action="store_true", help="use nothing that an earlier search found")
    optimize.add_argument("--apply", action="store_true", help="write the verified edits into the file")
    html(optimize, "the evidence of every kernel that was made faster")
    optimize.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="also write the search as one HTML page",
    )
    optimize.add_argument(
        "--evidence", type=Path, metavar="FOLDER", help="also write an evidence file KERNEL.json for each of them"
    )
    optimize.add_argument("--trajectory", type=Path, help="append one JSON line for each step")

    compare = command("compare", "Each kernel with each policy under equal budgets, side by side.")
    compare.add_argument("files", type=Path, nargs="+", metavar="FILE")
    compare.add_argument("--policies", default="search,model,mixed", help="default: search,model,mixed")
    inputs(compare)
    compare.add_argument("--budget", type=_seconds, metavar="SECONDS", help="for each search (default 300)")
    compare.add_argument("--candidates", type=int, metavar="N", help="for each search (default 200)")
    compare.add_argument("--tokens", type=int, metavar="N", help="for each search that asks a model")
    compare.add_argument("--model", metavar="SPEC", help="endpoint:NAME@URL, transformers:PATH or hub id")
    html(compare, "a chart and the table")

    trajectories = command("trajectories", "The recorded searches: list, show, export.", device=False)
    trajectories.add_argument("action", nargs="?", choices=("list", "show", "export"), default="list")
    trajectories.add_argument("ids", nargs="*", metavar="ID", help="an id or a part of it, a file, or `last`")
    trajectories.add_argument("--out", type=Path, metavar="FILE.jsonl", help="of export: one JSON object a search")

    replay = command("replay", "Run a recorded search again: the same texts must get the same verdicts.")
    replay.add_argument("trajectory", metavar="FILE", help="a trajectory's file, its id or a part of it, or `last`")
    replay.add_argument("--source", type=Path, help="the source file (or its project), when it was moved")
    replay.add_argument("--inputs", type=Path, help="the folder of the inputs, when it was moved")

    export = command("export-test", "Write a regression test of an accepted kernel for your own repository.")
    export.add_argument("evidence", type=Path, help="evidence.json of a verified candidate that is in the file now")
    export.add_argument("--into", type=Path, required=True, metavar="FOLDER", help="a new folder for the test")
    export.add_argument("--ctest", action="store_true", help="a CMakeLists.txt for CTest instead of a pytest file")
    export.add_argument("--source", type=Path, help="the source file (or its project), when it was moved")
    export.add_argument("--inputs", type=Path, help="the folder of the inputs, when it was moved")

    command("serve", "Speak the Language Server Protocol on stdin and stdout.", device=False).add_argument(
        "--stdio", action="store_true"
    )
    mcp = command("mcp", "Offer these tools to an agent: the Model Context Protocol on stdin and stdout.")
    mcp.add_argument(
        "folders", type=Path, nargs="*", metavar="FOLDER", help="where it may read files (default: the client's roots)"
    )
    mcp.add_argument(
        "--any-command", action="store_true", help="let it capture with any command, not only the setting runCommand"
    )
    trust = command("trust", "Let editors and agents compile and run the code in a folder.", device=False)
    trust.add_argument("folder", type=Path, nargs="?", default=Path(), help="default: this one")
    trust.add_argument("--revoke", action="store_true", help="not any longer")
    worker = command("worker", "Own one device and run jobs from stdin (started by the other commands).")
    worker.add_argument("rest", nargs=argparse.REMAINDER)
    command("doctor", "What this machine has, what is missing and how to get it.", device=False)
    return parser


def _size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    try:
        return int(float(text[:-1]) * units[text[-1].upper()]) if text[-1:].upper() in units else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 256M") from error


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point. Returns the exit code; Ctrl-C stops the work, keeps the best so far and ends with 130."""
    keys.take()
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["serve"]:
        gc.disable()  # importing the protocol makes objects that all stay: `serve` starts collecting after that
        from cuda_agent.lsp.app import main as serve

        return serve(given[1:])
    if given[:1] == ["mcp"]:
        return _mcp(_parser().parse_args(given))
    if given[:1] == ["worker"]:
        from cuda_agent.device.worker import main as work

        return work(given[1:])
    arguments = _parser().parse_args(given)
    from cuda_agent.progress import Progress

    stop = threading.Event()
    with _interrupts(stop):
        try:
            _settle(arguments)
            with Progress(quiet=False) as progress:
                code = _COMMANDS[arguments.command](arguments, progress, stop)
        except Cancelled as error:
            return _fail(arguments, error, INTERRUPTED)
        except CudaAgentError as error:
            return _fail(arguments, error, error.exit_code)
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # the reader of our output has gone (`| head`): there is nobody to tell
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return INTERRUPTED
    return INTERRUPTED if stop.is_set() and code != 0 else code


def _mcp(arguments: argparse.Namespace) -> int:
    """Without Progress and our signal handlers: whoever started this ends it by closing its input."""
    try:
        values = {"device": arguments.device} if arguments.device else {}
        settings = config.parse({**config.from_words(arguments.set), **values})
        try:
            from cuda_agent.mcp.app import main as serve
        except ModuleNotFoundError as missing:
            raise ToolMissing(
                f"the MCP server needs the protocol's official SDK ({missing}): pip install 'cuda-agent-lsp[mcp]'"
            ) from missing
        return serve(arguments.folders, settings, arguments.any_command)
    except CudaAgentError as error:
        return _fail(arguments, error, error.exit_code)


def _settle(arguments: argparse.Namespace) -> None:
    """Take the settings, and fill in from them the flags that were not given. Raises UsageError."""
    flags = {"policy": "policy", "model": "model", "tokens": "budgetTokens"}
    given = {name: getattr(arguments, flag, None) for flag, name in flags.items()}
    settings = config.parse(given, config.parse(config.from_words(arguments.set), DEFAULTS))
    config.use(settings)
    filled = {
        "device": settings.device,
        "arch": None if settings.arch == "auto" else settings.arch,
        "first": settings.capture_launches,
        "cap": settings.capture_limit_mb << 20,
        "budget": settings.budget_seconds,
        "candidates": settings.budget_candidates,
    }
    if getattr(arguments, "run", None) is None and getattr(arguments, "args", None) is None:
        filled |= {"run": settings.run_command, "args": settings.arguments}
    for name, value in filled.items():
        if getattr(arguments, name, value) is None:
            setattr(arguments, name, value)


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


def _fail(arguments: argparse.Namespace, error: CudaAgentError, code: int) -> int:
    if arguments.json:
        status = "error" if code == 3 else "undecided"
        _print_json(
            {
                "status": status,
                "evidence_level": "none",
                "inputs": "none",
                "gates": [],
                "timing": None,
                "diff": "",
                "error": str(error),
                "kind": type(error).__name__,
            }
        )
    print(f"cuda-agent: {error}", file=sys.stderr)
    diagnostics = getattr(error, "diagnostics", "")
    if diagnostics:
        print(diagnostics, file=sys.stderr)
    return code


def _print_json(data: Mapping[str, Any]) -> None:
    json.dump(data, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise SourceError(f"{path}: no such file")
    return path.absolute()


def _command(arguments: argparse.Namespace) -> dict[str, Any]:
    """How the program is run for inputs. Raises UsageError."""
    try:
        args, run = shlex.split(arguments.args or ""), shlex.split(arguments.run or "")
    except ValueError as error:
        raise UsageError(f"--args and --run are split like a shell does it: {error}") from error
    if run and args:
        raise UsageError("--run is the whole command: put the arguments there and leave --args out")
    command: dict[str, Any] = {"args": tuple(args), "run_command": tuple(run) or None}
    return command | ({"timeout_s": arguments.timeout} if arguments.timeout else {})


def _options(arguments: argparse.Namespace) -> JudgeOptions:
    from cuda_agent.judge import JudgeOptions

    options = JudgeOptions(in_program=arguments.in_program)
    if arguments.timeout:
        options = replace(options, deadline_s=arguments.timeout, program_timeout_s=arguments.timeout)
    return options


# ---------------------------------------------------------------- commands


def _facts(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.report import facts_table, file_facts

    found = file_facts(_existing(arguments.file), arguments.kernel, arguments.arch)
    if arguments.json:
        _print_json(found)
    else:
        facts_table(found)
    return 0


def _capture(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.capture import CaptureOptions, NothingCaptured, capture
    from cuda_agent.report import capture_json, capture_table

    command = arguments.cmd[1:] if arguments.cmd[:1] == ["--"] else arguments.cmd
    if not command:
        print("cuda-agent: capture needs a command: cuda-agent capture -- make run", file=sys.stderr)
        return 3
    options = CaptureOptions(
        device=arguments.device,
        kernel=arguments.kernel,
        first=arguments.first,
        select=arguments.select,
        cap=arguments.cap,
        stop=arguments.stop,
    )
    try:
        report = capture(command, Path.cwd(), options, on_event=progress.event, cancelled=stop.is_set)
    except NothingCaptured as error:
        print(f"cuda-agent: {error}", file=sys.stderr)
        report = error.report
    progress.close()
    if arguments.json:
        _print_json(capture_json(report))
    else:
        capture_table(report)
    return 0 if report.recorded else 2


def _verify(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.judge.evidence import to_json
    from cuda_agent.verify import VerifyRequest, verify

    files = [arguments.original, arguments.candidate]
    if arguments.evidence or arguments.test:
        if any(files) or arguments.kernel or arguments.args or arguments.run or arguments.in_program:
            raise UsageError("--from and --test say what is judged and how: leave files, --kernel, --args, --run out")
        return (_verify_again if arguments.evidence else _verify_test)(arguments, progress, stop)
    if not all(files):
        raise UsageError("verify needs two files, --from EVIDENCE or --test FOLDER")
    request = VerifyRequest(
        _existing(arguments.original),
        _existing(arguments.candidate),
        arguments.kernel,
        arguments.device,
        options=_options(arguments),
        **_command(arguments),
    )
    done = verify(request, on_event=progress.event, cancelled=stop.is_set)
    evidence = to_json(done.verdict, candidate=done.candidate, diff=done.diff)
    _show(arguments, progress, evidence)
    return EXIT[done.verdict.status]


def _verify_again(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.recheck import RecheckRequest, recheck

    request = RecheckRequest(
        arguments.evidence, arguments.source, arguments.inputs, arguments.device, arguments.timeout
    )
    done = recheck(request, on_event=progress.event, cancelled=stop.is_set)
    _show(arguments, progress, done.evidence)
    return {True: 0, False: 1, None: 2}[done.holds]


def _verify_test(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.judge.evidence import to_json
    from cuda_agent.regression import run

    verdict = run(arguments.test, arguments.device)
    _show(arguments, progress, to_json(verdict))
    return EXIT[verdict.status]


def _show(arguments: argparse.Namespace, progress: Progress, evidence: Mapping[str, Any]) -> None:
    from cuda_agent.report import show_evidence

    progress.close()
    _write_page(arguments.html, [evidence])
    if arguments.json:
        _print_json(evidence)
    else:
        show_evidence(evidence)


def _write_page(file: Path | None, evidences: Sequence[Mapping[str, Any]]) -> None:
    """The HTML page, when one was asked for and there is something to show."""
    if file is None:
        return
    if not evidences:
        print(f"no kernel was made faster, so {file} was not written", file=sys.stderr)
        return
    from cuda_agent.judge.evidence.page import page
    from cuda_agent.workload.bundle import write_atomic

    write_atomic(file, page(evidences).encode())
    print(f"{file} shows the evidence", file=sys.stderr)


def _write_evidence(folder: Path, won: Sequence[Outcome]) -> None:
    from cuda_agent.workload.bundle import safe_name, write_atomic

    for outcome in won:
        file = folder / f"{safe_name(outcome.kernel)}.json"
        write_atomic(file, (json.dumps(outcome.evidence, indent=2) + "\n").encode())
        print(f"{file} is the evidence of {outcome.kernel}", file=sys.stderr)


def _export_test(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.regression import ExportRequest, export

    request = ExportRequest(
        arguments.evidence, arguments.into, arguments.ctest, arguments.source, arguments.inputs, arguments.device
    )
    done = export(request, cancelled=stop.is_set)
    progress.close()
    if arguments.json:
        _print_json({"status": "done", **done.to_json()})
    else:
        print(done.sentence)
    return 0


def _bench(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.bench import bench
    from cuda_agent.report import bench_table

    result = bench(
        _existing(arguments.file),
        arguments.kernel,
        arguments.device,
        on_event=progress.event,
        cancelled=stop.is_set,
        **_command(arguments),
    )
    progress.close()
    if arguments.json:
        _print_json(result)
    else:
        bench_table(result)
    return 0


def _optimize(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.agent.loop import Request, optimize
    from cuda_agent.agent.policies.chosen import chosen, limits
    from cuda_agent.agent.program import optimize_all, together
    from cuda_agent.report import outcome_json, outcomes_table, show_outcome

    request = Request(
        _existing(arguments.file),
        kernel=arguments.kernel,
        device=arguments.device,
        budget_s=arguments.budget,
        max_candidates=arguments.candidates,
        trajectory=arguments.trajectory,
        options=_options(arguments),
        fresh=arguments.fresh,
        **limits(config.current()),
        **_command(arguments),
    )
    whole = None
    watch: dict[str, Any] = {"on_event": progress.event, "cancelled": stop.is_set}
    with chosen(config.current()) as policy:
        if arguments.kernel:
            outcomes = [optimize(request, policy=policy(), **watch)]
        else:
            outcomes = optimize_all(request, everything=arguments.all, policy=policy, **watch)
            whole = together(request, outcomes)
    progress.close()
    best = _best(outcomes)
    won = [outcome for outcome in outcomes if outcome.status == "verified" and outcome.evidence]
    _write_page(arguments.html, [outcome.evidence for outcome in won])
    if arguments.report:
        from cuda_agent.agent.picture import picture
        from cuda_agent.workload.bundle import write_atomic

        write_atomic(arguments.report, picture(request.path.name, outcomes).encode())
        print(f"{arguments.report} shows the search", file=sys.stderr)
    if arguments.evidence:
        _write_evidence(arguments.evidence, won)
    if arguments.json:
        _print_json(outcome_json(best, outcomes, whole))
    else:
        for outcome in outcomes:
            show_outcome(outcome)
        if len(outcomes) > 1:
            outcomes_table(outcomes, whole)
    if arguments.apply and won:
        _apply(request.path, won, whole)
    return {"verified": 0, "nothing": 0, "rejected": 1, "undecided": 2}[best.status]


def _apply(path: Path, won: Sequence[Outcome], whole: Together | None) -> None:
    """The verified edits of all kernels, or of the only one."""
    from cuda_agent.source import joined
    from cuda_agent.workload.bundle import write_atomic

    text = whole.text if whole else won[0].candidate.text if won[0].candidate else ""
    kernels = whole.kernels if whole else (won[0].kernel,)
    for file, content in joined.files(path, text):
        write_atomic(file, content.encode("utf-8", "surrogateescape"))
    many = f"kernels {', '.join(kernels)}" if len(kernels) > 1 else f"kernel {kernels[0]}"
    files = " and ".join([path.name, *joined.others(text)])
    have = "have" if joined.others(text) else "has"
    print(f"{files} now {have} the verified {many}{f'; {whole.sentence}' if whole else ''}", file=sys.stderr)


def _best(outcomes: Sequence[Outcome]) -> Outcome:
    """The one the exit code and the top of the JSON speak of: the largest verified gain, else the most decided."""
    order = {"verified": 0, "nothing": 1, "rejected": 2, "undecided": 3}

    def rank(outcome: Outcome) -> tuple[int, float]:
        timing = outcome.verdict.timing if outcome.verdict else None
        traffic = outcome.verdict.traffic if outcome.verdict else {}
        gain = timing.ci[0] if timing else traffic.get("sectors_before", 1.0) / (traffic.get("sectors_after") or 1.0)
        return order[outcome.status], -gain

    return min(outcomes, key=rank)


def _trust(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.lsp.trust import Trust, trust_file

    if not arguments.folder.is_dir():
        raise UsageError(f"{arguments.folder} is not a folder")
    trusted = not arguments.revoke
    Trust(arguments.folder).remember(trusted)
    folder = Trust(arguments.folder)
    if folder.remembered() is not trusted:
        raise CudaAgentError(f"the answer cannot be kept in {trust_file()}: see above")
    if arguments.json:
        _print_json({"status": "done", "folder": str(folder.root), "trusted": trusted})
    else:
        print(f"{folder.root} is {'trusted' if trusted else 'not trusted'} now ({trust_file()})")
    return 0


def _compare(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent import compare_page, records
    from cuda_agent.agent.loop import Request
    from cuda_agent.agent.policies.chosen import limits, several
    from cuda_agent.compare import CompareRequest, compare
    from cuda_agent.workload.bundle import write_atomic

    names = list(dict.fromkeys(filter(None, arguments.policies.split(","))))
    if unknown := [name for name in names if name not in ("search", "model", "mixed")] or not names:
        raise UsageError(f"--policies are search, model and mixed with commas between them, not {unknown}")
    settings = config.current()
    asks = next((name for name in names if name != "search"), "search")
    files = tuple(_existing(file) for file in arguments.files)
    each = Request(
        files[0],
        device=arguments.device,
        budget_s=arguments.budget,
        max_candidates=arguments.candidates,
        **limits(replace(settings, policy=asks)),
        **_command(arguments),
    )
    with several(settings, names) as policies:
        request = CompareRequest(files, each, arguments.kernel)
        found = compare(request, policies, on_event=progress.event, cancelled=stop.is_set)
    progress.close()
    if arguments.html:
        write_atomic(arguments.html, compare_page.document(found).encode())
        print(f"{arguments.html} shows the comparison", file=sys.stderr)
    if arguments.json:
        _print_json({"status": "done" if found.kernels else "undecided", **found.to_json()})
    else:
        records.show_comparison(found)
    return 0 if found.complete and found.kernels else 2


def _trajectories(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent import records

    progress.close()
    if arguments.action != "export" and arguments.out:
        raise UsageError("--out is for `trajectories export`")
    if arguments.action == "export":
        if not arguments.out:
            raise UsageError("trajectories export needs --out FILE.jsonl")
        count, skipped = records.export(arguments.ids, arguments.out)
        for sentence in skipped:
            print(sentence, file=sys.stderr)
        if arguments.json:
            _print_json({"status": "done", "searches": count, "file": str(arguments.out), "skipped": skipped})
        else:
            print(f"{arguments.out} has {count} search{'' if count == 1 else 'es'}")
        return 0
    if arguments.action == "show":
        found = records.searches(arguments.ids or ["last"])
        if arguments.json:
            _print_json({"status": "done", "searches": [list(one.lines) for one in found]})
        else:
            records.show(found)
        return 0
    rows = records.rows(arguments.ids)
    if arguments.json:
        _print_json({"status": "done", "trajectories": rows})
    else:
        records.table(rows)
    return 0


def _replay(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent import records
    from cuda_agent.agent import recorded
    from cuda_agent.replay import ReplayRequest, holds, replay

    (file,) = recorded.find([arguments.trajectory])
    request = ReplayRequest(file, arguments.source, arguments.inputs, arguments.device)
    done = replay(request, on_event=progress.event, cancelled=stop.is_set)
    progress.close()
    code = {True: 0, False: 1, None: 2}[holds(done)]
    if arguments.json:
        status = {0: "verified", 1: "rejected", 2: "undecided"}[code]
        _print_json({"status": status, "searches": [one.to_json() for one in done]})
    else:
        records.show_replays(done)
    return code


def _doctor(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.report import doctor, doctor_table

    found = doctor()
    progress.close()
    if arguments.json:
        _print_json(found)
    else:
        doctor_table(found)
    return 0


_COMMANDS: Mapping[str, Callable[[argparse.Namespace, Progress, threading.Event], int]] = {
    "facts": _facts,
    "capture": _capture,
    "verify": _verify,
    "bench": _bench,
    "optimize": _optimize,
    "compare": _compare,
    "trajectories": _trajectories,
    "replay": _replay,
    "export-test": _export_test,
    "trust": _trust,
    "doctor": _doctor,
}

if __name__ == "__main__":
    raise SystemExit(main())
