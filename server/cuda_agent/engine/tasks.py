"""What a job process does for each kind of request. Heavy rooms are imported by the task that needs them.

A task that ends well returns `{status, message, outcome}`; `facts` returns its facts."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent import paths
from cuda_agent.engine.codec import from_json, to_json
from cuda_agent.engine.job import Report
from cuda_agent.engine.messages import Capture, FactsOf, Optimize, RunSettings, Verify
from cuda_agent.errors import UsageError

if TYPE_CHECKING:
    from cuda_agent.judge import JudgeOptions

Task = Callable[[Mapping[str, Any], Report], Any]


def run(kind: str, params: Mapping[str, Any], report: Report) -> Any:
    """The task's JSON result. Raises the errors of `errors.py`."""
    task = TASKS.get(kind)
    if task is None:
        raise UsageError(f"no such job: {kind}; there are {', '.join(sorted(TASKS))}")
    use_nvcc(str(params.get("nvcc") or (params.get("settings") or {}).get("options", {}).get("nvcc_path") or ""))
    return task(params, report)


def use_nvcc(setting: str) -> None:
    """Put the nvcc that the person named before all others, for this process and what it starts. ToolMissing when it is
    none."""
    if setting:
        from cuda_agent.toolchain import nvcc

        folder = str(nvcc.find(setting).path.parent)
        if os.environ.get("PATH", "").split(os.pathsep)[0] != folder:
            os.environ["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", "")])


def facts(params: Mapping[str, Any], report: Report) -> Any:
    from cuda_agent.engine.kernel_facts import file_facts

    ask = from_json(FactsOf, params)
    return file_facts(ask)


def optimize(params: Mapping[str, Any], report: Report) -> Any:
    from cuda_agent.agent import loop

    ask = from_json(Optimize, params)
    settings = _settled(ask.settings, Path(ask.path), ask.kernel, report)
    request = loop.Request(
        Path(ask.path),
        ask.text,
        ask.kernel,
        settings.device,
        settings.budget_s,
        settings.max_candidates,
        settings.args,
        trajectory=_trajectory(ask.kernel, report),
        options=_judge_options(settings),
    )
    best = _Best(report)
    outcome = loop.optimize(request, on_event=best.event, cancelled=report.cancelled)
    found = {
        "status": outcome.status,
        "candidate": to_json(outcome.candidate),
        "verdict": to_json(outcome.verdict),
        "diff": outcome.diff,
        "tried": outcome.tried,
    }
    return {"status": "done", "message": outcome.message, "outcome": found}


def capture(params: Mapping[str, Any], report: Report) -> Any:
    from cuda_agent.capture import build_and_run
    from cuda_agent.source.documents import Document
    from cuda_agent.source.symbols import module
    from cuda_agent.toolchain.build import find_build

    ask = from_json(Capture, params)
    path, settings = Path(ask.path), ask.settings
    options = _capture_options(settings, ask.kernel)
    if settings.run_command:
        done = _run_capture(settings, options, report)
    elif module(Document(ask.path, ask.text)).has_main:
        arguments = list(settings.args)
        done = build_and_run(
            path, arguments, find_build(path), options, on_event=_forward(report), cancelled=report.cancelled
        )
    else:
        raise UsageError(f"{path.name} has no main of its own: set cudaAgent.runCommand to what runs your program")
    kept = [f"{kernel.kernel}: {kernel.recorded} of {kernel.launches} launches" for kernel in done.kernels]
    message = f"captured on {done.device or 'no device'}: {'; '.join(kept) or 'no launch'}"
    return {"status": "done", "message": message, "outcome": done.to_json()}


