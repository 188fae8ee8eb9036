"""Prompts that begin alike, in a whole house: what is shared is right, and nobody can tell."""

import pytest
from tests.sim import script
from tests.sim.house import House
from tests.sim.judgement import judge

from roost.core.events import Started

STEM = tuple(i % 7 for i in range(40))
LAYOUT = script.Layout(num_fronts=2, num_pages=14, step_s=0.01, spread_s=0.001)
SMALL = script.Layout(num_fronts=2, num_pages=5, step_s=0.01, spread_s=0.001)
DONE = script.Wait(3.0)


def ask(
    name: str,
    prompt: tuple[int, ...] = STEM,
    namespace: str = "",
    *,
    new: int = 4,
    scores_from: int = -1,
) -> script.Ask:
    return script.Ask(0, name, prompt, new, namespace=namespace, scores_from=scores_from)


def turn(name: str, prompt: tuple[int, ...], parent: str | None, **how: bool) -> script.Ask:
    return script.Ask(0, name, prompt, 4, turn=script.Turn("s", parent, **how))


def played(*actions: script.Action, layout: script.Layout = LAYOUT) -> dict[str, int]:
    """How much of each prompt was cached; the house is judged."""
    house = House(layout, 1)
    house.run(actions)
    assert judge(house) == []
    return {
        asked.rid: event.num_cached_tokens
        for asked in house.asked
        for _, event in asked.seen
        if isinstance(event, Started)
    }


def test_namespaces_share_nothing() -> None:
    found = played(
        ask("a", namespace="x"), DONE, ask("b", namespace="y"), DONE, ask("c"), DONE,
        ask("d", namespace="x"), DONE, ask("e"),
    )  # fmt: skip
    assert found == {"a": 0, "b": 0, "c": 0, "d": 39, "e": 39}


def test_a_page_is_shared_in_part() -> None:
    found = played(ask("a"), DONE, ask("b", (*STEM[:37], 9, 9, 9), new=20))
    assert found == {"a": 0, "b": 37}


def test_an_answer_is_found_with_its_last_token_but_one() -> None:
    """The last one was said and never computed."""
    first = ask("a", STEM[:33], new=6)
    house = House(LAYOUT, 1)
    house.run((first, DONE))
    (answered,) = house.asked
    tokens = tuple(
        i for _, event in answered.seen for i in getattr(event, "token_ids", ()) if i is not None
    )
    again = ask("b", (*STEM[:33], *tokens, 1, 2, 3), new=6)
    found = played(first, DONE, again)
    assert found == {"a": 0, "b": 33 + len(tokens) - 1}


@pytest.mark.parametrize("first", [0, 1, 20, 39])
def test_prompts_are_scored_as_if_nothing_were_cached(first: int) -> None:
    found = played(ask("a"), DONE, ask("b", scores_from=first))
    assert found == {"a": 0, "b": max(0, first - 1)}


def test_two_that_compute_the_same_share_it_afterwards() -> None:
    """A page short, so that the second does not wait for the first."""
    for num_common in (15, 16, 17, 31, 33):
        stem = STEM[:num_common]
        played(*(ask(f"r{i}", (*stem, 9, 9, i), new=25) for i in range(4)), DONE)


@pytest.mark.parametrize("timeout_s", [0.0, 2.0, None])
def test_after_a_flush_nothing_is_found(timeout_s: float | None) -> None:
    found = played(ask("a"), DONE, script.Flush(1, timeout_s), DONE, ask("b"), DONE, ask("c"))
    assert found == {"a": 0, "b": 0, "c": 39}


@pytest.mark.parametrize("num_common", [0, 16, 20])
def test_a_flush_under_what_runs_does_no_harm(num_common: int) -> None:
    found = played(
        ask("old", STEM[:num_common] or (9,)), DONE,
        ask("a", (*STEM, 9), new=60), script.Wait(0.2), script.Flush(1, None), script.Wait(0.05),
        ask("b", (*STEM, 9), new=60), script.Wait(0.1), script.Leave("a"), DONE, ask("c"),
    )  # fmt: skip
    assert found["b"] == 0
    assert found["c"] == 39


def test_a_step_that_fails_enters_nothing_that_it_was_to_copy() -> None:
    """The pages of the one that breaks are all there are, that which it begins with among them."""
    found = played(
        ask("a", new=1), DONE, script.BreakStep(),
        ask("b", (*STEM[:36], *(9,) * 30), new=12), DONE,
        ask("c", (*STEM[:36], 8, 8), new=4),
        layout=SMALL,
    )  # fmt: skip
    assert found["c"] == 32


def test_what_turns_computed_gives_way_and_comes_back() -> None:
    """Branches that are dropped, a history that others drive out, and a session that closes."""
    found = played(
        script.Open(0, "s"), DONE,
        turn("a", STEM[:30], None), DONE,
        turn("b", (1, 2), "a"), DONE,
        turn("c", (3, 4), "a", replaces=True), DONE,
        ask("x", (9,) * 60), DONE, ask("y", (8,) * 76), DONE,
        turn("d", (1,), "c"), DONE,
        script.Close(0, "s"), DONE, ask("z", (7,) * 60),
        layout=SMALL,
    )  # fmt: skip
    assert found["d"] == 0
