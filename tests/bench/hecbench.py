"""The 34 development programs of HeCBench: captured, and every kernel of them optimised without a model.

usage: hecbench.py CORPUS [--out FOLDER] [--device cuda|emulator] [--programs a,b] [--gpus N] [--together N]
                   [--budget SECONDS] [--wall SECONDS] [--earlier RESULTS.jsonl] [--again] [--report]

CORPUS is HeCBench's `src`. Builds (`make ARCH=…`) run ahead on the CPU's cores. A GPU captures up to four built
programs at once, or optimises one where no built one waits; with `--together N` so many such things happen on it side
by side, and only what is timed is alone (`device/turn.py`). With `--gpus N` each GPU takes the next program. Every row
is written to `results.jsonl` in the out folder as soon as it is known; a second run with that folder (or with
`--earlier`) does the rest, with `--again` also the kernels that were judged and have no verified gain. After `--wall`
seconds it stops what it is doing, keeps that and prints. `--report` only prints. Written are also `table.md`,
`gallery.md`, `gains.svg`, `log.txt` and `gave.json` (for docs/rules).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent))
import hecbench_report as report
from development import DEVELOPMENT, Development

WORKER = Path(__file__).parent / "hecbench_program.py"
AT_ONCE = 4  # captures on one GPU
AHEAD = 24  # captured programs that may wait: a search on the same GPU stands still while others are captured
ENOUGH = 0.6  # of a program's budget must be left, else it waits for the next run
GRACE = 8.0  # seconds that a process may take to stop after its deadline
BUILD_SECONDS = 330.0


@dataclass
class Place:
    """A program on its way through the stages. Done where the results say so: it never comes here."""

    program: Development
    folder: Path


class Bench:
    def __init__(self, arguments: argparse.Namespace, work: Path, known: Mapping[str, Sequence[str]]) -> None:
        self.arguments, self.work, self.out = arguments, work, arguments.out
        self.known = known  # kernels of a program that need no search any more
        self.started = time.time()
        self.deadline = self.started + arguments.wall
        self.emulated = arguments.device == "emulator"
        self._changed = threading.Condition()
        self._built: deque[Place] = deque()
        self._ready: deque[Place] = deque()
        self._on_the_way = 0  # programs that are being built or captured
        self._results: IO[str] = (self.out / "results.jsonl").open("a", encoding="utf-8")
        self._log: IO[str] = (self.out / "log.txt").open("a", encoding="utf-8")

    def run(self, programs: Sequence[Development]) -> None:
        gpus = 1 if self.emulated else self.arguments.gpus
        places = gpus * self.arguments.together
        builders = max(1, min(8, (os.cpu_count() or 2) // 2))
        self._on_the_way = len(programs)
        with ThreadPoolExecutor(builders, "build") as pool, ThreadPoolExecutor(places, "gpu") as devices:
            for program in programs:
                pool.submit(self._guarded, self._build, program)
            for future in [devices.submit(self._serve, number % gpus) for number in range(places)]:
                future.result()
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def left(self) -> float:
        return self.deadline - time.time()

    # ------------------------------------------------------------ stages

    def _build(self, program: Development) -> None:
        try:
            place = Place(program, program.copy(self.arguments.corpus, self.work / program.name))
        except OSError as error:
            self._failed(program, f"{error.filename or ''}: {error.strerror or error}")
            return
        if not self.emulated:  # there the capture builds
            entries = list(self._process("build", place, None, BUILD_SECONDS))
            if not any(entry.get("built") for entry in entries):
                why = next((entry["why"] for entry in entries if entry.get("why")), "")
                self._failed(program, self._error(entries, f"does not build: {why}"))
                return
        self._move(self._built, place)

    def _serve(self, gpu: int) -> None:
        """One GPU's day."""
        while (work := self._next()) is not None:
            stage, places = work
            if stage == "capture":
                with ThreadPoolExecutor(AT_ONCE, f"capture-{gpu}") as pool:
                    for place in places:
                        pool.submit(self._guarded, self._capture, place.program, place, gpu)
            else:
                self._guarded(self._optimise, places[0].program, places[0], gpu, on_the_way=0)

    def _next(self) -> tuple[str, list[Place]] | None:
        """What a free GPU does now; waits while programs are on their way. None: there is no more, or no time."""
        with self._changed:
            while self.left > ENOUGH * self.arguments.budget:
                if self._built and len(self._ready) < AHEAD:
                    return "capture", [self._built.popleft() for _ in range(min(AT_ONCE, len(self._built)))]
                if self._ready:
                    return "optimize", [self._ready.popleft()]
                if not self._on_the_way:
                    return None
                self._changed.wait(0.5)
        return None

    def _capture(self, _: Development, place: Place, gpu: int) -> None:
        seconds = self.arguments.capture_seconds + 60
        entries = list(self._process("capture", place, gpu, seconds))
        if not any("captured" in entry for entry in entries):
            self._failed(place.program, self._error(entries, "the capture failed"))
            return
        self._move(self._ready, place)

    def _optimise(self, program: Development, place: Place, gpu: int) -> None:
        began, entries = time.time(), []
        for entry in self._process("optimize", place, gpu, self.left):
            entries.append(entry)
            if "row" in entry:
                self._write(entry)
                row = entry["row"]
                gain = f"{row['ratio']:.2f}×" if row["ratio"] else report.why_nothing(row)[:110]
                self._say(f"{program.name} {row['kernel']}: {row['status']} {gain} ({row['seconds']:.0f} s)")
        finished = any(entry.get("done") for entry in entries)
        cut = self.left <= 0 or any(entry["row"]["cut"] for entry in entries if "row" in entry)
        error = None if finished else self._error(entries, "ended early")
        seconds = time.time() - began
        self._write({"program": program.name, "done": not cut, "error": error, "seconds": seconds, "gpu": gpu})
        shutil.rmtree(place.folder.parent, ignore_errors=True)

    # ------------------------------------------------------------ one process

    def _process(self, verb: str, place: Place, gpu: int | None, seconds: float) -> Iterator[dict[str, Any]]:
        """What `hecbench_program.py` prints, line by line; the last entry says how it ended, if not well."""
        program, arguments = place.program, self.arguments
        task = {
            "program": program.name,
            "device": arguments.device,
            "arch": arguments.arch,
            "runs": program.emulator if self.emulated else program.runs,
            "budget": arguments.budget,
            "deadline": self.deadline,
            "capture_seconds": arguments.capture_seconds,
            "known": self.known.get(program.name, ()),
        }
        environment = dict(os.environ)
        if gpu is not None and not self.emulated:
            known = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
            environment["CUDA_VISIBLE_DEVICES"] = known[gpu] if known else str(gpu)
        command = [sys.executable, str(WORKER), verb, str(place.folder), json.dumps(task)]
        limit = min(seconds, self.left) + GRACE
        self._log.write(f"--- {verb} {program.name} on {gpu}, {time.time() - self.started:.0f} s\n")
        self._log.flush()
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        late = threading.Event()

        def stop() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(limit, stop)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                with contextlib.suppress(json.JSONDecodeError):
                    if isinstance(entry := json.loads(line), dict):
                        yield entry
            process.wait()
        finally:
            timer.cancel()
            _kill(process)
        if process.returncode:
            how = f"stopped after {limit:.0f} s" if late.is_set() else f"exit code {process.returncode}, see log.txt"
            yield {"ended": f"{verb}: {how}"}

    # ------------------------------------------------------------ bookkeeping

    def _guarded(self, stage: Any, program: Development, *rest: Any, on_the_way: int = 1) -> None:
        """One program that fails never ends the bench."""
        try:
            stage(program, *rest)
        except Exception as error:  # whatever it is: the others go on, and the table says so
            self._failed(program, f"{type(error).__name__}: {error}", on_the_way)

    def _move(self, to: deque[Place], place: Place) -> None:
        with self._changed:
            to.append(place)
            if to is self._ready:
                self._on_the_way -= 1
            self._changed.notify_all()

    def _failed(self, program: Development, why: str, on_the_way: int = 1) -> None:
        self._write({"program": program.name, "done": False, "error": why})
        self._say(f"{program.name}: {why}")
        with self._changed:
            self._on_the_way -= on_the_way
            self._changed.notify_all()

    @staticmethod
    def _error(entries: Sequence[dict[str, Any]], otherwise: str) -> str:
        return next((e["ended"] for e in reversed(entries) if "ended" in e), otherwise)

    def _write(self, entry: dict[str, Any]) -> None:
        with self._changed:
            self._results.write(json.dumps(entry) + "\n")
            self._results.flush()

    def _say(self, text: str) -> None:
        print(f"[{time.time() - self.started:4.0f} s] {text}", flush=True)


