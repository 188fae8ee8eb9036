"""The frontend's core: messages and time in, messages out. No event loop, no thread, no IO.

hear(what the engine says)  ──▶  listeners (answers), callers, `send` (to the engine)
tick()                      ──▶  the same, for what only time tells
"""

from collections.abc import Callable, Iterable
from typing import Final, assert_never

from roost.core.calls import Abort, Broadcast, Call, SetLogLevel
from roost.core.clock import Clock
from roost.core.events import Ended
from roost.core.outcome import Outcome
from roost.core.request import Origin, RequestId
from roost.frontend.audits import Audits
from roost.frontend.board import Switchboard
from roost.frontend.control import ControlCalls
from roost.frontend.engine_view import EngineView
from roost.frontend.ledger import Ledger
from roost.frontend.settings import FrontendSettings
from roost.observe import EndingLog, Meter
from roost.wire.messages import (
    Audited,
    ControlDone,
    Heartbeat,
    Hello,
    Noted,
    Notice,
    Output,
    Outputs,
    ToEngine,
    ToWorker,
    Welcome,
)

# An engine silent for so many heartbeat timeouts is given up: its requests end as its fault.
_GIVEN_UP_AFTER: Final = 3
# A Hello without its Welcome is said again, after twice the time each time: the engine may be
# loading a model, or the Welcome may be lost.
_HELLO_AGAIN_S: Final = 1.0
_HELLO_AGAIN_MOST_S: Final = 60.0


class FrontCore:
    """What one HTTP worker is to the engine, and the engine to it.

    board: where requests are opened, sent and ended. ledger: which of them live. engine: what is
    known of it.
    """

    def __init__(
        self,
        send: Callable[[ToEngine], None],
        origin: Origin,
        clock: Clock,
        settings: FrontendSettings,
        *,
        meter: Meter,
        endings: EndingLog,
        on_log_level: Callable[[str], None],
    ) -> None:
        """on_log_level: sets the least level that this process logs."""
        self._send = send
        self._origin = origin
        self._clock = clock
        self._heartbeat_timeout_s = settings.heartbeat_timeout_s
        self._on_log_level = on_log_level
        self.engine = EngineView()
        self.ledger = Ledger()
        self.board = Switchboard(send, origin, clock, self.ledger, meter=meter, endings=endings)
        self._calls = ControlCalls(send, origin)
        self._last_serial = 0
        self._audits = Audits(self.ledger, origin, settings.audit_after_s)
        self._hello_again_s = float("inf")
        self._hello_wait_s = _HELLO_AGAIN_S

    def hello(self) -> None:
        """The first word to the engine; `tick` repeats it until a Welcome has come."""
        self._hello_again_s = self._clock.now_s() + self._hello_wait_s
        self._hello_wait_s = min(2 * self._hello_wait_s, _HELLO_AGAIN_MOST_S)
        self._send(Hello(self._origin))

    def next_serial(self) -> int:
        """The number of a request that comes in: 1, 2, 3 …"""
        self._last_serial += 1
        return self._last_serial

    def has_room(self, num_requests: int) -> bool:
        """Whether so many more may come in: more than the engine holds need not wait here."""
        facts = self.engine.facts
        return facts is None or self.ledger.num_traffic + num_requests <= facts.max_requests

    def hear(self, message: ToWorker) -> bool:
        """Take one message of the engine. True: a token was in it. No message makes it raise."""
        match message:
            case Outputs(outputs=outputs):
                return self.hear_outputs(outputs)
            case Heartbeat():
                self.engine.beat(message)
            case Welcome():
                self._welcomed(message)
            case ControlDone():
                self._calls.done(message)
            case Notice(call_id=call_id, call=call):
                self._send(Noted(self._origin, call_id, self._obey(call)))
            case Audited():
                self._end(self._audits.lost(message), "The engine lost the request.")
            case _:
                assert_never(message)
        return False

    def hear_outputs(self, outputs: Iterable[Output]) -> bool:
        """Take a part of an Outputs message, in order. True: a token was in it."""
        self.engine.heard_s = max(self.engine.heard_s, self._clock.now_s())
        return self.board.see(outputs)

    def tick(self) -> None:
        """Do what is due: to be called a few times a second, after all that arrived was heard."""
        now_s = self._clock.now_s()
        if now_s >= self._hello_again_s:
            self.hello()
        self.board.reap()
        audit = self._audits.due(now_s)
        if audit is not None:
            self._send(audit)
        if self.engine.silence_s(now_s) > _GIVEN_UP_AFTER * self._heartbeat_timeout_s:
            self._end(self.ledger.live(), "The engine does not answer.")

    def call(self, call_id: str, call: Call, done: Callable[[ControlDone], None]) -> None:
        """Ask the engine to do `call`; `done` hears the answer, at most once."""
        self._calls.call(call_id, call, done)

    def forget(self, call_id: str) -> None:
        """Nobody waits for the answer of this call any more."""
        self._calls.forget(call_id)

    def check(self) -> None:
        """Assert that the books balance."""
        self.board.check()

    def _welcomed(self, welcome: Welcome) -> None:
        self._hello_again_s = float("inf")
        if self.engine.welcome(welcome, self._clock.now_s()):
            self._end(self.ledger.engine_changed(), "The engine was restarted.")
        if welcome.log_level:
            self._on_log_level(welcome.log_level)

    def _obey(self, call: Broadcast) -> int:
        """Do what concerns this worker; how many requests that touched."""
        match call:
            case Abort(name=name, message=message):
                return self.board.abort(name, message)
            case SetLogLevel(level=level):
                self._on_log_level(level)
                return 0
            case _:
                assert_never(call)

    def _end(self, rids: Iterable[RequestId], message: str) -> None:
        self.board.end(rids, Ended(Outcome.ENGINE_FAULT, message=message, code="engine_fault"))
