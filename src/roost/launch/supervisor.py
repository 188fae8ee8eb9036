"""The supervisor: starts the engine and the HTTP workers, watches them, and ends them.

One thread, no event loop: it waits for news of its children, for their ends, and for signals.
"""

import logging
import os
import selectors
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from roost.core.clock import Clock
from roost.core.config import ServeConfig
from roost.core.request import Origin
from roost.launch.child import Child, start_child
from roost.launch.listener import listen, url_of
from roost.launch.readiness import (
    Drain,
    Drained,
    EngineLost,
    Failed,
    Job,
    Leave,
    LogLevelSet,
    News,
    Order,
    Progress,
    Ready,
    Serve,
)
from roost.observe import configure_logging, set_log_level
from roost.wire import SUPERVISOR, WorkerSide, engine_address
from roost.wire.messages import Goodbye
from roost.wire.zmq_channel import ZmqWorkerSide

_log = logging.getLogger(__name__)

# A worker that dies so often in so short a time will go on dying.
_MAX_RESTARTS: Final = 5
_RESTARTS_WITHIN_S: Final = 60.0
# What an orderly end may take beyond the time that requests get.
_GRACE_S: Final = 10.0
# A socket's path has 107 bytes; this leaves room for our directory and the socket's name.
_MAX_BASE_CHARS: Final = 70


class Announcer(Protocol):
    """Who tells people what goes on."""

    def progress(self, num_done: int, num_total: int) -> None:
        """Weights are being prepared: bytes done, of bytes in all."""

    def ready(self, url: str, facts: str) -> None:
        """Requests are served."""

    def draining(self, timeout_s: float) -> None:
        """An end was asked for; running requests get so many seconds. Ask again to end at once."""

    def failed(self, message: str) -> None:
        """It is over, and why."""


def supervise(
    config: ServeConfig, reasons: Mapping[str, str], announcer: Announcer, clock: Clock
) -> int:
    """Serve until a signal or a failure ends it → the exit code.

    Raises ConfigError when the address cannot be listened on; nothing was started then.
    """
    listener = listen(config.server.host, config.server.port)
    directory = _private_directory()
    try:
        with _signals() as signals_fd:
            house = Supervisor(
                config, reasons, announcer, clock, listener=listener, directory=Path(directory)
            )
            return house.run(signals_fd)
    finally:
        listener.close()
        shutil.rmtree(directory, ignore_errors=True)


def _private_directory() -> str:
    """A new directory that only this user may enter, near enough to the root for a socket."""
    base = tempfile.gettempdir()
    if len(base) > _MAX_BASE_CHARS:
        base = "/tmp"  # noqa: S108  mkdtemp makes a name of its own in there, mode 0700
    return tempfile.mkdtemp(prefix="roost-", dir=base)


@contextmanager
def _signals() -> Iterator[int]:
    """SIGTERM and SIGINT as bytes on a descriptor, while inside."""
    read_fd, write_fd = os.pipe()
    for fd in (read_fd, write_fd):
        os.set_blocking(fd, False)
    before_fd = signal.set_wakeup_fd(write_fd)
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    try:
        yield read_fd
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        os.close(read_fd)
        os.close(write_fd)


