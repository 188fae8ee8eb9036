"""A whole house in one thread and in virtual time: workers and an engine over a bad network.

What is real: each worker's FrontCore with its ledger and switchboard, the engine's loop, its
scheduler and its sessions. What is not: the model (`fake_runner`), the network, and the clock.
"""

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, assert_never

from tests.sim import script
from tests.sim.agenda import Agenda
from tests.sim.asked import Asked
from tests.sim.fake_runner import EOS_ID, VOCAB_SIZE, FakeRunner, letters
from tests.sim.lines import AllLines
from tests.sim.network import Network
from tests.sim.promptness import check_engine
from tests.sim.worker import Called, Worker

from roost.cache import KvCache, PagePool
from roost.core import calls
from roost.core.events import Event
from roost.core.outcome import Outcome
from roost.core.plan import BatchPlan, StepResult
from roost.core.request import Origin, RequestId
from roost.sched import SchedLimits, Scheduler
from roost.text import StopMatcher
from roost.wire.messages import Goodbye, ModelFacts
from roost.worker import EngineLoop

MAX_CONTEXT_TOKENS = 200
# "a" begins a prompt of the fake model.
BOS_ID = 0
# A turn of the engine's loop takes so long, even when it has nothing to compute.
_TURN_S = 0.001
_FIRST_SERVED_S = 1.0
_SETTLED_EVERY_S = 0.5
_RESUME_EVERY = 20
# A client whose worker takes nothing tries again after so long.
_KNOCK_S = 0.05


class BreakableRunner(FakeRunner):
    """Remembers whose steps it broke."""

    def __init__(self, num_pages: int) -> None:
        super().__init__(num_pages)
        self.broken: set[str] = set()

    def execute(self, plan: BatchPlan) -> StepResult:
        self.plans.clear()
        if self.fail_next:
            self.broken.update(part.request_id for part in plan.slices)
        return super().execute(plan)


class Aborted(NamedTuple):
    """Somebody asked for an abort. name: None is everything."""

    at_s: float
    name: str | None


