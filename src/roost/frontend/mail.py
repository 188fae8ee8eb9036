"""What has arrived and is not heard yet: in order, and in helpings. No event loop."""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from roost.frontend.core import FrontCore
from roost.wire.messages import Heartbeat, Outputs, ToWorker


class Mail:
    """Between the corridor and the core.

    A large batch of outputs is handed on in parts, so that what else the process does gets its turn
    in between. Nothing overtakes: what came later waits behind it. Only a heartbeat is heard when
    it arrives, as it is about the engine's life and not about any request.
    """

    def __init__(self, core: FrontCore, most_outputs: int) -> None:
        """most_outputs: in one helping."""
        self._core = core
        self._most_outputs = most_outputs
        self._unheard: deque[ToWorker] = deque()
        # Of the first message, if that is Outputs: how many of them were heard.
        self._num_heard = 0

    def put(self, messages: Iterable[ToWorker]) -> None:
        """Take in what has arrived."""
        for message in messages:
            if isinstance(message, Heartbeat):
                self._core.hear(message)
            else:
                self._unheard.append(message)

    def hear_some(self) -> bool:
        """Let the core hear one helping. True: a token was in it."""
        num_left = self._most_outputs
        has_token = False
        while self._unheard and num_left > 0:
            message = self._unheard[0]
            if not isinstance(message, Outputs):
                self._unheard.popleft()
                self._core.hear(message)
                continue
            start = self._num_heard
            stop = min(start + num_left, len(message.outputs))
            self._num_heard = stop
            num_left -= stop - start
            if stop == len(message.outputs):
                self._unheard.popleft()
                self._num_heard = 0
            part = islice(message.outputs, start, stop)
            has_token = self._core.hear_outputs(part) or has_token
        return has_token

    @property
    def is_empty(self) -> bool:
        return not self._unheard
