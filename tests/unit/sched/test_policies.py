"""Who goes first, and that everybody goes."""

import math
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.desk import Desk
from tests.sim.fake_runner import alone
from tests.sim.requests import request, sampling

from roost.cache import KvCache, PagePool
from roost.core.events import Started
from roost.sched import PolicyName
from roost.sched.policies import MAX_WAIT_S, TURNS, FairShare, LongestPrefix
from roost.sched.sequence import Sequence

POLICIES: tuple[PolicyName, ...] = ("lpm", "fcfs", "priority", "fair")
HOT = tuple(i % 20 for i in range(40))


def waiting(number: int, *, tenant: str = "", num_tokens: int = 10) -> Sequence:
    asked = request(f"r{number}", num_tokens, tenant=tenant)
    return Sequence(number, asked, array("i", asked.prompt_ids), None, math.inf)


def begun(desk: Desk) -> list[str]:
    return [envelope.rid for envelope, event in desk.log if isinstance(event, Started)]


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=25)
@given(
    num_before=st.integers(0, 5),
    num_a_step=st.lists(st.integers(1, 4), min_size=4, max_size=30),
    step_s=st.sampled_from([0.05, 0.2, 1.0]),
    max_running=st.integers(1, 3),
    num_pages=st.integers(5, 20),
)
def test_a_cold_request_begins_within_a_bound_whoever_comes_meanwhile(
    policy: PolicyName,
    num_before: int,
    num_a_step: list[int],
    step_s: float,
    max_running: int,
    num_pages: int,
) -> None:
    """It has no known prefix, the lowest priority, and a tenant that got everything so far."""
    desk = Desk(
        policy=policy,
        num_pages=num_pages,
        max_running=max_running,
        max_queued=10_000,
        max_step_tokens=60,
        growth_tokens=None,
    )
    for i in range(num_before):
        desk.submit(request(f"before{i}", (i,) * 20, sampling(2), priority=-1, tenant="cold"))
    cold = request("cold", (21, 22, 23, 24), sampling(3), priority=-2, tenant="cold")
    desk.submit(cold)
    num_sent = num_steps = num_begun = 0
    while "cold" not in desk.events or len(desk.events["cold"]) == 1:
        for _ in range(num_a_step[num_steps % len(num_a_step)]):
            asked = sampling(1 + num_sent % 3)
            desk.submit(request(f"hot{num_sent}", HOT, asked, arrival_s=desk.now_s, priority=9))
            num_sent += 1
        if desk.now_s < MAX_WAIT_S:
            num_begun = len(begun(desk))
        desk.step()
        desk.now_s += step_s
        num_steps += 1
        assert num_steps < 1000, "it never began"
    others = [rid for rid in begun(desk)[num_begun:] if rid != "cold"]
    assert len(others) <= TURNS * (num_before + 1) + max_running
    desk.run()
    assert desk.tokens("cold") == alone(cold.prompt_ids, cold.sampling)


def test_longest_prefix_looks_up_so_many_in_a_step_and_all_in_the_end() -> None:
    kv = KvCache(PagePool(16))
    tokens = array("i", range(20))
    holding = kv.open(kv.match("", tokens, 0), 20)
    assert holding is not None
    holding.free(tokens, 20)
    policy = LongestPrefix(kv)
    many = [waiting(number, num_tokens=1 if number < 60 else 20) for number in range(64)]
    policy.order(many)
    assert sum(seq.num_known_tokens >= 0 for seq in many) == 16
    for _ in range(3):
        policy.order(many)
    assert [seq.number for seq in policy.order(many)] == [60, 61, 62, 63, *range(60)]


def test_fair_share_lets_tenants_take_turns_by_what_they_got() -> None:
    policy = FairShare()
    policy.count("a", 30)
    policy.count("b", 5)
    line = [waiting(1, tenant="a"), waiting(2, tenant="b"), waiting(3, tenant="b")]
    line += [waiting(4, tenant="b"), waiting(5, tenant="b")]
    assert [seq.number for seq in policy.order(line)] == [2, 3, 4, 1, 5]


def test_fair_share_gives_nothing_for_having_asked_for_nothing() -> None:
    policy = FairShare()
    policy.count("a", 100)
    a = [waiting(number, tenant="a") for number in range(3)]
    policy.order(a)
    b = [waiting(number, tenant="b") for number in range(3, 6)]
    assert [seq.number for seq in policy.order([*a, *b])] == [0, 3, 1, 4, 2, 5]


def test_fair_share_remembers_what_a_tenant_owes_and_forgets_who_owes_nothing() -> None:
    policy = FairShare()
    policy.count("a", 10)
    policy.count("b", 40)
    policy.order([waiting(1, tenant="a")])
    assert policy._served == {"a": 10, "b": 40}
    policy.count("a", 60)
    policy.order([waiting(2, tenant="a")])
    assert policy._served == {"a": 70}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_health_check_goes_before_everybody(policy: PolicyName) -> None:
    desk = Desk(policy=policy, max_running=1)
    desk.submit(request("a", 4, sampling(2), priority=7))
    desk.step()
    desk.submit(request("b", 4, sampling(1), priority=7))
    desk.submit(request("HEALTH_CHECK_1", 1, sampling(1)))
    desk.run()
    assert begun(desk) == ["a", "HEALTH_CHECK_1", "b"]


def test_a_request_sent_back_for_a_higher_priority_answers_the_same() -> None:
    desk = Desk(policy="priority", num_pages=6, max_running=2, growth_tokens=0)
    low = request("low", 30, sampling(40, seed=3))
    desk.submit(low)
    for i in range(5):
        for _ in range(7):
            desk.step()
        desk.submit(request(f"high{i}", (i + 1,) * 50, sampling(4), priority=1))
    desk.run()
    assert desk.tokens("low") == alone(low.prompt_ids, low.sampling)
    assert desk.ending("low").usage.num_retractions == 5
