"""The response that streams answers to a client that may leave at any moment."""

from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from roost.api.asking import Stream
from roost.api.sse import ClientGone, until_gone
from roost.frontend import Piece


class Frames(Protocol):
    """Makes the events of one call."""

    def part(self, piece: Piece) -> bytes:
        """Events that say what `piece` adds; b"": nothing that can be seen."""
        ...

    def end(self) -> bytes:
        """The last events, when every answer has ended."""
        ...


class EventStream(Response):
    """A stream of server-sent events over the answers of one ask, which it closes at its end.

    One body message a piece, and the last piece goes out together with the end.
    """

    media_type = "text/event-stream"

    def __init__(self, stream: Stream, frames: Frames, headers: dict[str, str]) -> None:
        # `x-accel-buffering`: nginx would otherwise hold the events back.
        super().__init__(
            None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        )
        del self.headers["content-length"]
        self._stream = stream
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the answers end or the client leaves, whichever is first.

        A request that waits in the queue sends nothing for seconds, so a failed `send` would come
        too late to notice that its client has gone: `receive` is listened to for it instead.
        """
        del scope
        try:
            await until_gone(self._send(send), receive)
        except ClientGone:
            pass  # the answers say so in the log: closing them early is what a departure is
        finally:
            await self._stream.answers.aclose()

    async def _send(self, send: Send) -> None:
        answers, part = self._stream.answers, self._frames.part
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        events = b"".join([part(piece) for piece in self._stream.first])
        if events and not answers.is_over:
            await send({"type": "http.response.body", "body": events, "more_body": True})
            events = b""
        async for piece in answers:
            events = part(piece)
            if answers.is_over:
                break
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
        events += self._frames.end()
        await send({"type": "http.response.body", "body": events, "more_body": False})
