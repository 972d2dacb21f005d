"""What a job process does for each tool that compiles or runs; the rooms below do the work, as for the command line.

Each task returns `{result, candidate, verdict, diff}`: `result` is the tool's, the others are what a proposal is made
of and null where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cuda_agent import config
from cuda_agent.engine import tasks
from cuda_agent.engine.codec import from_json, to_json
from cuda_agent.engine.job import Report
from cuda_agent.engine.messages import Capture, Optimize
from cuda_agent.errors import UsageError
from cuda_agent.mcp import results
from cuda_agent.model import Candidate, Verdict
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.workload import own


@dataclass(frozen=True, slots=True)
class Ask:
    """`text` is the file as it is now, saved or not; `candidate` a model's rewrite of it, whole."""

    path: str
    text: str
    kernel: str | None = None
    candidate: str = ""
    origin: str = "model:mcp"
    reason: str = ""
    settings: config.Settings = field(default_factory=config.Settings)


def run(kind: str, params: Mapping[str, Any], report: Report) -> Any:
    """The task's JSON result. Raises the errors of `errors.py`."""
    ask = from_json(Ask, params)
    config.use(ask.settings)
    return TASKS[kind](ask, report)


def facts(ask: Ask, report: Report) -> Any:
    from cuda_agent.report import file_facts

    return _answer(results.facts(file_facts(Path(ask.path), ask.kernel, None, ask.text)))


def capture(ask: Ask, report: Report) -> Any:
    found = tasks.capture(Capture(ask.path, ask.text, ask.kernel, ask.settings), report)["outcome"]
    return _answer(results.capture({"status": "done" if found["recorded"] else "undecided", **found}))


def verify(ask: Ask, report: Report) -> Any:
    from cuda_agent.judge.evidence import to_json as evidence_json
    from cuda_agent.verify import VerifyRequest
    from cuda_agent.verify import verify as judge

    path, kernel = Path(ask.path), _kernel(ask)
    request = VerifyRequest(
        path,
        path,
        kernel,
        ask.settings.device,
        _arguments(ask, kernel, report),
        text=ask.text,
        rewrite=ask.candidate,
        origin=ask.origin,
        reason=ask.reason,
    )
    done = judge(request, on_event=tasks.on_event(report), cancelled=report.cancelled)
    evidence = evidence_json(done.verdict, candidate=done.candidate, diff=done.diff)
    return _answer(results.verdict(evidence), done.candidate, done.verdict, done.diff)


def bench(ask: Ask, report: Report) -> Any:
    from cuda_agent.bench import bench as time

    kernel = _one_kernel(ask)
    found = time(
        Path(ask.path),
        kernel,
        ask.settings.device,
        args=_arguments(ask, kernel, report),
        text=ask.text,
        on_event=tasks.on_event(report),
        cancelled=report.cancelled,
    )
    return _answer(found)


def optimise(ask: Ask, report: Report) -> Any:
    from cuda_agent.report import outcome_json

    kernel, settings = _one_kernel(ask), ask.settings
    if _captured(ask, kernel):  # the program is not run again
        settings = replace(settings, run_command="", arguments="")
    found = tasks.search(Optimize(ask.path, ask.text, kernel, settings), report)
    return _answer(results.outcome(outcome_json(found, [found])), found.candidate, found.verdict, found.diff)


TASKS: dict[str, Callable[[Ask, Report], Any]] = {
    "facts": facts,
    "capture": capture,
    "verify": verify,
    "bench": bench,
    "optimise": optimise,
}


def _answer(
    result: Mapping[str, Any], candidate: Candidate | None = None, verdict: Verdict | None = None, diff: str = ""
) -> Any:
    return {"result": result, "candidate": to_json(candidate), "verdict": to_json(verdict), "diff": diff}


def _kernel(ask: Ask) -> str | None:
    """The one that was named, or the only one of the file; None when there are several. SourceError."""
    kernels = module(Document(ask.path, ask.text)).kernels
    return ask.kernel or (kernels[0].id if len(kernels) == 1 else None)


def _one_kernel(ask: Ask) -> str:
    """As `_kernel`. UsageError when there are several."""
    kernel = _kernel(ask)
    if kernel is None:
        names = ", ".join(one.id for one in module(Document(ask.path, ask.text)).kernels)
        raise UsageError(f"{Path(ask.path).name} has the kernels {names or 'none'}: say which one with `kernel`")
    return kernel


def _captured(ask: Ask, kernel: str) -> bool:
    return own.find(Path(ask.path), module(Document(ask.path, ask.text)), kernel) is not None


def _arguments(ask: Ask, kernel: str | None, report: Report) -> tuple[str, ...]:
    """Arguments for the file's own program, where it has to be run; none where inputs were captured before."""
    if kernel is not None and _captured(ask, kernel):
        return ()
    return tasks.settled(Optimize(ask.path, ask.text, kernel or "", ask.settings), report)
