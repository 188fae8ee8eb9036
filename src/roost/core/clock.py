"""Time comes in as an argument; this is where it comes from. The only reader of the clocks."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Monotonic seconds, the same in every process of this machine."""
        ...

    def unix_s(self) -> float:
        """Seconds since 1970, for what people read (logs, `created`). Never for intervals."""
        ...


class SystemClock:
    def now_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()


class ManualClock:
    """A clock that a test moves."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def unix_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