class House:
    """Built for one script, run once."""

    def __init__(self, layout: script.Layout, seed: int) -> None:
        self.layout = layout
        self.agenda = Agenda()
        self.network = Network(self.agenda, seed, layout.spread_s)
        self.runner = BreakableRunner(layout.num_pages)
        self.pool = PagePool(layout.num_pages)
        limits = SchedLimits(
            vocab_size=VOCAB_SIZE,
            max_context_tokens=MAX_CONTEXT_TOKENS,
            max_running=layout.max_running,
            max_queued=layout.max_queued,
            max_step_tokens=layout.max_running + 12,
            growth_tokens=0,
            queue_timeout_s=layout.queue_timeout_s,
            bos_id=BOS_ID,
            eos_ids=frozenset({EOS_ID}),
            max_sessions=layout.max_sessions,
            session_timeout_s=layout.session_timeout_s,
            session_busy=layout.session_busy,
            speculates=layout.speculates,
        )
        self.kv = KvCache(self.pool, eviction=layout.eviction)
        self.scheduler = Scheduler(self.kv, limits, letters, StopMatcher)
        self.facts = ModelFacts(
            "m.gguf",
            "m",
            "m",
            VOCAB_SIZE,
            MAX_CONTEXT_TOKENS,
            (EOS_ID,),
            1024,
            "bf16",
            "avx2",
            1,
            "v",
            layout.max_running + layout.max_queued,
        )
        self.engine_levels: list[str] = []
        self.engine = EngineLoop(
            self.network,
            self.scheduler,
            self.runner,
            self.facts,
            clock=self.agenda.clock,
            set_log_level=self.engine_levels.append,
        )
        self.asked: list[Asked] = []
        self.by_call: dict[str, list[Asked]] = {}
        self.aborts: list[Aborted] = []
        self.faulted: set[str] = set()
        # From when to when the engine said nothing, and a worker heard nothing.
        self.silences: list[tuple[float, float]] = []
        self.worker_stalls: list[tuple[float, float]] = []
        self.calls: list[Called] = []
        self.dead: list[Worker] = []
        # (stage, what happened to a request there) → how often.
        self.coverage: Counter[tuple[str, str]] = Counter()
        self.lines = AllLines()
        self._num_outside = 0
        self._engine_turn_s = math.inf
        self._engine_busy_s = 0.0
        self.network.on_arrival(lambda: self._wake_engine(self.agenda.now_s))
        self._wake_engine(0.0)
        self.workers = [self._worker(Origin(i, 1)) for i in range(layout.num_fronts)]

    # ---- running

    def run(self, actions: tuple[script.Action, ...]) -> None:
        """Do it all, and let it settle."""
        with self.listening():
            self.open()
            for action in actions:
                self.do(action)
            self.settle()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """What roost logs is kept here meanwhile, and shown nowhere."""
        logger = logging.getLogger("roost")
        before = (logger.level, logger.propagate)
        logger.addHandler(self.lines)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(self.lines)
            logger.setLevel(before[0])
            logger.propagate = before[1]

    def open(self) -> None:
        """Every worker has said Hello, and was welcomed."""
        self.agenda.run_until(_FIRST_SERVED_S)

    def close_engine(self, outcome: Outcome) -> None:
        """The engine's process comes to its end, and says so to whom it can."""
        self.engine.close(outcome)
        self._engine_busy_s = self._engine_turn_s = math.inf

    def settle(self, limit_s: float = 120.0) -> None:
        """Until nobody has anything to do or to say. Raises AssertionError if that never comes."""
        self.network.heal()
        self.runner.faults.clear()
        end_s = self.agenda.now_s + limit_s
        num_quiet = num_tries = 0
        while num_quiet < 4:
            if num_tries % _RESUME_EVERY == 0:
                # More than once: a pause may have been slower than the first of them.
                self._bid(script.ResumeIt(0))
            num_tries += 1
            assert self.agenda.now_s < end_s, f"not settled: {self._unsettled()}"
            num_up = self.network.num_up
            self.agenda.run_until(self.agenda.now_s + _SETTLED_EVERY_S)
            is_quiet = not self._unsettled() and self.network.num_up == num_up
            num_quiet = num_quiet + 1 if is_quiet else 0

    def _unsettled(self) -> list[str]:
        load = self.scheduler.load()
        left = [f"{w.origin} {rid}" for w in self.workers for rid in w.core.ledger.live()]
        if (load.num_running, load.num_waiting) != (0, 0):
            left.append(f"engine: {load.num_running} running, {load.num_waiting} waiting")
        left += [f"call {c.call}" for c in self.calls if not c.num_done and not c.is_timed_out]
        left += ["a client waits outside"] * self._num_outside
        left += [f"{w.origin} is stalled" for w in self.workers if w.is_stalled]
        return left

    # ---- actions

    def do(self, action: script.Action) -> None:
        match action:
            case script.Wait(seconds=seconds):
                self.agenda.run_until(self.agenda.now_s + seconds)
            case script.StallEngine(seconds=seconds):
                now_s = self.agenda.now_s
                self._engine_busy_s = max(self._engine_busy_s, now_s + seconds)
                self.silences.append((now_s, now_s + seconds))
            case script.BreakStep():
                self.runner.fail_next = True
            case script.FaultRow(rid=rid):
                self.runner.faults.add(rid)
                self.faulted.add(rid)
                self._cover_named(rid, "row faults")
            case script.Leave(name=name):
                self._leave(name)
            case script.Kill() | script.Stall() | script.Lose() | script.Delay() | script.Shut():
                self._trouble(self.workers[action.front % len(self.workers)], action)
            case _:
                self._bid(action)

    def _bid(self, action: script.Ask | script.Probe | script.Calling) -> None:
        """What a client wants of a worker; one that is not open, or stalled, takes it later."""
        worker = self.workers[action.front % len(self.workers)]
        if worker.is_stalled or not worker.is_open:
            self._num_outside += 1

            def again() -> None:
                self._num_outside -= 1
                self._bid(action)

            self.agenda.after(_KNOCK_S, again)
            return
        match action:
            case script.Ask():
                asks = worker.ask(action)
                self.asked += asks
                self.by_call.setdefault(action.name, []).extend(asks)
                for asked in asks:
                    if asked.rid != action.name:
                        self.by_call.setdefault(asked.rid, []).append(asked)
            case script.Probe():
                self.asked += worker.probe(action)
            case _:
                self._call(worker, action)

    def _trouble(self, worker: Worker, action: script.Action) -> None:
        match action:
            case script.Kill():
                self._kill(worker, action)
            case script.Stall(seconds=seconds):
                self._cover_worker(worker, "worker stalls")
                worker.stall(seconds)
                self._note_stall(seconds)
            case script.Lose(way=way, count=count):
                self._cover_worker(worker, f"message lost {way}")
                self.network.lose(worker.origin, way, count)
            case script.Delay(way=way, seconds=seconds):
                self._cover_worker(worker, f"messages late {way}")
                self.network.delay(worker.origin, way, seconds)
                self._note_stall(seconds)
            case script.Shut():
                self._cover_worker(worker, "shutdown")
                worker.shut()
            case _:
                raise AssertionError(f"{action} is no trouble")

    def _call(self, worker: Worker, action: script.Calling) -> None:
        extra_s = 0.0
        call: calls.Call
        match action:
            case script.AbortCall(name=name):
                call = calls.Abort(None if name is None else RequestId(name), "stop it")
                self.aborts.append(Aborted(self.agenda.now_s, name))
                self._cover_abort(worker, name)
            case script.Open(session=session, timeout_s=timeout_s, capacity=capacity):
                call = calls.OpenSession(session, capacity, timeout_s)
            case script.Close(session=session):
                call = calls.CloseSession(session)
                for asked in self._live():
                    if asked.request.turn and asked.request.turn.session_id == session:
                        self._cover(asked, "session closed")
            case script.ListThem():
                call = calls.ListSessions()
            case script.PauseIt(mode=mode):
                call = calls.Pause(mode)
                if mode == "abort":
                    self.aborts.append(Aborted(self.agenda.now_s, None))
                for asked in self._live():
                    self._cover(asked, f"pause {mode}")
            case script.ResumeIt():
                call = calls.Resume()
            case script.Flush(timeout_s=timeout_s):
                call, extra_s = calls.FlushCache(timeout_s), timeout_s or 0.0
            case script.Level(level=level):
                call = calls.SetLogLevel(level)
            case _:
                assert_never(action)
        self.calls.append(worker.call(call, 10.0 + extra_s))

    def _leave(self, name: str) -> None:
        asks = [asked for asked in self.by_call.get(name, []) if asked.ending is None]
        for asked in asks:
            self._cover(asked, "client leaves")
        for worker in self.workers:
            worker.leave([asked for asked in asks if asked.envelope.origin == worker.origin])

    def _kill(self, worker: Worker, action: script.Kill) -> None:
        self._cover_worker(worker, "worker dies")
        number = self.workers.index(worker)
        worker.die()
        self.dead.append(worker)
        self.network.cut(worker.origin, action.tail_s)
        if action.goodbye_s is not None:
            goodbye = Goodbye(worker.origin)
            self.agenda.after(action.goodbye_s, lambda: self.network.say(goodbye))
        # Nobody can ask a worker that is not there: the next life begins at once, and its first
        # words take their time.
        origin = Origin(worker.origin.worker, worker.origin.epoch + 1)
        self.workers[number] = self._worker(origin)
        self.network.delay(origin, "up", action.restart_s)

    # ---- parts

    def _worker(self, origin: Origin) -> Worker:
        worker = Worker(self.agenda, self.network, origin)
        worker.witness.on_event = self._cover_event
        return worker

    def _wake_engine(self, at_s: float) -> None:
        at_s = max(at_s, self._engine_busy_s)
        if at_s == math.inf:
            return
        if at_s < self._engine_turn_s:
            self._engine_turn_s = at_s
            self.agenda.at(at_s, lambda: self._turn(at_s))

    def _turn(self, planned_s: float) -> None:
        if planned_s != self._engine_turn_s:
            return  # an earlier appointment took its place
        self._engine_turn_s = math.inf
        now_s = self.agenda.now_s
        if now_s < self._engine_busy_s:
            self._wake_engine(self._engine_busy_s)
            return
        did_compute = self.engine.step()
        self.scheduler.check()
        check_engine(self.scheduler, self.network.taken, self.engine._outbox.is_gone)
        takes_s = self.layout.step_s if did_compute else _TURN_S
        self._engine_busy_s = now_s + takes_s
        idle_s = 0.0 if did_compute else self.engine._idle_s()
        self._wake_engine(now_s + max(idle_s, takes_s))

    def _note_stall(self, seconds: float) -> None:
        self.worker_stalls.append((self.agenda.now_s, self.agenda.now_s + seconds))

    def gone_s(self, asked: Asked) -> float:
        """When nobody held this request any more; `inf` where the engine has not said so."""
        if asked.life is None or not asked.life.is_sent:
            return asked.ended_s
        key = (asked.envelope.origin, asked.envelope.serial)
        return max(asked.ended_s, self.network.ended_s.get(key, math.inf))

    def _live(self) -> list[Asked]:
        return [a for w in self.workers for a in w.asked if a.ending is None]

    def _cover(self, asked: Asked, what: str) -> None:
        self.coverage[self.stage(asked), what] += 1

    def _cover_worker(self, worker: Worker, what: str) -> None:
        for asked in worker.asked:
            if asked.ending is None:
                self._cover(asked, what)

    def _cover_named(self, name: str, what: str) -> None:
        for asked in self.by_call.get(name, []):
            self._cover(asked, what)

    def _cover_abort(self, worker: Worker, name: str | None) -> None:
        asks = self._live() if name is None else self.by_call.get(name, [])
        for asked in asks:
            where = "here" if asked.envelope.origin == worker.origin else "elsewhere"
            self._cover(asked, f"abort {where}")

    def _cover_event(self, asked: Asked, event: Event) -> None:
        """Which moves of the life-cycle table were made, and with what ending."""
        outcome = getattr(event, "outcome", None)
        name = type(event).__name__ if outcome is None else f"ends {outcome}"
        self.coverage[asked.state.value, name] += 1

    def stage(self, asked: Asked) -> str:
        """Where a request is, as only somebody outside of all of it can see."""
        if asked.ending is not None:
            return "ended"
        if asked.life is None or not asked.life.is_sent:
            return "tokenising"
        seq = self.scheduler._roster.numbered(asked.envelope.origin, asked.envelope.serial)
        if seq is None:
            return "just ended" if asked.seen else "on the way"
        if seq.turn is not None and seq.turn.is_held:
            return "held"
        if seq.kv is None:
            return "retracted" if seq.num_retractions else "queued"
        return "running" if seq.num_generated else "prefilling"
