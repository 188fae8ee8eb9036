"""Speculation in a scheduler: fewer steps, the same answers."""

import msgspec
import pytest
from tests.sim.desk import Desk
from tests.sim.fake_runner import FIRST_REPEATING_SEED, alone, logprob_of
from tests.sim.requests import request, sampling

from roost.core.events import Delta, TokenLogprob
from roost.core.outcome import Outcome
from roost.core.params import Sampling
from roost.core.plan import PAGE_TOKENS
from roost.core.request import LogprobsWanted
from roost.sched.speculate import best_number

PROMPT = tuple(range(12))


def repeating(max_new_tokens: int, **wishes: object) -> Sampling:
    asked = sampling(max_new_tokens, seed=FIRST_REPEATING_SEED + 1)
    return msgspec.structs.replace(asked, **wishes)


def answered(asked: Sampling, *, wants_logprobs: bool = False) -> Desk:
    desk = Desk(speculates=True)
    wanted = LogprobsWanted(chosen=wants_logprobs)
    desk.submit(request("a", PROMPT, asked, logprobs=wanted))
    desk.run()
    return desk


def deltas(desk: Desk, rid: str) -> list[Delta]:
    return [event for event in desk.events[rid] if isinstance(event, Delta)]


@pytest.mark.parametrize(
    ("rate", "num_rows", "number"),
    [(0.0, 1, 0), (0.2, 1, 0), (0.25, 1, 1), (0.8, 1, 4), (1.0, 1, 8), (0.5, 8, 0), (0.7, 8, 1)],
)
def test_drafts_pay_where_they_are_likely_and_the_step_is_narrow(
    rate: float, num_rows: int, number: int
) -> None:
    assert best_number(rate, num_rows) == number


def test_an_answer_that_repeats_takes_fewer_steps() -> None:
    asked = repeating(100)
    desk = answered(asked)
    solo = alone(PROMPT, asked)
    assert desk.tokens("a") == solo
    load = desk.scheduler.load()
    assert len(desk.runner.plans) == len(solo) - load.num_right_drafts
    assert load.num_right_drafts > 50
    assert load.num_drafts == sum(len(part.drafts) for p in desk.runner.plans for part in p.slices)
    assert load.generated_tokens_total == len(solo)


def test_deltas_say_how_much_came_before() -> None:
    found = deltas(answered(repeating(100)), "a")
    assert max(len(delta.token_ids) for delta in found) > 4
    at = 0
    for delta in found:
        assert delta.first == at
        at += len(delta.token_ids)


def test_each_token_has_the_logprob_that_it_has_alone() -> None:
    desk = answered(repeating(60), wants_logprobs=True)
    solo = alone(PROMPT, repeating(60))
    said = [one for delta in deltas(desk, "a") for one in delta.logprobs]
    assert said == [
        TokenLogprob(token, logprob_of((*PROMPT, *solo[:i]), token)) for i, token in enumerate(solo)
    ]
    assert desk.scheduler.load().num_right_drafts > 20


@pytest.mark.parametrize("most", range(1, 40))
def test_no_answer_is_longer_than_it_may_be(most: int) -> None:
    asked = repeating(most)
    desk = answered(asked)
    assert desk.tokens("a") == alone(PROMPT, asked)
    assert desk.ending("a").outcome is Outcome.LENGTH
    assert all(
        part.stop + len(part.drafts) < len(PROMPT) + most
        for plan in desk.runner.plans
        for part in plan.slices
        if part.drafts
    )


def test_what_comes_behind_a_stop_is_dropped_wherever_the_stop_is() -> None:
    whole = alone(PROMPT, repeating(100))
    for min_new_tokens in range(0, 60, 3):
        asked = repeating(100, min_new_tokens=min_new_tokens, stop_ids=(whole[30],))
        desk = answered(asked)
        assert desk.tokens("a") == alone(PROMPT, asked)
        by_text = repeating(100, min_new_tokens=min_new_tokens, stops=(bytes([97 + whole[30]]),))
        desk = answered(by_text)
        stop = by_text.stops[0]
        assert desk.tokens("a") == alone(PROMPT, by_text, lambda text: text.endswith(stop))  # noqa: B023


def test_only_right_tokens_are_found_by_others() -> None:
    asked = repeating(100)
    desk = answered(asked)
    whole = (*PROMPT, *alone(PROMPT, asked))
    desk.submit(request("b", (*whole, 3), sampling(5)))
    desk.run()
    # All but the last token of an answer are computed.
    assert desk.ending("b").usage.num_cached_tokens == len(whole) - 1
    assert desk.tokens("b") == alone((*whole, 3), sampling(5))


def test_an_answer_that_was_given_before_is_guessed() -> None:
    asked = sampling(60)
    desk = Desk(speculates=True)
    for rid in ("a", "b"):
        desk.submit(request(rid, PROMPT, asked))
        desk.run()
        assert desk.tokens(rid) == alone(PROMPT, asked)
    steps = [sum(p.slices[0].request_id == rid for p in desk.runner.plans) for rid in ("a", "b")]
    assert steps[0] > 50
    assert steps[1] < 15


def test_a_wide_step_has_no_drafts() -> None:
    desk = Desk(num_pages=200, max_running=16, max_step_tokens=64, speculates=True)
    for i in range(9):
        desk.submit(request(f"r{i}", PROMPT, repeating(40, seed=FIRST_REPEATING_SEED + i)))
    desk.run()
    for plan in desk.runner.plans:
        if len(plan.slices) >= 9:
            assert not any(part.drafts for part in plan.slices)
    for i in range(9):
        asked = repeating(40, seed=FIRST_REPEATING_SEED + i)
        assert desk.tokens(f"r{i}") == alone(PROMPT, asked)


def test_drafts_take_no_page_from_anybody() -> None:
    desk = Desk(num_pages=10, max_step_tokens=40, growth_tokens=0, speculates=True)
    quiet = Desk(num_pages=10, max_step_tokens=40, growth_tokens=0)
    for one in (desk, quiet):
        for i in range(3):
            asked = repeating(60, seed=FIRST_REPEATING_SEED + i)
            one.submit(request(f"r{i}", PROMPT, asked))
        one.run()
    for i in range(3):
        assert desk.tokens(f"r{i}") == quiet.tokens(f"r{i}")
    for plan in desk.runner.plans:
        for part in plan.slices:
            assert part.stop + len(part.drafts) <= len(part.pages) * PAGE_TOKENS
    assert desk.scheduler.load().num_right_drafts > 20


def test_a_fault_ends_a_request_that_speculates() -> None:
    desk = Desk(speculates=True)
    desk.submit(request("a", PROMPT, repeating(60)))
    while not (desk.runner.plans and desk.runner.plans[-1].slices[0].drafts):
        desk.step()
    desk.runner.faults.add("a")
    desk.run()
    assert desk.ending("a").outcome is Outcome.ENGINE_FAULT
    solo = alone(PROMPT, repeating(60))
    assert desk.tokens("a") == solo[: len(desk.tokens("a"))]
