"""Control calls: each has an id and a time limit, and several may be in flight."""

import asyncio
from collections.abc import Callable

from roost.core.errors import DeadlinePassed
from roost.core.request import Origin
from roost.wire.messages import Control, ControlDone, ToEngine


class ControlCalls:
    """Pairs answers with calls by id."""

    def __init__(
        self, send: Callable[[ToEngine], None], origin: Origin, draw: Callable[[], str]
    ) -> None:
        self._send = send
        self._origin = origin
        self._draw = draw
        self._waiting: dict[str, asyncio.Future[ControlDone]] = {}

    async def call(self, verb: str, argument: str, timeout_s: float) -> ControlDone:
        """Raises DeadlinePassed when no answer comes in time."""
        call_id = self._draw()
        future: asyncio.Future[ControlDone] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = future
        self._send(Control(self._origin, call_id, verb, argument))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise DeadlinePassed(f"The engine did not answer {verb} in {timeout_s:g} s.") from None
        finally:
            del self._waiting[call_id]

    def done(self, answer: ControlDone) -> None:
        """Take an answer. One that nobody waits for any more is no harm."""
        future = self._waiting.get(answer.call_id)
        if future is not None and not future.done():
            future.set_result(answer)
