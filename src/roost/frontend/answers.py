"""The answers of one ask, to be iterated by whoever asked."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from roost.core.events import Ended, Event
from roost.core.refusal import refusal_of
from roost.core.request import RequestId
from roost.frontend.piece import AnswerHead, Piece
from roost.frontend.stream import AnswerStream


class Answers:
    """Pieces of all answers as they come; those of different answers interleave.

    Iterate to the end, or `aclose()`: leaving early cancels what still runs, at once, as a client
    that has gone. Closing twice is harmless. Each answer's last piece has `ended`; after the last
    of them the iteration stops. It never raises for an ending: `Piece.ended` says what happened
    (`roost.core.refusal.refusal_of` gives the error for one that is no answer).
    """

    def __init__(
        self, streams: Sequence[AnswerStream], leave: Callable[[Sequence[RequestId]], None]
    ) -> None:
        """leave: cancels those of these requests that still live; their client has gone."""
        self._streams = streams
        self._leave = leave
        self._ready: deque[AnswerStream] = deque()
        self._num_open = len(streams)
        self._num_undecided = len(streams)
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self.heads: tuple[AnswerHead, ...] = tuple(stream.head for stream in streams)

    def deliver(self, index: int, event: Event, now_s: float) -> None:
        """Take an event of answer `index`. From the event loop's thread."""
        stream = self._streams[index]
        was_decided, had_piece = stream.is_decided, stream.has_piece
        stream.see(event, now_s)
        if not was_decided and stream.is_decided:
            self._num_undecided -= 1
            if self._num_undecided == 0 or isinstance(event, Ended):
                self._ring()
        if not had_piece and stream.has_piece:
            self._ready.append(stream)
            self._ring()

    async def accepted(self) -> None:
        """Wait until every request is accepted. Raises RequestError as soon as one is refused.

        What was accepted and has ended badly since is no refusal: its last piece says so.
        """
        while True:
            for stream in self._streams:
                if stream.ended is None or stream.is_accepted:
                    continue
                refusal = refusal_of(stream.ended, stream.head.rid)
                if refusal is not None:
                    raise refusal
            if self._num_undecided == 0:
                return
            await self._rung()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        """The next piece. Raises StopAsyncIteration after the last ending, or when closed."""
        while not self._ready:
            if self._num_open == 0 or self._is_closed:
                raise StopAsyncIteration
            await self._rung()
        piece = self._ready.popleft().take()
        self._num_open -= piece.ended is not None
        return piece

    @property
    def is_over(self) -> bool:
        """Whether the last ending has been given."""
        return self._num_open == 0

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Leave: what still runs is cancelled, and no piece is given any more."""
        if self._is_closed:
            return
        self._is_closed = True
        self._leave([s.head.rid for s in self._streams if s.ended is None])
        self._ready.clear()
        self._ring()

    def _ring(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _rung(self) -> None:
        """Wait for something new. A plain future, as one waits at a time, and what he waits for is
        looked at on the way in: an Event costs twice as much, once a token.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        await waiter
