"""Is the engine alive, does this front take requests, and does it really generate."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from roost.core.clock import Clock
from roost.core.errors import RequestError
from roost.frontend.engine_view import EngineView

_log = logging.getLogger(__name__)


class Health:
    """What probes ask. Checks of generating at the same time share one request, and anybody's
    token will do.
    """

    def __init__(
        self,
        engine: EngineView,
        clock: Clock,
        pump: Callable[[], None],
        generate: Callable[[float], Awaitable[None]],
        *,
        is_taking: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        """pump: takes in what has arrived, so that news that lies unread counts. generate: asks for
        one token, with a time limit, and returns when it has come, or raises. is_taking: whether
        new requests may come in.
        """
        self._engine = engine
        self._clock = clock
        self._pump = pump
        self._generate = generate
        self._timeout_s = timeout_s
        self._is_taking = is_taking
        self._running: asyncio.Task[None] | None = None
        self._token: asyncio.Future[None] | None = None

    def is_alive(self) -> bool:
        """The engine was heard within the heartbeat timeout."""
        self._pump()
        return self._engine.is_alive(self._clock.now_s(), self._timeout_s)

    def is_ready(self) -> bool:
        """Alive, and taking requests."""
        return self._is_taking() and self.is_alive()

    def token_came(self) -> None:
        """The engine has generated something, for whomever."""
        if self._token is not None and not self._token.done():
            self._token.set_result(None)
        self._token = None

    async def generates(self, timeout_s: float) -> bool:
        """Whether a token comes in time."""
        loop = asyncio.get_running_loop()
        if self._token is None:
            self._token = loop.create_future()
        token = self._token
        until_s = loop.time() + timeout_s
        is_joined = self._running is not None and not self._running.done()
        # The token of one that runs already may have come before this check began.
        for _ in range(2 if is_joined else 1):
            if self._running is None or self._running.done():
                self._running = loop.create_task(self._run(timeout_s))
            left_s = max(until_s - loop.time(), 0.0)
            await asyncio.wait(
                {token, self._running}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if token.done():
                return True
        return False

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
