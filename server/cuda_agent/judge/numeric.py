"""The numeric rule: when does a difference from the original count as the same result, and what is it called.

Integers, booleans, indices and unknown types: exact. Floats, in this order: the person's tolerance; else, for float32,
a float64 shadow of the kernel (`shadow.py`) measures how far original and candidate are from the exact result, and the
candidate may be twice as far as the original, in the largest error and in relative L2; else, where no shadow can be
had, the largest absolute difference from the original may be `RULE[dtype]` times the largest magnitude in its output;
that is enough too for fast-math that the person opted in to.
Twice the original's own spread over repeats is always allowed. NaN and infinities sit where the original has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cuda_agent.model import NumericClass

RULE = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}  # relative to max|reference| of the buffer
ORDER: tuple[NumericClass, ...] = ("bit-exact", "reassociated", "tolerance", "fast-math")
FACTOR = 2.0  # times the original's own error
# An original may be exact by luck: a candidate may always be a few ulp of the output's magnitude away, and as many
# half ulp in relative L2.
FLOOR_ABS, FLOOR_L2 = 4 * 2.0**-23, 4 * 2.0**-24
PLAUSIBLE = 1e-2  # of the output's magnitude: an original further from its shadow is not judged by it


def allowed(dtype: str, max_ref: float, tolerance: float | None = None, spread: float = 0.0) -> float:
    """Largest absolute difference that passes without a shadow; 0 for everything that is not a float. `tolerance` is
    relative like `RULE`."""
    if dtype not in RULE:
        return 0.0
    return max((RULE[dtype] if tolerance is None else tolerance) * max_ref, 2 * spread)


def accepts(result: Mapping[str, Any], limit: float) -> bool:
    """Whether one buffer's comparison (a `compare` step's row) passes with absolute differences up to `limit`."""
    if result["equal"]:
        return True
    return result["dtype"] in RULE and result["nan_mismatch"] == 0 and result["max_abs"] <= limit


def worst(classes: Iterable[NumericClass]) -> NumericClass:
    return max(classes, key=ORDER.index, default="bit-exact")


@dataclass(frozen=True, slots=True)
class Error:
    """Distance of a result from the exact one: over the written elements that are finite."""

    max_abs: float
    max_rel: float  # over the element's own magnitude
    rel_l2: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Error:
        return cls(float(row["max_abs"]), float(row["max_rel"]), float(row["rel_l2"]))

    def join(self, other: Error) -> Error:
        """The larger of each."""
        return Error(max(self.max_abs, other.max_abs), max(self.max_rel, other.max_rel), max(self.rel_l2, other.rel_l2))


@dataclass(frozen=True, slots=True)
class Shadowed:
    """Original and candidate against the float64 shadow of the original, in one buffer."""

    original: Error  # its own: on the recorded inputs, and on the same with last bits changed
    candidate: Error
    magnitude: float  # max|exact| among the written elements
    spread: float = 0.0  # of the original over repeats

    @property
    def limit_abs(self) -> float:
        return max(FACTOR * max(self.original.max_abs, self.spread), FLOOR_ABS * self.magnitude)

    @property
    def limit_l2(self) -> float:
        return max(FACTOR * self.original.rel_l2, FLOOR_L2, self.spread_l2)

    @property
    def spread_l2(self) -> float:
        return FACTOR * self.spread / self.magnitude if self.magnitude else 0.0

    @property
    def difference(self) -> float:
        """How far an accepted candidate may be from the original."""
        return self.limit_abs + max(self.original.max_abs, self.spread)

    @property
    def within(self) -> bool:
        return self.candidate.max_abs <= self.limit_abs and self.candidate.rel_l2 <= self.limit_l2

    def to_json(self) -> dict[str, Any]:
        return {
            "original": asdict(self.original),
            "candidate": asdict(self.candidate),
            "allowed": {"max_abs": self.limit_abs, "rel_l2": self.limit_l2},
        }

    def sentence(self) -> str:
        """`error against a float64 shadow 3e-08 (relative L2 1e-08), the original's own 5e-08 (2e-08)`; where the
        largest error passes and L2 does not, that order tells why."""
        a, b = self.candidate, self.original
        return (
            f"error against a float64 shadow {a.max_abs:.3g} (relative L2 {a.rel_l2:.3g}), the original's own "
            f"{b.max_abs:.3g} ({b.rel_l2:.3g}), allowed {self.limit_abs:.3g} ({self.limit_l2:.3g})"
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """How one buffer of one launch compared: a row of the evidence's numeric table."""

    launch: int
    buffer: str
    klass: NumericClass
    within: bool
    allowed: float  # absolute: of the difference from the original, or of the error against the shadow
    result: Mapping[str, Any]  # the compare step's row
    rule: str = ""  # which rule decided a difference, and why not the shadow; empty for equal bits
    shadow: Shadowed | None = None

    def to_json(self) -> dict[str, Any]:
        keys = ("dtype", "differing", "max_abs", "max_rel", "max_ulp", "rel_l2", "nan_mismatch", "histogram", "worst")
        return {
            "launch": self.launch,
            "buffer": self.buffer,
            "class": self.klass,
            "elements": self.result["compared"],
            "within": self.within,
            "allowed": self.allowed,
            "rule": self.rule,
            "shadow": self.shadow.to_json() if self.shadow else None,
            **{key: self.result[key] for key in keys},
        }

    def sentence(self) -> str:
        """The first wrong element, in words; on the emulator with the thread that wrote it. Where a comparison knew no
        tolerance, or a float64 shadow decides, the first differing element may be a right one: there the worst is
        named."""
        misplaced = self.result["nan_mismatch"]
        known = self.result.get("outside") or self.result["dtype"] not in RULE
        wrong = self.result["first"] if known else self.result["worst"] or self.result["first"]
        what = f"{self.buffer}[{wrong['index']}]" if wrong else self.buffer
        values = f": expected {show(wrong['expected'])}, got {show(wrong['got'])}" if wrong else ""
        values += written_by(self.result) if known else ""
        off = f", allowed {self.allowed:.3g}" if self.allowed and not misplaced and self.shadow is None else ""
        count = f"{self.result['differing']:,} of {self.result['compared']:,} elements differ{off}"
        if misplaced:
            count += f", {misplaced:,} of them NaN or infinite on one side only"
        if self.shadow is not None and not misplaced:
            count += f"; {self.shadow.sentence()}"
        elif self.rule and not misplaced and self.result["dtype"] in RULE:
            count += f"; {self.rule}"
        return f"{what}{values} ({count})"

    def difference(self) -> str:
        """How an accepted buffer differs, in words."""
        if not self.result["max_abs"]:
            return f"{self.buffer} differs only in the sign of zeros or the bits of NaNs"
        most = f"{self.buffer} differs by at most {self.result['max_abs']:.3g} ({self.result['max_ulp']:,} ulp"
        if self.shadow is not None:
            return f"{most}); {self.shadow.sentence()}"
        return f"{most}, allowed {self.allowed:.3g}; {self.rule})"


