"""When to look at which sequence again."""

import heapq
import itertools
import math

from roost.sched.sequence import Sequence

# Below this many entries nobody minds the ended ones among them.
_SWEEP_FROM = 256


class Deadlines:
    """A heap of (time, sequence). Sequences that have ended are left in it and skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._ties = itertools.count()
        self._sweep_at = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, seq: Sequence) -> None:
        for at_s in {seq.envelope.deadline_s, seq.queue_deadline_s}:
            if at_s != math.inf:
                heapq.heappush(self._heap, (at_s, next(self._ties), seq))
        if len(self._heap) > self._sweep_at:
            # Amortised: the next sweep comes after as many pushes as entries were kept.
            self._heap = [entry for entry in self._heap if not entry[2].is_ended]
            heapq.heapify(self._heap)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._heap))

    def take_overdue(self, now_s: float) -> list[Sequence]:
        """Those alive whose time has come, the earliest first. Each is given once."""
        due: list[Sequence] = []
        while self._heap and self._heap[0][0] <= now_s:
            seq = heapq.heappop(self._heap)[2]
            if not seq.is_ended and seq.is_overdue(now_s) and seq not in due:
                due.append(seq)
        return due

    def next_s(self) -> float:
        """When to look again; inf: never. May be early, on account of one that has ended."""
        return self._heap[0][0] if self._heap else math.inf
