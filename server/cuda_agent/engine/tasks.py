"""What a job process does for each kind of request. Heavy rooms are imported by the task that needs them.

A task that ends well returns `{status, message, outcome}`; `facts` returns its facts. The request's settings are this
process's from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent import config, trust
from cuda_agent.engine.codec import from_json, to_json
from cuda_agent.engine.job import Report
from cuda_agent.engine.messages import REQUESTS, Capture, FactsOf, Optimize, Verify
from cuda_agent.errors import SourceError, UsageError

if TYPE_CHECKING:
    from cuda_agent.agent.request import Outcome
    from cuda_agent.source.symbols import Module

Task = Callable[[Any, Report], Any]


def run(kind: str, params: Mapping[str, Any], report: Report) -> Any:
    """The task's JSON result. Raises the errors of `errors.py`."""
    task = TASKS.get(kind)
    if task is None:
        raise UsageError(f"no such job: {kind}; there are {', '.join(sorted(TASKS))}")
    ask: Any = from_json(REQUESTS[kind], params)
    config.use(ask.settings)
    return task(ask, report)


def facts(ask: FactsOf, report: Report) -> Any:
    from cuda_agent.engine.kernel_facts import file_facts

    return file_facts(ask)


def optimize(ask: Optimize, report: Report) -> Any:
    outcome = search(ask, report)
    found = {
        "status": outcome.status,
        "candidate": to_json(outcome.candidate),
        "verdict": to_json(outcome.verdict),
        "diff": outcome.diff,
        "tried": outcome.tried,
    }
    return {"status": "done", "message": outcome.message, "outcome": found}


def search(ask: Optimize, report: Report) -> Outcome:
    """One kernel's search, its progress reported."""
    from cuda_agent.agent import loop
    from cuda_agent.agent.policies.chosen import chosen, limits
    from cuda_agent.agent.request import Request

    settings = ask.settings
    with chosen(settings, report.ask) as policy:  # first: a model that is not there is said before anything runs
        request = Request(
            Path(ask.path),
            ask.text,
            ask.kernel,
            settings.device,
            settings.budget_seconds,
            settings.budget_candidates,
            args=settled(ask, report),
            **limits(settings),
            unsaved={Path(path): text for path, text in ask.unsaved.items()},
        )
        return loop.optimize(request, on_event=_Best(report).event, cancelled=report.cancelled, policy=policy())


def capture(ask: Capture, report: Report) -> Any:
    from cuda_agent.capture import build_and_run
    from cuda_agent.toolchain.build import find_build

    path, arguments = Path(ask.path), ask.settings.program_arguments
    if ask.settings.run_command:
        done = _run_capture(ask, report)
    elif _module(ask).has_main:
        done = build_and_run(
            path,
            arguments,
            find_build(path),
            _capture_options(ask),
            on_event=on_event(report),
            cancelled=report.cancelled,
            text=ask.text,
        )
    else:
        raise UsageError(f"{path.name} has no main of its own: set cudaAgent.runCommand to what runs your program")
    kept = [f"{kernel.kernel}: {kernel.recorded} of {kernel.launches} launches" for kernel in done.kernels]
    message = f"captured on {done.device or 'no device'}: {'; '.join(kept) or 'no launch'}"
    return {"status": "done", "message": message, "outcome": done.to_json()}


def verify(ask: Verify, report: Report) -> Any:
    from cuda_agent import judge
    from cuda_agent.device import open_device
    from cuda_agent.inputs import find_or_make
    from cuda_agent.model import Candidate, LaunchMap
    from cuda_agent.source import joined
    from cuda_agent.source.documents import text_id
    from cuda_agent.source.edits import minimal, unified_diff
    from cuda_agent.toolchain.build import find_build

    path = Path(ask.path)
    arguments = settled(ask, report)
    parsed, build = _module(ask), find_build(path)
    forward = on_event(report)
    with open_device(ask.settings.device) as device:
        kind = device.info.kind
        workload = find_or_make(
            path, parsed, ask.kernel, build, kind, args=arguments, on_event=forward, cancelled=report.cancelled
        )
        candidate = Candidate(
            ask.kernel,
            ask.text,
            ask.candidate,
            minimal(ask.text, ask.candidate),
            ask.origin,
            ask.numeric,  # type: ignore[arg-type]
            from_json(LaunchMap, ask.launch),
            id=text_id(ask.candidate),
            reason=ask.reason,
        )
        verdict = judge.judge(
            device, build, workload, ask.text, candidate, on_event=forward, cancelled=report.cancelled
        )
    diff = unified_diff(ask.text, ask.candidate, joined.shown(path, ask.text))
    found = {"status": verdict.status, "candidate": to_json(candidate), "verdict": to_json(verdict), "diff": diff}
    return {"status": "done", "message": judge.headline(verdict), "outcome": found}


