"""A search as one HTML file: what each candidate was made of and what became of it, what the best was at which moment,
and for a winner its evidence with the roofline and the diff. Drawn like the evidence's own page
(`judge/evidence/page.py`): no script, nothing loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from cuda_agent.agent.policies import Step
from cuda_agent.agent.program import table
from cuda_agent.agent.request import Outcome
from cuda_agent.judge.evidence import page, traffic_sentence
from cuda_agent.judge.evidence.markup import Markup, Scale, join, tag
from cuda_agent.rewrite import labels_of

WIDTH, HEIGHT = 940.0, 208.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 16.0, 14.0, 180.0
SMALL, TALL = 260.0, 18.0  # the plot in a row of the tree
EMPTY = tag("p", "no candidate was judged", class_="note")


def picture(file: str, outcomes: Sequence[Outcome]) -> str:
    """The whole file; one article a kernel, in the order in which they were searched."""
    style = files(__package__).joinpath("picture.css").read_text(encoding="utf-8")
    names = ", ".join(outcome.kernel for outcome in outcomes)
    head = [_overview(file, outcomes)] if len(outcomes) > 1 else []
    articles = [_article(file, outcome, f"kernel-{number}") for number, outcome in enumerate(outcomes)]
    return page.document(f"{names or file}: search", *head, *articles, style=style)


def _overview(file: str, outcomes: Sequence[Outcome]) -> Markup:
    heads, cells = table(outcomes)
    head = tag("tr", *(tag("th", word) for word in heads))
    rows = []
    for number, (kernel, share, status, gain, tried, seconds, rules) in enumerate(cells):
        link = tag("a", tag("code", kernel), href=f"#kernel-{number}")
        result = tag("span", f"{page.ICON.get(status, '·')} {status}", class_=status)
        rows.append(
            tag("tr", *(tag("td", cell) for cell in (link, share, result, gain, tried, seconds, tag("code", rules))))
        )
    title = tag("header", tag("h1", tag("code", file), tag("span", f": {len(outcomes)} kernels", class_="soft")))
    return tag(
        "article", title, tag("section", tag("div", tag("table", head, *rows, class_="kernels"), class_="scroll"))
    )


def _article(file: str, outcome: Outcome, id: str) -> Markup:
    search = join(_course(outcome), _tree(outcome), _refused(outcome))
    if outcome.status == "verified" and outcome.evidence:
        return page.article(outcome.evidence, search, id)
    words = tag("p", outcome.message, class_="headline hero")
    return tag("article", page.title(outcome.kernel, file, outcome.status), words, search, id=id, class_="kernel")


# ---------------------------------------------------------------- the course of the search


def _course(outcome: Outcome) -> Markup:
    """Every judged candidate by the moment it was judged and by its score, and the best so far."""
    judged = [step for step in outcome.steps if step.verdict is not None]
    words = f"{outcome.tried} candidates in {outcome.seconds:.0f} s"
    if not judged:
        return tag("section", tag("h2", f"Search: {words}"), EMPTY)
    scores = [step.score for step in judged if step.score is not None]
    low, high = min([*scores, 1.0]) * 0.94, max([*scores, 1.0]) * 1.06
    x = Scale((0.0, max(outcome.seconds, judged[-1].at, 0.1)), (LEFT, WIDTH - RIGHT))
    y = Scale((low, high), (BOTTOM, TOP), log=True)
    parts = list(axes(x, y))
    best, points = 1.0, [(x(0.0), y(1.0))]
    for step in judged:
        if step.score is not None and step.score > best:
            points += [(x(step.at), y(best)), (x(step.at), y(step.score))]
            best = step.score
    points.append((x.pixels[1], y(best)))
    parts.append(tag("path", d="M" + "L".join(f"{px:.1f},{py:.1f}" for px, py in points), class_="reached"))
    for step in judged:
        name = _name(step)
        if step.score is None:
            dot = tag("circle", tag("title", f"{name}: {step.note}"), cx=x(step.at), cy=BOTTOM, r=3.2, class_="failed")
        else:
            kind, size = ("tried won", 5.5) if _chosen(outcome, step) else ("tried", 3.8)
            text = f"{name}: {_gain(step)}"
            dot = tag("circle", tag("title", text), cx=x(step.at), cy=y(step.score), r=size, class_=kind)
        parts.append(dot)
    svg = tag(
        "svg",
        tag("title", f"Scores of {len(judged)} candidates over time"),
        *parts,
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        role="img",
        style="max-width: none",
    )
    note = (
        f"line: the best so far; dots: accepted by the quick judge, at the score that ranks them ({_score(outcome)}); "
    )
    note += "red on the axis: not accepted"
    left = tag("p", f"What is left: {outcome.left}.", class_="left") if outcome.left else None
    return tag("section", tag("h2", f"Search: {words}"), svg, tag("p", note, class_="note"), left)


def _score(outcome: Outcome) -> str:
    timed = any(step.verdict is not None and step.verdict.timing for step in outcome.steps)
    return "lower end of the time ratio" if timed else "predicted drop in memory traffic; time is not measured"


def axes(x: Scale, y: Scale) -> Iterator[Markup]:
    """Times faster upwards, seconds to the right, and the line at 1×."""

    def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
        return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)

    for tick in y.ticks(4):
        yield line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid")
        yield tag("text", f"{tick:g}×", x=LEFT - 8, y=y(tick) + 4, text_anchor="end", class_="tick")
    yield line(LEFT, y(1.0), WIDTH - RIGHT, y(1.0), "one")
    for tick in x.ticks(8):
        yield line(x(tick), BOTTOM, x(tick), BOTTOM + 4, "axis")
        yield tag("text", f"{tick:g} s", x=x(tick), y=BOTTOM + 18, text_anchor="middle", class_="tick")
    yield line(LEFT, BOTTOM, WIDTH - RIGHT, BOTTOM, "axis")


# ---------------------------------------------------------------- the tree


def _tree(outcome: Outcome) -> Markup:
    """The accepted candidates below what they were built on, the better ones first."""
    accepted = [step for step in outcome.steps if _in_tree(outcome, step)]
    if not accepted:
        return Markup("")
    below: dict[tuple[str, ...], list[Step]] = {}
    by_labels = {labels_of(step.candidate.origin): step for step in accepted}
    for labels, step in by_labels.items():
        parent = next((labels[:n] for n in range(len(labels) - 1, 0, -1) if labels[:n] in by_labels), ())
        below.setdefault(parent, []).append(step)
    low, high = _range(accepted)
    scale = Scale((low, high), (6.0, SMALL - 6), log=True)
    rows = [
        tag(
            "tr",
            tag("td", tag("code", "original")),
            tag("td", _row_plot(scale, None), class_="ratio"),
            tag("td"),
            tag("td"),
        )
    ]
    rows += _rows(outcome, below, (), scale, ())
    heads = ("accepted by the quick judge", "gain", "", "judged in")
    header = tag("tr", *(tag("th", head, class_="n spent" if head == "judged in" else None) for head in heads))
    tree = tag("table", header, *rows, class_="tree")
    return tag("section", tag("h2", "Tree of candidates"), tag("div", tree, class_="scroll"), class_="long")


def _rows(
    outcome: Outcome,
    below: dict[tuple[str, ...], list[Step]],
    parent: tuple[str, ...],
    scale: Scale,
    rungs: tuple[bool, ...],
) -> Iterator[Markup]:
    """`rungs`: for each level above whether more of it follows."""
    children = sorted(below.get(parent, ()), key=lambda step: -(step.score or 0.0))
    for number, step in enumerate(children):
        labels = labels_of(step.candidate.origin)
        more = number + 1 < len(children)
        lines = [tag("span", class_="rung open" if goes_on else "rung") for goes_on in rungs]
        added = " + ".join(labels[len(parent) :])
        chosen = _chosen(outcome, step)
        name = tag("span", tag("code", added), class_="name")
        rule = tag("div", *lines, tag("span", class_="rung more" if more else "rung last"), name, class_="rule")
        spent = f"{step.seconds:.1f} s" if step.verdict is not None else ""
        yield tag(
            "tr",
            tag("td", rule),
            tag("td", _row_plot(scale, step, chosen), class_="ratio"),
            tag(
                "td",
                _gain(step) if step.verdict is not None else step.note,
                class_="n" if step.verdict is not None else "why",
            ),
            tag("td", spent, class_="n spent"),
            class_="chosen" if chosen else None,
        )
        yield from _rows(outcome, below, labels, scale, (*rungs, more))


def _range(steps: Sequence[Step]) -> tuple[float, float]:
    values = [value for step in steps for value in _interval(step)]
    return min([*values, 0.95]) * 0.97, max([*values, 1.1]) * 1.03


def _interval(step: Step) -> tuple[float, float, float]:
    """Low end, middle, high end of what ranks a candidate."""
    timing = step.verdict.timing if step.verdict else None
    score = step.score or 1.0
    return (timing.ci[0], timing.ratio, timing.ci[1]) if timing else (score, score, score)


def _row_plot(scale: Scale, step: Step | None, chosen: bool = False) -> Markup:
    middle = TALL / 2
    one = tag("line", x1=scale(1.0), y1=0, x2=scale(1.0), y2=TALL, class_="one")
    parts = [tag("line", x1=0, y1=middle, x2=SMALL, y2=middle, class_="grid"), one]
    if step is not None:
        low, value, high = (scale(number) for number in _interval(step))
        kind = " won" if chosen else ""
        parts.append(tag("line", x1=low, y1=middle, x2=max(high, low + 1), y2=middle, class_=f"whisker{kind}"))
        parts.append(tag("circle", cx=value, cy=middle, r=5 if chosen else 4, class_=f"tried{kind}"))
    return tag("svg", *parts, viewBox=f"0 0 {SMALL:.0f} {TALL:.0f}", aria_hidden="true")


def _in_tree(outcome: Outcome, step: Step) -> bool:
    """Accepted, and not only another text of the same machine code."""
    return step.score is not None and (not step.twin or _chosen(outcome, step))


def _chosen(outcome: Outcome, step: Step) -> bool:
    return outcome.candidate is not None and step.candidate.id == outcome.candidate.id


def _refused(outcome: Outcome) -> Markup:
    rows = [
        tag("tr", tag("td", tag("code", _name(step))), tag("td", step.note or "not accepted", class_="why"))
        for step in outcome.steps
        if not _in_tree(outcome, step)
    ]
    if not rows:
        return Markup("")
    others = tag("div", tag("table", *rows), class_="scroll")
    words = f"{len(rows)} more: not accepted, or the same machine code as another"
    return tag("section", tag("details", tag("summary", words), others), class_="long")


def _name(step: Step) -> str:
    return " + ".join(labels_of(step.candidate.origin))


def _gain(step: Step) -> str:
    if step.verdict is None or step.score is None:
        return ""
    timing = step.verdict.timing
    if timing is not None:
        return f"{timing.ratio:.2f}× [{timing.ci[0]:.2f}, {timing.ci[1]:.2f}]"
    return traffic_sentence(step.verdict.traffic).removeprefix("predicted ") or "same results"
