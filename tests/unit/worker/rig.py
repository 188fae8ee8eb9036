"""An engine over memory channels, a fake runner and a clock that the test moves."""

from tests.sim.fake_runner import VOCAB_SIZE, FakeRunner, letters

from roost.cache import KvCache, PagePool
from roost.core.calls import Call
from roost.core.clock import ManualClock
from roost.core.events import Ended
from roost.core.outcome import Outcome
from roost.core.request import Origin
from roost.sched import SchedLimits, Scheduler
from roost.text import StopMatcher
from roost.wire import MemoryCorridor, WorkerSide
from roost.wire.messages import (
    Control,
    ControlDone,
    Heartbeat,
    Hello,
    ModelFacts,
    Outputs,
    ToWorker,
)
from roost.worker import EngineLoop

FACTS = ModelFacts(
    "m.gguf", "llama", "llama", VOCAB_SIZE, 512, (25,), 1024, "bf16", "avx2", 2, "v", 14
)
HERE = Origin(0, 1)
THERE = Origin(1, 1)


class Bench:
    """An engine with as many workers as are connected to it. `levels`: log levels it was set to."""

    def __init__(self, *, max_queued: int = 10, max_running: int = 4, num_pages: int = 64) -> None:
        self.corridor = MemoryCorridor()
        self.clock = ManualClock()
        self.runner = FakeRunner(num_pages)
        self.levels: list[str] = []
        limits = SchedLimits(VOCAB_SIZE, 512, max_running, max_queued, max_step_tokens=32)
        self.scheduler = Scheduler(KvCache(PagePool(num_pages)), limits, letters, StopMatcher)
        self.loop = EngineLoop(
            self.corridor.engine,
            self.scheduler,
            self.runner,
            FACTS,
            clock=self.clock,
            set_log_level=self.levels.append,
        )

    def connect(self, origin: Origin = HERE) -> WorkerSide:
        worker = self.corridor.connect(origin)
        worker.send(Hello(origin))
        self.loop.step()
        worker.receive()
        return worker

    def turn(self) -> bool:
        did_compute = self.loop.step()
        self.scheduler.check()
        return did_compute

    def call(
        self, worker: WorkerSide, call: Call, *, origin: Origin = HERE, call_id: str = "c1"
    ) -> list[ToWorker]:
        """Ask, take one turn → what that worker then hears."""
        worker.send(Control(origin, call_id, call))
        self.turn()
        return heard(worker)


def heard(worker: WorkerSide) -> list[ToWorker]:
    """What has arrived, heartbeats left out."""
    return [message for message in worker.receive() if not isinstance(message, Heartbeat)]


def said(messages: list[ToWorker], rid: str) -> list[object]:
    outputs = [m for m in messages if isinstance(m, Outputs)]
    return [one.event for m in outputs for one in m.outputs if one.rid == rid]


def ending_of(messages: list[ToWorker], rid: str) -> Ended:
    (ending,) = (event for event in said(messages, rid) if isinstance(event, Ended))
    return ending


def outcome_of(messages: list[ToWorker], rid: str) -> Outcome:
    return ending_of(messages, rid).outcome


def done_of(messages: list[ToWorker]) -> ControlDone:
    """The one answer to a call, which comes behind everything else."""
    (done,) = (message for message in messages if isinstance(message, ControlDone))
    assert messages[-1] is done
    return done
