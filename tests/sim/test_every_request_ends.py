"""Whatever is asked, cancelled, overdue or broken: each request ends once, with the answer that it
gets alone, and every page comes home."""

import math
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.sim.desk import Desk
from tests.sim.fake_runner import VOCAB_SIZE, alone, logprob_of
from tests.sim.requests import request, sampling

from roost.core.events import Delta, Ended, TokenLogprob
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.params import Sampling
from roost.core.plan import BatchPlan
from roost.core.request import GenerateRequest, LogprobsWanted, Origin

# A stop string of one letter, so that "ends with it" says when it is found.
STOP = b"q"

WISHES = st.builds(
    lambda new, least, stop_id, has_stop, seed: sampling(
        new,
        min_new_tokens=min(least, new),
        stop_ids=() if stop_id is None else (stop_id,),
        stops=(STOP,) if has_stop else (),
        seed=seed,
    ),
    st.integers(0, 60),
    st.integers(0, 6),
    st.none() | st.integers(0, VOCAB_SIZE - 1),
    st.sampled_from([False, False, True]),
    st.integers(0, 3),
)


class EveryRequestEnds(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, GenerateRequest] = {}
        self.in_flight: BatchPlan | None = None

    @initialize(
        num_pages=st.integers(2, 12),
        max_running=st.integers(1, 6),
        max_queued=st.sampled_from([1, 3, 40, 40]),
        spare_tokens=st.integers(1, 40),
        growth_tokens=st.sampled_from([0, 0, 0, 16, 128]),
        queue_timeout_s=st.sampled_from([math.inf, 4.0]),
    )
    def open(
        self,
        num_pages: int,
        max_running: int,
        max_queued: int,
        spare_tokens: int,
        growth_tokens: int,
        queue_timeout_s: float,
    ) -> None:
        self.desk = Desk(
            num_pages=num_pages,
            max_context_tokens=150,
            max_running=max_running,
            max_queued=max_queued,
            max_step_tokens=max_running + spare_tokens,
            growth_tokens=growth_tokens,
            queue_timeout_s=queue_timeout_s,
        )

    @rule(
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30),
        asked=WISHES,
        patience_s=st.sampled_from([math.inf, math.inf, 3.0]),
        worker=st.integers(0, 1),
        prompt_from=st.sampled_from([-1, -1, 0, 5]),
    )
    def submit(
        self,
        prompt: list[int],
        asked: Sampling,
        patience_s: float,
        worker: int,
        prompt_from: int,
    ) -> None:
        rid = f"r{len(self.requests)}"
        now_s = self.desk.now_s
        self.requests[rid] = request(
            rid,
            tuple(prompt),
            asked,
            origin=Origin(worker, epoch=1),
            arrival_s=now_s,
            deadline_s=now_s + patience_s,
            logprobs=LogprobsWanted(chosen=prompt_from >= 0, prompt_from=prompt_from),
        )
        self.desk.submit(self.requests[rid])

    @rule(index=st.integers(0, 50))
    def submit_a_rid_again(self, index: int) -> None:
        """While it is alive; an ended one may be used again, which would blur the count here."""
        rid = f"r{index}"
        if rid in self.desk.scheduler._roster._live:
            (said,) = self.desk.scheduler.submit(request(rid), self.desk.now_s)
            assert isinstance(said.event, Ended)
            assert said.event.code == "duplicate_request"

    @rule(index=st.integers(0, 50), how=st.sampled_from(["cancel", "leave", "worker dies"]))
    def client_ends(self, index: int, how: str) -> None:
        if how != "worker dies":
            self.desk.cancel(f"r{index}", is_disconnect=how == "leave")
        elif index < 10:  # or nobody would be left
            scheduler, now_s = self.desk.scheduler, self.desk.now_s
            origin = Origin(index % 2, epoch=1)
            self.desk.hear(scheduler.end_all(Outcome.CLIENT_DISCONNECTED, now_s, origin=origin))

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.desk.now_s += seconds
        self.desk.expire()

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

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        self._land()
        self.desk.run()
        assert self.desk.pool.num_leased == 0
        assert self.desk.open_requests == 0
        for rid, asked in self.requests.items():
            self._judge(rid, asked)

    def _judge(self, rid: str, asked: GenerateRequest) -> None:
        ending, tokens = self.desk.ending(rid), self.desk.tokens(rid)
        solo = alone(asked.prompt_ids, asked.sampling, _ends_with_stop(asked.sampling))
        # What was said before an early end is the beginning of the same answer.
        assert tokens == solo[: len(tokens)]
        assert ending.usage.num_completion_tokens == len(tokens)
        if ending.outcome in (Outcome.STOP, Outcome.LENGTH):
            assert tokens == solo
            self._judge_logprobs(rid, asked, tokens)
        if not OUTCOMES[ending.outcome].is_answer:
            assert ending.message

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
)
def test_the_answer_is_the_same_however_short_the_memory(
    wishes: list[tuple[int, Sampling]], num_pages: int, max_step_tokens: int
) -> None:
    desk = Desk(num_pages=num_pages, max_step_tokens=max_step_tokens, growth_tokens=0)
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
