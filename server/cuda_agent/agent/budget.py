"""What a search may spend: seconds of wall time and candidates judged."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Budget:
    """Counts down from the moment it is made. Seconds are wall time; `reserve` of them are kept for the full verdict,
    at most half."""

    seconds: float = 300.0
    candidates: int = 200
    started: float = field(default_factory=time.monotonic)
    tried: int = 0
    reserve: float = 0.0

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        return max(0.0, self.seconds - self.spent)

    @property
    def to_try(self) -> float:
        """Seconds left for trying candidates."""
        return self.left - min(self.reserve, self.seconds / 2)

    @property
    def exhausted(self) -> bool:
        return self.to_try <= 0 or self.tried >= self.candidates

    @property
    def share(self) -> float:
        """How much of the budget for trying is gone, 0 to 1: the progress bar."""
        whole = self.seconds - min(self.reserve, self.seconds / 2)
        return min(1.0, max(self.spent / whole, self.tried / max(1, self.candidates)))
