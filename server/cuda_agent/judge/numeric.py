"""The numeric rule: when does a difference from the original count as the same result, and what is it called.

Integers, booleans, indices and unknown types: exact. Floats: the largest absolute difference may be `RULE[dtype]`
times the largest magnitude in the original's output (until a float64 shadow of the kernel measures the original's own
error), or the person's tolerance, or twice the original's own spread over repeats, whichever applies. NaN and
infinities sit where the original has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cuda_agent.model import NumericClass

RULE = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}  # relative to max|reference| of the buffer
ORDER: tuple[NumericClass, ...] = ("bit-exact", "reassociated", "tolerance", "fast-math")


def allowed(dtype: str, max_ref: float, tolerance: float | None = None, spread: float = 0.0) -> float:
    """Largest absolute difference that passes; 0 for everything that is not a float. `tolerance` is relative like
    `RULE`."""
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
class Compared:
    """How one buffer of one launch compared: a row of the evidence's numeric table."""

    launch: int
    buffer: str
    klass: NumericClass
    within: bool
    allowed: float
    result: Mapping[str, Any]  # the compare step's row

    def to_json(self) -> dict[str, Any]:
        keys = ("dtype", "differing", "max_abs", "max_rel", "max_ulp", "rel_l2", "nan_mismatch", "histogram", "worst")
        return {
            "launch": self.launch,
            "buffer": self.buffer,
            "class": self.klass,
            "elements": self.result["compared"],
            "within": self.within,
            "allowed": self.allowed,
            **{key: self.result[key] for key in keys},
        }

    def sentence(self) -> str:
        """The first wrong element, in words."""
        wrong = (
            self.result["worst"]
            if self.result["dtype"] in RULE and not self.result["nan_mismatch"]
            else self.result["first"]
        )
        wrong = wrong or self.result["first"]
        what = f"{self.buffer}[{wrong['index']}]" if wrong else self.buffer
        values = f": expected {show(wrong['expected'])}, got {show(wrong['got'])}" if wrong else ""
        off = f", allowed {self.allowed:.3g}" if self.allowed else ""
        return f"{what}{values} ({self.result['differing']:,} of {self.result['compared']:,} elements differ{off})"


def classify(
    launch: int,
    buffer: str,
    result: Mapping[str, Any],
    *,
    declared: NumericClass,
    max_ref: float,
    tolerance: float | None = None,
    spread: float = 0.0,
) -> Compared:
    """Name the difference. What the candidate declared is believed only where the numbers allow it: equal bits are
    bit-exact whatever was declared, and a difference is never bit-exact."""
    limit = allowed(str(result["dtype"]), max_ref, tolerance, spread)
    klass: NumericClass = "bit-exact"
    if not result["equal"]:
        klass = "tolerance" if tolerance is not None else worst(["reassociated", declared])
    return Compared(launch, buffer, klass, accepts(result, limit), limit, result)


def show(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{byte:02x}" for byte in value)
    return f"{value:.9g}" if isinstance(value, float) else str(value)
