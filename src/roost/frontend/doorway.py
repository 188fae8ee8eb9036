"""Where the requests of one ask wait while its prompts are tokenised: they may end there."""

import asyncio

from roost.core.events import Ended, Event
from roost.core.refusal import refusal_of


class Doorway:
    """Hears endings that come before anything was sent.

    `shut` is done when there is nothing to prepare the ask for any more: one of its requests is
    refused, which refuses all, or every one has been aborted.
    """

    def __init__(self, num_requests: int) -> None:
        self._num_left = num_requests
        self.shut: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(self, index: int, event: Event, now_s: float) -> None:
        """Take the ending of one. From the event loop's thread."""
        del index, now_s
        assert isinstance(event, Ended), "only an ending comes before a request is sent"
        self._num_left -= 1
        is_refused = refusal_of(event) is not None
        if (is_refused or self._num_left == 0) and not self.shut.done():
            self.shut.set_result(None)
