"""NVIDIA's compute-sanitizer around one launch: finding it, running a process under one of its tools, reading its
report.

The report is the text of its log file, whose records look alike in every release since 2021:

    ========= Invalid __global__ write of size 4 bytes
    =========     at scale(float *, int)+0x90 in scale.cu:7
    =========     by thread (64,0,0) in block (0,0,0)
    =========     Address 0x7f… is out of bounds

A record begins at the first column; what belongs to it is indented. Records that name no place in device code (errors
of API calls, leaks, the program's exit code) are notes: the process checks its own calls.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cuda_agent.device.bare import Task, error_of, waits
from cuda_agent.device.client import REAP_S, Device, end_text, tail_text
from cuda_agent.errors import Cancelled, ToolMissing

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
INSTALL = (
    "It comes with the CUDA Toolkit (put its bin folder on PATH), or: pip install nvidia-cuda-sanitizer-api "
    "(nvidia-cuda-sanitizer-api-cu12 for CUDA 12)."
)
PRINT_LIMIT = 1000  # records a report
POLL_S = 0.05
PADDING = 4096  # bytes after each allocation that belong to nobody
_WHEELS = ("nvidia/cu13/bin", "nvidia/cuda_sanitizer_api/bin")


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """One installed compute-sanitizer. `options` are the long options that it knows."""

    path: Path
    version: str
    options: frozenset[str]

    def command(self, tool: str, log: Path) -> list[str]:
        """The words that go before a command line. What only some releases know is left out where it is not known."""
        wanted = [
            ("--show-backtrace", "device"),
            ("--demangle", "simple"),
            ("--check-exit-code", "no"),
        ]
        if tool == "memcheck":  # a launch asks the driver for what it may not have, and deals with the answer
            wanted += [("--padding", str(PADDING)), ("--report-api-errors", "no")]
        if tool == "racecheck":
            wanted += [("--racecheck-report", "analysis")]
        if tool == "initcheck":
            wanted += [("--check-api-memory-access", "no"), ("--initcheck-address-space", "all")]
        known = [word for option in wanted if option[0] in self.options for word in option]
        return [
            str(self.path),
            "--tool",
            tool,
            "--log-file",
            str(log).replace("%", "%%"),
            "--print-limit",
            str(PRINT_LIMIT),
            *known,
        ]


def find() -> Sanitizer:
    """The first that runs: on PATH, in CUDA_HOME, in /usr/local/cuda, among Python packages. Raises ToolMissing."""
    for path in dict.fromkeys(_places()):
        if path.is_file() and os.access(path, os.X_OK) and (found := _probe(path)) is not None:
            return found
    raise ToolMissing(
        f"compute-sanitizer was not found on PATH, in CUDA_HOME, in /usr/local/cuda or among Python packages. {INSTALL}"
    )


def _places() -> Iterator[Path]:
    folders = [*os.environ.get("PATH", "").split(os.pathsep)]
    folders += [os.path.join(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders += ["/usr/local/cuda/bin", *(os.path.join(at, wheel) for at in sys.path if at for wheel in _WHEELS)]
    for folder in folders:
        if folder:
            yield Path(folder, "compute-sanitizer")


@lru_cache
def _probe(path: Path) -> Sanitizer | None:
    """None when it does not run here."""
    try:
        version_text, help_text = (_said([str(path), word]) for word in ("--version", "--help"))
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"[Vv]ersion\s+([\d.]+)", version_text)
    return Sanitizer(path, version[1] if version else "unknown", frozenset(re.findall(r"--[a-z][\w-]*", help_text)))


def _said(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=20, check=True).stdout


# ---------------------------------------------------------------- one launch under one tool


@dataclass(frozen=True, slots=True)
class Checked:
    """What a tool said of one launch. `why`: empty when the launch ran to its end under the tool, or the tool found
    something; else why its silence means nothing."""

    findings: tuple[Finding, ...]
    why: str
    log: str
    seconds: float


def check(
    sanitizer: Sanitizer,
    tool: str,
    device: Device,
    task: Task,
    seconds: float,
    cancelled: Callable[[], bool] | None = None,
) -> Checked:
    """Run the task in a process of its own under the tool, for at most `seconds`, start included, and for as long as
    others have the GPU. Raises Cancelled when the person stops it, and Unsupported when nothing can be put around a
    launch on this device."""
    started = seen = time.monotonic()
    limit = started + seconds
    # The tool leaves a folder of pipes behind when it is killed.
    with tempfile.TemporaryDirectory(prefix="cuda-agent-sanitizer-", ignore_cleanup_errors=True) as name:
        folder, log = Path(name), Path(name, "log")
        task.write(folder, device.uuid)
        channel = device.bare(folder, ["env", f"TMPDIR={name}", *sanitizer.command(tool, log)])
        late = False
        try:
            while (code := channel.reap(POLL_S)) is None and not late:
                if cancelled is not None and cancelled():
                    raise Cancelled("stopped by the person")
                before, seen = seen, time.monotonic()
                limit += seen - before if waits(folder) else 0.0
                late = seen > limit
        finally:
            if channel.reap(0) is None:
                channel.kill()
                channel.reap(REAP_S)
        text = log.read_text(errors="replace") if log.is_file() else ""
        error = error_of(folder)
    report = parse(text)
    if late:
        why = f"it did not end within {seconds:.0f} s"
    elif error is None:
        why = f"the launch did not end ({end_text(code)}){tail_text(channel.stderr_tail())}"
    else:
        why = error or next((note for note in report.notes if _TROUBLE.search(note)), "")
    if not why and not report.ended:
        why = "it ended without a summary"
    if why and (notes := [note for note in report.notes if note not in why]):
        why = f"{why} ({'; '.join(notes)})"
    return Checked(report.findings, "" if report.findings else why, text, time.monotonic() - started)


# ---------------------------------------------------------------- the report


@dataclass(frozen=True, slots=True)
class Finding:
    """One record about device code. `kind` is in our words and the same in every release; two findings of one kind in
    one kernel are the same fault."""

    kind: str  # "out-of-bounds global write", "shared race", "uninitialised global read", "divergent barrier" …
    kernel: str  # without template arguments and parameters
    text: str  # the tool's own words in one line
    line: int | None = None
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    findings: tuple[Finding, ...]
    ended: bool  # its summary was written
    notes: tuple[str, ...]  # heads of the records that are not about device code


_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY:")
# The tool's own troubles (a launch that it could not instrument, tables that are full): its silence means nothing then.
_TROUBLE = re.compile(
    r"^(?!Program hit).*(?:internal|not supported|unsupported|out of memory|unable to|failed to|could not|overflow)",
    re.I,
)
_IGNORED = re.compile(r"COMPUTE-SANITIZER|\w+ SUMMARY:")
_CONTINUED = re.compile(
    r"(?:at|by|and|Address|Access|Current Value|Device Frame|Host Frame|Saved host|(?:Write|Read) Thread)\b"
)
_SEVERITY = re.compile(r"(fatal|error|warning|warn|info)\s*:\s*(?:\([^)]*\)\s*)?", re.IGNORECASE)
_INDEX = r"\((\d+),\s*(\d+),\s*(\d+)\)"
_THREAD = re.compile(rf"by thread {_INDEX} in block {_INDEX}")
_FRAME = re.compile(r"Device Frame:\s*(.+?)(?:\+0x|\s+\(|\s+\[|$)")
_AT = re.compile(r"\bat (?!0x)(?P<name>.+?)\+0x[0-9a-f]+(?: in (?:\S*?):(?P<line>\d+))?")
_AT_OLD = re.compile(r"\bat 0x[0-9a-f]+ in (?:\S+?:(?P<line>\d+):)?(?P<name>[^\[]+?)\s*(?:\[|$)")


def parse(log: str) -> Report:
    """Every record of a log file, and whether it is whole."""
    findings: list[Finding] = []
    notes: list[str] = []
    for head, rest in _records(log):
        found = None if _IGNORED.match(head) else _finding(head, rest)
        if found is not None:
            findings.append(found)
        elif not _IGNORED.match(head) and head not in notes:
            notes.append(head)
    return Report(tuple(findings), _SUMMARY.search(log) is not None, tuple(notes[:5]))


def _records(log: str) -> Iterator[tuple[str, list[str]]]:
    head, rest = "", list[str]()
    for line in log.splitlines():
        if not (mark := re.match(r"\s*=========(.*)", line)):
            continue  # the program's own words
        body = mark[1].strip()
        if body and head and (mark[1].startswith("  ") or _CONTINUED.match(body)):
            rest.append(body)
            continue
        if head:
            yield head, rest
        head, rest = body, []
    if head:
        yield head, rest


def _finding(head: str, rest: Sequence[str]) -> Finding | None:
    """None when the record is not about device code."""
    severity = _SEVERITY.match(head)
    said = head[severity.end() :] if severity else head
    place = next((m for line in (said, *rest) if (m := _AT.search(line) or _AT_OLD.search(line))), None)
    thread = next((m for line in rest if (m := _THREAD.search(line))), None)
    kind = _kind(said, rest, located=place is not None or thread is not None)
    if kind is None:
        return None
    if kind == "shared race" and severity and severity[1].lower() in ("warning", "warn"):
        kind = "possible shared race"  # between threads of a warp, or a write after a read
    frames = [_simple(m[1]) for line in rest if (m := _FRAME.match(line))]
    numbers = tuple(map(int, thread.groups())) if thread else ()
    words = [line for line in rest if not line.startswith(("Host Frame", "Saved host", "Device Frame"))]
    return Finding(
        kind=kind,
        kernel=frames[-1] if frames else _simple(place["name"]) if place else "",
        text=" ".join([head, *words[:4]])[:400],
        line=int(place["line"]) if place and place["line"] else None,
        thread=(numbers[0], numbers[1], numbers[2]) if numbers else None,
        block=(numbers[3], numbers[4], numbers[5]) if numbers else None,
    )


def _kind(said: str, rest: Sequence[str], *, located: bool) -> str | None:
    if m := re.match(r"(?:potential )?invalid __(\w+?)__ ([\w-]+)", said, re.IGNORECASE):
        all_ = " ".join(rest)
        reason = "misaligned" if "misaligned" in all_ else "out-of-bounds" if "out of bounds" in all_ else "invalid"
        return f"{reason} {m[1].lower()} {m[2].lower()}"
    if m := re.match(r"uninitiali[sz]ed __(\w+?)__ (?:memory )?([\w-]+)", said, re.IGNORECASE):
        return f"uninitialised {m[1].lower()} {m[2].lower()}"
    if re.match(r"race reported between|potential \w+ hazard", said, re.IGNORECASE):
        return "shared race"
    if m := re.match(r"barrier error detected\.?\s*(.*?)\.?$", said, re.IGNORECASE):
        return "divergent barrier" if "divergent" in m[1].lower() else f"barrier error: {m[1].lower()}"
    if located:  # a kind that came after this was written: without its numbers
        return re.sub(r"\b(?:0x[0-9a-f]+|\d+)\b", "N", said.split(" at ")[0]).strip(" .").lower()
    return None


def _simple(name: str) -> str:
    """A function's name without return type, template arguments and parameters."""
    name = re.sub(r"\[clone ([^\]]*)\].*", r"\1", name).replace("(anonymous namespace)", "anonymous")
    name = re.split(r"[(<]", name.replace("<unnamed>", "anonymous"), maxsplit=1)[0].strip()
    return name.rsplit(" ", 1)[-1]
