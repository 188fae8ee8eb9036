"""Server-sent events, and waiting for a client that may leave at any moment."""

import asyncio
from collections.abc import Coroutine
from typing import Final, TypeVar

import msgspec
from starlette.types import Receive

DONE: Final = b"data: [DONE]\n\n"

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client closed its connection. Nobody listens any more."""


def frame(value: object) -> bytes:
    """One server-sent event with a JSON body."""
    return b"data: " + _encode(value) + b"\n\n"


class TextFrame:
    """Server-sent events that differ in one text only; the rest is encoded once."""

    def __init__(self, value: object, name: str) -> None:
        """value: what to send, its one text field `name` empty."""
        # No string of JSON holds this: a quote in one is escaped.
        empty = f'"{name}":""'.encode()
        before, found, self._after = frame(value).partition(empty)
        assert found, f"there is no empty {name}"
        self._before = before + empty[:-2]

    def with_text(self, text: str) -> bytes:
        """The event that says `text`."""
        return self._before + _encode(text) + self._after


async def until_gone(work: Coroutine[object, object, T], receive: Receive) -> T:
    """The result of `work`, which is cancelled when the client leaves first.

    Raises ClientGone then. The whole request body must have been received before.
    """
    task = asyncio.current_task()
    assert task is not None, "a request has a task"
    watcher = asyncio.ensure_future(_cancel_on_departure(task, receive))
    try:
        return await work
    except asyncio.CancelledError:
        # Somebody else may have cancelled it too, and that counts for more.
        if watcher.done() and not watcher.cancelled() and task.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()


async def _cancel_on_departure(task: asyncio.Task[object], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()
