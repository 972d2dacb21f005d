"""`python -m cuda_agent.engine.job [TASKS]`: runs requests in a process tree of its own, so that cancel is a kill.
`TASKS` is the module whose `run(kind, params, report)` does the work, `engine.tasks` unless said otherwise.

Nothing heavy is imported before the guardian has split off (`processes.guard`). The engine's messages: `run {kind,
params, trusted}` (a request, one at a time), `cancel` and `answer {ask, answer}`. Ours: `progress {percentage, message,
best, best_outcome}`, `ask {ask, request}` and `stop {ask}` for the editor's language model, and `log {level, message}`,
which also has what this package's loggers say."""

from __future__ import annotations

import importlib
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cuda_agent import keys, trust
from cuda_agent.engine import processes, wire
from cuda_agent.errors import Cancelled, CompileError, CudaAgentError, ModelError

if TYPE_CHECKING:
    from cuda_agent.agent.models import Limits

POLL_S = 0.05  # a cancel is seen within this, while an answer is waited for


class Report:
    """What a task may say while it runs, and whether it should stop."""

    def __init__(self, writer: wire.FdWriter) -> None:
        self._writer = writer
        self._stop = threading.Event()
        self._lock = threading.Lock()  # tasks may report from worker threads
        self._asked = 0
        self._answers: dict[int, queue.SimpleQueue[Mapping[str, Any]]] = {}  # by the number of the request

    def progress(
        self, percentage: int, message: str, best: str | None = None, best_outcome: Mapping[str, Any] | None = None
    ) -> None:
        fields = {"percentage": percentage, "message": message, "best": best, "best_outcome": best_outcome}
        self._send(wire.notification("progress", {k: v for k, v in fields.items() if v is not None}))

    def log(self, level: str, message: str) -> None:
        self._send(wire.notification("log", {"level": level, "message": message}))

    def ask(self, request: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
        """The editor's answer to `cudaAgent/model/reply`, from any thread. Raises Cancelled, and ModelError when none
        came within `limits.seconds`."""
        with self._lock:
            self._asked += 1
            ask, answers = self._asked, queue.SimpleQueue[Mapping[str, Any]]()
            self._answers[ask] = answers
        end = time.monotonic() + limits.seconds
        self._send(wire.notification("ask", {"ask": ask, "request": request}))
        try:
            while True:
                try:
                    return answers.get(timeout=POLL_S)
                except queue.Empty:
                    if self.cancelled() or limits.cancelled():
                        raise Cancelled("stopped while the editor's language model was writing") from None
                    if time.monotonic() > end:
                        raise ModelError(
                            f"the editor's language model gave no answer within {limits.seconds:.0f} s: run the action "
                            "again, or choose another model (cudaAgent.model)"
                        ) from None
        except (Cancelled, ModelError):
            self._send(wire.notification("stop", {"ask": ask}))
            raise
        finally:
            self._answers.pop(ask, None)

    def answered(self, ask: int, answer: Mapping[str, Any]) -> None:
        """From the engine's thread. An answer that nobody waits for any more is dropped."""
        answers = self._answers.get(ask)
        if answers is not None:
            answers.put(answer)

    def cancelled(self) -> bool:
        return self._stop.is_set()

    def stop(self, on: bool) -> None:
        (self._stop.set if on else self._stop.clear)()

    def answer(self, message: wire.Message) -> None:
        self._send(message)

    def _send(self, message: wire.Message) -> None:
        with self._lock:
            self._writer.send(message)


class ToEngine(logging.Handler):
    """Hands log records on, so that the person reads them in the editor."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.WARNING)
        self.report = report

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self.report.log(level, record.getMessage())


def error_body(failure: BaseException) -> tuple[int, str, dict[str, Any]]:
    """(code, message, data) of a JSON-RPC error; `data.kind` names the class."""
    data: dict[str, Any] = {"kind": type(failure).__name__}
    if isinstance(failure, CompileError):
        data["diagnostics"] = failure.diagnostics
    if isinstance(failure, CudaAgentError):
        return wire.CUDA_AGENT_ERROR, str(failure), data
    data["traceback"] = "".join(traceback.format_exception(failure))
    return wire.INTERNAL_ERROR, f"{type(failure).__name__}: {failure}", data


def run_one(message: wire.Message, report: Report, tasks: str) -> None:
    params = message.get("params") or {}
    trust.use(params.get("trusted") or {})
    try:
        value = importlib.import_module(tasks).run(str(params.get("kind")), params.get("params") or {}, report)
        report.answer(wire.result(message["id"], value))
    except Exception as failure:  # the catch-all of this process: whatever a task raises becomes its answer
        code, text, data = error_body(failure)
        if code == wire.INTERNAL_ERROR:
            traceback.print_exception(failure)
        report.answer(wire.error(message["id"], code, text, data))


def main(tasks: str = "cuda_agent.engine.tasks") -> int:
    keys.take()  # before the guardian splits off: it must not hold them either
    fd_in, fd_out = wire.private_stdio()
    processes.guard(fd_in)  # returns in the job only
    report = Report(wire.FdWriter(fd_out))
    logging.getLogger("cuda_agent").addHandler(ToEngine(report))
    todo: queue.Queue[wire.Message | None] = queue.Queue()

    def listen() -> None:
        with os.fdopen(fd_in, "rb") as stream:
            while (message := wire.read_blocking(stream)) is not None:
                method, params = message.get("method"), message.get("params") or {}
                if method == "cancel":
                    report.stop(True)
                elif method == "answer":
                    report.answered(params["ask"], params["answer"])
                else:
                    report.stop(False)
                    todo.put(message)
        todo.put(None)

    threading.Thread(target=listen, daemon=True, name="engine").start()
    while (message := todo.get()) is not None:
        run_one(message, report, tasks)
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # not exit(): a daemon thread of some library must not hold the process
