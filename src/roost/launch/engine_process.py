"""The engine's process: loads the model, then runs the loop in its main thread."""

import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from roost.core.clock import Clock, SystemClock
from roost.launch.heap import without_collection
from roost.launch.readiness import Job, Lines, LogLevelSet, Order, Progress, Ready, say
from roost.observe import configure_logging, set_log_level
from roost.wire import engine_address
from roost.wire.zmq_channel import ZmqEngineSide
from roost.worker import EngineLoop, Surroundings, build_worker

# Progress is for eyes.
_LEAST_BETWEEN_S = 0.05


def run_engine(job: Job, orders: "Lines[Job | Order]") -> int:
    """Serve until the supervisor says that it is over. Raises ModelError, ConfigError."""
    config = job.config
    configure_logging(config.log.log_level, config.log.log_format)
    stopping = Stopping()
    watch = threading.Thread(target=_watch, args=(orders, job.directory, stopping), daemon=True)
    watch.start()
    channel = ZmqEngineSide(engine_address(Path(job.directory)))
    cache_dir = config.model.cache_dir

    def set_level(level: str) -> None:
        set_log_level(level)
        say(job.news_fd, LogLevelSet(level))

    clock = SystemClock()
    around = Surroundings(
        clock=clock,
        cache_dir=None if cache_dir is None else Path(cache_dir),
        engine_epoch=job.epoch,
        on_progress=_Reporter(job.news_fd, clock).progress,
        set_log_level=set_level,
    )
    try:
        with without_collection():
            loop = build_worker(config, channel, around)
    except BaseException:
        channel.close()
        raise
    stopping.loop = loop
    say(job.news_fd, Ready(_facts(loop)))
    loop.run()
    return 0


@dataclass(slots=True)
class Stopping:
    """What is to be stopped; None while the model loads."""

    loop: EngineLoop | None = None


def _watch(orders: "Lines[Job | Order]", directory: str, stopping: Stopping) -> None:
    """Any order ends the engine. So does the supervisor's death, which leaves nobody to clear up:
    no socket is left behind, and no process.
    """
    while not orders.is_ended:
        if orders.read() and stopping.loop is not None:
            stopping.loop.stop()
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)


def _facts(loop: EngineLoop) -> str:
    facts = loop.facts
    return (
        f"{Path(facts.model_path).name} · {facts.isa}, {facts.num_threads} threads · "
        f"context {facts.max_context_tokens} · KV {facts.num_kv_tokens} tokens {facts.kv_dtype}"
    )


class _Reporter:
    """Passes progress on, not more often than can be seen."""

    def __init__(self, news_fd: int, clock: Clock) -> None:
        self._news_fd = news_fd
        self._clock = clock
        self._next_s = 0.0

    def progress(self, num_done: int, num_total: int) -> None:
        now_s = self._clock.now_s()
        if now_s >= self._next_s or num_done == num_total:
            self._next_s = now_s + _LEAST_BETWEEN_S
            say(self._news_fd, Progress(num_done, num_total))
