"""Calls that every worker has to carry out, until each has said that it did."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from roost.core.calls import Broadcast
from roost.core.request import Origin

# The caller has given up by then. Whoever has not answered lost the notice, or its answer got lost.
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Closed:
    """A broadcast that waits for nobody any more.

    count: requests that it touched, at the engine and at all workers. num_silent: workers that had
    not answered when patience ran out.
    """

    caller: Origin
    call_id: str
    call: Broadcast
    count: int
    num_silent: int = 0


@dataclass(slots=True)
class _Open:
    caller: Origin
    call_id: str
    call: Broadcast
    awaited: set[Origin]
    count: int
    until_s: float

    def closed(self) -> Closed:
        return Closed(self.caller, self.call_id, self.call, self.count, len(self.awaited))


class Broadcasts:
    """The open broadcasts by the id of their notice, oldest first.

    A notice gets an id of its own, because callers number their calls each for itself. It differs
    from life to life of the engine, so that a late answer meets no other broadcast.
    """

    def __init__(self, engine_epoch: int) -> None:
        self._engine_epoch = engine_epoch
        self._open: dict[str, _Open] = {}
        self._num_notices = 0

    def open(
        self,
        caller: Origin,
        call_id: str,
        call: Broadcast,
        awaited: Collection[Origin],
        *,
        count: int,
        now_s: float,
    ) -> str:
        """Begin to wait for these workers, of which there is at least one → the notice's id.

        count: requests that the engine itself touched.
        """
        assert awaited, "a broadcast to nobody waits for ever"
        self._num_notices += 1
        notice_id = f"{self._engine_epoch}.{self._num_notices}"
        until_s = now_s + PATIENCE_S
        self._open[notice_id] = _Open(caller, call_id, call, set(awaited), count, until_s)
        return notice_id

    def note(self, origin: Origin, notice_id: str, count: int) -> Closed | None:
        """One worker has done it. Anything else than its first answer is passed over."""
        one = self._open.get(notice_id)
        if one is None or origin not in one.awaited:
            return None
        one.awaited.remove(origin)
        one.count += count
        if one.awaited:
            return None
        del self._open[notice_id]
        return one.closed()

    def forget(self, origin: Origin) -> list[Closed]:
        """A life of a worker is over: nobody waits for it, and what it asked is dropped."""
        for notice_id in [key for key, one in self._open.items() if one.caller == origin]:
            del self._open[notice_id]
        # It held no request any more, so it has done whatever was to do.
        answers = [self.note(origin, notice_id, 0) for notice_id in list(self._open)]
        return [closed for closed in answers if closed is not None]

    def take_overdue(self, now_s: float) -> list[Closed]:
        """Give up those that have waited too long."""
        overdue = [key for key, one in self._open.items() if one.until_s <= now_s]
        return [self._open.pop(key).closed() for key in overdue]

    def take_all(self) -> list[Closed]:
        """Give up all of them."""
        taken, self._open = self._open, {}
        return [one.closed() for one in taken.values()]

    def next_deadline_s(self) -> float:
        """When the oldest is given up; `inf` with none."""
        return next((one.until_s for one in self._open.values()), math.inf)
