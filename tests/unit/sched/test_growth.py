"""How many are let in: as many as have room for what is still to come of their answers."""

import math
from array import array

import pytest
from tests.sim.desk import Desk
from tests.sim.fake_runner import alone
from tests.sim.requests import request, sampling

from roost.cache import KvCache, PagePool
from roost.sched.growth import FIRST_GUESS_TOKENS, FixedGrowth, LearnedGrowth
from roost.sched.sequence import Sequence


def sequence(number: int, max_new_tokens: int, num_generated: int = 0) -> Sequence:
    asked = request(f"r{number}", (number % 26,) * 16, sampling(max_new_tokens))
    tokens = array("i", [*asked.prompt_ids, *[1] * num_generated])
    return Sequence(number, asked, tokens, None, math.inf)


def test_before_anything_ended_an_answer_is_a_short_paragraph_or_what_it_may_be() -> None:
    growth = LearnedGrowth()
    assert growth.more_tokens(sequence(0, 1000)) == FIRST_GUESS_TOKENS
    assert growth.more_tokens(sequence(0, 40)) == 40
    assert growth.more_tokens(sequence(0, 1000, 100)) == 28
    assert growth.more_tokens(sequence(0, 1000, 500)) == 16
    assert growth.more_tokens(sequence(0, 1000, 995)) == 5


def test_an_answer_goes_as_far_of_what_it_may_as_others_went() -> None:
    growth = LearnedGrowth()
    for number in range(200):
        growth.ended(sequence(number, 400, 100))
    assert growth.more_tokens(sequence(0, 800)) == pytest.approx(200, rel=0.05)
    assert growth.more_tokens(sequence(0, 80)) == pytest.approx(20, rel=0.2)


def test_a_retraction_lets_fewer_in_until_answers_end_well() -> None:
    growth = LearnedGrowth()
    before = growth.more_tokens(sequence(0, 1000))
    growth.retracted()
    growth.retracted()
    assert growth.more_tokens(sequence(0, 1000)) == before * 3 // 2
    for _ in range(20):
        growth.retracted()
    assert growth.more_tokens(sequence(0, 1000)) == before * 3
    for _ in range(200):
        growth.ended(sequence(0, 1000, 128))
    assert growth.more_tokens(sequence(0, 1000)) == before


def test_what_is_wanted_is_the_most_at_any_ending() -> None:
    kv = KvCache(PagePool(10), prefixes="off")
    growth = LearnedGrowth()
    # One that is about to end and has 5 pages, and another with one page that goes on for 4.
    running = [sequence(0, 65, 64), sequence(1, 64)]
    for seq in running:
        match = kv.match("", seq.tokens, 0)
        seq.kv = kv.open(match, len(seq.tokens))
    new = sequence(2, 64)
    match = kv.match("", new.tokens, 0)
    assert kv.num_available == 4
    # When the first ends: a page for each of the three more, beside that of its prompt.
    # When the others end: 4 more for each, and 5 have come back.
    assert growth.lacking(kv, running, new, match) == 0
    # If everybody's own end counted, it would be 1 + 4 + 4 + 1 pages of 4.
    assert growth.pages(new) == 5


def test_one_alone_always_has_room() -> None:
    kv = KvCache(PagePool(4))
    growth = LearnedGrowth()
    for _ in range(8):
        growth.retracted()
    seq = sequence(0, 48)
    assert growth.lacking(kv, [], seq, kv.match("", seq.tokens, 0)) == 0


def test_after_a_rush_as_much_is_done_in_a_step_as_before_and_few_are_sent_back() -> None:
    """200 requests, and memory for about 20 of them."""
    num_pages = 20 * 5
    desk = Desk(
        num_pages=num_pages,
        max_running=64,
        max_queued=400,
        max_step_tokens=256,
        growth_tokens=None,
    )
    asked = [
        request(f"r{i}", tuple((i * 7 + j * (1 + i % 5)) % 26 for j in range(24)), sampling(56))
        for i in range(200)
    ]
    for one in asked:
        desk.submit(one)
    done: list[int] = []
    while desk.open_requests:
        desk.step()
        done.append(desk.scheduler.load().generated_tokens_total)
    for one in asked:
        assert desk.tokens(one.envelope.rid) == alone(one.prompt_ids, one.sampling)
    retractions = sum(desk.ending(one.envelope.rid).usage.num_retractions for one in asked)
    assert retractions <= 20
    # 200 · 56 tokens by 20 at a time take 560 steps, if nothing is done twice.
    assert len(done) <= 560


def test_pages_for_drafts_are_nobody_else_s() -> None:
    kv = KvCache(PagePool(4), prefixes="off")
    speculating, waiting = sequence(0, 1), sequence(1, 32)
    speculating.kv = kv.open(kv.match("", speculating.tokens, 0), 16)
    assert speculating.kv is not None
    assert speculating.kv.extend(2)
    # It will have 2 pages at its end, and has 3; one is free, and 3 are wanted.
    match = kv.match("", waiting.tokens, 0)
    assert FixedGrowth(32).lacking(kv, [speculating], waiting, match) == 2
