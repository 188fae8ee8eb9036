"""An HTTP worker's process: the API and the frontend on one event loop."""

import asyncio
import contextlib
import gc
import logging
import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, assert_never

import uvicorn

from roost.api import Doorman, create_app
from roost.core.clock import SystemClock
from roost.core.config import ServeConfig
from roost.core.outcome import Outcome
from roost.core.request import Origin
from roost.frontend import Frontend, FrontendSettings
from roost.launch.readiness import (
    Drain,
    Drained,
    EngineLost,
    Job,
    Leave,
    Lines,
    Order,
    Ready,
    Serve,
    say,
)
from roost.launch.text_side import text_tools
from roost.observe import Meter, configure_logging, set_log_level, share_counts
from roost.wire import engine_address
from roost.wire.zmq_channel import ZmqWorkerSide

# The engine may be loading a large model; if it cannot, the supervisor ends us.
_OPEN_TIMEOUT_S: Final = 24 * 3600.0
# How long the last words of ended requests may take to leave.
_FLUSH_S: Final = 5.0
_BACKLOG: Final = 2048
# Longer than a load balancer keeps an idle connection, so that it is never we who close one just as
# a request comes in.
_KEEP_ALIVE_S: Final = 75
# New objects before the young are looked through for cycles. A request makes few, and streams keep
# hundreds of their tasks and pieces for a while: at the interpreter's 700, a tenth of the time went
# into looking through what lives.
_YOUNG_OBJECTS: Final = 20_000


def run_http_worker(job: Job, orders: "Lines[Job | Order]") -> int:
    """Serve until the supervisor says that it is over. Raises ModelError, ConfigError."""
    configure_logging(job.config.log.log_level, job.config.log.log_format)
    # It logs its own comings and goings; ours say the same once.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    tools = text_tools(job.config.model)
    directory = Path(job.directory)
    origin = Origin(job.worker, job.epoch)
    channel = ZmqWorkerSide(engine_address(directory), origin)
    share_counts(job.worker)

    async def serve() -> None:
        frontend = Frontend(
            channel,
            origin,
            tools,
            SystemClock(),
            _frontend_settings(job.config),
            meter=Meter(directory),
            on_log_level=set_log_level,
        )
        try:
            await HttpWorker(job, frontend, orders).serve()
        finally:
            await frontend.close()

    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(serve())
    return 0


class _Server(uvicorn.Server):
    """One that leaves signals to the supervisor."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpWorker:
    """One life of an HTTP worker.

    A first life takes connections while the engine loads, and refuses what comes in until then.
    A later one leaves connections to the others until it can serve.
    """

    def __init__(self, job: Job, frontend: Frontend, orders: "Lines[Job | Order]") -> None:
        self._job = job
        self._frontend = frontend
        self._orders = orders
        self._is_first = job.epoch == 1
        app = create_app(frontend, job.config, reasons=job.reasons)
        self._doorman = Doorman(app)
        self._server = _Server(
            uvicorn.Config(
                self._doorman,
                lifespan="off",
                log_config=None,
                access_log=False,
                # It rewrites the caller's address, which nobody asks for.
                proxy_headers=False,
                server_header=False,
                ws="none",
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(_FLUSH_S),
            )
        )
        # Set by an order to serve, or to end.
        self._was_told = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Until an order to end has been carried out."""
        loop = asyncio.get_running_loop()
        os.set_blocking(self._orders.fd, False)
        loop.add_reader(self._orders.fd, self._hear)
        serving = asyncio.create_task(self._serve_http())
        try:
            await self._frontend.open(_OPEN_TIMEOUT_S)
            _keep_what_is_loaded()
            self._doorman.is_open = True
            if not serving.done():
                say(self._job.news_fd, Ready())
            await serving
        finally:
            loop.remove_reader(self._orders.fd)
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    async def _serve_http(self) -> None:
        if not self._is_first:
            await self._was_told.wait()
        await self._server.serve(sockets=[socket.socket(fileno=self._job.listen_fd)])

    def _hear(self) -> None:
        for order in self._orders.read():
            self._was_told.set()
            match order:
                case Serve():
                    self._doorman.is_announced = True
                case Drain(timeout_s=timeout_s):
                    self._ending = asyncio.create_task(self._drain(timeout_s))
                case EngineLost(message=message):
                    self._frontend.drain()
                    self._frontend.engine_lost(message)
                    self._ending = asyncio.create_task(self._leave())
                case Leave():
                    self._ending = asyncio.create_task(self._leave())
                case Job():
                    raise AssertionError("a job comes first, and once")
                case _:
                    assert_never(order)
        if self._orders.is_ended:
            os._exit(1)  # the supervisor is dead, and its ports are to be free

    async def _drain(self, timeout_s: float) -> None:
        """Finish what runs while new asks get their 503, then end the rest. Asks that come later
        get it too, until nothing runs in any other worker.
        """
        self._frontend.drain()
        if not await self._frontend.wait_idle(timeout_s):
            self._frontend.end_all(Outcome.SHUTTING_DOWN, "The server is shutting down.")
        say(self._job.news_fd, Drained())

    async def _leave(self) -> None:
        """Let the last words out, then stop listening."""
        await asyncio.sleep(0)
        self._server.should_exit = True


def _keep_what_is_loaded() -> None:
    """A vocabulary's hundred thousand objects live as long as the process: no use in looking
    through them again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


def _frontend_settings(config: ServeConfig) -> FrontendSettings:
    server = config.server
    return FrontendSettings(
        request_timeout_s=server.request_timeout_s or math.inf,
        heartbeat_timeout_s=server.heartbeat_timeout_s,
        notify_batch_size=server.notify_batch_size,
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
