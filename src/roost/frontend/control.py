"""Control calls: each has an id, and several may be in flight. No IO, no clock."""

from collections.abc import Callable

from roost.core.calls import Call
from roost.core.request import Origin
from roost.wire.messages import Control, ControlDone, ToEngine


class ControlCalls:
    """Pairs answers with calls by id."""

    def __init__(self, send: Callable[[ToEngine], None], origin: Origin) -> None:
        self._send = send
        self._origin = origin
        self._waiting: dict[str, Callable[[ControlDone], None]] = {}

    def call(self, call_id: str, call: Call, done: Callable[[ControlDone], None]) -> None:
        """Tell the engine; `done` hears its answer, once. An id names one call."""
        assert call_id not in self._waiting, f"two calls are named {call_id}"
        self._waiting[call_id] = done
        self._send(Control(self._origin, call_id, call))

    def forget(self, call_id: str) -> None:
        """Nobody waits for this answer any more. Harmless when it has come."""
        self._waiting.pop(call_id, None)

    def done(self, answer: ControlDone) -> None:
        """Take an answer. One that nobody waits for any more is no harm."""
        done = self._waiting.pop(answer.call_id, None)
        if done is not None:
            done(answer)
