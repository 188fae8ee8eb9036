"""Who waits: first come, first served."""

from collections import deque
from collections.abc import Iterator

from roost.sched.sequence import Sequence


class WaitingQueue:
    """Sequences without pages, in the order in which they will run.

    `push` refuses above `max_queued`. What already ran once, and a health check, goes to the front
    and is never refused.
    """

    def __init__(self, max_queued: int) -> None:
        self.max_queued = max_queued
        self._sequences: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def is_full(self) -> bool:
        return len(self._sequences) >= self.max_queued

    def push(self, seq: Sequence) -> None:
        assert not self.is_full, "pushed past the limit"
        self._sequences.append(seq)

    def push_front(self, seq: Sequence) -> None:
        self._sequences.appendleft(seq)

    def head(self) -> Sequence | None:
        return self._sequences[0] if self._sequences else None

    def pop(self) -> Sequence:
        return self._sequences.popleft()

    def remove(self, seq: Sequence) -> None:
        self._sequences.remove(seq)
