"""The life of a request as a protocol: whatever clients, workers and steps do, in any order and
with any delay, each request ends once, at its own address, at the level of the table."""

import math

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.sim.fake_runner import alone
from tests.sim.house import Front, House
from tests.sim.requests import request, sampling

from roost.core.outcome import OUTCOMES, Outcome
from roost.core.request import Origin
from roost.frontend.ledger import LateCause

NUM_FRONTS = 3
FRONTS = st.integers(0, NUM_FRONTS - 1)


class WholeHouse(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0
        self.left: set[tuple[Origin, str]] = set()

    @initialize(
        num_pages=st.integers(4, 14),
        max_running=st.integers(1, 6),
        max_queued=st.sampled_from([2, 30, 30]),
    )
    def open(self, num_pages: int, max_running: int, max_queued: int) -> None:
        self.house = House(
            num_fronts=NUM_FRONTS,
            num_pages=num_pages,
            max_running=max_running,
            max_queued=max_queued,
        )

    @rule(
        number=FRONTS,
        prompt=st.integers(1, 40),
        new=st.integers(0, 30),
        seed=st.integers(0, 3),
        patience_s=st.sampled_from([math.inf, math.inf, 2.0]),
    )
    def ask(self, number: int, prompt: int, new: int, seed: int, patience_s: float) -> None:
        front = self.house.fronts[number]
        now_s = self.house.clock.now_s()
        rid = f"w{number}.{front.origin.epoch}-{self.num_asked}"
        self.num_asked += 1
        asked = request(
            rid,
            prompt,
            sampling(new, seed=seed),
            origin=front.origin,
            arrival_s=now_s,
            deadline_s=now_s + patience_s,
        )
        assert front.submit(asked)

    @rule(number=FRONTS, pick=st.integers(0, 20))
    def client_leaves(self, number: int, pick: int) -> None:
        front = self.house.fronts[number]
        live = front.ledger.live()
        if live:
            self.left.add((front.origin, live[pick % len(live)]))
            front.board.leave([live[pick % len(live)]])

    @rule(number=FRONTS, owner=FRONTS, pick=st.integers(0, 20))
    def client_cancels(self, number: int, owner: int, pick: int) -> None:
        """By way of any worker, also for a request that has ended."""
        asked = list(self.house.fronts[owner].asked)
        if asked:
            self.house.fronts[number].board.cancel([asked[pick % len(asked)]])

    @rule(number=FRONTS, owner=FRONTS)
    def somebody_takes_a_rid_that_lives(self, number: int, owner: int) -> None:
        """The engine refuses it to the newcomer; the owner notices nothing."""
        front = self.house.fronts[number]
        live = self.house.fronts[owner].ledger.live()
        if live and number != owner and live[0] not in front.asked:
            asked = request(live[0], 3, sampling(2), origin=front.origin)
            front.submit(asked)

    @rule(number=FRONTS)
    def worker_hears(self, number: int) -> None:
        self.house.fronts[number].hear()

    @rule(number=FRONTS)
    def worker_dies(self, number: int) -> None:
        self.house.kill(number)

    @rule(number=FRONTS, verb=st.sampled_from(["load", "flush_cache", "abort_all", "nonsense"]))
    def operator_calls(self, number: int, verb: str) -> None:
        self.house.fronts[number].call(verb)

    @rule()
    def a_step_breaks(self) -> None:
        self.house.runner.fail_next = True

    @rule(seconds=st.sampled_from([0.25, 1.5]))
    def time_passes(self, seconds: float) -> None:
        self.house.clock.advance(seconds)
        for front in self.house.fronts:
            front.board.reap()

    @rule(num_steps=st.integers(1, 20))
    def engine_steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.house.step()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "house"):
            self.house.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "house"):
            return
        self.house.settle()
        assert self.house.pool.num_leased == 0
        load = self.house.scheduler.load()
        assert (load.num_running, load.num_waiting) == (0, 0)
        for front in self.house.fronts:
            assert front.ledger.live() == ()
            self._judge(front)
        self.house.engine.close()

    def _judge(self, front: Front) -> None:
        witness = front.witness
        assert witness.num_violations == 0
        assert LateCause.UNKNOWN not in witness.late_causes
        for rid, asked in front.asked.items():
            (ending,) = witness.endings[rid]
            solo = alone(asked.prompt_ids, asked.sampling)
            tokens = witness.tokens[rid]
            if ending.outcome is Outcome.CLIENT_DISCONNECTED:
                assert (front.origin, rid) in self.left
            if ending.outcome is Outcome.LENGTH:
                assert tokens == solo
            assert tokens == solo[: len(tokens)]
            levels = [level for name, level in front.keeper.lines if name == rid]
            assert levels == [OUTCOMES[ending.outcome].log_level]


TestWholeHouse = WholeHouse.TestCase
TestWholeHouse.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_a_thousand_cancels_over_four_workers_are_nobodys_fault() -> None:
    house = House(num_fronts=4, num_pages=64, max_running=32, max_queued=1000)
    for i in range(1000):
        front = house.fronts[i % 4]
        front.submit(request(f"r{i}", 3 + i % 30, sampling(50), origin=Origin(i % 4, 1)))
        if i % 50 == 0:
            house.step()
        if i % 3 == 0:
            front.board.leave([list(front.asked)[-1]])
    for front in house.fronts:
        front.board.cancel(front.ledger.live())
    house.settle()
    assert house.pool.num_leased == 0
    for front in house.fronts:
        assert {len(endings) for endings in front.witness.endings.values()} == {1}
        assert len(front.keeper.lines) == 250
        assert {level for _, level in front.keeper.lines} == {20}
