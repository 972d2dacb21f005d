"""What a job process does for each kind of request. Heavy rooms are imported by the task that needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cuda_agent.engine.job import Report
from cuda_agent.errors import UsageError

Task = Callable[[Mapping[str, Any], Report], Any]


def run(kind: str, params: Mapping[str, Any], report: Report) -> Any:
    """The task's JSON result. Raises the errors of `errors.py`."""
    task = TASKS.get(kind)
    if task is None:
        raise UsageError(f"no such job: {kind}; there are {', '.join(sorted(TASKS))}")
    return task(params, report)


TASKS: dict[str, Task] = {}
