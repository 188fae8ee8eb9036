"""The real scheduler over a fake runner, in virtual time, with every book checked at every move."""

from collections.abc import Sequence
from typing import Final, Literal

from tests.sim.fake_runner import EOS_ID, VOCAB_SIZE, FakeRunner, letters
from tests.sim.requests import HERE
from tests.sim.shelf import Shelf

from roost.cache import KvCache, PagePool
from roost.core.calls import OpenSession
from roost.core.events import Accepted, Delta, Ended, Event, Started
from roost.core.lifecycle import State, advance
from roost.core.plan import BatchPlan
from roost.core.request import Envelope, GenerateRequest, RequestId
from roost.sched import Addressed, PolicyName, SchedLimits, Scheduler
from roost.text import StopMatcher

# "a" begins a prompt of the fake model, where tests of sessions care.
BOS_ID: Final = 0


class Desk:
    """Every event moves its request through the life-cycle table, so a second ending, or a delta
    after one, fails at once."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        max_context_tokens: int = 512,
        max_running: int = 8,
        max_queued: int = 100,
        max_step_tokens: int = 32,
        growth_tokens: int | None = 128,
        policy: PolicyName = "lpm",
        max_step_s: float = float("inf"),
        queue_timeout_s: float = float("inf"),
        max_sessions: int = 1024,
        session_timeout_s: float = float("inf"),
        session_busy: Literal["wait", "refuse"] = "wait",
        shelf: Shelf | None = None,
        speculates: bool = False,
    ) -> None:
        self.pool = PagePool(num_pages)
        self.limits = SchedLimits(
            vocab_size=VOCAB_SIZE,
            max_context_tokens=max_context_tokens,
            max_running=max_running,
            max_queued=max_queued,
            max_step_tokens=max_step_tokens,
            growth_tokens=growth_tokens,
            policy=policy,
            max_step_s=max_step_s,
            queue_timeout_s=queue_timeout_s,
            bos_id=BOS_ID,
            eos_ids=frozenset({EOS_ID}),
            max_sessions=max_sessions,
            session_timeout_s=session_timeout_s,
            session_busy=session_busy,
            speculates=speculates,
        )
        self.kv = KvCache(self.pool, store=shelf)
        self.scheduler = Scheduler(self.kv, self.limits, letters, StopMatcher)
        self.runner = FakeRunner(num_pages, shelf)
        self.now_s = 0.0
        self.events: dict[str, list[Event]] = {}
        self.log: list[Addressed] = []
        self._states: dict[int, State] = {}
        self._kept: list[GenerateRequest] = []
        self._envelopes: dict[str, Envelope] = {}

    def submit(self, request: GenerateRequest) -> list[Addressed]:
        self._kept.append(request)  # so that the id of its envelope stays its own
        self._states[id(request.envelope)] = State.SENT
        self._envelopes[request.envelope.rid] = request.envelope
        return self.hear(self.scheduler.submit(request, self.now_s))

    def cancel(
        self, rid: str, *, is_disconnect: bool = False, message: str = ""
    ) -> list[Addressed]:
        """What the owner of the last request of this rid says; of none: of a serial not given."""
        envelope = self._envelopes.get(rid)
        origin, serial = (HERE, -1) if envelope is None else (envelope.origin, envelope.serial)
        return self.hear(
            self.scheduler.cancel(
                origin, serial, self.now_s, is_disconnect=is_disconnect, message=message
            )
        )

    def abort(self, name: str | None, message: str = "") -> list[Addressed]:
        rid = None if name is None else RequestId(name)
        return self.hear(self.scheduler.abort(rid, self.now_s, message))

    def open(
        self, session_id: str = "s", *, capacity_chars: int = 0, timeout_s: float | None = None
    ) -> None:
        call = OpenSession(session_id, capacity_chars, timeout_s)
        self.scheduler.open_session(call, self.now_s)
        self.scheduler.check()

    def close(self, session_id: str = "s") -> list[Addressed]:
        return self.hear(self.scheduler.close_session(session_id, self.now_s))

    def expire(self) -> list[Addressed]:
        return self.hear(self.scheduler.expire(self.now_s))

    def step(self) -> tuple[BatchPlan | None, list[Addressed]]:
        plan = self.scheduler.plan(self.now_s)
        self.scheduler.check()
        return plan, [] if plan is None else self.finish(plan)

    def finish(self, plan: BatchPlan) -> list[Addressed]:
        """Execute a plan and commit it, or fail it."""
        try:
            result = self.runner.execute(plan)
        except RuntimeError as error:
            said = self.scheduler.fail(plan.number, self.now_s, message=str(error))
        else:
            said = self.scheduler.commit(result, self.now_s)
        return self.hear(said)

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if self.step()[0] is None:
                load = self.scheduler.load()
                assert (load.num_running, load.num_waiting) == (0, 0), "it stopped with work left"
                return
        raise AssertionError(f"not idle after {max_steps} steps")

    def hear(self, said: Sequence[Addressed]) -> list[Addressed]:
        for envelope, event in said:
            key = id(envelope)
            self._states[key] = advance(self._states[key], event)
            self.events.setdefault(envelope.rid, []).append(event)
        self.log.extend(said)
        self.scheduler.check()
        return list(said)

    def tokens(self, rid: str) -> list[int]:
        return [
            i for event in self.events[rid] if isinstance(event, Delta) for i in event.token_ids
        ]

    def ending(self, rid: str) -> Ended:
        endings = [event for event in self.events[rid] if isinstance(event, Ended)]
        assert len(endings) == 1, f"{rid} has {len(endings)} endings"
        return endings[0]

    @property
    def open_requests(self) -> int:
        return sum(state is not State.ENDED for state in self._states.values())


def shown(event: Event) -> str:
    """An event as the transcripts write it."""
    match event:
        case Accepted():
            return "accepted"
        case Started(num_cached_tokens=cached, prompt_ids=prompt_ids):
            told = f" prompt={letters_of(prompt_ids)}" if prompt_ids else ""
            return f"started cached={cached}{told}"
        case Delta(token_ids=ids):
            return f"+ {letters_of(ids)}"
        case Ended(outcome=outcome, matched=matched, message=message, code=code):
            facts = "" if matched is None else f" matched={matched}"
            facts += f" code={code}" if code else ""
            facts += f" · {message}" if message else ""
            return f"ended {outcome}{facts}"


def letters_of(ids: tuple[int, ...]) -> str:
    return "".join(letters(i, False).decode() for i in ids)
