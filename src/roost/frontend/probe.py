"""The health check that really generates: one for all who ask, and anybody's token will do."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from roost.core.errors import RequestError

_log = logging.getLogger(__name__)


class Probe:
    """generate: asks for one token and returns when it has come, or raises."""

    def __init__(self, generate: Callable[[float], Awaitable[None]]) -> None:
        self._generate = generate
        self._running: asyncio.Task[None] | None = None
        self._token: asyncio.Future[None] | None = None

    def token_came(self) -> None:
        """The engine has generated something, for whomever."""
        if self._token is not None and not self._token.done():
            self._token.set_result(None)
        self._token = None

    async def check(self, timeout_s: float) -> bool:
        """Whether a token comes in time. Checks at the same time share one request."""
        loop = asyncio.get_running_loop()
        if self._token is None:
            self._token = loop.create_future()
        token = self._token
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run(timeout_s))
        await asyncio.wait(
            {token, self._running}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        return token.done()

    async def _run(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._generate(timeout_s)
        except (RequestError, TimeoutError) as exc:
            _log.debug("the health check did not generate: %s", exc)

    async def close(self) -> None:
        """Stop what runs."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
