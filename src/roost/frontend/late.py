"""Late output: what comes for requests that do not live, told apart by how they ended. No IO."""

import enum
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from roost.core.events import Ended
from roost.core.outcome import Outcome
from roost.core.request import HEALTH_PREFIX
from roost.wire.messages import Output

# What a Cancel takes to arrive and to be obeyed, at most; output that comes later says that it got
# lost. No request is taken back more often than once in this time.
_CANCEL_S = 1.0

_BY_CLIENT = (Outcome.CLIENT_CANCELLED, Outcome.CLIENT_DISCONNECTED)


class LateCause(enum.StrEnum):
    """Why output came for a request that does not live; the value is its metric label."""

    CLIENT = "client"
    HEALTH = "health"
    OURS = "ours"
    UNKNOWN = "unknown"


class Late(NamedTuple):
    """An output that is nobody's. is_stray: the engine still computes it and is to be told."""

    cause: LateCause
    is_stray: bool


@dataclass(slots=True)
class _Record:
    """How a request ended; outcome None: it was never here, and is known by its late output.

    is_receipt_due: ended from here, the engine still answers with an Ended of its own; that is
    the receipt, and not late. is_counted: its late output is in a line already. cancelled_s: when
    the engine was told last that it has ended.
    """

    outcome: Outcome | None
    recorded_s: float
    is_receipt_due: bool = False
    is_counted: bool = False
    cancelled_s: float = float("-inf")


@dataclass(slots=True)
class LateLine:
    """What a log line says of late output since the last line: requests, outputs, and one rid."""

    cause: LateCause
    num_requests: int = 0
    num_outputs: int = 0
    example: str = ""


@dataclass(slots=True)
class Endings:
    """How requests ended, by serial.

    Parameters
    ----------
    max_records, record_s:
        How many endings are remembered, and for how many seconds.
    """

    max_records: int = 16384
    record_s: float = 120.0
    _records: "OrderedDict[int, _Record]" = field(default_factory=OrderedDict)
    _lines: dict[LateCause, LateLine] = field(default_factory=dict)

    def add(self, serial: int, outcome: Outcome, now_s: float, *, is_receipt_due: bool) -> None:
        """Remember how a request ended. is_receipt_due: from here, and the engine knew it."""
        self._keep(serial, _Record(outcome, now_s, is_receipt_due, cancelled_s=now_s), now_s)

    def see(self, output: Output, now_s: float) -> Late | None:
        """Classify an output for a request that has ended, or was never here, and count it.

        None: it is the receipt that was due.
        """
        self._forget(now_s)
        is_end = isinstance(output.event, Ended)
        record = self._records.get(output.serial)
        if record is None:
            record = _Record(None, now_s)
            self._keep(output.serial, record, now_s)
        elif is_end and record.is_receipt_due:
            record.is_receipt_due = False
            return None
        if output.rid.startswith(HEALTH_PREFIX):
            cause = LateCause.HEALTH
        elif record.outcome is None:
            cause = LateCause.UNKNOWN
        elif record.outcome in _BY_CLIENT:
            cause = LateCause.CLIENT
        else:
            cause = LateCause.OURS
        line = self._lines.setdefault(cause, LateLine(cause))
        line.num_outputs += 1
        if not record.is_counted:
            line.num_requests += 1
            line.example = line.example or output.rid
            record.is_counted = True
        is_stray = not is_end and now_s >= record.cancelled_s + _CANCEL_S
        if is_stray:
            record.is_receipt_due, record.cancelled_s = True, now_s
        return Late(cause, is_stray)

    def engine_changed(self) -> None:
        """Another life of the engine answers from now on: it owes no receipts."""
        for record in self._records.values():
            record.is_receipt_due = False

    def take_lines(self) -> list[LateLine]:
        """What to log of late output since the last call: at most one line a cause."""
        lines = [line for line in self._lines.values() if line.num_requests > 0]
        self._lines.clear()
        return lines

    def check(self, live: Collection[int]) -> None:
        """Assert that no record is of a request that lives, and that they are not too many."""
        assert not self._records.keys() & set(live), "a request lives and has ended"
        assert len(self._records) <= self.max_records, "too many records are kept"

    def _keep(self, serial: int, record: _Record, now_s: float) -> None:
        self._forget(now_s)
        self._records[serial] = record
        while len(self._records) > self.max_records:
            self._records.popitem(last=False)

    def _forget(self, now_s: float) -> None:
        """Drop the records that have expired; the oldest come first."""
        while self._records:
            serial = next(iter(self._records))
            if self._records[serial].recorded_s + self.record_s > now_s:
                return
            del self._records[serial]
