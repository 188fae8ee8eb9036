"""A core whose messages to the engine are kept, and an engine that is whatever a test says."""

import logging
import math
from collections.abc import Callable

from tests.sim.requests import sampling

from roost.core.clock import ManualClock
from roost.core.events import Accepted, Delta, Ended, Event, Started, Usage
from roost.core.outcome import Outcome
from roost.core.request import NO_LOGPROBS, Envelope, GenerateRequest, Origin, RequestId
from roost.frontend import FrontCore, FrontendSettings
from roost.frontend.ledger import Life
from roost.observe import EndingLog, Meter
from roost.wire.messages import Heartbeat, Load, ModelFacts, Output, Outputs, ToEngine, Welcome

HERE = Origin(3, 2)
FACTS = ModelFacts(
    model_path="/letters.gguf",
    model_type="letters",
    architecture="Letters",
    vocab_size=26,
    max_context_tokens=256,
    eos_ids=(25,),
    num_kv_tokens=1024,
    kv_dtype="f32",
    isa="none",
    num_threads=1,
    weight_version="default",
    max_requests=4,
)


class Heard:
    """Listens to answers: every event, by the index of its answer."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Event]] = []

    def deliver(self, index: int, event: Event, now_s: float) -> None:
        self.events.append((index, event))

    @property
    def endings(self) -> list[tuple[int, Outcome, str]]:
        return [(i, e.outcome, e.message) for i, e in self.events if isinstance(e, Ended)]


class Front:
    """It is 100 s when it begins."""

    def __init__(self, settings: FrontendSettings | None = None) -> None:
        self.clock = ManualClock(100.0)
        self.levels: list[str] = []
        self._sent: list[ToEngine] = []
        self.meter = Meter()
        send: Callable[[ToEngine], None] = self._sent.append
        self.core = FrontCore(
            send,
            HERE,
            self.clock,
            FrontendSettings() if settings is None else settings,
            meter=self.meter,
            endings=EndingLog(logging.getLogger("roost.requests")),
            on_log_level=self.levels.append,
        )
        self.heard = Heard()

    def take(self) -> list[ToEngine]:
        """What went to the engine since the last time."""
        taken = list(self._sent)
        self._sent.clear()
        return taken

    def welcome(self, epoch: int = 1, log_level: str = "") -> None:
        self.core.hear(Welcome(epoch, FACTS, log_level))

    def wait(self, seconds: float) -> None:
        """Time passes, in which the engine beats."""
        self.clock.advance(seconds)
        self.core.hear(Heartbeat(self.clock.now_s(), Load()))
        self.core.tick()
        self.core.check()

    def open(self, rid: str, group: str = "", deadline_s: float = math.inf) -> Life:
        """Taken in, and being tokenised."""
        now_s, serial = self.clock.now_s(), self.core.next_serial()
        envelope = Envelope(RequestId(rid), HERE, serial, now_s, deadline_s, 0, "", group)
        return self.core.board.open(envelope, self.heard, serial)

    def go(self, rid: str, group: str = "", deadline_s: float = math.inf) -> int:
        """Sent to the engine; its serial, which is its index, too."""
        life = self.open(rid, group, deadline_s)
        self.send(life)
        return life.envelope.serial

    def send(self, life: Life) -> None:
        request = GenerateRequest(life.envelope, (1, 2), sampling(9), NO_LOGPROBS)
        self.core.board.send(life, request, self.heard, life.envelope.serial)

    def says(self, rid: str, serial: int, *events: Event) -> bool:
        outputs = tuple(Output(RequestId(rid), serial, event) for event in events)
        seen = self.core.hear(Outputs(outputs))
        self.core.check()
        return seen

    def runs(self, rid: str) -> int:
        """Sent, accepted and started; its serial."""
        serial = self.go(rid)
        self.says(rid, serial, Accepted(), Started(0))
        return serial


def stop(num_tokens: int) -> Ended:
    return Ended(Outcome.STOP, Usage(num_completion_tokens=num_tokens))


def delta(first: int, *token_ids: int) -> Delta:
    return Delta(first, token_ids)
