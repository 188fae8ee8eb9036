"""The ledger: which requests of this process live, and how the others ended. No IO, no clock.

Every request that is opened ends exactly once: by the engine's Ended, or by `end` from here. What
arrives for a request that does not live is told apart by how that request ended. A rid names one
live request at most, and may be used again; the serial names one request for ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from roost.core.errors import DuplicateRequest
from roost.core.events import Delta, Ended, Event, Started, Usage
from roost.core.lifecycle import ProtocolViolation, State, advance
from roost.core.outcome import OUTCOMES
from roost.core.request import Envelope, RequestId
from roost.frontend.late import Endings, Late
from roost.wire.messages import Output

# Behind its deadline by so much, a request is ended here: the engine should have done it.
_GRACE_S = 5.0


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
class Ledger:
    """Holds what lives; `endings` remembers the others."""

    endings: Endings = field(default_factory=Endings)
    _lives: dict[RequestId, Life] = field(default_factory=dict)
    _num_probes: int = 0
    # A group's members in order of arrival; the values say nothing.
    _groups: dict[str, dict[RequestId, None]] = field(default_factory=dict)

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
            return self.endings.see(output, now_s)
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
        self.endings.engine_changed()
        return tuple(rid for rid, life in self._lives.items() if life.is_sent)

    def overdue(self, now_s: float) -> list[RequestId]:
        """Requests to be ended here: what the engine should have ended a while ago, and what it
        has not been told of yet.
        """
        return [
            rid
            for rid, life in self._lives.items()
            if now_s > life.envelope.deadline_s + (_GRACE_S if life.is_sent else 0.0)
        ]

    def life(self, rid: RequestId) -> Life | None:
        return self._lives.get(rid)

    def lives(self) -> Iterable[Life]:
        """The requests that live, in order of arrival."""
        return self._lives.values()

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
        self.endings.check(serials)
        assert self._num_probes == sum(life.envelope.is_health_check for life in lives)
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
        self.endings.add(envelope.serial, ended.outcome, now_s, is_receipt_due=is_receipt_due)


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
