"""Each way in which a request can end, and what the ending says."""

import math

import pytest
from tests.sim.desk import Desk
from tests.sim.fake_runner import EOS_ID, VOCAB_SIZE, alone, logprob_of
from tests.sim.requests import HERE, request, sampling

from roost.core.events import Accepted, Delta, Ended, Started, TokenLogprob, Usage
from roost.core.outcome import Outcome
from roost.core.request import LogprobsWanted, Origin

# What three tokens lead to, left alone: v e f s b r c w y g d e (tests/sim/fake_runner.py).
ANSWER = alone((0, 1, 2), sampling(12))


def test_length() -> None:
    desk = Desk()
    desk.submit(request("a", 3, sampling(4)))
    desk.run()
    assert desk.events["a"] == [
        Accepted(),
        Started(num_cached_tokens=0),
        *(Delta(i, (token_id,)) for i, token_id in enumerate(ANSWER[:4])),
        Ended(Outcome.LENGTH, Usage(num_prompt_tokens=3, num_completion_tokens=4)),
    ]


def test_a_stop_token_is_named_and_cut_off() -> None:
    desk = Desk()
    desk.submit(request("a", 3, sampling(12, stop_ids=(ANSWER[2],))))
    desk.run()
    assert desk.tokens("a") == ANSWER[:3]
    ending = desk.ending("a")
    assert (ending.outcome, ending.matched, ending.text_bytes) == (Outcome.STOP, ANSWER[2], 2)
    assert ending.usage.num_completion_tokens == 3


@pytest.mark.parametrize(("skip_special_tokens", "text_bytes"), [(True, -1), (False, 0)])
def test_a_special_stop_token_adds_text_only_when_it_is_shown(
    skip_special_tokens: bool, text_bytes: int
) -> None:
    prompt = tuple(range(8))  # is answered with the end token at once
    desk = Desk()
    desk.submit(
        request(
            "a", prompt, sampling(9, stop_ids=(EOS_ID,), skip_special_tokens=skip_special_tokens)
        )
    )
    desk.run()
    assert desk.tokens("a") == [EOS_ID]
    assert desk.ending("a").text_bytes == text_bytes


def test_a_stop_string_across_tokens_says_where_it_begins() -> None:
    desk = Desk()
    desk.submit(request("a", 3, sampling(12, stops=(b"zz", b"fsb"))))
    desk.run()
    assert desk.tokens("a") == ANSWER[:5]
    ending = desk.ending("a")
    assert (ending.outcome, ending.matched, ending.text_bytes) == (Outcome.STOP, "fsb", 2)


def test_a_stop_regex_is_named() -> None:
    desk = Desk()
    desk.submit(request("a", 3, sampling(12, stop_regexes=("s[abc]",))))
    desk.run()
    ending = desk.ending("a")
    assert (ending.outcome, ending.matched, ending.text_bytes) == (Outcome.STOP, "s[abc]", 3)


def test_a_regex_that_does_not_compile_is_refused() -> None:
    desk = Desk()
    desk.submit(request("a", 3, sampling(12, stop_regexes=("(",))))
    ending = desk.ending("a")
    assert (ending.outcome, ending.http_status) == (Outcome.INVALID_REQUEST, 400)
    assert "(" in ending.message


def test_a_stop_wins_over_length_in_the_same_token() -> None:
    desk = Desk()
    desk.submit(request("a", 3, sampling(3, stop_ids=(ANSWER[2],))))
    desk.run()
    assert desk.ending("a").outcome is Outcome.STOP


def test_no_stop_counts_before_min_new_tokens() -> None:
    desk = Desk()
    # "ef" is complete with the third token, and is not looked at; "fs" with the fourth.
    desk.submit(request("a", 3, sampling(12, min_new_tokens=3, stops=(b"ef", b"fs"))))
    desk.run()
    assert desk.tokens("a") == ANSWER[:4]
    assert desk.ending("a").matched == "fs"


def test_stop_tokens_are_banned_before_min_new_tokens() -> None:
    asked = sampling(12, min_new_tokens=5, stop_ids=(ANSWER[2],))
    desk = Desk()
    desk.submit(request("a", 3, asked))
    desk.run()
    assert desk.tokens("a") == alone((0, 1, 2), asked)
    assert ANSWER[2] not in desk.tokens("a")[:5]
    bans = [plan.slices[0].bans_stops() for plan in desk.runner.plans]
    assert bans[:7] == [True] * 5 + [False] * 2


