"""The ledger: which requests of this process live, and how the others ended. No IO, no clock.

Every request that is opened ends exactly once: by the engine's Ended, or by `end` from here. What
arrives for a request that does not live is told apart by how that request ended.
"""

import enum
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from roost.core.errors import DuplicateRequest
from roost.core.events import Delta, Ended, Event, Usage
from roost.core.lifecycle import State, advance
from roost.core.outcome import Outcome
from roost.core.request import HEALTH_PREFIX, Envelope, RequestId
from roost.wire.messages import Output

# Behind its deadline by so much, a request is ended here: the engine should have done it.
_GRACE_S = 5.0

_BY_CLIENT = (Outcome.CLIENT_CANCELLED, Outcome.CLIENT_DISCONNECTED)


class LateCause(enum.StrEnum):
    """Why output came for a request that does not live; the value is its metric label."""

    CLIENT = "client"
    HEALTH = "health"
    OURS = "ours"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Life:
    """One request that lives.

    is_sent: the engine has been told of it. is_cancelled: before that, its client took it back;
    whoever is preparing it ends it. num_receipts_due: earlier requests of this rid that
    were ended from here, and whose Ended is still to come: until then, what comes is theirs.
    ended: how it ended, for whoever still prepares it.
    """

    envelope: Envelope
    state: State = State.SENT
    is_sent: bool = False
    is_cancelled: bool = False
    num_receipts_due: int = 0
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
    """How a request ended.

    num_receipts_due: ended from here, the engine still answers with an Ended of its own; that is
    the receipt, and not late. is_counted: its late output is in a line already.
    """

    outcome: Outcome
    ended_s: float
    num_receipts_due: int = 0
    is_counted: bool = False


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
    _groups: dict[str, set[RequestId]] = field(default_factory=dict)
    _group_of: dict[RequestId, str] = field(default_factory=dict)
    _records: "OrderedDict[RequestId, _Record]" = field(default_factory=OrderedDict)
    _late: dict[LateCause, LateLine] = field(default_factory=dict)

    def open(self, envelope: Envelope) -> Life:
        """Take a request in. Raises DuplicateRequest, changing nothing, when its rid lives."""
        rid, group = envelope.rid, envelope.group
        if rid in self._lives or rid in self._groups:
            raise DuplicateRequest(rid)
        if group and group != rid:
            if group in self._lives:
                raise DuplicateRequest(group)
            self._groups.setdefault(group, set()).add(rid)
            self._group_of[rid] = group
        record = self._records.pop(rid, None)
        due = 0 if record is None else record.num_receipts_due
        life = self._lives[rid] = Life(envelope, num_receipts_due=due)
        return life

    def see(self, output: Output, now_s: float) -> "Life | LateCause | None":
        """Advance the request by one event of the engine, and give its life.

        A LateCause: the request does not live, so the output is nobody's; it is counted. None: it
        does not live, and this was the expected receipt. Raises ProtocolViolation, changing
        nothing, for an event that the table forbids.
        """
        life = self._lives.get(output.rid)
        if life is None or life.num_receipts_due > 0:
            return self._see_late(output, life, now_s)
        event: Event = output.event
        life.state = advance(life.state, event)
        if isinstance(event, Delta):
            life.num_completion_tokens += len(event.token_ids)
        elif isinstance(event, Ended):
            self._bury(life, event, now_s, num_receipts_due=0)
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
        due = life.num_receipts_due + life.is_sent
        self._bury(life, ended, now_s, num_receipts_due=due)
        return ended

    def engine_changed(self) -> tuple[RequestId, ...]:
        """Another life of the engine answers from now on: it owes no receipts.

        Gives the requests that only the old one knew; they are still to be ended.
        """
        for record in self._records.values():
            record.num_receipts_due = 0
        for life in self._lives.values():
            life.num_receipts_due = 0
        return tuple(rid for rid, life in self._lives.items() if life.is_sent)

    def take_late_lines(self) -> list[LateLine]:
        """What to log of late output since the last call: at most one line a cause."""
        lines = [line for line in self._late.values() if line.num_requests > 0]
        self._late.clear()
        return lines

    def overdue(self, now_s: float) -> list[RequestId]:
        """Requests whose deadline passed a while ago, and that the engine should have ended."""
        return [
            rid
            for rid, life in self._lives.items()
            if life.is_sent and now_s > life.envelope.deadline_s + _GRACE_S
        ]

    def life(self, rid: RequestId) -> Life | None:
        return self._lives.get(rid)

    def live(self) -> tuple[RequestId, ...]:
        return tuple(self._lives)

    def members(self, name: str) -> tuple[RequestId, ...]:
        """The live requests that `name` names, exactly: one rid, or the members of one group."""
        if name in self._lives:
            return (RequestId(name),)
        return tuple(self._groups.get(name, ()))

    def check(self) -> None:
        """Assert that the books balance."""
        grouped = {rid: name for name, rids in self._groups.items() for rid in rids}
        assert grouped == self._group_of, "groups and their members disagree"
        assert grouped.keys() <= self._lives.keys(), "a group holds a request that ended"
        assert not self._lives.keys() & self._records.keys(), "a request lives and has ended"
        assert len(self._records) <= self.max_records, "too many records are kept"
        assert all(life.state is not State.ENDED for life in self._lives.values())

    def _bury(self, life: Life, ended: Ended, now_s: float, *, num_receipts_due: int) -> None:
        rid = life.envelope.rid
        life.ended = ended
        del self._lives[rid]
        group = self._group_of.pop(rid, None)
        if group is not None:
            self._groups[group].discard(rid)
            if not self._groups[group]:
                del self._groups[group]
        self._forget(now_s)
        self._records[rid] = _Record(ended.outcome, now_s, num_receipts_due)
        while len(self._records) > self.max_records:
            self._records.popitem(last=False)

    def _forget(self, now_s: float) -> None:
        """Drop the records that have expired; the oldest come first."""
        while self._records:
            rid = next(iter(self._records))
            if self._records[rid].ended_s + self.record_s > now_s:
                return
            del self._records[rid]

    def _see_late(self, output: Output, successor: Life | None, now_s: float) -> LateCause | None:
        """Classify an output for a request that has ended, or was never here."""
        self._forget(now_s)
        record = self._records.get(output.rid)
        owed_by = successor if record is None else record
        if isinstance(output.event, Ended) and owed_by is not None and owed_by.num_receipts_due:
            owed_by.num_receipts_due -= 1
            return None
        if output.rid.startswith(HEALTH_PREFIX):
            cause = LateCause.HEALTH
        elif record is None and successor is None:
            cause = LateCause.UNKNOWN
        elif record is None or record.outcome in _BY_CLIENT:
            cause = LateCause.CLIENT  # whoever asks again under the same rid has left first
        else:
            cause = LateCause.OURS
        line = self._late.setdefault(cause, LateLine(cause))
        line.num_outputs += 1
        if record is None or not record.is_counted:
            line.num_requests += 1
            line.example = line.example or output.rid
        if record is not None:
            record.is_counted = True
        return cause
