"""HTML and SVG by small functions: everything is escaped but what these functions made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


Child = str | int | float | None
VOID = frozenset({"meta", "br"})


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """`tag("td", text, class_="n")`. Children are escaped unless they are `Markup`; attributes that are None or False
    are left out, True stands alone, and `stroke_width` becomes `stroke-width`."""
    words = [name]
    for key, value in attributes.items():
        spelled = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(spelled)
        elif value is not None and value is not False:
            words.append(f'{spelled}="{escape(_plain(value))}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in VOID else f"{opening}{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else escape(_plain(child)) for child in children))


def _plain(value: Child | bool) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    # C0 controls but tab and newline cannot stand in XML, and terminals act on them.
    return (
        "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value))
        .encode("utf-8", "replace")
        .decode("utf-8")
    )


# ---------------------------------------------------------------- scales


class Scale:
    """Maps `domain` to `pixels`, linearly or by logarithm; values outside are clamped to the ends."""

    def __init__(self, domain: tuple[float, float], pixels: tuple[float, float], *, log: bool = False) -> None:
        self.low, self.high = domain
        self.pixels, self.log = pixels, log

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.pixels[0] + share * (self.pixels[1] - self.pixels[0])

    def ticks(self, wanted: int = 6) -> list[float]:
        """Round numbers inside the domain."""
        return log_ticks(self.low, self.high, wanted) if self.log else linear_ticks(self.low, self.high, wanted)


def linear_ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten; about `wanted` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [round(n * step, 12) for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Powers of ten; on a shorter scale their multiples by 2 and 5 too, on a very short one round numbers."""
    if high / low < 3:
        return linear_ticks(low, high, wanted)
    factors: Sequence[int] = (1,) if high / low > 300 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [10.0**power * factor for power in powers for factor in factors]
    inside = [tick for tick in found if low * 0.999 <= tick <= high * 1.001]
    return inside[:: -(-len(inside) // wanted)] if len(factors) == 1 else inside


def quantile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between order statistics (Hyndman & Fan 1996, type 7)."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
