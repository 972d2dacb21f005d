"""What a program prints, compared: the numbers that vary from run to run, and times, are left out.

Two runs of the original say which numbers vary; a number beside a unit of time or of speed, or a fraction on a line
about time, is left out too, because two runs may print it alike by chance. Spaces are not compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cuda_agent.errors import WorkloadError

_TOKEN = re.compile(r"0[xX][0-9a-fA-F]+|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[^\W\d]\w*|\S")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_SECONDS = ("s", "ms", "us", "µs", "μs", "ns", "sec", "secs", "second", "seconds", "msec", "usec", "nsec")
_RATES = ("gflops", "gflop", "tflops", "tflop", "mflops", "fps", "hz")
_UNITS = frozenset((*_SECONDS, *_RATES, "millisecond", "milliseconds", "microsecond", "microseconds"))
_BYTES = frozenset(("kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib", "bytes"))  # a rate only before `/`
_ABOUT = ("time", "times", "timing", "elapsed", "took", "duration", "runtime", "bandwidth", "throughput", "speedup")
_WORDS = frozenset((*_ABOUT, *_RATES))
# Folders of ours that a build may print; their names differ in every run.
_OURS = re.compile(r"(cuda-agent-nvcc-|raw-)\w{8}")

Close = Callable[[float, float], bool]


@dataclass(frozen=True, slots=True)
class Template:
    """What the original prints: tokens a line, and which of them are left out."""

    lines: tuple[str, ...]
    tokens: tuple[tuple[str, ...], ...]
    masked: tuple[frozenset[int], ...]

    @property
    def left_out(self) -> int:
        """How many numbers."""
        return sum(len(masked) for masked in self.masked)


def learn(first: Sequence[str], second: Sequence[str]) -> Template:
    """The template of two runs of the original. Raises WorkloadError where more than numbers varies: then there is no
    one right output."""
    if len(first) != len(second):
        raise WorkloadError(f"two runs of your program print {len(first)} and {len(second)} lines")
    tokens, masked = [], []
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        left, right = _tokens(a), _tokens(b)
        varying = _varying(left, right)
        if varying is None:
            raise WorkloadError(f"two runs of your program differ in line {number + 1}: {_quote(a)} and {_quote(b)}")
        tokens.append(left)
        masked.append(frozenset(varying | _times(left)))
    return Template(tuple(first), tuple(tokens), tuple(masked))


def compare(template: Template, lines: Sequence[str], close: Close) -> tuple[str, int]:
    """The first differing line in words ("" when there is none), and how many fractions differ but are `close`."""
    rounded = 0
    for number, line in enumerate(lines[: len(template.lines)]):
        old, new, masked = template.tokens[number], _tokens(line), template.masked[number]
        same = len(old) == len(new)
        for at, (a, b) in enumerate(zip(old, new, strict=False)):
            if a == b or (at in masked and _same_kind(a, b)):
                continue
            near = _is_fraction(a) and _is_fraction(b) and close(float(a), float(b))
            rounded += near
            same = same and near
        if not same:
            return f"line {number + 1} of its output is {_quote(line)} instead of {_quote(template.lines[number])}", 0
    if len(lines) < len(template.lines):
        return f"its output ends before line {len(lines) + 1}, {_quote(template.lines[len(lines)])}", 0
    if len(lines) > len(template.lines):
        return f"its output goes on with line {len(template.lines) + 1}, {_quote(lines[len(template.lines)])}", 0
    return "", rounded


def _tokens(line: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(_OURS.sub(r"\1", line)))


def _is_number(token: str) -> bool:
    return _NUMBER.fullmatch(token) is not None


def _is_fraction(token: str) -> bool:
    return _is_number(token) and not token.lower().startswith("0x") and any(mark in token for mark in ".eE")


def _same_kind(a: str, b: str) -> bool:
    return _is_number(a) == _is_number(b)


def _varying(left: tuple[str, ...], right: tuple[str, ...]) -> set[int] | None:
    """Numbers that differ, and a unit that differs right after one; None when anything else does."""
    if len(left) != len(right):
        return None
    found: set[int] = set()
    for at, (a, b) in enumerate(zip(left, right, strict=True)):
        if a == b:
            continue
        unit = at - 1 in found and a.lower() in _UNITS and b.lower() in _UNITS
        if not unit and not (_is_number(a) and _is_number(b)):
            return None
        found.add(at)
    return found


def _times(tokens: tuple[str, ...]) -> set[int]:
    """Numbers that are times or rates: before a unit (`1.2 ms`, `1.2 (ms)`, `3 GB/s`), or fractions on a line that
    speaks of time."""
    low = [token.lower() for token in tokens]
    about = bool(_WORDS.intersection(low))
    found = set()
    for at, token in enumerate(tokens):
        if not _is_number(token):
            continue
        after = [word for word in low[at + 1 : at + 4] if word not in "(["]
        rate = len(after) > 1 and after[0] in _BYTES and after[1] == "/"
        if (after and after[0] in _UNITS) or rate or (about and _is_fraction(token)):
            found.add(at)
    return found


def _quote(line: str) -> str:
    text = line.strip()
    return f"“{text if len(text) <= 120 else text[:117] + '…'}”"
