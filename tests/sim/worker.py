"""One life of an HTTP worker in a simulated house: the real core of a front, and its clients."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.sim import script
from tests.sim.agenda import Agenda
from tests.sim.asked import Asked
from tests.sim.fake_runner import EOS_ID, VOCAB_SIZE
from tests.sim.lines import LineKeeper
from tests.sim.network import Network
from tests.sim.promptness import check_taken_back
from tests.sim.requests import sampling

from roost.core.calls import Abort, Call
from roost.core.errors import QueueFull, RequestError
from roost.core.events import Ended, Event
from roost.core.outcome import Outcome
from roost.core.refusal import ending_of
from roost.core.request import (
    HEALTH_PREFIX,
    NO_LOGPROBS,
    Envelope,
    GenerateRequest,
    LogprobsWanted,
    Origin,
    RequestId,
    SessionTurn,
)
from roost.frontend.core import FrontCore
from roost.frontend.settings import FrontendSettings
from roost.observe import EndingLog, Meter
from roost.wire.messages import ControlDone, Notice, Outputs, ToEngine, ToWorker

TICK_S = 0.5
_CALL_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 20.0


@dataclass(slots=True, eq=False)
class Called:
    """One call on the whole server."""

    call_id: str
    call: Call
    origin: Origin
    at_s: float
    done: ControlDone | None = None
    done_s: float = math.inf
    num_done: int = 0
    is_timed_out: bool = False


class Witness(Meter):
    """Sees what the meter would see, and keeps it as it is."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        # Nothing of the meter itself is needed.
        self._now_s = now_s
        self.by_serial: dict[int, Asked] = {}
        self.on_event: Callable[[Asked, Event], None] = lambda _asked, _event: None
        self.late_causes: list[str] = []
        self.num_violations = 0
        self.num_opened = 0

    def opened(self, envelope: Envelope) -> None:
        self.num_opened += 1

    def see(self, envelope: Envelope, event: Event, now_s: float) -> None:
        asked = self.by_serial[envelope.serial]
        assert asked.envelope == envelope, "an event under another's serial"
        self.on_event(asked, event)
        asked.see(event, now_s)

    def refused(self, envelope: Envelope, ended: Ended) -> None:
        asked = self.by_serial[envelope.serial]
        asked.is_refused = True
        self.on_event(asked, ended)
        asked.see(ended, self._now_s())

    def late(self, cause: str) -> None:
        self.late_causes.append(str(cause))

    def violation(self) -> None:
        self.num_violations += 1


