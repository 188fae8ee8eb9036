"""The state of what runs, and the verbs on it."""

from array import array
from dataclasses import dataclass

from roost.cache import PagePool, pages_for
from roost.core.errors import DuplicateRequest, RequestError
from roost.core.events import Accepted, Started, TokenLogprob
from roost.core.outcome import Outcome
from roost.core.plan import BatchPlan, StepResult
from roost.core.request import GenerateRequest, Origin, RequestId
from roost.sched import endings
from roost.sched.admission import (
    SchedLimits,
    check_queue,
    check_request,
    expected_pages,
    spare_pages,
)
from roost.sched.commit import record
from roost.sched.deadlines import Deadlines
from roost.sched.endings import Addressed
from roost.sched.planner import plan_slices
from roost.sched.queue import WaitingQueue
from roost.sched.sequence import NewStopMatcher, Sequence, TokenBytes


@dataclass(frozen=True, slots=True)
class SchedLoad:
    """How busy the scheduler is. num_used_pages: those on lease, of num_pages."""

    num_running: int
    num_waiting: int
    num_used_pages: int
    num_pages: int
    num_steps: int
    generated_tokens_total: int


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A plan whose result is awaited; `sequences` as its slices."""

    plan: BatchPlan
    sequences: list[Sequence]


class Scheduler:
    """Holds every live request, waiting or running, from `submit` to its one ending.

    `running` is in order of admission and the queue in order of arrival, so that together they are
    first come, first served; a retracted sequence goes back to where it came from. Between `plan`
    and the `commit` or `fail` of that plan, requests may come and go; no second plan is made.
    """

    def __init__(
        self,
        pool: PagePool,
        limits: SchedLimits,
        token_bytes: TokenBytes,
        new_matcher: NewStopMatcher,
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._token_bytes = token_bytes
        self._new_matcher = new_matcher
        self._live: dict[RequestId, Sequence] = {}
        self._queue = WaitingQueue(limits.max_queued)
        self._running: list[Sequence] = []
        self._deadlines = Deadlines()
        self._in_flight: _InFlight | None = None
        self._num_plans = 0
        self._generated_tokens_total = 0

    # ---- verbs

    def submit(self, request: GenerateRequest, now_s: float) -> list[Addressed]:
        """Take a request in, or refuse it at once. Never disturbs one that is alive."""
        envelope = request.envelope
        try:
            if envelope.rid in self._live:
                raise DuplicateRequest(envelope.rid)
            check_request(request, self._limits, self._pool)
            check_queue(request, is_full=self._queue.is_full)
            seq = self._sequence(request)
        except RequestError as error:
            return [endings.refused(request, error, now_s)]
        self._live[envelope.rid] = seq
        if envelope.is_health_check:
            self._queue.push_front(seq)
        else:
            self._queue.push(seq)
        self._deadlines.watch(seq)
        return [Addressed(envelope, Accepted())]

    def cancel(
        self, rid: RequestId, now_s: float, *, is_disconnect: bool, owner: Origin | None = None
    ) -> list[Addressed]:
        """End a request by exactly this id, whatever it is doing, or every one of the call that
        is named so. An unknown one is no harm, and neither is one that another than `owner` asked
        for.
        """
        outcome = Outcome.CLIENT_DISCONNECTED if is_disconnect else Outcome.CLIENT_CANCELLED
        said: list[Addressed] = []
        for seq in self._named(rid):
            if owner is None or seq.envelope.origin == owner:
                said.append(endings.cut_short(seq, outcome, now_s))
                self._release(seq)
        return said

    def _named(self, name: str) -> list[Sequence]:
        seq = self._live.get(RequestId(name))
        if seq is not None:
            return [seq]
        # No group is the empty name, and that names nothing.
        return [seq for seq in self._live.values() if name and seq.envelope.group == name]

    def end_all(
        self, outcome: Outcome, now_s: float, *, origin: Origin | None = None
    ) -> list[Addressed]:
        """End everything, or everything that `origin` asked for, in order of arrival.

        outcome: the clients' (cancelled, disconnected), the operator's (shutting down), or the
        engine's own fault. Also with a plan in flight, whose result is then passed over.
        """
        said: list[Addressed] = []
        for seq in list(self._live.values()):
            if origin is None or seq.envelope.origin == origin:
                said.append(endings.cut_short(seq, outcome, now_s))
                self._release(seq)
        return said

    def expire(self, now_s: float) -> list[Addressed]:
        """End what is past its time limit, in the queue or in all."""
        said: list[Addressed] = []
        for seq in self._deadlines.take_overdue(now_s):
            said.append(endings.overdue(seq, now_s))
            self._release(seq)
        return said

    def plan(self, now_s: float) -> BatchPlan | None:
        """The next step, or None when there is nothing to compute."""
        assert self._in_flight is None, "planned again before the last plan was committed"
        self._grow()
        self._admit(now_s)
        sequences, slices = plan_slices(self._running, max_tokens=self._limits.max_step_tokens)
        if not slices:
            return None
        self._num_plans += 1
        plan = BatchPlan(self._num_plans, tuple(slices))
        self._in_flight = _InFlight(plan, sequences)
        return plan

    def commit(self, result: StepResult, now_s: float) -> list[Addressed]:
        """Record what the plan in flight came to. What ended meanwhile is passed over."""
        flight = self._take_flight(result.number)
        assert len(result.results) == len(flight.sequences), "a result is missing"
        said: list[Addressed] = []
        for seq, cut, row in zip(flight.sequences, flight.plan.slices, result.results, strict=True):
            assert row.request_id == cut.request_id, "results in another order than the plan"
            if seq.is_ended:
                continue
            envelope = seq.request.envelope
            if not seq.is_started:
                seq.is_started = True
                said.append(Addressed(envelope, Started(num_cached_tokens=0)))
            delta, ended = record(seq, row, cut.stop, now_s, self._token_bytes)
            if delta is not None:
                self._generated_tokens_total += len(delta.token_ids)
                said.append(Addressed(envelope, delta))
            if ended is not None:
                said.append(Addressed(envelope, ended))
                self._release(seq)
        return said

    def fail(self, number: int, now_s: float, *, message: str) -> list[Addressed]:
        """The plan in flight could not be computed: its requests end, all others go on."""
        said: list[Addressed] = []
        for seq in self._take_flight(number).sequences:
            if seq.is_ended:
                continue
            said.append(endings.faulted(seq, now_s, message=message))
            self._release(seq)
        return said

    # ---- questions

    def next_deadline_s(self) -> float:
        """When `expire` may have something to do; inf: never."""
        return self._deadlines.next_s()

    def load(self) -> SchedLoad:
        return SchedLoad(
            num_running=len(self._running),
            num_waiting=len(self._queue),
            num_used_pages=self._pool.num_leased,
            num_pages=self._pool.num_pages,
            num_steps=self._num_plans,
            generated_tokens_total=self._generated_tokens_total,
        )

    def check(self) -> None:
        """Assert that the books balance. O(live requests + pages)."""
        self._pool.check()
        assert len(self._running) <= self._limits.max_running, "more run than may"
        held: list[int] = []
        for seq in self._running:
            assert seq.lease is not None, f"{seq.envelope.rid} runs without pages"
            assert seq.num_computed < len(seq.tokens), f"{seq.envelope.rid} has nothing to do"
            assert pages_for(seq.num_computed) <= len(seq.lease.pages), "computed without a page"
            held.extend(seq.lease.pages)
        assert len(set(held)) == len(held), "two sequences hold one page"
        assert len(held) == self._pool.num_leased, "a page is leased to nobody alive"
        for seq in self._queue:
            assert seq.lease is None, f"{seq.envelope.rid} waits with pages"
            assert seq.num_computed == 0, f"{seq.envelope.rid} waits with tokens computed"
        where = [*self._running, *self._queue]
        assert len(where) == len(self._live), "a request is in two places, or in none"
        for seq in where:
            assert self._live.get(seq.envelope.rid) is seq, f"{seq.envelope.rid} is not on the list"
            assert not seq.is_ended, f"{seq.envelope.rid} goes on after its end"

    # ---- parts of the verbs

    def _sequence(self, request: GenerateRequest) -> Sequence:
        """Raises RequestError for a stop regex that does not compile."""
        sampling = request.sampling
        has_stops = bool(sampling.stops or sampling.stop_regexes)
        matcher = self._new_matcher(sampling.stops, sampling.stop_regexes) if has_stops else None
        timeout_s = self._limits.queue_timeout_s
        seq = Sequence(
            request=request,
            tokens=array("i", request.prompt_ids),
            matcher=matcher,
            queue_deadline_s=request.envelope.arrival_s + timeout_s,
        )
        if request.logprobs.prompt_from == 0:
            seq.prompt_logprobs.append(TokenLogprob(request.prompt_ids[0], None))
        return seq

    def _grow(self) -> None:
        """Give every running sequence pages for all its tokens, the oldest first.

        When the pool is short the newest goes back to the queue, until it suffices: the oldest is
        never retracted, and since it fits into the pool alone, it always gets on.
        """
        i = 0
        while i < len(self._running):
            seq = self._running[i]
            assert seq.lease is not None, "running without pages"
            lacking = pages_for(len(seq.tokens)) - len(seq.lease.pages)
            if lacking <= 0 or seq.lease.extend(lacking):
                i += 1
            else:
                self._retract(self._running[-1])

    def _retract(self, seq: Sequence) -> None:
        """Back to the front of the queue without pages; prompt and answer are computed again."""
        assert seq.lease is not None, "retracted while waiting"
        seq.lease.free()
        seq.lease = None
        seq.num_computed = 0
        seq.num_retractions += 1
        self._running.remove(seq)
        self._queue.push_front(seq)

    def _admit(self, now_s: float) -> None:
        """Let the head of the queue run while this step has tokens left for it, and its pages and
        everybody's expected growth fit.
        """
        head = self._queue.head()
        if head is None or len(self._running) >= self._limits.max_running:
            return
        left = self._limits.max_step_tokens - sum(seq.num_pending for seq in self._running)
        growth_tokens = self._limits.growth_tokens
        spare = spare_pages(self._pool, self._running, growth_tokens)
        while head is not None and left > 0 and len(self._running) < self._limits.max_running:
            spare -= expected_pages(head, growth_tokens)
            if spare < 0:
                return
            head.lease = self._pool.lease(pages_for(len(head.tokens)))
            assert head.lease is not None, "spare pages that are not free"
            if not head.has_run:
                head.queue_s = max(now_s - head.envelope.arrival_s, 0.0)
            left -= head.num_pending
            self._running.append(self._queue.pop())
            head = self._queue.head()

    def _take_flight(self, number: int) -> _InFlight:
        flight, self._in_flight = self._in_flight, None
        assert flight is not None, f"a result for plan {number}, and none is in flight"
        assert flight.plan.number == number, f"plan {flight.plan.number}, result {number}"
        return flight

    def _release(self, seq: Sequence) -> None:
        """Take an ended sequence out of everything. Its pages are free for the next plan, which
        runs after the one in flight.
        """
        assert not seq.is_ended, f"{seq.envelope.rid} ends twice"
        seq.is_ended = True
        del self._live[seq.envelope.rid]
        if seq.lease is None:
            self._queue.remove(seq)
            return
        self._running.remove(seq)
        seq.lease.free()
        seq.lease = None
