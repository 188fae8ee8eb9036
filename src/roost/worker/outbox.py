"""The only way out: no event leaves without an envelope."""

from roost.core.events import Event
from roost.core.request import Envelope, Origin
from roost.wire import EngineSide
from roost.wire.messages import Output, Outputs, ToWorker


class Outbox:
    """Collects what is to be said, and sends it as one message to each worker.

    A life of a worker that cannot be reached is given up, unless it greets again: it is named once,
    by `flush` or `tell`, and what is said to it from then on is counted and dropped.

    num_gone: lives of workers that were given up. num_undelivered: events that reached nobody.
    """

    def __init__(self, channel: EngineSide) -> None:
        self._channel = channel
        self._waiting: dict[Origin, list[Output]] = {}
        # worker → the newest of its lives that is gone; so are all before it.
        self._gone: dict[int, int] = {}
        self.num_gone = 0
        self.num_undelivered = 0

    def send(self, envelope: Envelope, event: Event) -> None:
        """Say `event` to whoever asked. It leaves with the next `flush`, in order."""
        output = Output(envelope.rid, envelope.serial, event)
        self._waiting.setdefault(envelope.origin, []).append(output)

    def flush(self) -> list[Origin]:
        """Send what was collected → the lives of workers that turned out to be gone."""
        waiting, self._waiting = self._waiting, {}
        gone: list[Origin] = []
        for origin, outputs in waiting.items():
            if self.is_gone(origin):
                self.num_undelivered += len(outputs)
            elif not self._channel.send(origin, Outputs(tuple(outputs))):
                self.num_undelivered += len(outputs)
                self.forget(origin)
                gone.append(origin)
        return gone

    def tell(self, origin: Origin, message: ToWorker) -> bool:
        """Say something that is about no request. False: that life is gone."""
        if self.is_gone(origin):
            return False
        if self._channel.send(origin, message):
            return True
        self.forget(origin)
        return False

    def forget(self, origin: Origin) -> None:
        """Count this life of a worker, and any before it, as gone."""
        if self.is_gone(origin):
            return
        self.num_gone += 1
        self._gone[origin.worker] = origin.epoch

    def greet(self, origin: Origin) -> None:
        """Somebody says that it is this life: should it have been given up, it is tried again."""
        if self._gone.get(origin.worker) == origin.epoch:
            del self._gone[origin.worker]

    def is_gone(self, origin: Origin) -> bool:
        last = self._gone.get(origin.worker)
        return last is not None and origin.epoch <= last
