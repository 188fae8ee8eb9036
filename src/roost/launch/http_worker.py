"""An HTTP worker's process: the API and the frontend on one event loop."""

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from roost.api import create_app
from roost.core.clock import SystemClock
from roost.core.config import ServeConfig
from roost.core.outcome import Outcome
from roost.core.request import Origin
from roost.frontend import Frontend, FrontendSettings
from roost.launch.readiness import Drain, EngineLost, Job, Lines, Order, Ready, say
from roost.launch.text_side import text_tools
from roost.observe import configure_logging
from roost.wire import engine_address
from roost.wire.zmq_channel import ZmqWorkerSide

# The engine may be loading a large model; if it cannot, the supervisor ends us.
_OPEN_TIMEOUT_S: Final = 24 * 3600.0
# How long the last words of ended requests may take to leave.
_FLUSH_S: Final = 5.0
_BACKLOG: Final = 2048


def run_http_worker(job: Job, orders: "Lines[Job | Order]") -> int:
    """Serve until the supervisor says that it is over. Raises ModelError, ConfigError."""
    configure_logging(job.config.log.log_level, job.config.log.log_format)
    # It logs its own comings and goings; ours say the same once.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    tools = text_tools(job.config.model)
    clock = SystemClock()
    origin = Origin(job.worker, job.epoch)
    channel = ZmqWorkerSide(engine_address(Path(job.directory)), origin)
    settings = _frontend_settings(job.config)

    async def serve() -> None:
        frontend = Frontend(channel, origin, tools, clock, settings)
        try:
            await frontend.open(_OPEN_TIMEOUT_S)
            await HttpWorker(job, frontend, orders).serve()
        finally:
            await frontend.close()

    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(serve())
    return 0


class _Server(uvicorn.Server):
    """One that leaves signals to the supervisor, and says when it listens."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpWorker:
    """One life of an HTTP worker, from an open frontend to the end."""

    def __init__(self, job: Job, frontend: Frontend, orders: "Lines[Job | Order]") -> None:
        self._job = job
        self._frontend = frontend
        self._orders = orders
        app = create_app(frontend, job.config, reasons=job.reasons)
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                ws="none",
                backlog=_BACKLOG,
                timeout_graceful_shutdown=int(_FLUSH_S),
            ),
            self._listening,
        )
        self._ending: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Until an order to end, or a SIGTERM, has been carried out."""
        loop = asyncio.get_running_loop()
        os.set_blocking(self._orders.fd, False)
        loop.add_reader(self._orders.fd, self._hear)
        listener = socket.socket(fileno=self._job.listen_fd)
        try:
            await self._server.serve(sockets=[listener])
        finally:
            loop.remove_reader(self._orders.fd)

    def _listening(self) -> None:
        say(self._job.news_fd, Ready())

    def _hear(self) -> None:
        for order in self._orders.read():
            if self._ending is not None:
                continue
            if isinstance(order, Drain):
                self._ending = asyncio.create_task(self._drain(order.timeout_s))
            elif isinstance(order, EngineLost):
                self._frontend.drain()
                self._frontend.engine_lost(order.message)
                self._ending = asyncio.create_task(self._leave())
        if self._orders.is_ended:
            os._exit(1)  # the supervisor is dead, and its ports are to be free

    async def _drain(self, timeout_s: float) -> None:
        """Finish what runs while new asks get their 503, then end the rest."""
        self._frontend.drain()
        if not await self._frontend.wait_idle(timeout_s):
            self._frontend.end_all(Outcome.SHUTTING_DOWN, "The server is shutting down.")
        await self._leave()

    async def _leave(self) -> None:
        """Let the last words out, then stop listening."""
        await asyncio.sleep(0)
        self._server.should_exit = True


def _frontend_settings(config: ServeConfig) -> FrontendSettings:
    server = config.server
    return FrontendSettings(
        request_timeout_s=server.request_timeout_s or math.inf,
        heartbeat_timeout_s=server.heartbeat_timeout_s,
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
