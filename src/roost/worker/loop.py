"""The engine's loop: hear, decide, do, record, say."""

import logging
import math
from typing import Protocol, assert_never

from roost.core.clock import Clock
from roost.core.outcome import Outcome
from roost.core.plan import BatchPlan, StepResult
from roost.core.request import GenerateRequest, Origin
from roost.sched import Addressed, Scheduler
from roost.wire import EngineSide
from roost.wire.messages import (
    Cancel,
    Control,
    Goodbye,
    Heartbeat,
    Hello,
    ModelFacts,
    ToEngine,
    Welcome,
)
from roost.worker.control import Switch, load_of, obey
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
    ) -> None:
        self.facts = facts
        self._channel = channel
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._engine_epoch = engine_epoch
        self._outbox = Outbox(channel)
        self._switch = Switch()
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
        # Before the step: an Accepted need not wait for it.
        self._flush(now_s)
        self._beat(now_s)
        plan = None if self._switch.is_paused else self._scheduler.plan(now_s)
        if plan is None:
            return False
        self._say(self._compute(plan))
        self._flush(self._clock.now_s())
        return True

    def close(self, outcome: Outcome = Outcome.SHUTTING_DOWN) -> None:
        """End every request, and give everything back."""
        now_s = self._clock.now_s()
        try:
            self._say(self._scheduler.end_all(outcome, now_s))
            self._flush(now_s)
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
            case Cancel(rid=rid, is_disconnect=left, owner=owner):
                self._say(self._scheduler.cancel(rid, now_s, is_disconnect=left, owner=owner))
            case Control(origin=origin):
                said, done = obey(message, self._scheduler, self._switch, now_s)
                self._say(said)
                # The endings first: who is told that all is aborted finds it so.
                self._flush(now_s)
                self._outbox.tell(origin, done)
            case Hello(origin=origin):
                self._welcome(origin, now_s)
            case Goodbye(origin=origin):
                self._part_with(origin, now_s)
            case _:
                assert_never(message)

    def _welcome(self, origin: Origin, now_s: float) -> None:
        before = self._workers.get(origin.worker)
        if before is not None and before.epoch < origin.epoch:
            self._part_with(before, now_s)
        self._outbox.greet(origin)
        if self._outbox.tell(origin, Welcome(self._engine_epoch, self.facts)):
            self._workers[origin.worker] = origin
            self._outbox.tell(origin, Heartbeat(now_s, load_of(self._scheduler)))

    def _part_with(self, origin: Origin, now_s: float) -> None:
        """A life of a worker is over: what it asked for is of no use to anybody."""
        self._outbox.forget(origin)
        if self._workers.get(origin.worker) == origin:
            del self._workers[origin.worker]
        said = self._scheduler.end_all(Outcome.CLIENT_DISCONNECTED, now_s, origin=origin)
        self._say(said)
        if said:
            _log.warning(
                "HTTP worker %d (life %d) is gone; its %d requests are cancelled",
                origin.worker,
                origin.epoch,
                len(said),
            )

    def _say(self, said: list[Addressed]) -> None:
        for envelope, event in said:
            self._outbox.send(envelope, event)

    def _flush(self, now_s: float) -> None:
        for origin in self._outbox.flush():
            self._part_with(origin, now_s)

    def _beat(self, now_s: float) -> None:
        if now_s < self._next_beat_s:
            return
        self._next_beat_s = now_s + HEARTBEAT_S
        beat = Heartbeat(now_s, load_of(self._scheduler))
        for origin in list(self._workers.values()):
            if not self._outbox.tell(origin, beat):
                self._part_with(origin, now_s)

    def _idle_s(self) -> float:
        """How long nothing can happen unless somebody speaks."""
        wake_s = min(self._next_beat_s, self._scheduler.next_deadline_s())
        return max(wake_s - self._clock.now_s(), 0.0)
