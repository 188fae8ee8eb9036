"""A corridor inside one process: the engine in one thread, its fronts in others."""

import os
import select
import threading
from collections import deque
from typing import Generic, TypeVar

from roost.core.request import Origin
from roost.wire.messages import ToEngine, ToWorker

_Message = TypeVar("_Message")


class _Inbox(Generic[_Message]):
    """A queue with a descriptor that is readable while something may be in it."""

    def __init__(self) -> None:
        self._messages: deque[_Message] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_open = True
        # Held while the descriptor is used from the sender's thread: a closed descriptor's number
        # may belong to somebody else a moment later.
        self._lock = threading.Lock()

    def put(self, message: _Message) -> bool:
        with self._lock:
            if not self._is_open:
                return False
            self._messages.append(message)
            os.eventfd_write(self._bell, 1)
            return True

    def take(self) -> list[_Message]:
        with self._lock:
            if not self._is_open or not self._messages:
                return []
            taken = list(self._messages)
            self._messages.clear()
            os.eventfd_read(self._bell)
            return taken

    def wait(self, timeout_s: float) -> None:
        select.select([self._bell], [], [], max(timeout_s, 0.0))

    def fileno(self) -> int:
        return self._bell

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._messages.clear()
                os.close(self._bell)


class MemoryEngineSide:
    """The engine's end. `receive`, `wait` and `close` belong to one thread."""

    def __init__(self) -> None:
        self._inbox: _Inbox[ToEngine] = _Inbox()
        self._workers: dict[Origin, _Inbox[ToWorker]] = {}
        self.num_malformed = 0

    def receive(self) -> list[ToEngine]:
        return self._inbox.take()

    def wait(self, timeout_s: float) -> None:
        self._inbox.wait(timeout_s)

    def send(self, origin: Origin, message: ToWorker) -> bool:
        worker = self._workers.get(origin)
        return worker is not None and worker.put(message)

    def close(self) -> None:
        self._inbox.close()


class MemoryWorkerSide:
    """A worker's end. Messages to an engine that has closed its end are lost, as on a socket."""

    def __init__(self, inbox: "_Inbox[ToWorker]", engine: "_Inbox[ToEngine]") -> None:
        self._inbox = inbox
        self._engine = engine
        self.num_malformed = 0

    def receive(self) -> list[ToWorker]:
        return self._inbox.take()

    def send(self, message: ToEngine) -> None:
        self._engine.put(message)

    def fileno(self) -> int:
        return self._inbox.fileno()

    def close(self) -> None:
        self._inbox.close()


class MemoryCorridor:
    """One engine's end, and as many workers' ends as are connected to it."""

    def __init__(self) -> None:
        self.engine = MemoryEngineSide()

    def connect(self, origin: Origin) -> MemoryWorkerSide:
        """A worker's end for this life of it. A life connects once."""
        assert origin not in self.engine._workers, f"{origin} is connected already"
        inbox: _Inbox[ToWorker] = _Inbox()
        self.engine._workers[origin] = inbox
        return MemoryWorkerSide(inbox, self.engine._inbox)