def _kill(process: subprocess.Popen[str]) -> None:
    """The process and all it started: it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/bench-hecbench"))
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--programs", default="", help="names, comma-separated, in this order")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--together", type=int, default=1, help="programs at once on a GPU")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for all kernels of a program")
    parser.add_argument("--wall", type=float, default=560.0, help="seconds for all of it")
    parser.add_argument("--capture-seconds", type=float, default=120.0)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--earlier", type=Path, help="results.jsonl of an earlier run, taken over first")
    parser.add_argument("--again", action="store_true", help="search again where nothing is verified")
    parser.add_argument("--report", action="store_true", help="run nothing: print what the results say")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = arguments.out / "results.jsonl"
    if arguments.earlier:
        with results.open("a", encoding="utf-8") as file:
            file.write(arguments.earlier.read_text(encoding="utf-8"))
    if not arguments.report:
        run(arguments, results)
    rows, programs = report.read(results)
    shown, numbers = report.table(rows, programs), report.summary(rows)
    (arguments.out / "table.md").write_text(f"{shown}\n\n{numbers}\n", encoding="utf-8")
    (arguments.out / "gallery.md").write_text(report.gallery(rows) + "\n", encoding="utf-8")
    (arguments.out / "gains.svg").write_text(report.chart(rows) + "\n", encoding="utf-8")
    (arguments.out / "gave.json").write_text(report.gave(rows) + "\n", encoding="utf-8")
    print(f"{shown}\n\n{numbers}")
    return 0


def run(arguments: argparse.Namespace, results: Path) -> None:
    by_name = {program.name: program for program in DEVELOPMENT}
    names = arguments.programs.split(",") if arguments.programs else list(by_name)
    if unknown := [name for name in names if name not in by_name]:
        raise SystemExit(f"no such program: {', '.join(unknown)}")
    rows, programs = report.read(results)
    known: dict[str, list[str]] = {}
    open_ = {name for name in names if not programs.get(name, {}).get("done")}
    for row in rows:
        if report.faster(row) or not (arguments.again or row["cut"]):
            known.setdefault(row["program"], []).append(row["kernel"])
        elif row["judged"]:
            open_.add(row["program"])
    todo = [by_name[name] for name in names if name in open_]
    if arguments.device == "emulator":
        todo = [program for program in todo if program.emulator]
    with tempfile.TemporaryDirectory(prefix="hecbench-") as work:
        Bench(arguments, Path(work), known).run(todo)


if __name__ == "__main__":
    raise SystemExit(main())
