"""The state of what runs, and the verbs on it."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from roost.cache import KvCache
from roost.core.calls import OpenSession
from roost.core.errors import RequestError
from roost.core.events import Accepted, Ended, Started
from roost.core.outcome import Outcome
from roost.core.plan import PAGE_TOKENS, BatchPlan, StepResult
from roost.core.request import GenerateRequest, Origin, RequestId
from roost.sched import endings
from roost.sched.admission import (
    SchedLimits,
    check_fields,
    check_length,
    check_queue,
    whole_turn,
)
from roost.sched.budget import StepBudget
from roost.sched.commit import record
from roost.sched.door import Door
from roost.sched.endings import Addressed
from roost.sched.load import SchedLoad
from roost.sched.planner import plan_slices
from roost.sched.roster import Roster
from roost.sched.sequence import NewStopMatcher, Sequence, TokenBytes
from roost.sched.speculate import Speculator
from roost.sessions import Rules, SessionStore, SessionView, Turn, is_kept


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A plan whose result is awaited; `sequences` as its slices."""

    plan: BatchPlan
    sequences: list[Sequence]
    since_s: float


class Scheduler:
    """Holds every live request, held, waiting or running, from `submit` to its one ending.

    Between `plan` and the `commit` or `fail` of that plan, requests may come and go; no second plan
    is made.
    """

    def __init__(
        self,
        kv: KvCache,
        limits: SchedLimits,
        token_bytes: TokenBytes,
        new_matcher: NewStopMatcher,
    ) -> None:
        self._kv = kv
        self._limits = limits
        self._token_bytes = token_bytes
        self._new_matcher = new_matcher
        self._roster = Roster(limits.max_queued)
        self._speculator = Speculator()
        self._budget = StepBudget(limits.max_step_tokens, limits.max_step_s)
        self._door = Door(kv, self._roster, limits)
        self._sessions = SessionStore(
            Rules(limits.bos_id, limits.eos_ids, self._num_chars, limits.session_busy),
            max_sessions=limits.max_sessions,
            timeout_s=limits.session_timeout_s,
        )
        self._in_flight: _InFlight | None = None
        self._num_submitted = 0
        self._num_plans = 0
        self._generated_tokens_total = 0

    # ---- verbs

    def submit(self, request: GenerateRequest, now_s: float) -> list[Addressed]:
        """Take a request in, or refuse it at once. Never disturbs one that is alive."""
        is_full = self._roster.queue.is_full and not request.envelope.is_health_check
        loser = self._door.outranked(request.envelope.priority) if is_full else None
        try:
            seq = self._sequence(request, is_full=is_full and loser is None)
            self._begin(seq, now_s)
        except RequestError as error:
            return [endings.refused(request, error, now_s)]
        self._roster.enter(seq)
        said = [Addressed(request.envelope, Accepted())]
        if loser is not None:
            said += self._end(loser, endings.outranked(loser, now_s), now_s)
        return said

    def cancel(
        self, origin: Origin, serial: int, now_s: float, *, is_disconnect: bool, message: str = ""
    ) -> list[Addressed]:
        """The owner takes back exactly this request, whatever it is doing. One that is not alive is
        no harm. message: what its client reads; "": the usual words.
        """
        seq = self._roster.numbered(origin, serial)
        if seq is None:
            return []
        outcome = Outcome.CLIENT_DISCONNECTED if is_disconnect else Outcome.CLIENT_CANCELLED
        return self._end(seq, endings.cut_short(seq, outcome, now_s, message), now_s)

    def abort(self, name: RequestId | None, now_s: float, message: str = "") -> list[Addressed]:
        """End the request of exactly this rid, and every one of the call of exactly this name,
        whoever asked for them; None: everything. An unknown name is no harm.
        """
        found = self._roster.all_of(None) if name is None else self._roster.named(name)
        return self._end_each(
            found,
            lambda seq: endings.cut_short(seq, Outcome.CLIENT_CANCELLED, now_s, message),
            now_s,
        )

    def retract_all(self, now_s: float) -> list[Addressed]:
        """What runs goes back to the queue, in its order, and gives its pages back. Not while a
        plan is in flight. There is nothing to say: a client cannot see it.
        """
        assert self._in_flight is None, "retracted under a plan"
        for seq in reversed(self._roster.running[:]):
            self._roster.retract(seq, now_s)
        return []

    def end_all(
        self, outcome: Outcome, now_s: float, *, origin: Origin | None = None
    ) -> list[Addressed]:
        """End everything, or everything that `origin` asked for, in order of arrival.

        outcome: the clients' (cancelled, disconnected), the operator's (shutting down), or the
        engine's own fault. Also with a plan in flight, whose result is then passed over.
        """
        found = self._roster.all_of(origin)
        return self._end_each(found, lambda seq: endings.cut_short(seq, outcome, now_s), now_s)

    def expire(self, now_s: float) -> list[Addressed]:
        """End what is past its time limit, in the queue or in all, and forget idle sessions."""
        late = self._roster.deadlines.take_overdue(now_s)
        said = self._end_each(late, lambda seq: endings.overdue(seq, now_s), now_s)
        self._sessions.expire(now_s)
        return said

    def plan(self, now_s: float) -> BatchPlan | None:
        """The next step, or None when there is nothing to compute."""
        assert self._in_flight is None, "planned again before the last plan was committed"
        self._door.grow(now_s)
        copies = self._door.admit(self._limits, now_s)
        running = self._roster.running
        max_tokens = self._limits.max_step_tokens
        sequences, slices = plan_slices(
            running, max_tokens=min(self._budget.tokens(running), max_tokens)
        )
        if slices and self._limits.speculates:
            self._speculator.add(sequences, slices, self._kv, max_tokens)
        if not slices and not self._kv.has_moves:
            return None
        moves = self._kv.take_moves()
        self._door.planned(sequences, slices)
        self._num_plans += 1
        plan = BatchPlan(self._num_plans, tuple(slices), tuple(copies), *moves)
        self._in_flight = _InFlight(plan, sequences, now_s)
        return plan

    def commit(self, result: StepResult, now_s: float) -> list[Addressed]:
        """Record what the plan in flight came to. What ended meanwhile is passed over."""
        flight = self._take_flight(result.number)
        assert len(result.results) == len(flight.sequences), "a result is missing"
        self._budget.observe(flight.plan, now_s - flight.since_s)
        self._kv.land(result.unread)
        said: list[Addressed] = []
        for seq, cut, row in zip(flight.sequences, flight.plan.slices, result.results, strict=True):
            assert row.request_id == cut.request_id, "results in another order than the plan"
            if seq.is_ended:
                continue
            envelope = seq.request.envelope
            if not seq.is_started:
                seq.is_started = True
                prompt_ids = () if seq.turn is None else seq.request.prompt_ids
                said.append(Addressed(envelope, Started(seq.num_cached_tokens, prompt_ids)))
            if cut.drafts and row.token_ids:
                self._speculator.learn(seq, cut, len(row.token_ids))
            delta, ended = record(seq, row, cut.stop, now_s, self._token_bytes)
            if delta is not None:
                self._generated_tokens_total += len(delta.token_ids)
                said.append(Addressed(envelope, delta))
            if ended is not None:
                self._door.ended(seq, ended.outcome)
                said += self._end(seq, Addressed(envelope, ended), now_s)
            elif seq.kv is not None:
                seq.kv.settle(seq.tokens, seq.num_computed)
        return said

    def fail(self, number: int, now_s: float, *, message: str) -> list[Addressed]:
        """The plan in flight could not be computed: its requests end, all others go on."""
        broken = [seq for seq in self._take_flight(number).sequences if not seq.is_ended]
        self._kv.land(None)
        return self._end_each(
            broken, lambda seq: endings.faulted(seq, now_s, message=message), now_s
        )

    def flush(self) -> int:
        """Forget every prefix → how many tokens that freed. What live requests hold is not found
        again, and goes when they end.
        """
        return self._kv.flush() * PAGE_TOKENS

    def put_away(self) -> BatchPlan | None:
        """When nothing lives any more, and no plan will follow: keep what is known for the next
        server. None: there is no place for it. Its result is not committed.
        """
        assert not len(self._roster), "put away while requests live"
        saves = self._kv.leave_all()
        return BatchPlan(self._num_plans + 1, (), saves=saves) if saves else None

    def open_session(self, call: OpenSession, now_s: float) -> None:
        """Raises RequestError for an id that is in use or no name, and when there are too many."""
        self._sessions.open(call, now_s)

    def close_session(self, session_id: str, now_s: float) -> list[Addressed]:
        """Its turns that run end as they will, those that wait end now, new ones are refused.

        Raises RequestError when there is no such session. One that closes already: no harm.
        """
        dropped = self._sessions.close(session_id, now_s)
        return [endings.closed_on(self._leave(turn), session_id, now_s) for turn in dropped]

    # ---- questions

    def sessions(self, now_s: float) -> tuple[SessionView, ...]:
        """Every session with its turns, the oldest first."""
        return self._sessions.listing(now_s)

    def held_serials(self, origin: Origin) -> set[int]:
        """Of all live requests of `origin`."""
        return {seq.envelope.serial for seq in self._roster.all_of(origin)}

    def next_deadline_s(self) -> float:
        """When `expire` may have something to do; inf: never."""
        return min(self._roster.deadlines.next_s(), self._sessions.next_expiry_s)

    def load(self) -> SchedLoad:
        return SchedLoad(
            num_running=len(self._roster.running),
            num_waiting=len(self._roster.queue),
            num_used_pages=self._kv.num_used,
            num_cached_pages=self._kv.num_kept,
            num_stored_pages=self._kv.num_stored,
            num_fetched_pages=self._kv.num_fetched,
            num_pages=self._kv.pool.num_pages,
            num_steps=self._num_plans,
            generated_tokens_total=self._generated_tokens_total,
            num_drafts=self._speculator.num_drafts,
            num_right_drafts=self._speculator.num_right,
        )

    def check(self) -> None:
        """Assert that the books balance. O(live requests + pages + turns)."""
        roster = self._roster
        assert len(roster.running) <= self._limits.max_running, "more run than may"
        roster.check(self._kv, self._sessions.check())
        turns = {seq.envelope.rid: seq.turn for seq in roster.all_of(None) if seq.turn is not None}
        assert turns == self._sessions.live_turns(), "a live turn is not that of a live request"

    # ---- parts of the verbs

    def _sequence(self, request: GenerateRequest, *, is_full: bool) -> Sequence:
        """Raises RequestError for what can never run, or may not now."""
        envelope = request.envelope
        self._roster.check_new(envelope)
        check_fields(request, self._limits)
        if request.turn is None:
            check_length(request, self._limits, self._kv)
        check_queue(request, is_full=is_full)
        sampling = request.sampling
        has_stops = bool(sampling.stops or sampling.stop_regexes)
        self._num_submitted += 1
        return Sequence(
            number=self._num_submitted,
            request=request,
            tokens=array("i", request.prompt_ids),
            matcher=self._new_matcher(sampling.stops, sampling.stop_regexes) if has_stops else None,
            queue_deadline_s=envelope.arrival_s + self._limits.queue_timeout_s,
            waits_from_s=envelope.arrival_s,
        )

    def _begin(self, seq: Sequence, now_s: float) -> None:
        """Find out what the whole prompt is, if that can be known. Raises RequestError."""
        request = seq.request
        if request.turn is None:
            seq.know(request)
            return
        seq.turn = self._sessions.begin(request.envelope.rid, request.turn, request.prompt_ids)
        if not seq.turn.knows_history:
            return
        try:
            self._know_turn(seq, seq.turn)
        except RequestError:
            self._sessions.drop(seq.turn, now_s)
            raise

    def _know_turn(self, seq: Sequence, turn: Turn) -> None:
        """Put the history before a turn's new ids. Raises RequestError for what does not fit."""
        prompt_ids = self._sessions.prepare(turn)
        seq.know(whole_turn(seq.request, prompt_ids, self._limits, self._kv))

    def _end_each(
        self, sequences: list[Sequence], ending: Callable[[Sequence], Addressed], now_s: float
    ) -> list[Addressed]:
        """End some, and say so in their order.

        The newest first: so a turn that is held for another of them ends for the same reason, and
        not because the other did.
        """
        newest_first = sorted(sequences, key=lambda seq: seq.number, reverse=True)
        answers = {seq.number: self._end(seq, ending(seq), now_s) for seq in newest_first}
        return [one for seq in sequences for one in answers[seq.number]]

    def _end(self, seq: Sequence, said: Addressed, now_s: float) -> list[Addressed]:
        """Take an ended sequence out of everything → its ending, and what follows for others."""
        held = seq.kv
        self._roster.leave(seq)
        turn = seq.turn
        if turn is None:
            return [said]
        assert isinstance(said.event, Ended), f"{said.event} is no ending"
        answers = [said]
        if not is_kept(said.event.outcome):
            for other in self._sessions.drop(turn, now_s).dropped:
                answers.append(endings.orphaned(self._leave(other), now_s))
            return answers
        pin = None if held is None else held.pin()
        settled = self._sessions.commit(turn, seq.output_ids, now_s, pin)
        for other in settled.dropped:
            answers.append(endings.replaced(self._leave(other), turn.rid, now_s))
        for other in settled.ready:
            answers += self._let_wait(other, now_s)
        return answers

    def _leave(self, turn: Turn) -> Sequence:
        seq = self._roster.find(turn.rid)
        self._roster.leave(seq)
        return seq

    def _let_wait(self, turn: Turn, now_s: float) -> list[Addressed]:
        """A held turn goes on, or ends because it does not fit behind its history."""
        seq = self._roster.find(turn.rid)
        try:
            self._know_turn(seq, turn)
        except RequestError as error:
            return self._end(seq, endings.refused(seq.request, error, now_s), now_s)
        self._roster.queue.push(seq)
        return []

    def _take_flight(self, number: int) -> _InFlight:
        flight, self._in_flight = self._in_flight, None
        assert flight is not None, f"a result for plan {number}, and none is in flight"
        assert flight.plan.number == number, f"plan {flight.plan.number}, result {number}"
        return flight

    def _num_chars(self, token_id: int) -> int:
        """Characters of a token's text: bytes of it that begin one in UTF-8."""
        return sum(byte & 0xC0 != 0x80 for byte in self._token_bytes(token_id, False))
