"""The life of a request as a protocol: whatever clients, operators, workers, steps and the network
do, in any order and with any delay, each request ends once, at its own address, at the level of the
table, and nothing is left."""

import contextlib
import itertools

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.sim import script
from tests.sim.fake_runner import EOS_ID, FIRST_REPEATING_SEED, alone
from tests.sim.house import House
from tests.sim.judgement import judge
from tests.sim.requests import sampling
from tests.sim.roll import roll
from tests.sim.trial import run, shrink

FRONTS = st.integers(0, 2)
NAMES = st.integers(0, 12).map("r{}".format)
SESSIONS = st.sampled_from(["s0", "s1"])
_LETTERS = st.lists(st.integers(0, 24), min_size=1, max_size=40).map(tuple)
# Many begin as others do.
PROMPTS = _LETTERS | st.builds(
    lambda stem, length, end: (*((stem, stem + 7) * 20)[:length], *end),
    st.integers(0, 1),
    st.sampled_from([15, 16, 17, 32, 40]),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
)
LAYOUTS = st.builds(
    script.Layout,
    num_fronts=st.just(3),
    num_pages=st.integers(5, 14),
    max_running=st.integers(1, 6),
    max_queued=st.sampled_from([2, 30, 30]),
    step_s=st.sampled_from([0.01, 0.1]),
    spread_s=st.sampled_from([0.001, 0.1]),
    session_busy=st.sampled_from(["wait", "wait", "refuse"]),
    speculates=st.booleans(),
)
TURNS = st.none() | st.builds(
    script.Turn,
    SESSIONS,
    st.none() | NAMES,
    st.sampled_from([0, 0, 0, 2, -1, 500]),
    st.booleans(),
    st.sampled_from([False, False, True]),
)
ASKS = st.builds(
    script.Ask,
    FRONTS,
    NAMES,
    PROMPTS,
    st.integers(0, 30),
    st.integers(0, 3) | st.integers(FIRST_REPEATING_SEED, FIRST_REPEATING_SEED + 3),
    st.sampled_from([1, 1, 1, 3]),
    st.none() | st.integers(0, 24),
    st.sampled_from([None, None, 2.0]),
    st.sampled_from([0.0, 0.3]),
    st.just(value=False),
    TURNS,
    st.sampled_from(["", "", "a"]),
    st.sampled_from([-1, -1, 0]),
)
CALLS = st.one_of(
    st.builds(script.AbortCall, FRONTS, NAMES | st.none()),
    st.builds(script.Open, FRONTS, SESSIONS),
    st.builds(script.Close, FRONTS, SESSIONS),
    st.builds(script.PauseIt, FRONTS, st.sampled_from(["abort", "retract", "in_place"])),
    st.builds(script.ResumeIt, FRONTS),
    st.builds(script.Flush, FRONTS, st.sampled_from([0.0, 2.0, None])),
    st.builds(script.Level, FRONTS, st.sampled_from(["debug", "error"])),
)
TROUBLES = st.one_of(
    st.builds(script.Kill, FRONTS, st.sampled_from([0.05, None])),
    st.builds(script.Stall, FRONTS, st.sampled_from([0.3, 6.0])),
    st.builds(script.Lose, FRONTS, st.sampled_from(["up", "down"])),
    st.builds(script.Delay, FRONTS, st.sampled_from(["up", "down"]), st.sampled_from([0.3, 2.0])),
    st.builds(script.FaultRow, NAMES),
    st.builds(script.Shut, FRONTS),
    st.just(script.BreakStep()),
)


class SimulatedHouse(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.open = contextlib.ExitStack()
        self.house: House | None = None

    @initialize(layout=LAYOUTS, seed=st.integers(0, 7))
    def build(self, layout: script.Layout, seed: int) -> None:
        self.house = House(layout, seed)
        self.open.enter_context(self.house.listening())
        self.house.open()

    @rule(ask=ASKS)
    def somebody_asks(self, ask: script.Ask) -> None:
        self._do(ask)

    @rule(name=NAMES)
    def a_client_leaves(self, name: str) -> None:
        self._do(script.Leave(name))

    @rule(front=FRONTS)
    def somebody_checks_the_health(self, front: int) -> None:
        self._do(script.Probe(front))

    @rule(call=CALLS)
    def somebody_calls(self, call: script.Calling) -> None:
        self._do(call)

    @rule(trouble=TROUBLES)
    def something_goes_wrong(self, trouble: script.Action) -> None:
        self._do(trouble)

    @rule(seconds=st.sampled_from([0.005, 0.05, 0.2, 1.5]))
    def time_passes(self, seconds: float) -> None:
        self._do(script.Wait(seconds))

    @invariant()
    @precondition(lambda self: self.house is not None)
    def books_balance(self) -> None:
        assert self.house is not None
        self.house.scheduler.check()
        for worker in self.house.workers:
            worker.core.check()

    def teardown(self) -> None:
        with self.open:
            if self.house is not None:
                self.house.settle()
                assert judge(self.house) == []

    def _do(self, action: script.Action) -> None:
        assert self.house is not None
        self.house.do(action)


TestSimulatedHouse = SimulatedHouse.TestCase
TestSimulatedHouse.settings = settings(
    max_examples=200,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_scripts_by_number_end_well(first: int) -> None:
    for seed in range(first, first + 25):
        assert run(roll(seed)).wrong == (), f"tools/simulate.py --start {seed} --seeds 1"


def test_a_script_gives_the_same_house_each_time() -> None:
    first, again = run(roll(11)), run(roll(11))
    assert first.coverage == again.coverage
    text = script.to_text(roll(11))
    assert script.from_text(text) == roll(11)


def test_a_script_is_shrunk_to_what_matters() -> None:
    what = roll(11)
    what = msgspec.structs.replace(what, actions=(*what.actions, script.Probe(9), *what.actions))
    first = what.actions[0]
    least = shrink(what, lambda one: first in one.actions and script.Probe(9) in one.actions)
    assert len(least.actions) == 2
    assert set(least.actions) == {first, script.Probe(9)}


def _seed_without_end(prompt: tuple[int, ...]) -> int:
    """With which the model would go on and on."""
    return next(s for s in itertools.count() if EOS_ID not in alone(prompt, sampling(150, seed=s)))


def test_a_thousand_cancels_over_four_workers_are_nobodys_fault() -> None:
    """And no ERROR line, and no late output that nobody can explain."""
    talkative = [(tuple(range(n)), _seed_without_end(tuple(range(n)))) for n in range(3, 23)]
    layout = script.Layout(num_fronts=4, num_pages=64, max_running=32, max_queued=1000)
    house = House(layout, 1)
    with house.listening():
        house.open()
        for i in range(1000):
            prompt, seed = talkative[i % len(talkative)]
            house.do(script.Ask(i % 4, f"r{i}", prompt, 150, seed))
            if i % 50 == 0:
                house.do(script.Wait(0.05))
            if i % 3 == 0:
                house.do(script.Leave(f"r{i}"))
            elif i % 3 == 1:
                house.do(script.AbortCall((i + 1) % 4, f"r{i}"))
        house.do(script.AbortCall(0, None))
        house.settle()
    assert judge(house) == []
    lines = [line for worker in house.workers for line in worker.keeper.lines]
    assert len(lines) == 1000
    assert {outcome for _, outcome, _ in lines} == {"client_disconnected", "client_cancelled"}
    assert {level for _, _, level in lines} == {20}
