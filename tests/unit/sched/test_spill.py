"""Pages that leave the tree go to the shelf, and come back instead of being computed again."""

import random

import msgspec
import pytest
from tests.sim.desk import Desk
from tests.sim.fake_runner import alone
from tests.sim.requests import request, sampling
from tests.sim.shelf import Shelf

from roost.core.events import Started


def cached(desk: Desk, rid: str) -> int:
    (started,) = (event for event in desk.events[rid] if isinstance(event, Started))
    return started.num_cached_tokens


def ask(desk: Desk, rid: str, prompt: list[int], num_new: int = 4, namespace: str = "") -> int:
    """Let it run to its end, see that the answer is right → cached tokens."""
    how = sampling(num_new, seed=3)
    asked = request(rid, tuple(prompt), how)
    desk.submit(msgspec.structs.replace(asked, namespace=namespace))
    desk.run()
    assert desk.tokens(rid) == alone(prompt, how)
    return cached(desk, rid)


def prompt(first: int, num_tokens: int) -> list[int]:
    return [(first + i * i) % 20 for i in range(num_tokens)]


def after_two_prompts() -> tuple[Shelf, Desk]:
    """There was memory for one of them, so the full pages of the first are on the shelf."""
    shelf = Shelf()
    desk = Desk(num_pages=8, shelf=shelf)
    ask(desk, "a", prompt(0, 90))
    ask(desk, "b", prompt(1, 90))
    return shelf, desk


def test_what_was_evicted_comes_back() -> None:
    shelf = Shelf()
    desk = Desk(num_pages=8, shelf=shelf)
    a, b = prompt(0, 90), prompt(1, 90)
    assert ask(desk, "a", a) == 0
    assert ask(desk, "b", b) == 0
    assert shelf.num_pages == 5
    assert ask(desk, "a again", a) == 80
    assert ask(desk, "b again", b) == 80
    load = desk.scheduler.load()
    assert (load.num_stored_pages, load.num_fetched_pages) == (10, 6)


def test_the_next_server_finds_what_the_last_one_kept() -> None:
    shelf, _ = after_two_prompts()
    assert ask(Desk(num_pages=8, shelf=shelf), "a", prompt(0, 90)) == 80
    # Its own pages beyond a beginning that it shares.
    longer = [*prompt(0, 64), *prompt(5, 60)]
    assert ask(Desk(num_pages=8, shelf=shelf), "longer", longer) == 64


def test_a_namespace_finds_only_its_own() -> None:
    shelf = Shelf()
    desk = Desk(num_pages=8, shelf=shelf)
    ask(desk, "a", prompt(0, 90), namespace="x")
    ask(desk, "b", prompt(1, 90), namespace="x")
    assert ask(Desk(shelf=shelf), "a", prompt(0, 90)) == 0
    assert ask(Desk(shelf=shelf), "a", prompt(0, 90), namespace="x") == 80


def test_a_page_that_cannot_be_read_is_computed_again_with_all_behind_it() -> None:
    shelf, _ = after_two_prompts()
    third = list(shelf.pages)[-3]
    shelf.lost.add(third)
    other = Desk(shelf=shelf)
    assert ask(other, "a", prompt(0, 90)) == 32
    assert third not in shelf


def test_a_step_that_fails_while_loading_is_not_tried_again() -> None:
    shelf, _ = after_two_prompts()
    other = Desk(shelf=shelf)
    other.runner.fail_next = True
    assert ask(other, "a", prompt(0, 90)) == 0
    assert ask(other, "a again", prompt(0, 90)) == 89


def test_requests_with_one_beginning_have_it_read_once() -> None:
    shelf, _ = after_two_prompts()
    other = Desk(shelf=shelf)
    for number in range(3):
        tokens = (*prompt(0, 80), *prompt(number + 7, 9))
        other.submit(request(f"r{number}", tokens, sampling(2)))
    other.run()
    assert shelf.num_reads == 5
    assert [cached(other, f"r{number}") for number in range(3)] == [80, 80, 80]


def test_others_go_on_while_a_beginning_is_read() -> None:
    shelf, _ = after_two_prompts()
    other = Desk(shelf=shelf)
    other.submit(request("a", tuple(prompt(0, 90)), sampling(2)))
    other.submit(request("c", tuple(prompt(3, 20)), sampling(9)))
    plan, _ = other.step()
    assert plan is not None
    assert [part.request_id for part in plan.slices] == ["c"]
    assert len(plan.loads) == 5
    plan, _ = other.step()
    assert plan is not None
    assert {part.request_id: part.start for part in plan.slices} == {"c": 20, "a": 80}


def test_a_step_reads_no_more_than_it_may() -> None:
    """A page is of 3 MiB here, so a step may read two."""
    shelf, _ = after_two_prompts()

    class Large(Shelf):
        def __init__(self) -> None:
            super().__init__()
            self.pages = dict(shelf.pages)
            self.page_bytes = 3 << 20

    other = Desk(shelf=Large())
    other.submit(request("a", tuple(prompt(0, 90)), sampling(2)))
    other.run()
    assert [len(plan.loads) for plan in other.runner.plans][:4] == [2, 2, 1, 0]
    assert cached(other, "a") == 80


def test_a_flush_forgets_the_shelf_too() -> None:
    shelf, desk = after_two_prompts()
    desk.scheduler.flush()
    assert shelf.num_pages == 0
    assert ask(desk, "a again", prompt(0, 90)) == 0


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_the_same_whatever_comes_and_goes(seed: int) -> None:
    """Few pages, prompts with common beginnings, a shelf that loses some, steps that fail."""
    draw = random.Random(seed)
    shelf = Shelf(max_pages=draw.choice([3, 12, 100]))
    # In the order of arrival, so that what was given up is wanted again.
    num_pages = draw.choice([12, 16, 24])
    desk = Desk(num_pages=num_pages, max_step_tokens=24, policy="fcfs", shelf=shelf)
    stems = [prompt(i, 16 * draw.randrange(1, 6)) for i in range(4)]
    asked = {}
    for number in range(40):
        tokens = [*draw.choice(stems), *prompt(draw.randrange(3), draw.randrange(1, 30))]
        how = sampling(draw.randrange(1, 30), seed=number)
        asked[f"r{number}"] = (tokens, how)
        desk.submit(request(f"r{number}", tuple(tokens), how))
        for _ in range(draw.randrange(6)):
            desk.step()
        if shelf.pages and draw.random() < 0.2:
            shelf.lost.add(draw.choice(list(shelf.pages)))
        if draw.random() < 0.05:
            desk.scheduler.flush()
    desk.run()
    for rid, (tokens, how) in asked.items():
        assert desk.tokens(rid) == alone(tokens, how), rid
    assert sum(len(plan.loads) for plan in desk.runner.plans) > 0
    desk.scheduler.flush()
    assert desk.pool.num_leased == 0


def test_at_the_end_all_that_is_known_is_put_away() -> None:
    shelf = Shelf()
    desk = Desk(shelf=shelf)
    assert desk.scheduler.put_away() is None
    ask(desk, "a", prompt(0, 90))
    ask(desk, "b", prompt(1, 40), namespace="x")
    last = desk.scheduler.put_away()
    assert last is not None
    desk.runner.execute(last)
    assert shelf.num_pages == 5 + 2
    assert desk.scheduler.put_away() is None
    assert ask(Desk(shelf=shelf), "a", prompt(0, 90)) == 80
    assert ask(Desk(shelf=shelf), "b", prompt(1, 40), namespace="x") == 32
    assert Desk().scheduler.put_away() is None