def test_zero_new_tokens_is_a_prefill() -> None:
    desk = Desk()
    desk.submit(request("a", 40, sampling(0)))
    desk.run()
    assert desk.events["a"] == [
        Accepted(),
        Started(num_cached_tokens=0),
        Ended(Outcome.LENGTH, Usage(num_prompt_tokens=40)),
    ]
    assert [plan.slices[0].samples for plan in desk.runner.plans] == [False, False]


def scored(prompt: tuple[int, ...], first: int) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(prompt[p], logprob_of(prompt[:p], prompt[p]) if p else None)
        for p in range(first, len(prompt))
    )


@pytest.mark.parametrize("prompt_from", [0, 1, 7, 39, 40, 41])
@pytest.mark.parametrize("max_new_tokens", [0, 2])
def test_prompt_logprobs_come_once_in_order_with_the_first_delta(
    prompt_from: int, max_new_tokens: int
) -> None:
    prompt = tuple(i % 20 for i in range(40))
    wanted = LogprobsWanted(chosen=True, prompt_from=prompt_from)
    desk = Desk(max_step_tokens=13)
    desk.submit(request("a", prompt, sampling(max_new_tokens), logprobs=wanted))
    desk.run()
    deltas = [event for event in desk.events["a"] if isinstance(event, Delta)]
    expected = scored(prompt, prompt_from)
    if max_new_tokens == 0:
        assert deltas == ([Delta(0, (), prompt_logprobs=expected)] if expected else [])
        return
    assert [delta.prompt_logprobs for delta in deltas] == [expected, ()]
    answer = alone(prompt, sampling(2))
    assert deltas[0].logprobs == (TokenLogprob(answer[0], logprob_of(prompt, answer[0])),)
    assert [len(delta.logprobs) for delta in deltas] == [1, 1]


def test_prompt_logprobs_outlive_a_retraction_in_the_middle_of_the_prompt() -> None:
    wanted = LogprobsWanted(prompt_from=0)
    prompt = tuple(i % 20 for i in range(24))
    desk = Desk(num_pages=3, max_step_tokens=10, growth_tokens=0)
    desk.submit(request("old", 14, sampling(30)))
    desk.step()
    desk.step()
    desk.submit(request("a", prompt, sampling(2), logprobs=wanted))
    desk.run()
    parts = [part for plan in desk.runner.plans for part in plan.slices]
    computed = [part for part in parts if part.request_id == "a"]
    assert [(part.start, part.stop) for part in computed[:3]] == [(0, 9), (9, 18), (14, 24)]
    assert desk.ending("a").usage.num_retractions == 1
    first = next(event for event in desk.events["a"] if isinstance(event, Delta))
    assert first.prompt_logprobs == scored(prompt, 0)


@pytest.mark.parametrize(
    ("prompt", "asked", "code", "words"),
    [
        ((), sampling(1), "invalid_request", "The prompt is empty."),
        ((0, VOCAB_SIZE), sampling(1), "invalid_request", "input_ids must hold ids in [0, 26)"),
        ((0, -1), sampling(1), "invalid_request", "got -1"),
        ((0, 1 << 40), sampling(1), "invalid_request", f"got {1 << 40}"),
        ((0,), sampling(1, stop_ids=(26,)), "invalid_request", "stop_token_ids"),
        ((0,) * 513, sampling(0), "context_length_exceeded", "513"),
        ((0,) * 500, sampling(13), "context_length_exceeded", "513"),
    ],
)
def test_what_can_never_run_is_refused(
    prompt: tuple[int, ...], asked: object, code: str, words: str
) -> None:
    desk = Desk()
    desk.submit(request("a", prompt, asked))  # type: ignore[arg-type]
    ending = desk.ending("a")
    assert desk.events["a"] == [ending]
    assert (ending.outcome, ending.code) == (Outcome.INVALID_REQUEST, code)
    assert words in ending.message
    assert ending.usage.num_prompt_tokens == len(prompt)


@pytest.mark.parametrize("top", [-1, 129])
def test_more_alternatives_than_a_program_gives_are_refused(top: int) -> None:
    desk = Desk()
    desk.submit(request("a", logprobs=LogprobsWanted(chosen=True, top=top)))
    assert desk.ending("a").message == f"top_logprobs_num must be in [0, 128], got {top}."


