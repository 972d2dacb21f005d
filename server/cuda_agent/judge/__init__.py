"""The judge: is a candidate right, is it faster, and how do we know. See docs/gates.md and docs/evidence.md.

Importing this package loads no numpy: the server process renders verdicts too. `judge` and `quick` load it when
called for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuda_agent.judge.evidence import from_json, headline, render_text, to_json
from cuda_agent.judge.options import JudgeOptions

if TYPE_CHECKING:
    from cuda_agent.judge.verdict import edit_policy, judge, quick

__all__ = ["JudgeOptions", "edit_policy", "from_json", "headline", "judge", "quick", "render_text", "to_json"]


def __getattr__(name: str) -> Any:
    if name in ("edit_policy", "judge", "quick"):
        from cuda_agent.judge import verdict

        return getattr(verdict, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
