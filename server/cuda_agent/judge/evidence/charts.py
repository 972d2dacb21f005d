"""The plots of the page, as SVG that takes its colours from the page's style sheet (classes `a` and `b` are the
original's and the candidate's)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cuda_agent.judge.evidence.markup import Markup, Scale, join, quantile, tag
from cuda_agent.judge.evidence.words import count, time

WIDTH = 540.0
LEFT, RIGHT = 92.0, 18.0


def _svg(height: float, label: str, *parts: Markup) -> Markup:
    box = f"0 0 {WIDTH:.0f} {height:.0f}"
    return tag("svg", tag("title", label), *parts, viewBox=box, role="img", xmlns="http://www.w3.org/2000/svg")


def _text(x: float, y: float, text: str, anchor: str = "start", **more: str) -> Markup:
    return tag("text", text, x=x, y=y, text_anchor=anchor, **more)


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def _rect(x: float, y: float, width: float, height: float, class_: str, rx: float | None = None) -> Markup:
    return tag("rect", x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), class_=class_, rx=rx)


def _x_axis(scale: Scale, top: float, bottom: float, words: Iterable[tuple[float, str]], title: str) -> Markup:
    parts = [_line(scale.pixels[0], bottom, scale.pixels[1], bottom, "axis")]
    for value, word in words:
        x = scale(value)
        parts += [_line(x, top, x, bottom, "grid"), _text(x, bottom + 16, word, "middle", class_="tick")]
    middle = (scale.pixels[0] + scale.pixels[1]) / 2
    return join(*parts, _text(middle, bottom + 34, title, "middle", class_="label"))


# ---------------------------------------------------------------- times


def distribution(original: Sequence[float], candidate: Sequence[float], interval: tuple[float, float]) -> Markup:
    """Every timed sample (µs) of both sides: a strip, the box of its quartiles, the median. `interval` is where the
    candidate's time lies, by the 95 % interval of the ratio. Where the two sides lie far apart, bars from zero show
    how far, and the samples are drawn below as per cent of their median."""
    sides = (Side("original", "a", original), Side("candidate", "b", candidate))
    medians = f"median {time(sides[0].middle)} and {time(sides[1].middle)}"
    label = f"Timed samples of original and candidate: {medians}"
    everything = [*original, *candidate, *interval]
    low, high = min(everything), max(everything)
    milli = high >= 20_000
    unit = f"{'ms' if milli else 'µs'}, one launch"

    def word(tick: float) -> str:
        return f"{tick / 1000:g}" if milli else f"{tick:g}"

    if high < 1.6 * low:
        x = Scale(_padded(low, high), (LEFT, WIDTH - RIGHT))
        title = f"{unit}; the axis does not start at zero"
        axis = _x_axis(x, 6, 132, [(t, word(t)) for t in x.ticks(5)], title)
        return _svg(172, label, axis, *_strips(x, sides, 6, time_of=lambda v: v, interval=interval))
    x = Scale((0.0, high * 1.04), (LEFT, WIDTH - RIGHT))
    parts = [_x_axis(x, 4, 64, [(t, word(t)) for t in x.ticks(5)], unit)]
    for side, y in zip(sides, (10.0, 38.0), strict=True):
        parts += [
            _text(LEFT - 10, y + 14, side.name, "end", class_=f"row {side.kind}"),
            _rect(LEFT, y, x(side.middle) - LEFT, 20, f"solid {side.kind}", 2),
        ]
    middle = sides[1].middle
    around = (100 * (interval[0] / middle - 1), 100 * (interval[1] / middle - 1))
    spread = [*around, *(100 * (v / side.middle - 1) for side in sides for v in side.values)]
    x = Scale(_padded(min(spread), max(spread)), (LEFT, WIDTH - RIGHT))
    axis = _x_axis(x, 116, 242, [(t, _percent(t)) for t in x.ticks(5)], "samples around their median")
    parts += [axis, *_strips(x, sides, 116, time_of=None, interval=around)]
    return _svg(282, label, *parts)


class Side(NamedTuple):
    name: str
    kind: str  # "a" or "b"
    values: Sequence[float]

    @property
    def middle(self) -> float:
        return quantile(self.values, 0.5)


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return low - pad, high + pad


def _strips(
    x: Scale,
    sides: Sequence[Side],
    top: float,
    *,
    time_of: Callable[[float], float] | None,
    interval: tuple[float, float],
) -> Iterator[Markup]:
    """Two rows of samples, in microseconds or (without `time_of`) in per cent of their median, and the bracket of the
    interval."""
    for side, y in zip(sides, (top + 26, top + 76), strict=True):
        values = [time_of(v) if time_of else 100 * (v / side.middle - 1) for v in side.values]
        low, middle, high = (x(quantile(values, share)) for share in (0.25, 0.5, 0.75))
        yield _text(LEFT - 10, y - 1, side.name, "end", class_=f"row {side.kind}")
        yield _text(LEFT - 10, y + 14, time(side.middle), "end", class_="tick")
        scatter = random.Random(len(values))  # drawn alike every time
        for value in values:
            yield tag("circle", cx=x(value), cy=y + scatter.uniform(-11, 11), r=2.2, class_=f"dot {side.kind}")
        yield _rect(min(low, middle - 1.5), y - 14, max(high - low, 3.0), 28, f"box {side.kind}", 2)
        yield _line(middle, y - 18, middle, y + 18, f"median {side.kind}")
    y = top + 108
    left, right = x(interval[0]), max(x(interval[1]), x(interval[0]) + 1)
    bracket = f"M{left:.1f},{y - 5:.1f}V{y + 5:.1f}M{left:.1f},{y:.1f}H{right:.1f}M{right:.1f},{y - 5:.1f}V{y + 5:.1f}"
    yield tag("path", d=bracket, class_="interval")
    fits = right + 90 < WIDTH
    yield _text(right + 8 if fits else left - 8, y + 4, "95 % interval", "start" if fits else "end", class_="tick")


class Ratio(NamedTuple):
    name: str
    ratio: float
    interval: tuple[float, float]
    whole: bool = False  # the headline's, over all launches


def ratios(rows: Sequence[Ratio], edge: float) -> Markup:
    """How many times faster, with 95 % intervals, on a log scale. Between 1/(1 + edge) and 1 + edge nothing is called
    a difference."""
    numbers = [n for row in rows for n in row.interval] + [1 / (1 + edge), 1 + edge]
    domain = (min(*numbers, 0.95) * 0.97, max(*numbers, 1.05) * 1.03)
    x = Scale(domain, (LEFT + 40, WIDTH - RIGHT - 50), log=True)
    bottom = 18 + 30.0 * len(rows)
    band_left, band_right = x(1 / (1 + edge)), x(1 + edge)
    parts = [
        _rect(band_left, 6, max(band_right - band_left, 2), bottom - 6, "band"),
        _x_axis(x, 6, bottom, [(t, f"{t:g}×") for t in x.ticks()], "times faster (original ÷ candidate)"),
        _line(x(1), 6, x(1), bottom, "one"),
    ]
    for number, row in enumerate(rows):
        y = 24 + 30.0 * number
        left, right = x(row.interval[0]), x(row.interval[1])
        kind = "whole" if row.whole else "part"
        parts += [
            _text(x.pixels[0] - 10, y + 4, row.name, "end", class_="row" if row.whole else "tick"),
            _line(left, y, max(right, left + 2), y, f"interval {kind}"),
            tag("circle", cx=x(row.ratio), cy=y, r=5 if row.whole else 3.5, class_=f"point {kind}"),
            _text(x.pixels[1] + 6, y + 4, f"{row.ratio:.2f}×", class_="row" if row.whole else "tick"),
        ]
    return _svg(bottom + 42, f"Ratio {rows[0].ratio:.2f}×", *parts)


# ---------------------------------------------------------------- errors


def errors(row: Mapping[str, Any]) -> Markup:
    """How many elements of one buffer are how far from the original's, in ulp (integers: by difference), on a log
    scale; misplaced NaN and Inf have a bar of their own."""
    bars = [
        ("equal" if at == 0 else _bin(at), int(number), "equal" if at == 0 else "off")
        for at, number in enumerate(row["histogram"])
    ]
    if row.get("nan_mismatch"):
        bars.append(("NaN, Inf", int(row["nan_mismatch"]), "wrong"))
    top, bottom, left = 20.0, 170.0, 56.0
    y = Scale((0.7, max(10.0, 2.0 * max((n for _, n, _ in bars), default=1))), (bottom, top), log=True)
    parts = []
    for tick in (t for t in y.ticks(4) if t >= 1):
        parts += [
            _line(left, y(tick), WIDTH - RIGHT, y(tick), "grid"),
            _text(left - 8, y(tick) + 4, count(tick).replace(".0", ""), "end", class_="tick"),
        ]
    step = min(70.0, (WIDTH - RIGHT - left) / max(len(bars), 1))
    for at, (name, number, kind) in enumerate(bars):
        x = left + step * at
        if number:
            parts += [
                _rect(x + step * 0.12, y(number), step * 0.76, bottom - y(number), f"error {kind}", 2),
                _text(x + step / 2, y(number) - 5, count(number), "middle", class_="tick"),
            ]
        if len(bars) <= 9 or at % 2 == 0 or at == len(bars) - 1:
            parts.append(_text(x + step / 2, bottom + 16, name, "middle", class_="tick"))
    unit = "distance in ulp" if str(row["dtype"]) in ("f64", "f32", "f16", "bf16") else "difference"
    parts += [
        _line(left, bottom, WIDTH - RIGHT, bottom, "axis"),
        _text(left, bottom + 34, f"{unit}; elements on a log scale", class_="label"),
    ]
    return _svg(210, f"Errors of {row['buffer']} by distance", *parts)


def _bin(at: int) -> str:
    """`1`, `2`, `≤ 4`, `≤ 8`, …: the largest distance in a bin (see device/compare.py)."""
    end = 1 << (at - 1)
    return str(end) if end <= 2 else f"≤ {end}" if end < 1000 else f"≤ {count(end)}".replace(".0 ", " ")


# ---------------------------------------------------------------- memory


class Work(NamedTuple):
    """What one launch has to do and how long both took: bytes that must move, microseconds."""

    name: str
    bytes: float
    original_us: float
    candidate_us: float


def roofline(works: Sequence[Work], bandwidth_gbs: float, device: str) -> Markup:
    """The memory roofline with time upwards: no launch lies below the line bytes / peak bandwidth (GB/s are 1,000
    bytes a microsecond). Log-log."""
    least = [work.bytes / (bandwidth_gbs * 1000) for work in works]
    times = [us for work in works for us in (work.original_us, work.candidate_us)] + least
    sizes = [work.bytes for work in works]
    x = Scale((min(sizes) / 24, max(sizes) * 8), (LEFT - 20, WIDTH - RIGHT), log=True)
    y = Scale((min(times) / 3, max(times) * 2.5), (262.0, 14.0), log=True)
    # The line may leave the picture at the bottom or at the top: draw it where it is inside.
    ends = [max(x.low, y.low * bandwidth_gbs * 1000), min(x.high, y.high * bandwidth_gbs * 1000)]
    (x1, y1), (x2, y2) = ((x(b), y(b / (bandwidth_gbs * 1000))) for b in ends)
    below = f"M{x1:.1f},{y1:.1f}L{x2:.1f},{y2:.1f}H{x.pixels[1]:.1f}V262H{x1:.1f}Z"
    parts = [tag("path", d=below, class_="impossible")]
    for tick in y.ticks(5):
        parts += [
            _line(x.pixels[0], y(tick), x.pixels[1], y(tick), "grid"),
            _text(x.pixels[0] - 8, y(tick) + 4, _round(tick), "end", class_="tick"),
        ]
    parts.append(_x_axis(x, 14, 262, _binary(x), "bytes that must move"))
    parts.append(_line(x1, y1, x2, y2, "roof"))
    parts.append(
        _text(
            x.pixels[1] - 8,
            262 - 10,
            f"below {device}'s peak bandwidth, {bandwidth_gbs:,.0f} GB/s",
            "end",
            class_="tick",
        )
    )
    for work, floor in zip(works, least, strict=True):
        at, top, end = x(work.bytes), y(work.original_us), y(work.candidate_us)
        parts += [
            _line(at, top, at, end, "move"),
            tag("circle", cx=at, cy=top, r=6, class_="point a"),
            tag("circle", cx=at, cy=end, r=6, class_="point b"),
            _text(at - 12, top + 4, f"original: {_share(floor / work.original_us)} of peak", "end", class_="tick"),
        ]
        if abs(end - top) > 14:
            parts.append(
                _text(
                    at - 12, end + 4, f"candidate: {_share(floor / work.candidate_us)} of peak", "end", class_="row b"
                )
            )
    return _svg(304, f"Time against bytes that must move, and the peak bandwidth of {device}", *parts)


def _binary(x: Scale) -> list[tuple[float, str]]:
    """Ticks at 4 KiB, 16 KiB, 64 KiB, …: at most six."""
    powers = [power for power in range(0, 60, 2) if x.low <= 1 << power <= x.high]
    return [(float(1 << power), size(1 << power)) for power in powers[:: -(-len(powers) // 6)]] if powers else []


def _round(us: float) -> str:
    for limit, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "µs")):
        if us >= limit:
            return f"{us / limit:g} {unit}"
    return f"{us * 1000:g} ns"


def _share(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.01 else "below 1 %"


def traffic(counts: Mapping[str, float]) -> Markup:
    """Predicted traffic of both: memory requests of warps, 32-byte sectors, bytes that threads asked for."""
    rows = [
        (name, what, counts[f"{name}_before"], counts[f"{name}_after"])
        for name, what in (("sectors", "32 bytes each"), ("requests", "of warps"), ("bytes", "asked for"))
        if f"{name}_before" in counts and f"{name}_after" in counts
    ]
    parts = []
    for number, (name, what, before, after) in enumerate(rows):
        x = Scale((0, max(before, after, 1)), (LEFT, WIDTH - 150))
        y = 8 + 62.0 * number
        parts += [
            _text(LEFT - 12, y + 16, name, "end", class_="row"),
            _text(LEFT - 12, y + 32, what, "end", class_="tick"),
        ]
        for side, value, at in (("a", before, y + 2), ("b", after, y + 24)):
            parts.append(_rect(LEFT, at, max(x(value) - LEFT, 1), 18, f"solid {side}", 3))
            change = "" if side == "a" or not before else f"  {_change(before, after)}"
            word = size(value) if name == "bytes" else count(value)
            parts.append(_text(x(value) + 8, at + 14, f"{word}{change}", class_="row b" if change else "tick"))
    return _svg(8 + 62.0 * len(rows), "Predicted memory traffic", *parts)


def _percent(value: float) -> str:
    return f"{value:+g} %".replace("-", "−") if value else "0"


def _change(before: float, after: float) -> str:
    percent = (after - before) / before * 100
    return "unchanged" if before == after else f"{'−' if percent < 0 else '+'}{abs(percent):.0f} %"


def size(number: float) -> str:
    """`4.0 MiB`."""
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number:.0f} B"
