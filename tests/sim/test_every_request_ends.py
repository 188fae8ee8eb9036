"""Whatever is asked, cancelled, overdue or broken: each request ends once, with the answer that it
gets alone, every page comes home, and a session holds what its turns said and nothing else."""

import math
from collections.abc import Callable
from typing import get_args

import msgspec
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.sim.desk import BOS_ID, Desk
from tests.sim.fake_runner import EOS_ID, FIRST_REPEATING_SEED, VOCAB_SIZE, alone, logprob_of
from tests.sim.requests import request, sampling
from tests.sim.talks import Talk, Talks

from roost.core.errors import RequestError
from roost.core.events import Delta, Ended, Started, TokenLogprob
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.params import Sampling
from roost.core.plan import PAGE_TOKENS, BatchPlan
from roost.core.request import GenerateRequest, LogprobsWanted, Origin, RequestId, SessionTurn
from roost.sched import PolicyName

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
# A stop string of one letter, so that "ends with it" says when it is found.
STOP = b"q"


def wishes(most_new_tokens: int) -> st.SearchStrategy[Sampling]:
    return st.builds(
        lambda new, least, stop_id, has_stop, seed: sampling(
            new,
            min_new_tokens=min(least, new),
            stop_ids=() if stop_id is None else (stop_id,),
            stops=(STOP,) if has_stop else (),
            seed=seed,
        ),
        st.integers(0, most_new_tokens),
        st.integers(0, 6),
        st.sampled_from([None, EOS_ID]) | st.integers(0, VOCAB_SIZE - 1),
        st.sampled_from([False, False, True]),
        st.integers(0, 3) | st.integers(FIRST_REPEATING_SEED, FIRST_REPEATING_SEED + 3),
    )


WISHES = wishes(60)
SHORT_WISHES = wishes(8)


