"""What the prefix cache does for requests: what is reused, what is not, and that nobody can tell
from an answer."""

from itertools import pairwise

import msgspec
import pytest
from tests.sim.desk import Desk
from tests.sim.fake_runner import EOS_ID, alone, logprob_of
from tests.sim.requests import request, sampling

from roost.core.events import Delta, Ended, Started, TokenLogprob
from roost.core.outcome import Outcome
from roost.core.plan import PAGE_TOKENS
from roost.core.request import GenerateRequest, LogprobsWanted, RequestId, SessionTurn

LONG = tuple(i % 19 for i in range(100))


def cached(desk: Desk, rid: str) -> int:
    (started,) = (event for event in desk.events[rid] if isinstance(event, Started))
    ended = desk.ending(rid)
    assert ended.usage.num_cached_tokens == started.num_cached_tokens
    return started.num_cached_tokens


def ask(desk: Desk, rid: str, prompt: tuple[int, ...], num_new: int = 50, **more: object) -> int:
    """Asked, and answered as if it were alone → how many tokens of its prompt were cached."""
    one = request(rid, prompt, sampling(num_new))
    desk.submit(msgspec.structs.replace(one, **more))
    desk.run()
    assert desk.tokens(rid) == alone(prompt, sampling(num_new))
    return cached(desk, rid)


def turn(rid: str, new: tuple[int, ...], parent: str | None = None, **how: bool) -> GenerateRequest:
    after = None if parent is None else RequestId(parent)
    return request(rid, new, sampling(20), turn=SessionTurn("s", after, **how))


def test_the_next_turn_of_a_chat_reuses_the_answer_too() -> None:
    desk = Desk()
    assert ask(desk, "first", LONG) == 0
    history = (*LONG, *desk.tokens("first"))
    assert len(history) == 150
    assert ask(desk, "second", (*history, 1, 2, 3)) == 149


def test_it_is_matched_to_the_token() -> None:
    desk = Desk()
    ask(desk, "first", LONG, 1)
    for common in (0, 1, 15, 16, 17, 99, 100):
        prompt = (*LONG[:common], 24, 24, 24)
        assert ask(desk, f"with {common}", prompt, 1) == common


def test_the_same_prompt_again_computes_one_token() -> None:
    desk = Desk()
    ask(desk, "first", LONG, 1)
    assert ask(desk, "again", LONG, 1) == 99
    assert desk.runner.plans[-1].num_tokens == 1


@pytest.mark.parametrize("first", [0, 1, 16, 50, 98, 99])
def test_logprobs_of_a_cached_prompt_are_those_of_a_new_one(first: int) -> None:
    expected = [
        TokenLogprob(token_id, logprob_of(LONG[:at], token_id) if at else None)
        for at, token_id in enumerate(LONG)
        if at >= first
    ]
    desk = Desk()
    wanted = LogprobsWanted(chosen=True, prompt_from=first)
    answers = []
    for rid in ("new", "again"):
        desk.submit(request(rid, LONG, sampling(3), logprobs=wanted))
        desk.run()
        deltas = [event for event in desk.events[rid] if isinstance(event, Delta)]
        assert [one for delta in deltas for one in delta.prompt_logprobs] == expected
        answers.append([delta.logprobs for delta in deltas])
    assert answers[0] == answers[1]
    # The logits that score a token are those of the one before it: so far it is reused.
    assert cached(desk, "again") == max(0, min(99, first - 1))


def test_prompts_of_another_namespace_are_not_found() -> None:
    desk = Desk()
    assert ask(desk, "a", LONG, namespace="one") == 0
    assert ask(desk, "b", LONG, namespace="two") == 0
    assert ask(desk, "c", LONG) == 0
    assert [ask(desk, f"{n} again", LONG, namespace=n) for n in ("one", "two", "")] == [99] * 3


def test_after_a_flush_an_old_prompt_is_new() -> None:
    desk = Desk()
    ask(desk, "first", LONG, 1)
    assert desk.scheduler.flush() == 7 * PAGE_TOKENS
    assert ask(desk, "again", LONG, 1) == 0