def verify(params: Mapping[str, Any], report: Report) -> Any:
    from cuda_agent import judge
    from cuda_agent.device import open_device
    from cuda_agent.inputs import find_or_make
    from cuda_agent.model import Candidate, LaunchMap
    from cuda_agent.source.documents import Document
    from cuda_agent.source.edits import minimal, unified_diff
    from cuda_agent.source.symbols import module
    from cuda_agent.toolchain.build import find_build

    ask = from_json(Verify, params)
    path = Path(ask.path)
    settings = _settled(ask.settings, path, ask.kernel, report)
    parsed, build = module(Document(ask.path, ask.text)), find_build(path)
    forward = _forward(report)
    with open_device(settings.device) as device:
        kind = device.info.kind
        workload = find_or_make(
            path, parsed, ask.kernel, build, kind, args=settings.args, on_event=forward, cancelled=report.cancelled
        )
        candidate = Candidate(
            ask.kernel,
            ask.text,
            ask.candidate,
            minimal(ask.text, ask.candidate),
            ask.origin,
            ask.numeric,  # type: ignore[arg-type]
            from_json(LaunchMap, ask.launch),
            id=hashlib.sha256(ask.candidate.encode("utf-8", "surrogatepass")).hexdigest()[:12],
        )
        verdict = judge.judge(
            device,
            build,
            workload,
            ask.text,
            candidate,
            options=_judge_options(settings),
            on_event=forward,
            cancelled=report.cancelled,
        )
    diff = unified_diff(ask.text, ask.candidate, path.name)
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
            self.score, best = float(score), f"{event.get('gain', '')} by {event.get('origin', '')}"
            if event.get("candidate") is not None and event.get("verdict") is not None:
                kept = {"candidate": to_json(event["candidate"]), "verdict": to_json(event["verdict"])}
        _say(self.report, event, best, kept)


def _forward(report: Report) -> Callable[[Mapping[str, Any]], None]:
    return lambda event: _say(report, event, None, None)


def _say(report: Report, event: Mapping[str, Any], best: str | None, kept: Mapping[str, Any] | None) -> None:
    message = str(event.get("message") or event.get("event") or "")
    if event.get("event") == "log":
        report.log("info", message)
    else:
        report.progress(int(event.get("percentage") or 0), message, best, kept)


def _judge_options(settings: RunSettings) -> JudgeOptions:
    from cuda_agent.judge import JudgeOptions

    return JudgeOptions(allow=frozenset({"fast-math"}) if settings.options.get("fast_math") else frozenset())


def _capture_options(settings: RunSettings, kernel: str | None) -> Any:
    from cuda_agent.capture import CaptureOptions

    pattern = rf"\b{kernel.split('::')[-1].partition('@')[0]}\b" if kernel else None
    first = int(settings.options.get("capture_launches") or 2)
    cap = int(settings.options.get("capture_limit_mb") or 1024) << 20
    return CaptureOptions(device=settings.device, kernel=pattern, first=first, cap=cap)


def _run_capture(settings: RunSettings, options: Any, report: Report) -> Any:
    """Run the person's command in the project's folder, which is this process's."""
    from cuda_agent.capture import capture as run_and_capture

    command = list(settings.run_command)
    return run_and_capture(command, Path.cwd(), options, on_event=_forward(report), cancelled=report.cancelled)


def _settled(settings: RunSettings, path: Path, kernel: str, report: Report) -> RunSettings:
    """With a run command and no earlier capture: capture now, from the project's folder. The rest then finds it."""
    from dataclasses import replace

    from cuda_agent.workload import bundle

    if settings.run_command and bundle.find(path, kernel) is None:
        report.progress(1, "capturing inputs with the run command")
        _run_capture(settings, _capture_options(settings, kernel), report)
    return replace(settings, args=()) if settings.run_command else settings


def _trajectory(kernel: str, report: Report) -> Path | None:
    """One file a search, in the cache: the best so far stands there even when everything is killed. None, and a line in
    the log, when the cache cannot be written."""
    folder = paths.cache_dir() / "trajectories"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        report.log("warning", f"no trajectory is kept: {error}")
        return None
    name = "".join(char if char.isalnum() else "_" for char in kernel)[:60]
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{os.getpid()}.jsonl"
