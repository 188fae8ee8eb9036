"""What a corridor is, whatever carries it: in one process, or over a socket.

Sending never blocks and never raises for a peer that is gone. `receive` gives what has arrived, in
the order in which each peer sent it. `wait` blocks until something may have arrived.
"""

from typing import Protocol

from roost.core.request import Origin
from roost.wire.messages import ToEngine, ToWorker


class EngineSide(Protocol):
    """The engine's end: hears from every worker, speaks to each by its origin."""

    def receive(self) -> list[ToEngine]: ...

    def wait(self, timeout_s: float) -> None: ...

    def send(self, origin: Origin, message: ToWorker) -> bool:
        """False when no such life of a worker is connected: a normal answer."""
        ...

    def close(self) -> None: ...


class WorkerSide(Protocol):
    """A worker's end. num_malformed: messages that could not be read, and were dropped."""

    num_malformed: int

    def receive(self) -> list[ToWorker]: ...

    def send(self, message: ToEngine) -> None: ...

    def fileno(self) -> int:
        """A descriptor that becomes readable when something may have arrived."""
        ...

    def close(self) -> None: ...
