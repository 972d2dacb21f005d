"""Evidence: `evidence.json`, one screen of it, one page of it. The fields are described in docs/evidence.md.

Nothing here imports numpy: the server process renders evidence too.
"""

from __future__ import annotations

from cuda_agent.judge.evidence.document import SCHEMA, candidate_from_json, from_json, to_json
from cuda_agent.judge.evidence.screen import interval_bar, render_text
from cuda_agent.judge.evidence.words import headline, traffic_sentence

__all__ = [
    "SCHEMA",
    "candidate_from_json",
    "from_json",
    "headline",
    "interval_bar",
    "render_text",
    "to_json",
    "traffic_sentence",
]
