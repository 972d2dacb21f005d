"""What a search may spend: seconds of wall time and candidates judged."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Budget:
    """Counts down from the moment it is made. Seconds are wall time."""

    seconds: float = 300.0
    candidates: int = 60
    started: float = field(default_factory=time.monotonic)
    tried: int = 0

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        return max(0.0, self.seconds - self.spent)

    @property
    def exhausted(self) -> bool:
        return self.left <= 0 or self.tried >= self.candidates

    @property
    def share(self) -> float:
        """How much of the budget is gone, 0 to 1: the progress bar."""
        return min(1.0, max(self.spent / self.seconds, self.tried / max(1, self.candidates)))
