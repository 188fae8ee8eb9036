"""The corridor between processes: a ROUTER in the engine, a DEALER in each worker, msgpack.

Sockets of ZeroMQ are for one thread each. No high-water mark is set: what can pile up is bounded
above (requests by the engine's queue, outputs by the context of each), whereas a full queue would
lose tokens of one worker, or let one stalled worker stall the engine.
"""

import logging

import msgspec
import zmq

from roost.core.request import GenerateRequest, Origin
from roost.wire.messages import Goodbye, ToEngine, ToWorker
from roost.wire.topology import SUPERVISOR, identity_of, origin_of

# How long a closing end tries to get its last word (Goodbye, a last Ended) out.
_LINGER_MS = 1000

# A deeply nested message is read by recursion.
_UNREADABLE = (msgspec.DecodeError, RecursionError)

_log = logging.getLogger(__name__)


class ZmqEngineSide:
    """The engine's end: binds `address`. Raises OSError when that cannot be bound."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        # A peer that is gone makes send fail, where ROUTER by itself would drop in silence.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        _prepare(self._socket)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as exc:
            self.close()
            raise OSError(exc.errno, f"cannot bind {address}: {exc}") from exc
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._encoder = msgspec.msgpack.Encoder()
        self.num_malformed = 0

    def receive(self) -> list[ToEngine]:
        """What has arrived. A malformed message is counted, logged once in a while, and dropped."""
        messages: list[ToEngine] = []
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            message = self._decoded(frames)
            if message is not None:
                messages.append(message)

    def _decoded(self, frames: list[bytes]) -> ToEngine | None:
        origin = origin_of(frames[0])
        why = "from a stranger" if origin is None else ""
        message: ToEngine | None = None
        if not why and len(frames) != 2:
            why = f"of {len(frames) - 1} parts"
        if not why:
            try:
                message = self._decoder.decode(frames[1])
            except _UNREADABLE as exc:
                why = str(exc)
        if message is not None and origin is not None and not _may_say(origin, message):
            why, message = "with a foreign return address", None
        if message is None:
            self.num_malformed = _count_malformed(self.num_malformed, why)
        return message

    def wait(self, timeout_s: float) -> None:
        self._socket.poll(max(0, round(timeout_s * 1000)))

    def send(self, origin: Origin, message: ToWorker) -> bool:
        frames = [identity_of(origin), self._encoder.encode(message)]
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as exc:
            # Again: a peer in the middle of going away. Anything else is a bug of ours.
            if exc.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class ZmqWorkerSide:
    """A worker's end. It connects to `address`, also before the engine has bound it."""

    def __init__(self, address: str, origin: Origin) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, identity_of(origin))
        # Unix sockets connect at once or not at all: look again soon while the engine starts.
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        _prepare(self._socket)
        self._socket.connect(address)
        self._decoder = msgspec.msgpack.Decoder(ToWorker)
        self._encoder = msgspec.msgpack.Encoder()
        self.num_malformed = 0

    def receive(self) -> list[ToWorker]:
        """What has arrived.

        The descriptor rings on a change only, and sending can swallow the ring: whoever waits on
        `fileno` must receive after each ring, and after each send.
        """
        messages: list[ToWorker] = []
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(self._decoder.decode(data))
            except _UNREADABLE as exc:
                self.num_malformed = _count_malformed(self.num_malformed, str(exc))

    def send(self, message: ToEngine) -> None:
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def fileno(self) -> int:
        descriptor = self._socket.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        return descriptor

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def _may_say(sender: Origin, message: ToEngine) -> bool:
    """An answer goes where the message says, so nobody may write another's address on it. Only the
    supervisor speaks for others, and only to say that they are gone.
    """
    if isinstance(message, GenerateRequest):
        return message.envelope.origin == sender
    if isinstance(message, Goodbye) and sender == SUPERVISOR:
        return True
    return message.origin == sender


def _prepare(socket: "zmq.Socket[bytes]") -> None:
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)


def _count_malformed(num_before: int, why: str) -> int:
    """Count one; log the first and then each thousandth, so that a flood of them is no flood."""
    if num_before % 1000 == 0:
        _log.warning("dropped a malformed message (%d so far): %s", num_before + 1, why[:200])
    return num_before + 1