class Worker:
    """Built by the house for each life. Everything it does, it does at a time of the agenda."""

    def __init__(self, agenda: Agenda, network: Network, origin: Origin) -> None:
        self.origin = origin
        self.asked: list[Asked] = []
        self.calls: list[Called] = []
        self.levels: list[str] = []
        self.is_dead = False
        self._agenda = agenda
        self._stalled_s = -math.inf
        self._unheard: list[ToWorker] = []
        self._ended_by_engine: set[int] = set()
        self.witness = Witness(lambda: agenda.now_s)
        self.keeper = LineKeeper()
        logger = logging.Logger("front", logging.DEBUG)  # noqa: LOG001  known to it alone
        logger.addHandler(self.keeper)
        network.connect(origin, self._hear)
        self._network = network
        self._sent: list[ToEngine] = []
        self.core = FrontCore(
            self._send,
            origin,
            agenda.clock,
            FrontendSettings(),
            meter=self.witness,
            endings=EndingLog(logger),
            on_log_level=self.levels.append,
        )
        self.core.hello()
        agenda.after(TICK_S, self._tick)

    # ---- what clients do

    def ask(self, action: script.Ask) -> list[Asked]:
        """Take a call in; its prompt is prepared later. Nothing of it runs when one is refused."""
        now_s = self._agenda.now_s
        timeout_s = math.inf if action.timeout_s is None else action.timeout_s
        asks = [self._asked(action, i, now_s, now_s + timeout_s) for i in range(action.n)]
        if self._open(asks):
            self._agenda.after(action.tokenise_s, lambda: self._when_awake(lambda: self._go(asks)))
        return asks

    def probe(self, action: script.Probe) -> list[Asked]:
        now_s = self._agenda.now_s
        rid = RequestId(f"{HEALTH_PREFIX}_{self.origin.worker}_{self.origin.epoch}_{now_s:.4f}")
        envelope = Envelope(
            rid, self.origin, self.core.next_serial(), now_s, now_s + _PROBE_TIMEOUT_S, 0, ""
        )
        asks = [
            self._keep(
                Asked(envelope, GenerateRequest(envelope, (1,), sampling(1), NO_LOGPROBS), action)
            )
        ]
        if self._open(asks, is_probe=True):
            self._go(asks)
        return asks

    def leave(self, asks: Sequence[Asked]) -> None:
        for asked in asks:
            asked.has_left = True
        self._when_awake(lambda: self._leave([asked for asked in asks if _lives(asked)]))

    def shut(self) -> None:
        """End everything that lives."""
        for asked in self.asked:
            asked.is_shut = asked.is_shut or asked.ending is None
        self.core.board.end(
            self.core.ledger.live(),
            Ended(Outcome.SHUTTING_DOWN, message="The server is shutting down."),
        )

    def call(self, call: Call, timeout_s: float = _CALL_TIMEOUT_S) -> Called:
        call_id = f"{self.origin.worker}.{self.origin.epoch}-{len(self.calls)}"
        called = Called(call_id, call, self.origin, self._agenda.now_s)
        self.calls.append(called)

        def done(answer: ControlDone) -> None:
            called.done, called.num_done = answer, called.num_done + 1
            called.done_s = self._agenda.now_s

        def give_up() -> None:
            if not called.num_done:
                called.is_timed_out = True
                self.core.forget(call_id)

        self.core.call(call_id, call, done)
        self._agenda.after(timeout_s, give_up)
        return called

    # ---- what happens to it

    def stall(self, seconds: float) -> None:
        until_s = self._agenda.now_s + seconds
        if until_s > self._stalled_s:
            self._stalled_s = until_s
            self._agenda.at(until_s, self._wake)

    def die(self) -> None:
        self.is_dead = True
        self._unheard.clear()

    @property
    def is_open(self) -> bool:
        """It was welcomed, and takes what clients ask."""
        return self.core.engine.facts is not None

    @property
    def is_stalled(self) -> bool:
        return self._agenda.now_s < self._stalled_s

    # ---- parts

    def _send(self, message: ToEngine) -> None:
        self._sent.append(message)
        self._network.send_up(self.origin, message)

    def _leave(self, asks: list[Asked]) -> None:
        self._sent.clear()
        self.core.board.leave([asked.envelope.rid for asked in asks])
        check_taken_back(asks, self._sent)

    def _asked(self, action: script.Ask, index: int, now_s: float, deadline_s: float) -> Asked:
        is_alone = action.n == 1
        envelope = Envelope(
            rid=RequestId(action.name if is_alone else f"{action.name}_{index}"),
            origin=self.origin,
            serial=self.core.next_serial(),
            arrival_s=now_s,
            deadline_s=deadline_s,
            priority=0,
            trace="",
            group="" if is_alone else action.name,
        )
        stop_ids = () if action.stop_id is None else (action.stop_id,)
        wanted = sampling(action.new, seed=action.seed + index, stop_ids=(*stop_ids, EOS_ID))
        prompt = (*action.prompt, VOCAB_SIZE) if action.is_bad else action.prompt
        turn = action.turn
        scores = LogprobsWanted(prompt_from=action.scores_from)
        whole = None if turn is None else _turn(turn)
        request = GenerateRequest(envelope, prompt, wanted, scores, whole, action.namespace)
        return self._keep(Asked(envelope, request, action))

    def _keep(self, asked: Asked) -> Asked:
        self.asked.append(asked)
        self.witness.by_serial[asked.envelope.serial] = asked
        return asked

    def _open(self, asks: list[Asked], *, is_probe: bool = False) -> bool:
        """All or none, as the front's intake does."""
        facts = self.core.engine.facts
        num_live = self.core.ledger.num_traffic
        for asked in asks:
            asked.num_live_most = num_live + len(asks)
        if not is_probe and facts is not None and num_live + len(asks) > facts.max_requests:
            full = ending_of(QueueFull("The request queue is full."))
            for asked in asks:
                self.core.board.refused(asked.envelope, full)
            return False
        for index, asked in enumerate(asks):
            try:
                asked.life = self.core.board.open(asked.envelope, asked)
            except RequestError as error:
                for refused in asks[index:]:
                    self.core.board.refused(refused.envelope, ending_of(error))
                self.core.board.end([a.envelope.rid for a in asks[:index]], ending_of(error))
                return False
        return True

    def _go(self, asks: list[Asked]) -> None:
        """The prompts are prepared: the engine is told."""
        if self.is_dead:
            return
        for asked in asks:
            assert asked.life is not None, "sent without having been opened"
            if asked.life.ended is None:
                self.core.board.send(asked.life, asked.request, asked, 0)

    def _when_awake(self, do: Callable[[], None]) -> None:
        if self.is_dead:
            return
        if self.is_stalled:
            self._agenda.at(self._stalled_s, lambda: self._when_awake(do))
        else:
            do()

    def _hear(self, message: ToWorker) -> None:
        if self.is_dead:
            return
        if self.is_stalled:
            self._unheard.append(message)
            return
        if isinstance(message, Outputs):
            self._note_endings(message)
        aborted = self._live_named(message)
        self._sent.clear()
        self.core.hear(message)
        self.core.check()
        check_taken_back(aborted, self._sent)

    def _note_endings(self, message: Outputs) -> None:
        for output in message.outputs:
            key = output.serial
            assert key not in self._ended_by_engine, f"{output.rid}: {output.event} after its end"
            if isinstance(output.event, Ended):
                self._ended_by_engine.add(key)

    def _live_named(self, message: ToWorker) -> list[Asked]:
        """What a notice of an abort is about."""
        if not isinstance(message, Notice) or not isinstance(message.call, Abort):
            return []
        name = message.call.name
        return [
            asked
            for asked in self.asked
            if _lives(asked)
            and not asked.envelope.is_health_check
            and name in (None, asked.rid, asked.envelope.group or asked.rid)
        ]

    def _wake(self) -> None:
        if self.is_dead or self.is_stalled:
            return
        unheard, self._unheard = self._unheard, []
        for message in unheard:
            self._hear(message)

    def _tick(self) -> None:
        if self.is_dead:
            return
        if not self.is_stalled:
            self.core.tick()
            self.core.check()
        self._agenda.after(TICK_S, self._tick)


def _lives(asked: Asked) -> bool:
    return asked.life is not None and asked.life.ended is None


def _turn(turn: script.Turn) -> SessionTurn:
    return SessionTurn(
        turn.session,
        None if turn.parent is None else RequestId(turn.parent),
        turn.offset,
        turn.drops_output,
        turn.replaces,
    )
