"""The ledger: which requests of this process live, and how the others ended. No IO, no clock.

Every request that is opened ends exactly once: by the engine's Ended, or by `end` from here. What
arrives for a request that does not live is told apart by how that request ended. A rid names one
live request at most, and may be used again; the serial names one request for ever.
"""

import enum
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from roost.core.errors import DuplicateRequest
from roost.core.events import Delta, Ended, Event, Started, Usage
from roost.core.lifecycle import ProtocolViolation, State, advance
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.request import HEALTH_PREFIX, Envelope, RequestId
from roost.wire.messages import Output

# Behind its deadline by so much, a request is ended here: the engine should have done it.
_GRACE_S = 5.0
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
class Life:
    """One request that lives.

    is_sent: the engine has been told of it. heard_s: when that was, or when it was heard of last.
    audit: the number of the first audit that asked for it since, 0: none; audited_s: when the last
    one did. ended: how it ended, for whoever still prepares it.
    """

    envelope: Envelope
    state: State = State.SENT
    is_sent: bool = False
    heard_s: float = 0.0
    audit: int = 0
    audited_s: float = float("-inf")
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    ended: Ended | None = None

    @property
    def usage(self) -> Usage:
        """Counts as far as they are known here, for an ending that the engine does not make."""
        return Usage(self.num_prompt_tokens, self.num_completion_tokens, self.num_cached_tokens)


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
class Ledger:
    """Parameters
    ----------
    max_records, record_s:
        How many endings are remembered, and for how many seconds.
    """

    max_records: int = 16384
    record_s: float = 120.0
    _lives: dict[RequestId, Life] = field(default_factory=dict)
    _num_probes: int = 0
    # A group's members in order of arrival; the values say nothing.
    _groups: dict[str, dict[RequestId, None]] = field(default_factory=dict)
    _records: "OrderedDict[int, _Record]" = field(default_factory=OrderedDict)
    _late: dict[LateCause, LateLine] = field(default_factory=dict)

    def open(self, envelope: Envelope) -> Life:
        """Take a request in. Raises DuplicateRequest, changing nothing, when its rid lives."""
        rid, group = envelope.rid, envelope.group
        if rid in self._lives or rid in self._groups:
            raise DuplicateRequest(rid)
        if _is_member(envelope):
            if group in self._lives:
                raise DuplicateRequest(group)
            self._groups.setdefault(group, {})[rid] = None
        self._num_probes += envelope.is_health_check
        life = self._lives[rid] = Life(envelope)
        return life

    def see(self, output: Output, now_s: float) -> "Life | Late | None":
        """Advance the request by one event of the engine, and give its life.

        Late: the request does not live, so the output is nobody's; it is counted. None: it
        does not live, and this was the expected receipt. Raises ProtocolViolation, changing
        nothing, for an event that the table forbids, or that shows that another got lost.
        """
        life = self._lives.get(output.rid)
        if life is None or life.envelope.serial != output.serial:
            return self._see_late(output, now_s)
        event: Event = output.event
        state = advance(life.state, event)
        _check_counts(life, event)
        life.state, life.heard_s, life.audit = state, now_s, 0
        match event:
            case Delta():
                life.num_completion_tokens += len(event.token_ids)
            case Started():
                life.num_cached_tokens = event.num_cached_tokens
                life.num_prompt_tokens = len(event.prompt_ids) or life.num_prompt_tokens
            case Ended():
                self._bury(life, event, now_s, is_receipt_due=False)
        return life

    def end(self, rid: RequestId, ending: Ended, now_s: float) -> Ended | None:
        """End a request from this side, with `ending` and the counts that are known.

        None: it does not live, so there is nothing to end.
        """
        life = self._lives.get(rid)
        if life is None:
            return None
        ended = msgspec.structs.replace(ending, usage=life.usage)
        life.state = advance(life.state, ended)
        self._bury(life, ended, now_s, is_receipt_due=life.is_sent)
        return ended

    def engine_changed(self) -> tuple[RequestId, ...]:
        """Another life of the engine answers from now on: it owes no receipts.

        Gives the requests that only the old one knew; they are still to be ended.
        """
        for record in self._records.values():
            record.is_receipt_due = False
        return tuple(rid for rid, life in self._lives.items() if life.is_sent)

    def take_late_lines(self) -> list[LateLine]:
        """What to log of late output since the last call: at most one line a cause."""
        lines = [line for line in self._late.values() if line.num_requests > 0]
        self._late.clear()
        return lines

    def overdue(self, now_s: float) -> list[RequestId]:
        """Requests to be ended here: what the engine should have ended a while ago, and what it
        has not been told of yet.
        """
        return [
            rid
            for rid, life in self._lives.items()
            if now_s > life.envelope.deadline_s + (_GRACE_S if life.is_sent else 0.0)
        ]

    def audit(self, number: int, now_s: float, after_s: float) -> tuple[int, ...]:
        """The serials that audit `number` is to ask for: what the engine was told of, and has said
        nothing about for so long.
        """
        due: list[int] = []
        for life in self._lives.values():
            if life.is_sent and now_s >= max(life.heard_s, life.audited_s) + after_s:
                life.audit, life.audited_s = life.audit or number, now_s
                due.append(life.envelope.serial)
        return tuple(due)

    def lost(self, number: int, missing: Iterable[int]) -> list[RequestId]:
        """Of the serials that audit `number` did not find, those not heard of since it asked."""
        absent = frozenset(missing)
        return [
            rid
            for rid, life in self._lives.items()
            if life.envelope.serial in absent and 0 < life.audit <= number
        ]

    def life(self, rid: RequestId) -> Life | None:
        return self._lives.get(rid)

    def live(self) -> tuple[RequestId, ...]:
        return tuple(self._lives)

    @property
    def num_traffic(self) -> int:
        """How many live, health checks not counted."""
        return len(self._lives) - self._num_probes

    def members(self, name: str | None) -> tuple[RequestId, ...]:
        """The live requests that `name` names, exactly: one rid, or the members of one group.

        None names all but health checks.
        """
        if name is None:
            return tuple(r for r, one in self._lives.items() if not one.envelope.is_health_check)
        if name in self._lives:
            return (RequestId(name),)
        return tuple(self._groups.get(name, ()))

    def check(self) -> None:
        """Assert that the books balance."""
        lives = self._lives.values()
        grouped = {rid: name for name, rids in self._groups.items() for rid in rids}
        expected = {e.rid: e.group for e in (life.envelope for life in lives) if _is_member(e)}
        assert grouped == expected, "groups and their members disagree"
        serials = {life.envelope.serial for life in lives}
        assert len(serials) == len(self._lives), "two requests have one serial"
        assert not serials & self._records.keys(), "a request lives and has ended"
        assert self._num_probes == sum(life.envelope.is_health_check for life in lives)
        assert len(self._records) <= self.max_records, "too many records are kept"
        assert all(life.state is not State.ENDED and life.ended is None for life in lives)

    def _bury(self, life: Life, ended: Ended, now_s: float, *, is_receipt_due: bool) -> None:
        envelope = life.envelope
        life.ended = ended
        del self._lives[envelope.rid]
        self._num_probes -= envelope.is_health_check
        if _is_member(envelope):
            del self._groups[envelope.group][envelope.rid]
            if not self._groups[envelope.group]:
                del self._groups[envelope.group]
        record = _Record(ended.outcome, now_s, is_receipt_due, cancelled_s=now_s)
        self._keep(envelope.serial, record, now_s)

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

    def _see_late(self, output: Output, now_s: float) -> Late | None:
        """Classify an output for a request that has ended, or was never here."""
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
        line = self._late.setdefault(cause, LateLine(cause))
        line.num_outputs += 1
        if not record.is_counted:
            line.num_requests += 1
            line.example = line.example or output.rid
            record.is_counted = True
        is_stray = not is_end and now_s >= record.cancelled_s + _CANCEL_S
        if is_stray:
            record.is_receipt_due, record.cancelled_s = True, now_s
        return Late(cause, is_stray)


def _is_member(envelope: Envelope) -> bool:
    """Whether it is one of a group of another name than its own."""
    return envelope.group not in ("", envelope.rid)


def _check_counts(life: Life, event: Event) -> None:
    """Raises ProtocolViolation when tokens got lost on the way."""
    num = life.num_completion_tokens
    if isinstance(event, Delta) and event.first != num:
        raise ProtocolViolation(f"Delta from token {event.first}, after {num} tokens")
    if isinstance(event, Ended) and OUTCOMES[event.outcome].is_answer:
        num_said = event.usage.num_completion_tokens
        if num_said != num:
            raise ProtocolViolation(f"Ended with {num_said} tokens, after {num} tokens")
