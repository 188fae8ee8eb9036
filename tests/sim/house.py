"""A whole house in one thread and in virtual time: fronts and an engine over memory corridors.

A front is the synchronous half of an HTTP worker: its ledger and switchboard, as they are. What is
on its way to it waits in the corridor until `hear`, so messages are as late as a test likes.
"""

import logging

from tests.sim.fake_runner import VOCAB_SIZE, FakeRunner, letters

from roost.cache import PagePool
from roost.core.clock import ManualClock
from roost.core.errors import DuplicateRequest
from roost.core.events import Delta, Ended, Event
from roost.core.request import Envelope, GenerateRequest, Origin, RequestId
from roost.frontend.board import Switchboard
from roost.frontend.ledger import Ledger
from roost.observe import EndingLog, Meter
from roost.sched import SchedLimits, Scheduler
from roost.text import StopMatcher
from roost.wire import MemoryCorridor
from roost.wire.messages import Control, ControlDone, Hello, ModelFacts, Outputs
from roost.worker import EngineLoop

FACTS = ModelFacts("m.gguf", "m", "m", VOCAB_SIZE, 200, (25,), 1024, "bf16", "avx2", 1, "v")


class Witness(Meter):
    """Sees what the meter would see, and keeps it as it is."""

    def __init__(self) -> None:
        self.tokens: dict[RequestId, list[int]] = {}
        self.endings: dict[RequestId, list[Ended]] = {}
        self.late_causes: list[str] = []
        self.num_violations = 0

    def opened(self, envelope: Envelope) -> None:
        self.tokens[envelope.rid] = []
        self.endings[envelope.rid] = []

    def see(self, envelope: Envelope, event: Event, now_s: float) -> None:
        if isinstance(event, Delta):
            assert not self.endings[envelope.rid], "a token after the end"
            self.tokens[envelope.rid].extend(event.token_ids)
        elif isinstance(event, Ended):
            self.endings[envelope.rid].append(event)

    def late(self, cause: str) -> None:
        self.late_causes.append(cause)

    def violation(self) -> None:
        self.num_violations += 1


class LineKeeper(logging.Handler):
    """Keeps (rid, level) of each line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((str(record.__dict__["rid"]), record.levelno))


class Deaf:
    """A listener: the witness has heard it all."""

    def deliver(self, index: int, event: Event, now_s: float) -> None:
        pass


class Front:
    """One life of an HTTP worker."""

    def __init__(self, corridor: MemoryCorridor, origin: Origin, clock: ManualClock) -> None:
        self.origin = origin
        self.channel = corridor.connect(origin)
        self.channel.send(Hello(origin))
        self.ledger = Ledger()
        self.witness = Witness()
        self.keeper = LineKeeper()
        # Its own, known to nobody else, and gone with it.
        logger = logging.Logger("front", logging.DEBUG)  # noqa: LOG001
        logger.addHandler(self.keeper)
        self.board = Switchboard(
            self.channel.send, clock, self.ledger, self.witness, EndingLog(logger)
        )
        self.asked: dict[RequestId, GenerateRequest] = {}
        self.calls: list[ControlDone] = []

    def submit(self, request: GenerateRequest) -> bool:
        """False for a rid that lives here."""
        try:
            life = self.board.open(request.envelope)
        except DuplicateRequest:
            return False
        self.asked[request.envelope.rid] = request
        self.board.send(life, request, Deaf(), 0)
        return True

    def call(self, verb: str) -> None:
        self.channel.send(Control(self.origin, f"{verb}-{len(self.calls)}", verb))

    def hear(self) -> None:
        for message in self.channel.receive():
            if isinstance(message, Outputs):
                self.board.see(message.outputs)
            elif isinstance(message, ControlDone):
                self.calls.append(message)
        self.ledger.check()


class House:
    """Fronts by number, and the engine they share."""

    def __init__(
        self, *, num_fronts: int, num_pages: int, max_running: int, max_queued: int
    ) -> None:
        self.clock = ManualClock()
        self.corridor = MemoryCorridor()
        self.runner = FakeRunner(num_pages)
        self.pool = PagePool(num_pages)
        limits = SchedLimits(
            vocab_size=VOCAB_SIZE,
            max_context_tokens=200,
            max_running=max_running,
            max_queued=max_queued,
            max_step_tokens=max_running + 12,
            growth_tokens=0,
            queue_timeout_s=20.0,
        )
        self.scheduler = Scheduler(self.pool, limits, letters, StopMatcher)
        self.engine = EngineLoop(
            self.corridor.engine, self.scheduler, self.runner, FACTS, clock=self.clock
        )
        self.fronts = [
            Front(self.corridor, Origin(number, 1), self.clock) for number in range(num_fronts)
        ]
        self.dead: list[Front] = []

    def step(self) -> bool:
        did_compute = self.engine.step()
        self.scheduler.check()
        return did_compute

    def kill(self, number: int) -> None:
        """A worker dies without a word; its next life begins."""
        old = self.fronts[number]
        old.channel.close()
        self.dead.append(old)
        origin = Origin(number, old.origin.epoch + 1)
        self.fronts[number] = Front(self.corridor, origin, self.clock)

    def settle(self, max_steps: int = 3000) -> None:
        """Until nobody has anything to do or to say."""
        for _ in range(max_steps):
            for front in self.fronts:
                front.hear()
            if not self.step():
                for front in self.fronts:
                    front.hear()
                return
        raise AssertionError(f"not settled after {max_steps} steps")