class Supervisor:
    """The processes of one server. `exit_code` is decided once."""

    def __init__(
        self,
        config: ServeConfig,
        reasons: Mapping[str, str],
        announcer: Announcer,
        clock: Clock,
        *,
        listener: socket.socket,
        directory: Path,
    ) -> None:
        self._config = config
        self._reasons = dict(reasons)
        self._announcer = announcer
        self._clock = clock
        self._listener = listener
        self._directory = directory
        self._selector = selectors.DefaultSelector()
        self._engine: Child | None = None
        self._workers: dict[int, Child] = {}
        self._voice: WorkerSide | None = None
        self._restarts_s: list[float] = []
        self._facts = ""
        self._was_ready = False
        self._exit_code: int | None = None
        self._kill_at_s: float | None = None

    def run(self, signals_fd: int) -> int:
        """Start everything and stay until everything has ended."""
        self._selector.register(signals_fd, selectors.EVENT_READ)
        try:
            self._engine = self._start("engine", 0, 1)
            for worker in range(self._config.server.http_workers):
                self._workers[worker] = self._start("http", worker, 1)
            # While they load.
            configure_logging(self._config.log.log_level, self._config.log.log_format)
            self._voice = self._connected()
            while self._children():
                self._turn(signals_fd)
        finally:
            for child in self._children():
                child.kill()
                child.reap()
            if self._voice is not None:
                self._voice.close()
            self._selector.close()
        assert self._exit_code is not None, "everything ended, and nobody knows why"
        return self._exit_code

    def _connected(self) -> WorkerSide:
        return ZmqWorkerSide(engine_address(self._directory), SUPERVISOR)

    def _turn(self, signals_fd: int) -> None:
        """Wait for something to happen, and do what follows from it."""
        timeout_s = None
        if self._kill_at_s is not None:
            timeout_s = max(0.0, self._kill_at_s - self._clock.now_s())
        events = self._selector.select(timeout_s)
        if not events and self._kill_at_s is not None:
            self._kill_all()
        for key, _ in events:
            if key.fd == signals_fd:
                for _number in os.read(signals_fd, 64):
                    self._signalled()
                continue
            child = next((c for c in self._children() if key.fd in (c.exit_fd, c.news.fd)), None)
            if child is not None:
                self._news(child)
                if key.fd == child.exit_fd:
                    self._ended(child)

    def _children(self) -> list[Child]:
        """Those that live, workers first."""
        engine = [] if self._engine is None else [self._engine]
        return [*self._workers.values(), *engine]

    def _start(self, role: str, worker: int, epoch: int) -> Child:
        job = Job(
            role=role,
            config=self._config,
            reasons=self._reasons,
            directory=str(self._directory),
            parent_pid=os.getpid(),
            worker=worker,
            epoch=epoch,
            news_fd=-1,
        )
        listen_fd = self._listener.fileno() if role == "http" else None
        # The voice brings a thread with it.
        child = start_child(job, listen_fd, may_fork=self._voice is None)
        self._selector.register(child.exit_fd, selectors.EVENT_READ)
        self._selector.register(child.news.fd, selectors.EVENT_READ)
        return child

    def _news(self, child: Child) -> None:
        for news in child.news.read():
            self._heard(child, news)
        if child.news.is_ended and child.news.fd in self._selector.get_map():
            self._selector.unregister(child.news.fd)

    def _heard(self, child: Child, news: News) -> None:
        match news:
            case Progress(num_done=num_done, num_total=num_total):
                self._announcer.progress(num_done, num_total)
            case Failed(message=message):
                if self._was_ready and child is not self._engine:
                    _log.error("%s cannot serve: %s", child.name, message)
                else:
                    self._fail(message)
            case LogLevelSet(level=level):
                set_log_level(level)
            case Drained():
                child.is_drained = True
                self._release()
            case Ready(facts=facts):
                child.is_ready = True
                self._facts = facts or self._facts
                if self._was_ready:
                    child.tell(Serve())
                elif all(c.is_ready for c in self._children()):
                    self._open()

    def _open(self) -> None:
        """All are ready: let requests in."""
        self._was_ready = True
        for worker in self._workers.values():
            worker.tell(Serve())
        self._announcer.ready(url_of(self._listener), self._facts)

    def _ended(self, child: Child) -> None:
        self._selector.unregister(child.exit_fd)
        if child.news.fd in self._selector.get_map():
            self._selector.unregister(child.news.fd)
        how = child.reap()
        if child is self._engine:
            self._engine = None
            if self._exit_code is None:
                self._lost_engine(f"the engine died ({how})")
            return
        del self._workers[child.job.worker]
        if self._exit_code is None:
            self._replace(child, how)
        elif self._workers:
            self._release()
        elif self._engine is not None:
            # Nobody is left who could ask it anything.
            self._engine.tell(Leave())

    def _replace(self, child: Child, how: str) -> None:
        """Give a dead worker its next life, on the same socket."""
        now_s = self._clock.now_s()
        job = child.job
        assert self._voice is not None, "children end in `_turn` only"
        self._voice.send(Goodbye(Origin(job.worker, job.epoch)))
        self._restarts_s = [s for s in self._restarts_s if s > now_s - _RESTARTS_WITHIN_S]
        self._restarts_s.append(now_s)
        if not self._was_ready or len(self._restarts_s) > _MAX_RESTARTS:
            self._fail(f"{child.name} died ({how})")
            return
        _log.error("%s died (%s); it is started again", child.name, how)
        self._forget(job.worker)
        self._workers[job.worker] = self._start("http", job.worker, job.epoch + 1)

    def _release(self) -> None:
        """Let the workers go when nothing runs in any of them; until then each refuses asks."""
        if all(worker.is_drained for worker in self._workers.values()):
            for worker in self._workers.values():
                worker.tell(Leave())

    def _forget(self, worker: int) -> None:
        """What a dead worker had at hand is not at hand any more."""
        from roost.observe import worker_has_ended

        worker_has_ended(self._directory, worker)

    def _signalled(self) -> None:
        if self._exit_code is not None or not self._was_ready:
            # Asked twice, or asked while there is nothing yet to finish.
            self._exit_code = self._exit_code or 0
            self._kill_all()
            return
        timeout_s = self._config.server.drain_timeout_s
        self._exit_code = 0
        self._kill_at_s = self._clock.now_s() + timeout_s + _GRACE_S
        self._announcer.draining(timeout_s)
        for worker in self._workers.values():
            if worker.is_ready:
                worker.tell(Drain(timeout_s))
            else:
                worker.kill()

    def _lost_engine(self, message: str) -> None:
        self._fail(message, EngineLost(message))

    def _fail(self, message: str, order: Order | None = None) -> None:
        """End with exit code 1; `order` tells the workers how. The first reason is what people
        read.
        """
        if self._exit_code is not None:
            return
        self._exit_code = 1
        self._announcer.failed(message)
        self._kill_at_s = self._clock.now_s() + _GRACE_S
        for child in self._children():
            if not child.is_ready:
                child.kill()
            elif child is not self._engine:
                child.tell(order or Drain(0.0))
        if self._engine is not None and not any(w.is_ready for w in self._workers.values()):
            self._engine.kill()

    def _kill_all(self) -> None:
        self._kill_at_s = None
        for child in self._children():
            child.kill()
