"""What will happen when, in virtual time: a clock that moves from one appointment to the next."""

import heapq
import itertools
from collections.abc import Callable

from roost.core.clock import ManualClock


class Agenda:
    """Appointments at the same time come in the order in which they were made."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = itertools.count()

    @property
    def now_s(self) -> float:
        return self.clock.now_s()

    def at(self, when_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(when_s, self.now_s), next(self._ties), do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self.at(self.now_s + seconds, do)

    def run_until(self, when_s: float) -> None:
        """Keep every appointment up to then."""
        while self._heap and self._heap[0][0] <= when_s:
            at_s, _, do = heapq.heappop(self._heap)
            self.clock.advance(at_s - self.now_s)
            do()
        self.clock.advance(when_s - self.now_s)