class EveryRequestEnds(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, GenerateRequest] = {}
        self.in_flight: BatchPlan | None = None
        self.talks = Talks()
        self.num_heard = 0

    @initialize(
        num_pages=st.integers(2, 12),
        max_running=st.integers(1, 6),
        max_queued=st.sampled_from([1, 3, 40, 40]),
        spare_tokens=st.integers(1, 40),
        growth_tokens=st.sampled_from([0, 0, 0, 16, 128, None]),
        policy=st.sampled_from(POLICIES),
        queue_timeout_s=st.sampled_from([math.inf, 4.0]),
        session_timeout_s=st.sampled_from([math.inf, 5.0]),
        speculates=st.booleans(),
    )
    def begin(
        self,
        num_pages: int,
        max_running: int,
        max_queued: int,
        spare_tokens: int,
        growth_tokens: int | None,
        policy: PolicyName,
        queue_timeout_s: float,
        session_timeout_s: float,
        speculates: bool,
    ) -> None:
        self.desk = Desk(
            num_pages=num_pages,
            max_context_tokens=150,
            max_running=max_running,
            max_queued=max_queued,
            max_step_tokens=max_running + spare_tokens,
            growth_tokens=growth_tokens,
            policy=policy,
            queue_timeout_s=queue_timeout_s,
            session_timeout_s=session_timeout_s,
            speculates=speculates,
        )
        for session_id in "st":
            self.open_session(session_id)

    @rule(
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30),
        asked=WISHES,
        patience_s=st.sampled_from([math.inf, math.inf, 3.0]),
        worker=st.integers(0, 1),
        prompt_from=st.sampled_from([-1, -1, 0, 5]),
        priority=st.sampled_from([0, 0, 1, 5]),
    )
    def submit(
        self,
        prompt: list[int],
        asked: Sampling,
        patience_s: float,
        worker: int,
        prompt_from: int,
        priority: int,
    ) -> None:
        now_s = self.desk.now_s
        self._submit(
            request(
                f"r{len(self.requests)}",
                tuple(prompt),
                asked,
                origin=Origin(worker, epoch=1),
                arrival_s=now_s,
                deadline_s=now_s + patience_s,
                priority=priority,
                tenant=f"t{worker}",
                logprobs=LogprobsWanted(chosen=prompt_from >= 0, prompt_from=prompt_from),
            )
        )

    @rule(
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8),
        begins=st.sampled_from([(), (), (BOS_ID,), (EOS_ID,)]),
        asked=SHORT_WISHES,
        after=st.integers(0, 12),
        offset=st.sampled_from([0, 0, 0, 0, 1, -1, 3]),
        flags=st.sampled_from(["", "", "", "drops", "replaces", "clamped"]),
        session_id=st.sampled_from("ssst"),
        patience_s=st.sampled_from([math.inf, math.inf, math.inf, 3.0]),
        priority=st.sampled_from([0, 0, 1, 5]),
    )
    def turn(
        self,
        prompt: list[int],
        begins: tuple[int, ...],
        asked: Sampling,
        after: int,
        offset: int,
        flags: str,
        session_id: str,
        patience_s: float,
        priority: int,
    ) -> None:
        """It begins, goes on from a turn of its session, done or alive, or from any request."""
        talk = self.talks.open.get(session_id, Talk())
        known: list[str | None] = [*talk.live, *talk.done, None, f"r{after}"]
        parent = known[after % len(known)]
        wish = SessionTurn(
            session_id,
            None if parent is None else RequestId(parent),
            0 if parent is None else offset,
            drops_output=flags == "drops",
            replaces=flags == "replaces",
            is_clamped=flags == "clamped",
        )
        now_s = self.desk.now_s
        self._submit(
            request(
                f"r{len(self.requests)}",
                (*begins, *prompt),
                asked,
                arrival_s=now_s,
                deadline_s=now_s + patience_s,
                priority=priority,
                turn=wish,
            )
        )

    def _submit(self, asked: GenerateRequest) -> None:
        self.requests[asked.envelope.rid] = asked
        if asked.turn is not None:
            self.talks.ask(asked)
        self.desk.submit(asked)

    @rule(count=st.integers(1, 3), session_id=st.sampled_from("sst"))
    def turns_in_a_row(self, count: int, session_id: str) -> None:
        """Each goes on from the one before, which has not ended yet."""
        parent = None
        for _ in range(count + 1):
            rid = RequestId(f"r{len(self.requests)}")
            wish = SessionTurn(session_id, parent)
            now_s = self.desk.now_s
            self._submit(request(rid, (7, 8), sampling(3), arrival_s=now_s, turn=wish))
            parent = rid

    @rule(session_id=st.sampled_from("st"))
    def open_session(self, session_id: str) -> None:
        try:
            self.desk.open(session_id)
        except RequestError:
            assert session_id in self.talks.open
        else:
            assert session_id not in self.talks.open
            self.talks.open[session_id] = Talk()

    @rule(session_id=st.sampled_from("st"), sure=st.integers(0, 3))
    def close_session(self, session_id: str, sure: int) -> None:
        if sure < 3:  # once in a while, or nothing would become of a session
            return
        try:
            self.desk.close(session_id)
        except RequestError:
            assert session_id not in self.talks.open
        else:
            self.talks.close(session_id)

    @rule(index=st.integers(0, 50))
    def submit_a_rid_again(self, index: int) -> None:
        """While it is alive; an ended one may be used again, which would blur the count here."""
        rid = f"r{index}"
        if rid in self.desk.scheduler._roster._live:
            (said,) = self.desk.scheduler.submit(request(rid, serial=0), self.desk.now_s)
            assert isinstance(said.event, Ended)
            assert said.event.code == "duplicate_request"

    @rule(
        index=st.integers(0, 50), how=st.sampled_from(["cancel", "leave", "abort", "worker dies"])
    )
    def client_ends(self, index: int, how: str) -> None:
        """That of one that is alive, as a rule."""
        live = [*self.desk.scheduler._roster._live]
        rid = live[index % len(live)] if live and index % 5 != 4 else f"r{index}"
        if how == "abort":
            self.desk.abort(rid)
        elif how != "worker dies":
            self.desk.cancel(rid, is_disconnect=how == "leave")
        elif index < 10:  # or nobody would be left
            scheduler, now_s = self.desk.scheduler, self.desk.now_s
            origin = Origin(index % 2, epoch=1)
            self.desk.hear(scheduler.end_all(Outcome.CLIENT_DISCONNECTED, now_s, origin=origin))

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.desk.now_s += seconds
        before = self.desk.scheduler.sessions(self.desk.now_s)
        self.desk.expire()
        self._follow()
        left = {one.id for one in self.desk.scheduler.sessions(self.desk.now_s)}
        for session in before:
            if session.is_closing:
                continue  # it goes with its last turn, which may have ended just now
            if session.id in left:
                assert session.idle_s < self.desk.limits.session_timeout_s
            else:
                assert session.idle_s >= self.desk.limits.session_timeout_s
                del self.talks.open[session.id]

    @rule(is_sure=st.sampled_from([False, False, True]))
    def everything_goes_back_to_the_queue(self, is_sure: bool) -> None:
        if is_sure and self.in_flight is None:
            self.desk.hear(self.desk.scheduler.retract_all(self.desk.now_s))

    @rule(index=st.integers(0, 60))
    def something_breaks(self, index: int) -> None:
        """A row of a request that may come, or, once in a while, the next step."""
        if index == 0:
            self.desk.runner.fail_next = True
        else:
            self.desk.runner.faults = {f"r{index}"}

    @rule()
    def plan(self) -> None:
        """A step that takes a while: other things happen before it is done."""
        if self.in_flight is None:
            self.in_flight = self.desk.scheduler.plan(self.desk.now_s)

    @rule(num_steps=st.integers(1, 30))
    def steps(self, num_steps: int) -> None:
        self._land()
        for _ in range(num_steps):
            self.desk.step()

    def _land(self) -> None:
        if self.in_flight is not None:
            self.desk.finish(self.in_flight)
            self.in_flight = None

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "desk"):
            self.desk.scheduler.check()
            self._follow()

    def _follow(self) -> None:
        """Tell the model what was said since, and compare."""
        said = self.desk.log[self.num_heard :]
        self.num_heard = len(self.desk.log)
        self.talks.hear(said, lambda rid: self.requests[rid].turn)

    def _compare_sessions(self) -> None:
        store = self.desk.scheduler._sessions
        held = {
            session_id: {
                turn.rid: tuple(turn.first_tokens(turn.num_tokens)) for turn in session.turns()
            }
            for session_id, session in store._sessions.items()
        }
        assert held == {
            session_id: {rid: said.prompt_ids + said.output_ids for rid, said in talk.done.items()}
            for session_id, talk in self.talks.open.items()
        }

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        self._land()
        self.desk.run()
        assert self.desk.kv.num_used == 0
        assert self.desk.open_requests == 0
        self._follow()
        self._compare_sessions()
        for rid, asked in self.requests.items():
            self._judge(rid, asked)

    def _judge(self, rid: str, asked: GenerateRequest) -> None:
        ending, tokens = self.desk.ending(rid), self.desk.tokens(rid)
        started = [event for event in self.desk.events[rid] if isinstance(event, Started)]
        if asked.turn is not None and started:
            asked = self._whole(asked, started[0].prompt_ids)
        solo = alone(asked.prompt_ids, asked.sampling, _ends_with_stop(asked.sampling))
        # What was said before an early end is the beginning of the same answer.
        assert tokens == solo[: len(tokens)]
        assert ending.usage.num_completion_tokens == len(tokens)
        if ending.outcome in (Outcome.STOP, Outcome.LENGTH):
            assert tokens == solo
            self._judge_logprobs(rid, asked, tokens)
        if not OUTCOMES[ending.outcome].is_answer:
            assert ending.message

    def _whole(self, asked: GenerateRequest, prompt_ids: tuple[int, ...]) -> GenerateRequest:
        """A turn as a request of its own, cut to what fits if it asked for that."""
        most = min(self.desk.limits.max_context_tokens, self.desk.pool.num_pages * PAGE_TOKENS)
        room = most - len(prompt_ids)
        cut = msgspec.structs.replace(
            asked.sampling, max_new_tokens=min(asked.sampling.max_new_tokens, room)
        )
        return msgspec.structs.replace(asked, prompt_ids=prompt_ids, sampling=cut)

    def _judge_logprobs(self, rid: str, asked: GenerateRequest, tokens: list[int]) -> None:
        deltas = [event for event in self.desk.events[rid] if isinstance(event, Delta)]
        said = [one for delta in deltas for one in delta.prompt_logprobs]
        first = asked.logprobs.prompt_from
        prompt = asked.prompt_ids
        assert said == [
            TokenLogprob(prompt[p], logprob_of(prompt[:p], prompt[p]) if p else None)
            for p in range(first if first >= 0 else len(prompt), len(prompt))
        ]
        scored = [one.token_id for delta in deltas for one in delta.logprobs]
        assert scored == (tokens if asked.logprobs.chosen else [])


