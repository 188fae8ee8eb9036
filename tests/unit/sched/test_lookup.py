"""Drafts of one sequence: where they are taken from, and how many are tried."""

import random
from array import array

from roost.sched.lookup import NUM_RATES, Lookup, TokenIndex, Trust

# As many drafts as are to be had, however likely they are to be right.
ALWAYS = [8] * (NUM_RATES + 1)
# One, once it is as likely to be right as not.
EVEN = [0] * (NUM_RATES // 2) + [1] * (NUM_RATES // 2 + 1)


def tokens(*ids: int) -> "array[int]":
    return array("i", ids)


def found(ids: "array[int]") -> tuple[int, int]:
    index = TokenIndex()
    assert index.enter(ids)
    return index.find(ids)


def test_the_longest_match_is_taken_and_of_equals_the_latest() -> None:
    assert found(tokens(1, 2, 3, 9, 9, 2, 3, 8, 1, 2, 3)) == (3, 3)
    assert found(tokens(2, 3, 7, 9, 2, 3, 8, 1, 2, 3)) == (6, 2)
    assert found(tokens(1, 2, 3, 4)) == (0, 0)
    assert found(tokens(1, 2)) == (0, 0)
    assert found(tokens(1)) == (0, 0)


def test_a_match_may_reach_back_to_the_first_token_and_is_not_compared_beyond_eight() -> None:
    assert found(tokens(5, 6, 7, 8, 5, 6, 7)) == (3, 3)
    run = range(10, 22)
    assert found(tokens(*run, 1, *run)) == (12, 8)


def test_a_place_that_overlaps_the_end_is_one_too() -> None:
    assert found(tokens(4, 4, 4)) == (2, 2)
    assert found(tokens(1, 2, 1, 2, 1, 2)) == (4, 4)


def test_an_index_that_grows_finds_what_a_search_through_everything_finds() -> None:
    dice = random.Random(1)
    ids = tokens()
    index = TokenIndex()
    for _ in range(400):
        ids.append(dice.randrange(4))
        assert index.enter(ids)
        at, length = index.find(ids)
        end = len(ids)
        lengths = {}
        for p in [p for p in range(end - 1, 1, -1) if ids[p - 2 : p] == ids[end - 2 :]][:16]:
            common = 0
            while common < min(8, p) and ids[p - 1 - common] == ids[end - 1 - common]:
                common += 1
            lengths[p] = common
        best = max(lengths.values(), default=0)
        assert length == best
        assert not best or at == max(p for p in lengths if lengths[p] == best)


def test_a_long_prompt_is_entered_a_piece_at_a_time() -> None:
    ids = tokens(*range(2000), 5, 6)
    lookup = Lookup()
    assert lookup.draft(ids, (), ALWAYS, 3) == ()
    assert lookup.draft(ids, (), ALWAYS, 3) == (7, 8, 9)


def test_drafts_are_what_followed_and_what_repeats_goes_on() -> None:
    assert Lookup().draft(tokens(1, 2, 3, 4, 1, 2), (), ALWAYS, 8) == (3, 4, 1, 2, 3, 4, 1, 2)
    assert Lookup().draft(tokens(1, 2, 3, 4, 1, 2), (), ALWAYS, 3) == (3, 4, 1)
    assert Lookup().draft(tokens(7, 7, 7), (), ALWAYS, 4) == (7, 7, 7, 7)
    assert Lookup().draft(tokens(1, 2, 3), (), ALWAYS, 4) == ()


def test_what_others_went_on_with_comes_first() -> None:
    assert Lookup().draft(tokens(1, 2, 3, 1, 2), (9, 8, 7), ALWAYS, 2) == (9, 8)


def test_a_kind_that_is_wrong_is_left_and_tried_again_ever_more_rarely() -> None:
    trust = Trust(0.6)
    assert trust.wanted(EVEN) == 1
    for _ in range(2):
        trust.learn(1, 0)
    assert round(trust.rate, 4) == 0.4335
    tried = []
    for chance in range(1, 700):
        if trust.wanted(EVEN):
            tried.append(chance)
            trust.learn(1, 0)
    assert tried == [64, 192, 448]


def test_a_kind_that_is_right_again_is_trusted_again() -> None:
    trust = Trust(0.1)
    num_chances = 0
    while trust.rate < 0.475:
        num_chances += 1
        if trust.wanted(EVEN):
            trust.learn(1, 1)
    assert num_chances == 4 * 16
    assert trust.wanted(EVEN) == 1


def test_what_is_behind_a_wrong_draft_says_nothing() -> None:
    one, other = Trust(0.5), Trust(0.5)
    one.learn(8, 2)
    other.learn(3, 2)
    assert one.rate == other.rate
    kept = Trust(0.5)
    kept.learn(2, 2)
    assert round(kept.rate, 5) == 0.63875


def test_each_kind_of_match_is_trusted_for_itself() -> None:
    short, long = tokens(1, 2, 3, 9, 1, 2), tokens(1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6)
    lookup = Lookup()
    assert lookup.draft(short, (), ALWAYS, 1) == (3,)
    for _ in range(30):
        lookup.learn(1, 0)
    assert lookup.draft(short, (), EVEN, 1) == ()
    # Another sequence would have another lookup; only the length of the match matters here.
    other = Lookup()
    other._trusts = lookup._trusts
    assert other.draft(long, (), EVEN, 1) == (7,)