TASKS: dict[str, Task] = {"facts": facts, "optimize": optimize, "capture": capture, "verify": verify}

# ---------------------------------------------------------------- shared by the tasks


class _Best:
    """Turns the loop's events into progress and keeps the best candidate, so that a cancel or a crash does not lose
    it."""

    def __init__(self, report: Report) -> None:
        self.report, self.score = report, 0.0

    def event(self, event: Mapping[str, Any]) -> None:
        best: str | None = None
        kept: Mapping[str, Any] | None = None
        score = event.get("score")
        if isinstance(score, (int, float)) and score > self.score:
            self.score, best = (
                float(score),
                f"{event.get('gain', '')} by {str(event.get('origin', '')).removeprefix('rule:')}",
            )
            if event.get("candidate") is not None and event.get("verdict") is not None:
                kept = {"candidate": to_json(event["candidate"]), "verdict": to_json(event["verdict"])}
        _say(self.report, event, best, kept)


def on_event(report: Report) -> Callable[[Mapping[str, Any]], None]:
    return lambda event: _say(report, event, None, None)


def _say(report: Report, event: Mapping[str, Any], best: str | None, kept: Mapping[str, Any] | None) -> None:
    from cuda_agent.agent import live

    numbers = live.numbers(event, best=False)  # the best goes beside the message
    message = " · ".join(part for part in (numbers, live.message(event)) if part) or str(event.get("event") or "")
    if event.get("event") == "log":
        report.log("info", message)
    else:
        report.progress(int(event.get("percentage") or 0), message, best, kept)


def _capture_options(ask: Capture | Optimize | Verify) -> Any:
    from cuda_agent.inputs import capture_options

    return capture_options(ask.settings.device, _module(ask), [ask.kernel] if ask.kernel else [])


def _module(ask: Capture | Optimize | Verify) -> Module:
    from cuda_agent.source.documents import Document
    from cuda_agent.source.symbols import module

    return module(Document(ask.path, ask.text))


def _run_capture(ask: Capture | Optimize | Verify, report: Report) -> Any:
    """Run the person's command in the project's folder, which is this process's. SourceError when the editor's text is
    not the one on disk, which is the one that a command builds."""
    from cuda_agent.capture import capture as run_and_capture
    from cuda_agent.source import documents, joined

    for path, text in joined.files(Path(ask.path), _with_launches(ask)):
        if not documents.is_saved(path, text):
            raise SourceError(
                f"{path.name} has unsaved changes that the run command would not see: save the file first"
            )
    trust.need(Path.cwd())
    options, forward = _capture_options(ask), on_event(report)
    return run_and_capture(ask.settings.command, Path.cwd(), options, on_event=forward, cancelled=report.cancelled)


def _with_launches(ask: Capture | Optimize | Verify) -> str:
    """The request's text, for a search joined with the files that launch its kernels."""
    from cuda_agent.toolchain.build import find_build
    from cuda_agent.toolchain.launchers import with_launches

    unsaved = ask.unsaved if isinstance(ask, Optimize) else {}
    return with_launches(find_build(Path(ask.path)), ask.text, {Path(path): text for path, text in unsaved.items()})


def settled(ask: Optimize | Verify, report: Report) -> tuple[str, ...]:
    """With a run command and no earlier capture: capture now, from the project's folder; the rest then finds it.
    Returns the arguments for the file's own program, which is not run then."""
    from cuda_agent.workload import own

    if not ask.settings.run_command:
        return ask.settings.program_arguments
    if own.find(Path(ask.path), _module(ask), ask.kernel) is None:
        report.progress(1, "capturing inputs with the run command")
        _run_capture(ask, report)
    return ()
