"""A search on a terminal and in an editor's progress line: real events of a search on the simulated GPU."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from cuda_agent.engine import tasks
from cuda_agent.progress import ROWS, Progress, SearchTable

from .script import Script
from .test_loop_timed import WORK, Bench, made

ROUND = (
    made(90, "block-shape(x=64)"),
    made(41, "row-per-warp(lanes=32)"),
    made(20, "coarsen(elements=4)", machine="b[:] = 2 * a\nreturn 20.0"),
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def drawn(table: SearchTable, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table.render())
    return cast(io.StringIO, console.file).getvalue().splitlines()


def test_the_table(bench: Bench) -> None:
    bench.run(Script(ROUND))
    table = SearchTable()
    for event in bench.events:
        table.event(event)
    lines = drawn(table)
    assert lines[0].strip() == "axpy"
    assert re.search(r"✓ +block-shape\(x=64\) +1\.1\d× +\[1\.\d\d, 1\.\d\d\]", lines[2])
    assert re.search(r"✓ +row-per-warp\(lanes=32\) +2\.4\d× +\[2\.\d\d, 2\.\d\d\]", lines[3])
    assert re.search(r"✗ +coarsen\(elements=4\) +G3 outputs", lines[4])
    assert re.fullmatch(r"3 tried · best 2\.4\d× by row-per-warp\(lanes=32\) · \d+ s left", lines[5].strip())
    assert all(len(line) <= 60 for line in drawn(table, 60))


def test_the_best_stays_in_the_table(bench: Bench) -> None:
    bench.run(Script([made(41, "best"), *(made(90 + n, f"r{n}") for n in range(ROWS + 3))]))
    table = SearchTable()
    for event in bench.events:
        table.event(event)
    lines = drawn(table)
    assert " best " in lines[2]
    assert len(lines) == ROWS + 3  # title, heads, numbers
    assert f"r{ROWS + 2} " in lines[-2]


def test_what_is_tried_now_and_another_kernel(bench: Bench) -> None:
    bench.run(Script(ROUND))
    at = max(number for number, event in enumerate(bench.events) if event["event"] == "trying")
    table = SearchTable()
    for event in bench.events[: at + 1]:
        table.event(event)
    assert "trying coarsen(elements=4)" in drawn(table)[-2]
    table.event({**bench.events[0], "search": "other", "left_s": 9.0, "tried": 0, "best": None})
    assert "row-per-warp" not in "\n".join(drawn(table))


def test_a_terminal(bench: Bench) -> None:
    out = io.StringIO()
    with Progress(console=Console(file=out, width=100, force_terminal=True)) as progress:
        bench.run(Script(ROUND))
        for event in bench.events:
            progress.event(event)
        progress._live.refresh()  # type: ignore[union-attr]
    assert "row-per-warp(lanes=32)" in out.getvalue()
    assert "s left" in out.getvalue()


def test_plain_lines(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(Script(ROUND))
    with Progress(console=Console(file=io.StringIO())) as progress:
        for event in bench.events:
            progress.event(event)
    err = capsys.readouterr().err
    assert re.search(
        r"%\] row-per-warp\(lanes=32\): 2\.4\d× \(2 tried · best 2\.4\d× by row-per-warp\(lanes=32\) · \d+ s left\)\n",
        err,
    )
    assert "trying" not in err


def test_the_progress_line_of_an_editor(bench: Bench) -> None:
    bench.run(Script(ROUND, [made(30, "unroll", machine=WORK + "return 30.0")]))
    said: list[tuple[Any, ...]] = []

    class Report:
        def progress(self, *fields: Any) -> None:
            said.append(fields)

    best = tasks._Best(cast(Any, Report()))
    for event in bench.events:
        best.event(event)
    messages = [message for _, message, *_ in said]
    assert any(re.fullmatch(r"1 tried · \d+ s left · block-shape\(x=64\): 1\.1\d×", message) for message in messages)
    assert any(re.fullmatch(r"2 tried · \d+ s left · trying row-per-warp\(lanes=32\)", message) for message in messages)
    assert re.fullmatch(r"3\.3\d× by unroll", [best for _, _, best, _ in said if best][-1])
