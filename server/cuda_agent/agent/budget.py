"""What a search may spend: seconds of wall time, candidates judged, and a model's tokens and money."""

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
    tokens: int = 0  # 0: no limit
    cost: float = 0.0  # in the money of `price`; 0: no limit
    price: tuple[float, float] = (0.0, 0.0)  # of a million tokens, read and written
    read: int = 0  # tokens
    written: int = 0  # tokens

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
    def used(self) -> int:
        """Tokens, read and written."""
        return self.read + self.written

    @property
    def paid(self) -> float:
        return (self.read * self.price[0] + self.written * self.price[1]) / 1e6

    @property
    def exhausted(self) -> bool:
        return self.over or self.silent

    @property
    def over(self) -> bool:
        """Nothing more may be judged."""
        return self.to_try <= 0 or self.tried >= self.candidates

    @property
    def silent(self) -> bool:
        """The model may not be asked any more."""
        return (0 < self.tokens <= self.used) or (0 < self.cost <= self.paid)

    @property
    def share(self) -> float:
        """How much of the budget for trying is gone, 0 to 1: the progress bar."""
        whole = self.seconds - min(self.reserve, self.seconds / 2)
        asked = self.used / self.tokens if self.tokens else 0.0
        return min(1.0, max(self.spent / whole, self.tried / max(1, self.candidates), asked))
