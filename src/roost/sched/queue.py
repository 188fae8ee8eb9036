"""Who waits: first come, first served."""

from collections import deque
from collections.abc import Iterator

from roost.core.request import RequestId
from roost.sched.sequence import Sequence


class WaitingQueue:
    """Sequences without pages, in the order in which they will run; and beside them those held,
    whose prompt is not known before another turn of their session has ended.

    Both count against `max_queued`. What already ran once, and a health check, goes to the front,
    even of a full queue; a health check takes nobody's place.
    """

    def __init__(self, max_queued: int) -> None:
        self.max_queued = max_queued
        self._sequences: deque[Sequence] = deque()
        self._held: dict[RequestId, Sequence] = {}

    def __len__(self) -> int:
        """How many wait, held or not."""
        return len(self._sequences) + len(self._held)

    def __iter__(self) -> Iterator[Sequence]:
        return iter((*self._sequences, *self._held.values()))

    @property
    def is_full(self) -> bool:
        if len(self) < self.max_queued:
            return False
        num_probes = sum(seq.envelope.is_health_check for seq in self._sequences)
        return len(self) - num_probes >= self.max_queued

    def push(self, seq: Sequence) -> None:
        """In order of arrival, behind what was put to the front. It may have been held."""
        self._held.pop(seq.envelope.rid, None)
        at = len(self._sequences)
        while (
            at and not (before := self._sequences[at - 1]).is_first and (before.number > seq.number)
        ):
            at -= 1
        self._sequences.insert(at, seq)

    def push_front(self, seq: Sequence) -> None:
        self._sequences.appendleft(seq)

    def hold(self, seq: Sequence) -> None:
        self._held[seq.envelope.rid] = seq

    def ready(self) -> list[Sequence]:
        """Those that may run, in the order in which they are to."""
        return list(self._sequences)

    def remove(self, seq: Sequence) -> None:
        if self._held.pop(seq.envelope.rid, None) is None:
            self._sequences.remove(seq)