def test_the_context_and_the_pool_can_be_filled_to_the_last_token() -> None:
    desk = Desk(num_pages=32, max_context_tokens=512, max_step_tokens=64)
    desk.submit(request("a", 500, sampling(12)))
    desk.run()
    assert desk.ending("a").usage.num_completion_tokens == 12


def test_a_duplicate_is_refused_at_its_own_address() -> None:
    desk = Desk()
    live = request("a", 3, sampling(4))
    desk.submit(live)
    other = request("a", 9, sampling(1), origin=Origin(worker=5, epoch=2))
    (said,) = desk.submit(other)
    assert said.envelope is other.envelope
    assert isinstance(said.event, Ended)
    assert said.event.code == "duplicate_request"
    desk.events["a"].pop()
    desk.run()
    assert desk.tokens("a") == ANSWER[:4]


def test_a_rid_can_be_used_again_after_its_end() -> None:
    desk = Desk()
    for _ in range(2):
        desk.submit(request("a", 3, sampling(1)))
        desk.run()
    assert desk.tokens("a") == ANSWER[:1] * 2


def test_a_full_queue_says_so_and_a_health_check_passes_it() -> None:
    desk = Desk(max_queued=1)
    desk.submit(request("a"))
    desk.submit(request("b"))
    assert (desk.ending("b").outcome, desk.ending("b").http_status) == (Outcome.QUEUE_FULL, 503)
    desk.submit(request("HEALTH_CHECK_1", 1, sampling(1)))
    plan, _ = desk.step()
    assert plan is not None
    assert plan.slices[0].request_id == "HEALTH_CHECK_1"


def test_a_health_check_that_waits_takes_nobodys_place() -> None:
    desk = Desk(max_queued=1)
    desk.submit(request("HEALTH_CHECK_1", 1, sampling(1)))
    desk.submit(request("a", 3, sampling(1)))
    desk.submit(request("b", 3, sampling(1)))
    desk.run()
    assert desk.ending("a").outcome is Outcome.LENGTH
    assert desk.ending("b").outcome is Outcome.QUEUE_FULL


@pytest.mark.parametrize(
    ("num_steps", "message"), [(0, "Abort in waiting queue"), (1, "Aborted"), (3, "Aborted")]
)
def test_a_cancel_ends_at_any_stage_and_frees_at_once(num_steps: int, message: str) -> None:
    desk = Desk(max_step_tokens=16)
    desk.submit(request("a", 20, sampling(9)))
    for _ in range(num_steps):
        desk.step()
    desk.cancel("a")
    ending = desk.ending("a")
    assert (ending.outcome, ending.message) == (Outcome.CLIENT_CANCELLED, message)
    assert ending.usage.num_completion_tokens == max(num_steps - 1, 0)
    assert desk.kv.num_used == 0
    assert desk.cancel("a") == []
    desk.run()


def test_a_cancel_during_a_step_is_not_undone_by_its_result() -> None:
    desk = Desk()
    desk.submit(request("a", 20, sampling(9)))
    desk.submit(request("b", 3, sampling(1)))
    plan = desk.scheduler.plan(0.0)
    assert plan is not None
    desk.cancel("a", is_disconnect=True)
    # The id is free again, and its new owner has nothing to do with the step in flight.
    desk.submit(request("a", 3, sampling(2)))
    desk.finish(plan)
    endings = [event for event in desk.events["a"] if isinstance(event, Ended)]
    assert [ending.outcome for ending in endings] == [Outcome.CLIENT_DISCONNECTED]
    desk.run()
    assert desk.tokens("a") == ANSWER[:2]
    assert desk.tokens("b") == ANSWER[:1]


def test_an_unknown_rid_and_a_prefix_cancel_nothing() -> None:
    desk = Desk()
    desk.submit(request("abc"))
    assert desk.cancel("ab") == []
    assert desk.cancel("") == []
    desk.run()
    assert desk.ending("abc").outcome is Outcome.LENGTH


def test_ending_all_of_an_origin_leaves_the_others() -> None:
    desk = Desk(max_running=1)
    there = Origin(worker=1, epoch=1)
    desk.submit(request("a", origin=there))
    desk.submit(request("b"))
    desk.submit(request("c", origin=there))
    desk.step()
    said = desk.hear(desk.scheduler.end_all(Outcome.CLIENT_DISCONNECTED, 0.0, origin=there))
    assert [envelope.rid for envelope, _ in said] == ["a", "c"]
    desk.run()
    assert desk.ending("b").outcome is Outcome.LENGTH


