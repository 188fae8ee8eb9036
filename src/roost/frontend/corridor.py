"""A worker's end of the corridor on an event loop."""

import asyncio
from collections.abc import Callable

from roost.wire import WorkerSide
from roost.wire.messages import ToEngine, ToWorker


class Corridor:
    """Hands what arrives to `take`, in batches, on the event loop that `open` was called on."""

    def __init__(self, channel: WorkerSide, take: Callable[[list[ToWorker]], None]) -> None:
        self._channel = channel
        self._take = take
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_pump_due = False

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._channel.fileno(), self.pump)

    def send(self, message: ToEngine) -> None:
        """Send, and look soon at what has arrived: sending may swallow the descriptor's ring."""
        if self._loop is None:
            return
        self._channel.send(message)
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Take in what has arrived. Never waits."""
        self._is_pump_due = False
        if self._loop is None:
            return
        messages = self._channel.receive()
        if messages:
            self._take(messages)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._channel.fileno())
            self._loop = None
        self._channel.close()
