"""Waiting and streaming for a client that may leave at any moment."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Final, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from roost.frontend import Answers

DONE: Final = b"data: [DONE]\n\n"

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client closed its connection. Nobody listens any more."""


def frame(value: object) -> bytes:
    """One server-sent event with a JSON body."""
    return b"data: " + _encode(value) + b"\n\n"


async def until_gone(work: Coroutine[object, object, T], receive: Receive) -> T:
    """The result of `work`, which is cancelled when the client leaves first.

    Raises ClientGone then. The whole request body must have been received before.
    """
    watcher = asyncio.ensure_future(_departure(receive))
    worker = asyncio.ensure_future(work)
    try:
        await asyncio.wait({watcher, worker}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientGone
    finally:
        for task in (watcher, worker):
            task.cancel()
        await asyncio.gather(watcher, worker, return_exceptions=True)


async def send_stream(chunks: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
    """Send `chunks` until they end or the client leaves, whichever is first.

    A request that waits in the queue sends nothing for seconds, so a failed `send` would come too
    late to notice that its client has gone: listen for it instead. Raises ClientGone.
    """

    async def write() -> None:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    await until_gone(write(), receive)


class EventStream(Response):
    """A stream of server-sent events over the answers of one ask, which it closes at its end."""

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncIterator[bytes], answers: Answers, headers: dict[str, str]
    ) -> None:
        # `x-accel-buffering`: nginx would otherwise hold the events back.
        super().__init__(
            None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        )
        del self.headers["content-length"]
        self._frames = frames
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await send_stream(self._frames, receive, send)
        except ClientGone:
            pass  # the answers say so in the log: closing them early is what a departure is
        finally:
            await self._answers.aclose()


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