def test_shutting_down_ends_everything() -> None:
    desk = Desk()
    desk.submit(request("a"))
    desk.step()
    desk.submit(request("b"))
    desk.hear(desk.scheduler.end_all(Outcome.SHUTTING_DOWN, 0.0))
    assert {desk.ending(rid).http_status for rid in "ab"} == {503}
    assert desk.open_requests == 0


def test_a_deadline_ends_what_runs_and_what_waits() -> None:
    desk = Desk(max_running=1)
    desk.submit(request("a", 3, sampling(50), deadline_s=2.0))
    desk.submit(request("b", 3, sampling(50), deadline_s=1.0))
    desk.step()
    assert desk.scheduler.next_deadline_s() == 1.0
    assert desk.expire() == []
    desk.now_s = 2.0
    assert [said.envelope.rid for said in desk.expire()] == ["b", "a"]
    assert desk.ending("b").message == "Request waiting timeout reached."
    assert desk.ending("a").message == "Request running timeout reached."
    assert desk.ending("b").usage.queue_s == 2.0
    assert desk.scheduler.next_deadline_s() == math.inf


def test_the_queue_limit_is_for_the_first_turn_only() -> None:
    desk = Desk(max_running=1, queue_timeout_s=5.0)
    desk.submit(request("a", 3, sampling(50)))
    desk.submit(request("b", 3, sampling(50)))
    desk.step()
    desk.now_s = 5.0
    assert [said.envelope.rid for said in desk.expire()] == ["b"]
    desk.run()
    assert desk.ending("a").outcome is Outcome.LENGTH


def test_a_broken_row_ends_alone() -> None:
    desk = Desk()
    desk.runner.faults.add("b")
    for rid in "abc":
        desk.submit(request(rid))
    desk.run()
    assert [desk.ending(rid).outcome for rid in "abc"] == [
        Outcome.LENGTH,
        Outcome.ENGINE_FAULT,
        Outcome.LENGTH,
    ]
    assert desk.ending("b").http_status == 500


def test_a_broken_step_ends_those_in_it() -> None:
    desk = Desk(max_running=2)
    for rid in "abc":
        desk.submit(request(rid))
    desk.runner.fail_next = True
    desk.run()
    assert [desk.ending(rid).outcome for rid in "abc"] == [
        Outcome.ENGINE_FAULT,
        Outcome.ENGINE_FAULT,
        Outcome.LENGTH,
    ]


def test_a_cancelled_request_gets_no_fault_of_the_step_that_it_was_in() -> None:
    desk = Desk()
    desk.submit(request("a"))
    plan = desk.scheduler.plan(0.0)
    assert plan is not None
    desk.cancel("a")
    desk.runner.fail_next = True
    assert desk.finish(plan) == []


def test_waiting_time_is_counted_to_the_first_turn() -> None:
    desk = Desk(max_running=1)
    desk.now_s = 1.0
    desk.submit(request("a", 3, sampling(1), arrival_s=0.5))
    desk.submit(request("b", 3, sampling(1), arrival_s=0.75))
    desk.step()
    desk.now_s = 3.0
    desk.step()
    assert desk.ending("a").usage.queue_s == 0.5
    assert desk.ending("b").usage.queue_s == 2.25


def test_a_result_for_another_plan_is_a_bug() -> None:
    desk = Desk()
    desk.submit(request("a"))
    plan = desk.scheduler.plan(0.0)
    assert plan is not None
    with pytest.raises(AssertionError, match="planned again"):
        desk.scheduler.plan(0.0)
    result = desk.runner.execute(plan)
    desk.hear(desk.scheduler.commit(result, 0.0))
    with pytest.raises(AssertionError, match="none is in flight"):
        desk.scheduler.commit(result, 0.0)


def test_many_ended_requests_leave_no_deadlines_behind() -> None:
    desk = Desk()
    for i in range(2000):
        asked = request(f"r{i}", deadline_s=1e6)
        desk.scheduler.submit(asked, 0.0)
        desk.scheduler.cancel(HERE, asked.envelope.serial, 0.0, is_disconnect=False)
    assert len(desk.scheduler._roster.deadlines) <= 257
