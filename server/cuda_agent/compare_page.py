"""A comparison of policies as one HTML file: gain over seconds spent with a line a policy, and a table of kernels.
Drawn like the evidence's own page: no script, nothing loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from cuda_agent.agent.picture import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, axes
from cuda_agent.compare import Comparison, Search, Total, mean
from cuda_agent.judge.evidence import page
from cuda_agent.judge.evidence.markup import Markup, Scale, join, tag

NAMES = 130.0  # right of the plot, for what each line is
APART = 15.0  # between two of them
STYLE = """
.p0 { --p: var(--a); } .p1 { --p: var(--warn); } .p2 { --p: var(--b); } .p3 { --p: var(--bad); }
.course { fill: none; stroke: var(--p); stroke-width: 2.5; } .ended { fill: var(--p); }
svg text.name { fill: var(--p); font-weight: 600; }
.policy { font-weight: 650; color: var(--p); } .best { font-weight: 650; } .kernels td { vertical-align: top; }
.kernels td > div { font-size: 13px; color: var(--soft); }
"""


def document(comparison: Comparison) -> str:
    """The whole file."""
    kernels = len(comparison.kernels)
    count = f"{kernels} kernel{'' if kernels == 1 else 's'}"
    names = ", ".join(comparison.policies)
    budget = comparison.budget
    spent = f"{budget['seconds']:g} s and {budget['candidates']:g} candidates"
    spent += f", {budget['tokens']:g} tokens of a model" if budget.get("tokens") else ""
    title = tag("header", tag("h1", names, tag("span", f" on {comparison.device}", class_="soft")))
    words = f"{count}; each search had at most {spent}, and nothing from memory."
    article = tag(
        "article",
        title,
        tag("p", words, class_="headline hero"),
        None if comparison.timed else tag("p", _UNTIMED, class_="headline"),
        _totals(comparison),
        _course(comparison),
        _kernels(comparison),
        _notes(comparison),
    )
    return page.document(f"{names}: side by side", article, style=STYLE)


_UNTIMED = "Nothing is timed: the emulator predicts memory traffic. A gain is sectors before, divided by sectors after."


def _kind(comparison: Comparison, policy: str) -> str:
    return f"p{comparison.policies.index(policy) % 4}"


def heads(comparison: Comparison) -> tuple[str, ...]:
    better = "verified faster" if comparison.timed else "fewer predicted sectors"
    what = "geometric mean" if comparison.timed else "geometric mean, sectors"
    return ("policy", better, what, "candidates", "tokens", "seconds")


def cells(total: Total) -> tuple[str, ...]:
    share = f"{total.faster} of {total.kernels} ({total.share:.0%})"
    numbers = f"{total.tokens:,}" if total.tokens else "none", f"{total.seconds:.0f}"
    return (total.policy, share, f"{total.mean:.2f}×", str(total.tried), *numbers)


def _totals(comparison: Comparison) -> Markup:
    header = tag("tr", *(tag("th", head, class_=None if at == 0 else "n") for at, head in enumerate(heads(comparison))))
    best = max((total.mean for total in comparison.totals), default=1.0)
    rows = []
    for total in comparison.totals:
        name, *rest = cells(total)
        kind = f"best {_kind(comparison, name)}" if total.mean == best > 1 else _kind(comparison, name)
        rows.append(
            tag("tr", tag("td", name, class_="policy"), *(tag("td", cell, class_="n") for cell in rest), class_=kind)
        )
    note = "geometric mean over all kernels that every policy finished; one that was not made faster counts as 1"
    return tag("section", tag("h2", "All kernels"), tag("table", header, *rows), tag("p", note, class_="note"))


# ---------------------------------------------------------------- the chart


def _course(comparison: Comparison) -> Markup:
    """The geometric mean of the best so far, by the seconds that a search had run."""
    lines = {policy: course(comparison.by(policy)) for policy in comparison.policies}
    ends = {total.policy: total for total in comparison.totals}
    points = [point for line in lines.values() for point in line]
    if not comparison.kernels:
        return tag("section", tag("h2", "Gain over seconds"), tag("p", "no kernel was searched by all", class_="note"))
    high = max(1.1, *(gain for _, gain in points), *(total.mean for total in ends.values()))
    x = Scale((0.0, max(0.1, *(at for at, _ in points))), (LEFT, WIDTH - NAMES))
    y = Scale((0.94, high * 1.06), (BOTTOM, TOP), log=True)
    parts = list(axes(x, y))
    for policy, line in reversed(lines.items()):  # where two lie on each other the first policy's is seen
        at, gain = line[-1]
        path = "".join(_steps(x, y, line))
        told = tag("title", f"{policy}: {gain:.2f}× after {at:.0f} s")
        end = tag("circle", told, cx=x(at), cy=y(ends[policy].mean), r=5, class_="ended")
        parts.append(tag("g", tag("path", d=path, class_="course"), end, class_=_kind(comparison, policy)))
    heights = apart([y(ends[policy].mean) for policy in lines])
    for policy, height in zip(lines, heights, strict=True):
        text = f"{policy} {ends[policy].mean:.2f}×"
        name = tag("text", text, x=WIDTH - NAMES + 12, y=height + 4, class_="name")
        parts.append(tag("g", name, class_=_kind(comparison, policy)))
    label = "Geometric mean of the gains over the seconds that a search had run, a line a policy"
    box = f"0 0 {WIDTH:.0f} {HEIGHT:.0f}"
    svg = tag("svg", tag("title", label), *parts, viewBox=box, role="img", style="max-width: none")
    what = "times faster" if comparison.timed else "predicted sectors, before over after; nothing is timed"
    note = f"{what}; geometric mean over all kernels; line: best so far by the quick judgement, dot: by the full one"
    return tag("section", tag("h2", "Gain over seconds of a search"), svg, tag("p", note, class_="note"))


def course(searches: Sequence[Search]) -> list[tuple[float, float]]:
    """(seconds, geometric mean of the best so far): a step each time one of the searches finds something better, from
    (0, 1) to the end of the longest."""
    best = [1.0] * len(searches)
    found = [(0.0, 1.0)]
    steps = sorted((at, number, gain) for number, one in enumerate(searches) for at, gain in one.course)
    for at, number, gain in steps:
        best[number] = gain
        found.append((at, mean(best)))
    return [*found, (max([found[-1][0], *(one.seconds for one in searches)]), found[-1][1])]


def _steps(x: Scale, y: Scale, line: Sequence[tuple[float, float]]) -> Iterator[str]:
    yield f"M{x(line[0][0]):.1f},{y(line[0][1]):.1f}"
    for at, gain in line[1:]:
        yield f"H{x(at):.1f}V{y(gain):.1f}"


def apart(heights: Sequence[float]) -> list[float]:
    """The same places, moved down where two would overlap, and up again from the bottom of the plot."""
    order = sorted(range(len(heights)), key=lambda number: heights[number])
    placed = list(heights)
    for above, below in pairwise(order):
        placed[below] = max(placed[below], placed[above] + APART)
    lowest = BOTTOM - 4
    for number in reversed(order):
        placed[number] = min(placed[number], lowest)
        lowest = placed[number] - APART
    return placed


# ---------------------------------------------------------------- the kernels


def _kernels(comparison: Comparison) -> Markup:
    found = dict.fromkeys((one.file, one.kernel) for one in comparison.searches)
    columns = (tag("th", policy, class_=f"policy {_kind(comparison, policy)}") for policy in comparison.policies)
    rows = [tag("tr", tag("th", "kernel"), *columns)]
    for file, kernel in found:
        of = {one.policy: one for one in comparison.of(file, kernel)}
        best = max(one.gain for one in of.values())
        name = tag("td", tag("code", kernel), tag("div", file))
        rows.append(tag("tr", name, *(_cell(comparison, of.get(policy), best) for policy in comparison.policies)))
    table = tag("div", tag("table", *rows, class_="kernels"), class_="scroll")
    return tag("section", tag("h2", "Kernel by kernel"), table, class_="long")


def _cell(comparison: Comparison, one: Search | None, best: float) -> Markup:
    if one is None:
        return tag("td", tag("span", "not finished", class_="soft"))
    spent = f"{one.tried} tried, {one.seconds:.0f} s" + (f", {one.tokens:,} tokens" if one.tokens else "")
    why = one.origin.removeprefix("rule:") if one.faster else one.message
    return tag(
        "td",
        tag("span", gain(one, comparison.timed), class_="best" if one.gain == best > 1 else None),
        tag("div", spent),
        tag("div", tag("code", why) if one.faster else why),
    )


def gain(one: Search, timed: bool) -> str:
    if not one.faster:
        return "—" if one.status in ("nothing", "verified", "rejected") else one.status
    if not timed:
        return f"{one.gain:.2f}× fewer sectors"
    interval = f" [{one.interval[0]:.2f}, {one.interval[1]:.2f}]" if one.interval else ""
    return f"{one.gain:.2f}×{interval}"


def _notes(comparison: Comparison) -> Markup:
    if not comparison.notes:
        return Markup("")
    return tag("section", tag("h2", "Notes"), join(*(tag("p", note, class_="note") for note in comparison.notes)))