def test_a_flush_does_no_harm_to_what_runs() -> None:
    desk = Desk()
    desk.submit(request("old", LONG, sampling(50)))
    for _ in range(5):
        desk.step()
    # Also while a plan is in flight.
    plan = desk.scheduler.plan(0.0)
    desk.scheduler.flush()
    desk.scheduler.check()
    assert plan is not None
    desk.finish(plan)
    assert ask(desk, "new", LONG, 1) == 0
    assert desk.tokens("old") == alone(LONG, sampling(50))
    # The old one's pages went with it.
    assert desk.kv.num_kept == 7


def test_chats_that_take_turns_keep_their_caches() -> None:
    desk = Desk()
    chats = {"a": LONG, "b": tuple(reversed(LONG))}
    found = []
    for rid in ("a", "b", "a2", "b2", "a3"):
        chat = rid[0]
        found.append((ask(desk, rid, chats[chat], 16), len(chats[chat])))
        chats[chat] = (*chats[chat], *desk.tokens(rid), 5, 6)
    assert found == [(0, 100), (0, 100), (115, 118), (115, 118), (133, 136)]


def test_a_beginning_that_is_being_computed_is_waited_for() -> None:
    desk = Desk(max_step_tokens=32)
    for i in range(6):
        desk.submit(request(f"r{i}", (*LONG, i), sampling(4)))
    desk.run()
    for i in range(6):
        assert desk.tokens(f"r{i}") == alone((*LONG, i), sampling(4))
    # Whole pages of it, as the first still runs.
    assert [cached(desk, f"r{i}") for i in range(6)] == [0, 96, 96, 96, 96, 96]


def test_what_waits_for_a_beginning_does_not_wait_for_ever() -> None:
    desk = Desk(max_step_tokens=32)
    desk.submit(request("first", LONG, sampling(4)))
    desk.step()
    desk.submit(request("second", LONG, sampling(4)))
    desk.step()
    assert desk.scheduler.load().num_running == 1
    desk.cancel("first")
    desk.run()
    assert desk.tokens("second") == alone(LONG, sampling(4))
    # And what the first one had computed is not lost.
    assert cached(desk, "second") == 64


def test_a_step_that_fails_leaves_no_page_that_it_was_to_copy() -> None:
    desk = Desk(num_pages=8, growth_tokens=0)
    ask(desk, "old", LONG[:40], 1)
    desk.runner.fail_next = True
    desk.submit(request("broken", (*LONG[:36], 24, *LONG[:80]), sampling(4)))
    desk.step()
    assert desk.ending("broken").outcome is Outcome.ENGINE_FAULT
    # Its pages took the place of that which was to be copied.
    assert ask(desk, "next", (*LONG[:36], 24), 4) == 32


def test_a_retracted_one_goes_on_from_what_it_had_computed() -> None:
    desk = Desk()
    desk.submit(request("a", LONG, sampling(40)))
    for _ in range(20):
        desk.step()
    desk.scheduler.retract_all(0.0)
    desk.step()
    assert desk.runner.plans[-1].num_tokens == 1
    desk.run()
    assert desk.tokens("a") == alone(LONG, sampling(40))
    # Of what it found when it first ran.
    assert cached(desk, "a") == 0


@pytest.mark.parametrize("num_new", [0, 1])
def test_every_ending_has_its_number(num_new: int) -> None:
    desk = Desk()
    ask(desk, "first", LONG, 1)
    desk.submit(request("whole", LONG, sampling(num_new)))
    desk.submit(request("cancelled", LONG, sampling(9)))
    desk.submit(request("waits", LONG, sampling(9)))
    desk.cancel("waits")
    desk.step()
    desk.cancel("cancelled")
    desk.run()
    numbers = {
        rid: event.usage.num_cached_tokens
        for rid, events in desk.events.items()
        for event in events
        if isinstance(event, Ended)
    }
    assert numbers == {"first": 0, "whole": 99, "cancelled": 99, "waits": 0}


# ---- pins of sessions


def crowd(desk: Desk, num_pages: int) -> None:
    """A stranger comes, uses so many pages, and goes."""
    number = len(desk.events)
    prompt = (20, number, *(24 - i % 7 for i in range(16 * num_pages - 2)))
    assert ask(desk, f"stranger {number}", prompt, 0) < 2


def test_the_history_of_a_session_outlives_strangers() -> None:
    desk = Desk(num_pages=12, growth_tokens=0)
    desk.open()
    desk.submit(turn("a", LONG[:60]))
    desk.run()
    for _ in range(3):
        crowd(desk, 6)
    desk.submit(turn("b", (3, 4), "a"))
    desk.run()
    assert cached(desk, "b") == 79


