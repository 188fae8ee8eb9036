"""The engine's loop: hear, decide, do, record, say."""

import logging
import math
from collections.abc import Callable
from typing import Protocol, assert_never

from roost.core.clock import Clock
from roost.core.outcome import Outcome
from roost.core.plan import BatchPlan, StepResult
from roost.core.request import GenerateRequest, Origin
from roost.sched import Addressed, Scheduler
from roost.wire import EngineSide
from roost.wire.messages import (
    Audit,
    Cancel,
    Control,
    Goodbye,
    Heartbeat,
    Hello,
    ModelFacts,
    Noted,
    ToEngine,
    Welcome,
)
from roost.worker.control import ControlDesk, load_of
from roost.worker.outbox import Outbox

# A front calls the engine dead after several of these have failed to come.
HEARTBEAT_S = 0.5

_log = logging.getLogger(__name__)


class Executor(Protocol):
    """What computes a plan: a runner."""

    def execute(self, plan: BatchPlan) -> StepResult: ...

    def close(self) -> None: ...


class EngineLoop:
    """One engine. Everything but `stop` belongs to the thread that runs it.

    Steps are bounded by the token budget, so beating between them is often enough.
    set_log_level: sets the level of this process when a call asks for it.
    """

    def __init__(
        self,
        channel: EngineSide,
        scheduler: Scheduler,
        executor: Executor,
        facts: ModelFacts,
        *,
        clock: Clock,
        engine_epoch: int = 1,
        set_log_level: Callable[[str], None] = lambda _level: None,
    ) -> None:
        self.facts = facts
        self._channel = channel
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._engine_epoch = engine_epoch
        self._outbox = Outbox(channel)
        self._desk = ControlDesk(scheduler, set_log_level, engine_epoch)
        # worker → the life of it that said Hello last.
        self._workers: dict[int, Origin] = {}
        self._next_beat_s = -math.inf
        self._is_stopping = False

    def run(self) -> None:
        """Serve until `stop`, then end what is left and close.

        A bug of the engine ends everybody's request as its fault, and is raised on.
        """
        outcome = Outcome.ENGINE_FAULT
        try:
            while not self._is_stopping:
                if not self.step():
                    self._channel.wait(self._idle_s())
            outcome = Outcome.SHUTTING_DOWN
        finally:
            self.close(outcome)

    def stop(self) -> None:
        """End `run` after the step in hand. From any thread; a message (Goodbye) wakes the loop,
        which otherwise notices within a heartbeat.
        """
        self._is_stopping = True

    def step(self) -> bool:
        """One turn of the loop. False when there was nothing to compute."""
        now_s = self._clock.now_s()
        for message in self._channel.receive():
            self._hear(message, now_s)
        self._say(self._scheduler.expire(now_s))
        self._beat(now_s)
        # Before the step: an Accepted need not wait for it.
        self._deliver(now_s)
        plan = None if self._desk.is_paused else self._scheduler.plan(self._clock.now_s())
        if plan is None:
            return False
        self._say(self._compute(plan))
        self._deliver(self._clock.now_s())
        return True

    def close(self, outcome: Outcome = Outcome.SHUTTING_DOWN) -> None:
        """End every request, answer every call, and give everything back."""
        now_s = self._clock.now_s()
        try:
            self._say(self._scheduler.end_all(outcome, now_s))
            self._desk.close()
            self._deliver(now_s)
            # After a fault nobody knows what the pages hold.
            if outcome is Outcome.SHUTTING_DOWN and (last := self._scheduler.put_away()):
                self._executor.execute(last)
        finally:
            self._executor.close()
            self._channel.close()

    def _compute(self, plan: BatchPlan) -> list[Addressed]:
        try:
            result = self._executor.execute(plan)
        except Exception as error:  # noqa: BLE001  see below
            # Whatever it was, those in the step get their ending and the others go on. It is a
            # warning here, because each of the endings is logged as the fault that it is.
            _log.warning("step %d of %d tokens failed", plan.number, plan.num_tokens, exc_info=True)
            message = f"The engine failed in a step: {type(error).__name__}"
            return self._scheduler.fail(plan.number, self._clock.now_s(), message=message)
        return self._scheduler.commit(result, self._clock.now_s())

    def _hear(self, message: ToEngine, now_s: float) -> None:
        match message:
            case GenerateRequest():
                # Nobody would hear the answer of a life that is over.
                if not self._outbox.is_gone(message.envelope.origin):
                    self._say(self._scheduler.submit(message, now_s))
            case Cancel(origin, serial, left, words):
                self._say(
                    self._scheduler.cancel(origin, serial, now_s, is_disconnect=left, message=words)
                )
            case Control(origin=origin):
                if not self._outbox.is_gone(origin):
                    self._say(self._desk.obey(message, self._workers.values(), now_s))
                    # At once: what is heard next may have come later than the call.
                    self._deliver(now_s)
            case Noted():
                self._desk.note(message)
            case Audit(origin=origin):
                # Whoever asks is alive, so it may have been given up for a passing trouble.
                if self._outbox.is_gone(origin):
                    self._welcome(origin, now_s)
                self._desk.audit(message)
            case Hello(origin=origin):
                self._welcome(origin, now_s)
            case Goodbye(origin=origin):
                self._part_with(origin, now_s)
            case _:
                assert_never(message)

    def _welcome(self, origin: Origin, now_s: float) -> None:
        """Answer a Hello. It may be repeated, by a life whose Welcome got lost."""
        before = self._workers.get(origin.worker)
        if before is not None and before.epoch > origin.epoch:
            return
        if before is not None and before.epoch < origin.epoch:
            self._part_with(before, now_s)
        self._outbox.greet(origin)
        welcome = Welcome(self._engine_epoch, self.facts, self._desk.log_level)
        if self._outbox.tell(origin, welcome):
            self._workers[origin.worker] = origin
            self._outbox.tell(origin, Heartbeat(now_s, load_of(self._scheduler, self._outbox)))

    def _part_with(self, origin: Origin, now_s: float) -> None:
        """A life of a worker is over: what it asked for is of no use to anybody."""
        self._outbox.forget(origin)
        if self._workers.get(origin.worker) == origin:
            del self._workers[origin.worker]
        self._desk.forget(origin)
        said = self._scheduler.end_all(Outcome.CLIENT_DISCONNECTED, now_s, origin=origin)
        self._say(said)
        # Others may end with them: turns of a session that were to go on from one of these.
        num_cancelled = sum(envelope.origin == origin for envelope, _ in said)
        if num_cancelled:
            _log.warning(
                "HTTP worker %d (life %d) is gone; its %d requests are cancelled",
                origin.worker,
                origin.epoch,
                num_cancelled,
            )

    def _say(self, said: list[Addressed]) -> None:
        for envelope, event in said:
            self._outbox.send(envelope, event)

    def _deliver(self, now_s: float) -> None:
        """Send what was said about requests, and behind it what concerns calls.

        A life that turns out to be gone is parted with, which may give more to say.
        """
        gone: list[Origin] | None = None
        while gone is None or gone:
            gone = self._outbox.flush()
            for origin, message in self._desk.take(now_s):
                if not self._outbox.tell(origin, message):
                    gone.append(origin)
            for origin in gone:
                self._part_with(origin, now_s)

    def _beat(self, now_s: float) -> None:
        if now_s < self._next_beat_s:
            return
        self._next_beat_s = now_s + HEARTBEAT_S
        beat = Heartbeat(now_s, load_of(self._scheduler, self._outbox))
        for origin in list(self._workers.values()):
            if not self._outbox.tell(origin, beat):
                self._part_with(origin, now_s)

    def _idle_s(self) -> float:
        """How long nothing can happen unless somebody speaks."""
        wake_s = min(
            self._next_beat_s,
            self._scheduler.next_deadline_s(),
            self._desk.next_deadline_s(),
        )
        return max(wake_s - self._clock.now_s(), 0.0)