def _ends_with_stop(asked: Sampling) -> Callable[[bytes], bool] | None:
    return (lambda text: text.endswith(STOP)) if asked.stops else None


TestEveryRequestEnds = EveryRequestEnds.TestCase
TestEveryRequestEnds.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@settings(max_examples=60, deadline=None)
@given(
    wishes=st.lists(st.tuples(st.integers(1, 30), WISHES), min_size=3, max_size=8),
    num_pages=st.integers(6, 9),
    max_step_tokens=st.integers(9, 60),
    speculates=st.booleans(),
)
def test_the_answer_is_the_same_however_short_the_memory(
    wishes: list[tuple[int, Sampling]], num_pages: int, max_step_tokens: int, speculates: bool
) -> None:
    desk = Desk(
        num_pages=num_pages,
        max_step_tokens=max_step_tokens,
        growth_tokens=0,
        speculates=speculates,
    )
    for i, (prompt, asked) in enumerate(wishes):
        desk.submit(request(f"r{i}", prompt, asked))
    desk.run()
    for i, (prompt, asked) in enumerate(wishes):
        solo = alone(tuple(p % 20 for p in range(prompt)), asked, _ends_with_stop(asked))
        assert desk.tokens(f"r{i}") == solo
    num_retractions = sum(desk.ending(f"r{i}").usage.num_retractions for i in range(len(wishes)))
    target(float(num_retractions))


def test_a_pool_that_is_far_too_small_serves_everybody_in_turn() -> None:
    desk = Desk(num_pages=4, max_running=8, growth_tokens=0)
    for i in range(12):
        desk.submit(request(f"r{i}", 15, sampling(45, seed=i)))
    desk.run()
    for i in range(12):
        assert desk.tokens(f"r{i}") == alone(tuple(range(15)), sampling(45, seed=i))
    retractions = [desk.ending(f"r{i}").usage.num_retractions for i in range(12)]
    assert retractions[0] == 0
    assert sum(retractions) >= 8