def test_the_history_of_a_session_gives_way_and_is_computed_again() -> None:
    desk = Desk(num_pages=12, growth_tokens=0)
    desk.open()
    desk.submit(turn("a", LONG[:60]))
    desk.run()
    crowd(desk, 12)
    desk.submit(turn("b", (3, 4), "a"))
    desk.run()
    assert cached(desk, "b") == 0
    history = (*LONG[:60], *alone(LONG[:60], sampling(20)))
    assert desk.tokens("b") == alone((*history, 3, 4), sampling(20))


@pytest.mark.parametrize("how", ["close", "expire", "replace"])
def test_a_turn_that_is_gone_pins_nothing(how: str) -> None:
    desk = Desk(num_pages=12, growth_tokens=0, session_timeout_s=5.0)
    desk.open()
    desk.submit(turn("a", LONG[:60]))
    desk.run()
    match how:
        case "close":
            desk.close()
        case "expire":
            desk.now_s = 6.0
            desk.expire()
        case "replace":
            desk.submit(turn("b", (9,), replaces=True))
            desk.run()
    # The oldest of what is pinned by nobody goes first.
    crowd(desk, 6)
    crowd(desk, 6)
    assert ask(desk, "again", (*LONG[:60], 24), 1) == 0


def test_a_branch_that_fails_unpins_nothing_of_the_others() -> None:
    desk = Desk(num_pages=12, growth_tokens=0)
    desk.open()
    desk.submit(turn("a", LONG[:60]))
    desk.run()
    desk.submit(turn("b", (3, 4), "a"))
    desk.step()
    desk.cancel("b")
    for _ in range(3):
        crowd(desk, 6)
    desk.submit(turn("c", (3, 4), "a"))
    desk.run()
    # The page that b filled, and left, has taken the place of a's last one, and its pin.
    assert cached(desk, "c") == 80


# ---- an oracle


def trace() -> list[tuple[str, tuple[int, ...]]]:
    """Chats by name, each going on from its last answer, all behind one of two system prompts."""
    systems = (LONG[:70], tuple(reversed(LONG[:45])))
    chats = {f"chat {i}": (*systems[i % 2], 20 + i % 4, i % 19) for i in range(8)}
    asked: list[tuple[str, tuple[int, ...]]] = []
    for number in range(6):
        for name, history in chats.items():
            asked.append((name, history))
            answer = alone(history, sampling(11, seed=0))
            chats[name] = (*history, *answer, number, len(name))
    return asked


def test_on_a_trace_that_fits_it_hits_as_often_as_an_oracle() -> None:
    """The oracle knows everything that was ever computed: all but the last token of each chat."""
    desk = Desk(num_pages=400)
    computed: list[tuple[int, ...]] = []
    num_asked = num_found = num_best = 0
    for number, (_, prompt) in enumerate(trace()):
        best = max((_num_common(prompt[:-1], other) for other in computed), default=0)
        found = ask(desk, f"r{number}", prompt, 11)
        assert found == best
        computed.append((*prompt, *desk.tokens(f"r{number}"))[:-1])
        num_asked, num_found, num_best = (
            num_asked + len(prompt),
            num_found + found,
            num_best + best,
        )
    print(f"of {num_asked} tokens {num_found} were found, by an oracle {num_best}")
    assert num_found == num_best > 0.8 * num_asked


def test_with_too_little_memory_it_hits_less_and_answers_the_same() -> None:
    desk = Desk(num_pages=40, growth_tokens=0)
    found = sum(ask(desk, f"r{n}", prompt, 11) for n, (_, prompt) in enumerate(trace()))
    asked = sum(len(prompt) for _, prompt in trace())
    assert 0.3 * asked < found < 0.8 * asked


def _num_common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    at = 0
    while at < min(len(a), len(b)) and a[at] == b[at]:
        at += 1
    return at


def test_the_trace_is_one_of_chats() -> None:
    by_name: dict[str, list[tuple[int, ...]]] = {}
    for name, prompt in trace():
        by_name.setdefault(name, []).append(prompt)
    for prompts in by_name.values():
        assert all(later[: len(one)] == one for one, later in pairwise(prompts))
    assert EOS_ID < 26
