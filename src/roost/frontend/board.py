"""The switchboard: what the engine says goes to whoever asked, past the ledger and the observers.

Synchronous. Every ending of a request of this process passes through here, so it is logged and
counted exactly once, whoever made it.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from roost.core.clock import Clock
from roost.core.events import Delta, Ended, Event, Started
from roost.core.lifecycle import ProtocolViolation
from roost.core.outcome import Outcome
from roost.core.request import Envelope, GenerateRequest, RequestId
from roost.frontend.ledger import LateCause, LateLine, Ledger, Life
from roost.observe import EndingLog, Meter
from roost.wire.messages import Cancel, Output, ToEngine

_log = logging.getLogger(__name__)

_LATE_LEVELS = {
    LateCause.CLIENT: logging.WARNING,
    LateCause.OURS: logging.DEBUG,
    LateCause.UNKNOWN: logging.WARNING,
}
_LATE_TEXTS = {
    LateCause.CLIENT: "output came for requests whose client had left",
    LateCause.OURS: "output came for requests that had ended",
    LateCause.UNKNOWN: "output came for requests that are not known here",
}


class Listener(Protocol):
    """Who hears what is said of the answers of one ask."""

    def deliver(self, index: int, event: Event, now_s: float) -> None: ...


class Switchboard:
    """Holds the requests of this process that live, and where their answers go."""

    def __init__(
        self,
        send: Callable[[ToEngine], None],
        clock: Clock,
        ledger: Ledger,
        meter: Meter,
        endings: EndingLog,
    ) -> None:
        self._send = send
        self._ledger = ledger
        self._meter = meter
        self._endings = endings
        self._clock = clock
        self._routes: dict[RequestId, tuple[Listener, int]] = {}

    def open(self, envelope: Envelope) -> Life:
        """Take a request in. Raises DuplicateRequest, which is counted as this one's ending."""
        life = self._ledger.open(envelope)
        self._meter.opened(envelope)
        return life

    def refused(self, envelope: Envelope, ended: Ended) -> None:
        """Log and count the ending of a request that was never opened."""
        self._meter.refused(envelope, ended)
        self._endings.ended(envelope, ended, self._clock.now_s())

    def send(self, life: Life, request: GenerateRequest, listener: Listener, index: int) -> None:
        """Tell the engine of an opened request; answer `index` of `listener` hears the rest.

        What ended or was taken back while its prompt was tokenised is not sent, and it hears just
        that.
        """
        rid = request.envelope.rid
        if life.ended is not None:
            listener.deliver(index, life.ended, self._clock.now_s())
            return
        self._routes[rid] = (listener, index)
        life.num_prompt_tokens = len(request.prompt_ids)
        if life.is_cancelled:
            self.end((rid,), Ended(Outcome.CLIENT_CANCELLED, message="Abort in waiting queue"))
            return
        life.is_sent = True
        self._send(request)

    def see(self, outputs: Iterable[Output]) -> bool:
        """Deliver what the engine said. True when a token was in it, whoever it was for."""
        now_s = self._clock.now_s()
        has_token = False
        for output in outputs:
            event = output.event
            has_token = has_token or isinstance(event, Delta)
            try:
                seen = self._ledger.see(output, now_s)
            except ProtocolViolation as exc:
                self._violated(output.rid, exc)
                continue
            if isinstance(seen, Life):
                if isinstance(event, Started):
                    seen.num_cached_tokens = event.num_cached_tokens
                self._deliver(seen, event, now_s)
            elif seen is not None:
                self._meter.late(seen)
        return has_token

    def end(self, rids: Iterable[RequestId], ending: Ended) -> None:
        """End those of `rids` that live, and take back from the engine what was sent to it."""
        now_s = self._clock.now_s()
        for rid in list(rids):
            life = self._ledger.life(rid)
            ended = self._ledger.end(rid, ending, now_s)
            if life is None or ended is None:
                continue
            if life.is_sent:
                self._send(Cancel(rid, is_disconnect=True, owner=life.envelope.origin))
            self._deliver(life, ended, now_s)

    def leave(self, rids: Iterable[RequestId]) -> None:
        """The client of these requests has gone."""
        self.end(rids, Ended(Outcome.CLIENT_DISCONNECTED, message="The client disconnected"))

    def cancel(self, rids: Iterable[RequestId]) -> None:
        """Their client wants them ended, and hears how: the engine ends them in its next step."""
        for rid in rids:
            life = self._ledger.life(rid)
            if life is not None and not life.is_sent:
                life.is_cancelled = True
            else:
                self._send(Cancel(rid, is_disconnect=False))

    def reap(self) -> None:
        """End what the engine should have ended, and say what came late."""
        now_s = self._clock.now_s()
        overdue = self._ledger.overdue(now_s)
        self.end(overdue, Ended(Outcome.DEADLINE, message="Request running timeout reached."))
        for line in self._ledger.take_late_lines():
            _say_late(line)

    def _deliver(self, life: Life, event: Event, now_s: float) -> None:
        rid = life.envelope.rid
        self._meter.see(life.envelope, event, now_s)
        if isinstance(event, Ended):
            self._endings.ended(life.envelope, event, now_s)
            route = self._routes.pop(rid, None)
        else:
            route = self._routes.get(rid)
        if route is not None:
            listener, index = route
            listener.deliver(index, event, now_s)

    def _violated(self, rid: RequestId, exc: ProtocolViolation) -> None:
        """The engine broke the protocol: its request cannot be trusted any more, the others can."""
        self._meter.violation()
        self.end((rid,), Ended(Outcome.ENGINE_FAULT, message=f"Protocol violation: {exc}"))


def _say_late(line: LateLine) -> None:
    level = _LATE_LEVELS.get(line.cause)
    if level is not None:
        fields: dict[str, object] = {
            "cause": str(line.cause),
            "num_requests": line.num_requests,
            "num_outputs": line.num_outputs,
            "example_rid": line.example,
        }
        _log.log(level, _LATE_TEXTS[line.cause], extra=fields)
