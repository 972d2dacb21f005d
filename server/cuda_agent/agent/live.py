"""A search's events in words. `candidate` and `trying` events, and the phases between them, carry the numbers of their
moment: `tried`, `best` ("1.83× by row-per-warp(lanes=32)") and `left_s`; a model's also `tokens` and `cost`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def numbers(event: Mapping[str, Any], best: bool = True) -> str:
    """`12 tried · best 1.83× by unroll(factor=8) · 143 s left`; empty for events without them."""
    if event.get("left_s") is None:
        return ""
    parts = [f"{event['tried']} tried"]
    if best and event.get("best"):
        parts.append(f"best {event['best']}")
    if event.get("tokens"):
        parts.append(f"{event['tokens'] / 1000:.1f}k tokens" + (f", {event['cost']:.2f}" if event.get("cost") else ""))
    return " · ".join([*parts, f"{event['left_s']:.0f} s left"])


def message(event: Mapping[str, Any]) -> str:
    """What happens, in words."""
    if event.get("event") == "trying":
        return f"trying {str(event.get('origin')).removeprefix('rule:')}"
    return str(event.get("message") or event.get("text") or "")