def classify(
    launch: int,
    buffer: str,
    result: Mapping[str, Any],
    *,
    declared: NumericClass,
    max_ref: float,
    tolerance: float | None = None,
    spread: float = 0.0,
    why: str = "",
    shadow: Shadowed | None = None,
) -> Compared:
    """Name the difference. What the candidate declared is believed only where the numbers allow it: equal bits are
    bit-exact whatever was declared, and a difference is never bit-exact. `why` there is no shadow goes into the
    rule's sentence; a `shadow` decides instead of the scaled tolerance."""
    dtype = str(result["dtype"])
    limit = allowed(dtype, max_ref, tolerance, spread)
    if result["equal"]:
        return Compared(launch, buffer, "bit-exact", True, limit, result)
    klass: NumericClass = "tolerance" if tolerance is not None else worst(["reassociated", declared])
    if shadow is not None and tolerance is None and dtype in RULE:
        # The other poison pattern had no shadow of its own: it may differ as much as this one could.
        within = shadow.within and accepts(result, shadow.difference)
        return Compared(launch, buffer, klass, within, shadow.limit_abs, result, "float64 shadow", shadow)
    if dtype not in RULE:
        rule = "exact: no floats"
    elif tolerance is not None:
        rule = f"your tolerance {tolerance:g}·max|reference|"
    else:
        rule = f"{RULE[dtype]:g}·max|reference|{f', no float64 shadow: {why}' if why else ''}"
    return Compared(launch, buffer, klass, accepts(result, limit), limit, result, rule)


def written_by(result: Mapping[str, Any]) -> str:
    """Who stored to the first wrong element of a comparison, where its launch was traced."""
    if "writer" not in result:
        return ""
    writer = result["writer"]
    if writer is None:
        return ", which no thread wrote"
    thread, block = (tuple(writer[what]) for what in ("thread", "block"))
    line = f" at line {writer['line']}" if writer["line"] else ""
    return f", written by thread {thread} of block {block}{line}"


def show(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{byte:02x}" for byte in value)
    return f"{value:.9g}" if isinstance(value, float) else str(value)
