"""The switchboard: what the engine says goes to whoever asked, past the ledger and the observers.

Synchronous. Every ending of a request of this process passes through here, so it is logged and
counted exactly once, whoever made it.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from roost.core.clock import Clock
from roost.core.events import Delta, Ended, Event
from roost.core.lifecycle import ProtocolViolation
from roost.core.outcome import Outcome
from roost.core.request import Envelope, GenerateRequest, Origin, RequestId
from roost.frontend.late import LateCause, LateLine
from roost.frontend.ledger import Ledger, Life
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
        origin: Origin,
        clock: Clock,
        ledger: Ledger,
        *,
        meter: Meter,
        endings: EndingLog,
    ) -> None:
        self._send = send
        self._origin = origin
        self._ledger = ledger
        self._meter = meter
        self._endings = endings
        self._clock = clock
        # By serial: a rid may be somebody else's by now.
        self._routes: dict[int, tuple[Listener, int]] = {}

    def open(self, envelope: Envelope, waiting: Listener | None = None, index: int = 0) -> Life:
        """Take a request in. `waiting` hears, as of answer `index`, if it ends before it is sent.

        Raises DuplicateRequest, which is not this one's ending yet: `refused` makes it that.
        """
        life = self._ledger.open(envelope)
        self._meter.opened(envelope)
        if waiting is not None:
            self._routes[envelope.serial] = (waiting, index)
        return life

    def refused(self, envelope: Envelope, ended: Ended) -> None:
        """Log and count the ending of a request that was never opened."""
        self._meter.refused(envelope, ended)
        self._endings.ended(envelope, ended, self._clock.now_s())

    def send(self, life: Life, request: GenerateRequest, listener: Listener, index: int) -> None:
        """Tell the engine of an opened request; answer `index` of `listener` hears the rest.

        What ended while its prompt was tokenised is not sent, and `listener` hears just that.
        """
        now_s = self._clock.now_s()
        if life.ended is not None:
            listener.deliver(index, life.ended, now_s)
            return
        self._routes[life.envelope.serial] = (listener, index)
        life.num_prompt_tokens = len(request.prompt_ids)
        life.is_sent, life.heard_s = True, now_s
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
                self._deliver(seen, event, now_s)
            elif seen is not None:
                self._meter.late(seen.cause)
                if seen.is_stray:
                    # It still runs, so what the engine was told of its ending got lost.
                    self._send(Cancel(self._origin, output.serial, is_disconnect=True))
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
                self._send(Cancel(self._origin, life.envelope.serial, is_disconnect=True))
            self._deliver(life, ended, now_s)

    def leave(self, rids: Iterable[RequestId]) -> None:
        """The client of these requests has gone."""
        self.end(rids, Ended(Outcome.CLIENT_DISCONNECTED, message="The client disconnected"))

    def abort(self, name: RequestId | None, message: str = "") -> int:
        """End what is named exactly so; None: all but health checks. Gives how many that are.

        What the engine has not been told of ends here and now; the rest ends there, and its client
        hears how.
        """
        named = self._ledger.members(name)
        for rid in named:
            life = self._ledger.life(rid)
            assert life is not None
            if life.is_sent:
                serial = life.envelope.serial
                self._send(Cancel(self._origin, serial, is_disconnect=False, message=message))
            else:
                # What clients of the native API know.
                text = message or "Abort in waiting queue"
                self.end((rid,), Ended(Outcome.CLIENT_CANCELLED, message=text))
        return len(named)

    def reap(self) -> None:
        """End what is overdue, and say what came late."""
        for rid in self._ledger.overdue(self._clock.now_s()):
            life = self._ledger.life(rid)
            phase = "running" if life is not None and life.is_sent else "waiting"
            text = f"Request {phase} timeout reached."
            self.end((rid,), Ended(Outcome.DEADLINE, message=text, code="deadline"))
        for line in self._ledger.endings.take_lines():
            _say_late(line)

    def check(self) -> None:
        """Assert that nothing is delivered for what has ended."""
        self._ledger.check()
        serials = {life.envelope.serial for life in self._ledger.lives()}
        assert self._routes.keys() <= serials, "a route leads to a request that ended"

    def _deliver(self, life: Life, event: Event, now_s: float) -> None:
        envelope = life.envelope
        self._meter.see(envelope, event, now_s)
        if isinstance(event, Ended):
            self._endings.ended(envelope, event, now_s)
            route = self._routes.pop(envelope.serial, None)
        else:
            route = self._routes.get(envelope.serial)
        if route is not None:
            listener, index = route
            listener.deliver(index, event, now_s)

    def _violated(self, rid: RequestId, exc: ProtocolViolation) -> None:
        """The engine broke the protocol, or a message got lost: this request cannot be trusted any
        more, the others can.
        """
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
