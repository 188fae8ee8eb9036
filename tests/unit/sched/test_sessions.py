"""Turns of sessions in the scheduler: who waits, who ends with whom, and what each is told."""

import math

import pytest
from tests.sim.desk import Desk
from tests.sim.fake_runner import EOS_ID, alone
from tests.sim.requests import HERE, request, sampling

from roost.core.calls import OpenSession
from roost.core.errors import QueueFull, RequestError
from roost.core.events import Accepted, Delta, Ended, Started
from roost.core.outcome import Outcome
from roost.core.params import Sampling
from roost.core.request import (
    NO_LOGPROBS,
    GenerateRequest,
    LogprobsWanted,
    Origin,
    RequestId,
    SessionTurn,
)

ANSWER = alone((0, 1, 2), sampling(12))


def turn(
    rid: str,
    prompt: tuple[int, ...] = (5, 6),
    asked: Sampling | None = None,
    *,
    parent: str | None = None,
    session_id: str = "s",
    offset: int = 0,
    replaces: bool = False,
    is_clamped: bool = False,
    origin: Origin = HERE,
    deadline_s: float = math.inf,
    logprobs: LogprobsWanted = NO_LOGPROBS,
) -> GenerateRequest:
    after = None if parent is None else RequestId(parent)
    wish = SessionTurn(session_id, after, offset=offset, replaces=replaces, is_clamped=is_clamped)
    return request(
        rid,
        prompt,
        asked or sampling(3),
        turn=wish,
        origin=origin,
        deadline_s=deadline_s,
        logprobs=logprobs,
    )


def desk_with_session(**settings: object) -> Desk:
    desk = Desk(**settings)  # type: ignore[arg-type]
    desk.open()
    return desk


def states(desk: Desk) -> dict[str, str]:
    return {
        one.rid: one.state.value
        for session in desk.scheduler.sessions(desk.now_s)
        for one in session.turns
    }


def outcome(desk: Desk, rid: str) -> tuple[Outcome, str]:
    ending = desk.ending(rid)
    return ending.outcome, ending.message


# ---- turns follow each other


def test_a_turn_is_told_its_whole_prompt() -> None:
    desk = desk_with_session()
    desk.submit(turn("a", (0, 1, 2)))
    desk.run()
    desk.submit(turn("b", (7, 8), parent="a"))
    desk.run()
    whole = (0, 1, 2, *ANSWER[:3], 7, 8)
    second = alone(whole, sampling(3))
    assert desk.events["b"] == [
        Accepted(),
        Started(5, prompt_ids=whole),
        *(Delta(i, (token_id,)) for i, token_id in enumerate(second)),
        desk.ending("b"),
    ]
    assert desk.ending("b").usage.num_prompt_tokens == 8
    assert [event for event in desk.events["a"] if isinstance(event, Started)] == [
        Started(0, prompt_ids=(0, 1, 2))
    ]


def test_a_request_without_a_session_is_told_nothing_of_its_prompt() -> None:
    desk = Desk()
    desk.submit(request("a", 3, sampling(1)))
    desk.run()
    assert desk.events["a"][1] == Started(0, prompt_ids=())


def test_a_turn_is_held_while_its_parent_runs_and_then_runs_itself() -> None:
    desk = desk_with_session()
    desk.submit(turn("a", (0, 1, 2)))
    desk.step()
    assert desk.submit(turn("b", (7,), parent="a"))[0].event == Accepted()
    desk.submit(turn("c", (8,), parent="b"))
    assert states(desk) == {"a": "running", "b": "held", "c": "held"}
    load = desk.scheduler.load()
    assert (load.num_running, load.num_waiting) == (1, 2)
    desk.run()
    first = (0, 1, 2, *ANSWER[:3], 7)
    second = (*first, *alone(first, sampling(3)), 8)
    assert desk.tokens("b") == alone(first, sampling(3))
    assert desk.tokens("c") == alone(second, sampling(3))
    assert set(states(desk).values()) == {"done"}


def test_branches_run_side_by_side() -> None:
    desk = desk_with_session()
    desk.submit(turn("a"))
    desk.run()
    for rid in "bcd":
        desk.submit(turn(rid, parent="a"))
    desk.submit(turn("root"))
    plan, _ = desk.step()
    assert plan is not None
    assert {part.request_id for part in plan.slices} == {"b", "c", "d", "root"}


def test_a_stop_token_is_part_of_the_history_and_not_doubled() -> None:
    prompt = tuple(range(8))  # is answered with the end token at once
    desk = desk_with_session()
    desk.submit(turn("a", prompt, sampling(9, stop_ids=(EOS_ID,))))
    desk.run()
    desk.submit(turn("b", (EOS_ID, 9), parent="a"))
    desk.run()
    assert desk.events["b"][1] == Started(8, prompt_ids=(*prompt, EOS_ID, 9))


def test_a_held_turn_keeps_its_place_in_the_queue() -> None:
    desk = desk_with_session(max_running=1)
    desk.submit(turn("a", asked=sampling(2)))
    desk.step()
    desk.submit(turn("b", parent="a"))
    desk.submit(request("later"))
    desk.submit(request("HEALTH_CHECK_1", 1, sampling(1)))
    _, said = desk.step()
    assert [one.envelope.rid for one in said if isinstance(one.event, Ended)] == ["a"]
    queue = desk.scheduler._roster.queue
    assert [seq.envelope.rid for seq in queue] == ["HEALTH_CHECK_1", "b", "later"]


def test_a_held_turn_comes_behind_what_was_retracted() -> None:
    desk = desk_with_session(max_running=3)
    desk.submit(turn("a", asked=sampling(2)))
    desk.submit(turn("b", parent="a"))
    desk.submit(request("x", 3, sampling(9)))
    desk.submit(request("y", 3, sampling(9)))
    plan = desk.scheduler.plan(0.0)
    assert plan is not None
    desk.finish(plan)
    desk.scheduler.retract_all(0.0)
    assert [seq.envelope.rid for seq in desk.scheduler._roster.queue] == ["a", "x", "y", "b"]
    assert states(desk) == {"a": "running", "b": "held"}
    desk.scheduler.check()
    desk.run()
    assert desk.ending("x").usage.num_retractions == 1
    assert desk.ending("a").outcome is Outcome.LENGTH


def test_a_server_may_refuse_instead_of_holding() -> None:
    desk = desk_with_session(session_busy="refuse")
    desk.submit(turn("a"))
    desk.submit(turn("b", parent="a"))
    assert outcome(desk, "b") == (
        Outcome.INVALID_REQUEST,
        "Invalid request: turn a of session s has not ended yet.",
    )
    desk.run()
    desk.submit(turn("c", parent="a"))
    desk.run()
    assert desk.ending("c").outcome is Outcome.LENGTH


# ---- turns that do not end well


@pytest.mark.parametrize("how", ["cancel", "leave", "abort", "deadline", "fault", "crash"])
@pytest.mark.parametrize("stage", ["queued", "prefilling", "running", "retracted"])
def test_a_failed_turn_leaves_the_session_as_before(how: str, stage: str) -> None:
    desk = desk_with_session(max_step_tokens=16, max_running=2)
    desk.submit(turn("a", (0, 1, 2)))
    desk.run()
    before = desk.scheduler.sessions(0.0)[0].turns
    desk.submit(turn("b", (3,) * 30, sampling(20), parent="a", deadline_s=5.0))
    desk.submit(turn("held", parent="b"))
    for _ in range({"queued": 0, "prefilling": 1}.get(stage, 4)):
        desk.step()
    if stage == "retracted":
        desk.scheduler.retract_all(0.0)
    match how:
        case "cancel" | "leave":
            desk.cancel("b", is_disconnect=how == "leave")
        case "abort":
            desk.abort("b")
        case "deadline":
            desk.now_s = 5.0
            desk.expire()
        case "fault":
            desk.runner.faults.add("b")
            desk.step()
            desk.step()
        case "crash":
            desk.runner.fail_next = True
            desk.step()
    assert desk.ending("b").outcome not in (Outcome.STOP, Outcome.LENGTH)
    assert outcome(desk, "held") == (Outcome.INVALID_REQUEST, "Invalid request session id")
    assert desk.scheduler.sessions(0.0)[0].turns == before
    assert desk.kv.num_used == 0
    # The same rid again, and from the same turn: as if the first had never been.
    desk.submit(turn("c", (7,), parent="a"))
    desk.run()
    # Of what b computed, its beginning is the history, and is found.
    num_cached = 5 if stage == "queued" else 6
    started = desk.events["c"][1]
    assert started == Started(num_cached, prompt_ids=(0, 1, 2, *ANSWER[:3], 7))


def test_a_held_turn_can_be_cancelled_and_those_held_for_it_end_too() -> None:
    desk = desk_with_session()
    desk.submit(turn("a"))
    desk.submit(turn("b", parent="a"))
    desk.submit(turn("c", parent="b"))
    said = desk.cancel("b", message="enough")
    assert [one.envelope.rid for one in said] == ["b", "c"]
    assert outcome(desk, "b") == (Outcome.CLIENT_CANCELLED, "enough")
    assert outcome(desk, "c") == (Outcome.INVALID_REQUEST, "Invalid request session id")
    desk.run()
    assert desk.ending("a").outcome is Outcome.LENGTH


def test_time_limits_count_while_a_turn_is_held() -> None:
    desk = desk_with_session(queue_timeout_s=4.0)
    desk.submit(turn("a", asked=sampling(50)))
    desk.step()
    desk.submit(turn("b", parent="a", deadline_s=3.0))
    desk.submit(turn("c", parent="a"))
    assert desk.scheduler.next_deadline_s() == 3.0
    desk.now_s = 3.0
    assert [one.envelope.rid for one in desk.expire()] == ["b"]
    desk.now_s = 4.0
    assert [one.envelope.rid for one in desk.expire()] == ["c"]
    assert outcome(desk, "c") == (Outcome.DEADLINE, "Request waiting timeout reached.")


def test_a_turn_and_the_one_held_for_it_end_by_their_own_deadlines_at_once() -> None:
    desk = desk_with_session()
    desk.submit(turn("a", asked=sampling(50), deadline_s=2.0))
    desk.submit(turn("b", parent="a", deadline_s=1.0))
    desk.now_s = 2.0
    assert [one.envelope.rid for one in desk.expire()] == ["b", "a"]
    assert {desk.ending(rid).outcome for rid in "ab"} == {Outcome.DEADLINE}


def test_held_turns_count_against_the_queue() -> None:
    desk = desk_with_session(max_queued=2)
    desk.submit(turn("a"))
    desk.step()
    desk.submit(turn("b", parent="a"))
    desk.submit(request("x"))
    desk.submit(turn("c", parent="a"))
    assert outcome(desk, "c") == (Outcome.QUEUE_FULL, "The request queue is full.")
    assert states(desk) == {"a": "running", "b": "held"}
    desk.run()


def test_all_that_is_ended_together_ends_for_the_same_reason() -> None:
    desk = desk_with_session()
    desk.submit(turn("a"))
    desk.submit(turn("b", parent="a"))
    desk.submit(turn("c", parent="b"))
    said = desk.hear(desk.scheduler.end_all(Outcome.SHUTTING_DOWN, 0.0))
    assert [(one.envelope.rid, desk.ending(one.envelope.rid).outcome) for one in said] == [
        (rid, Outcome.SHUTTING_DOWN) for rid in "abc"
    ]


def test_a_worker_that_is_gone_takes_along_what_others_hold_for_its_turns() -> None:
    there = Origin(worker=1, epoch=1)
    desk = desk_with_session()
    desk.submit(turn("a", origin=there))
    desk.submit(turn("b", parent="a", origin=there))
    desk.submit(turn("c", parent="b"))
    desk.hear(desk.scheduler.end_all(Outcome.CLIENT_DISCONNECTED, 0.0, origin=there))
    assert desk.ending("a").outcome is Outcome.CLIENT_DISCONNECTED
    assert desk.ending("b").outcome is Outcome.CLIENT_DISCONNECTED
    assert outcome(desk, "c") == (Outcome.INVALID_REQUEST, "Invalid request session id")


# ---- what is checked when


def test_what_the_new_ids_show_is_checked_at_once() -> None:
    desk = desk_with_session()
    desk.submit(turn("a"))
    desk.submit(turn("b", (), parent="a"))
    desk.submit(turn("c", (26,), parent="a"))
    desk.submit(turn("d", (1,), sampling(3, stop_regexes=("(",)), parent="a"))
    assert outcome(desk, "b") == (Outcome.INVALID_REQUEST, "The prompt is empty.")
    assert outcome(desk, "c")[1] == "input_ids must hold ids in [0, 26), got 26."
    assert desk.ending("d").outcome is Outcome.INVALID_REQUEST
    assert states(desk) == {"a": "waiting"}


@pytest.mark.parametrize("is_held", [False, True])
def test_a_whole_prompt_that_does_not_fit_is_refused_when_it_is_known(is_held: bool) -> None:
    desk = desk_with_session(max_context_tokens=100)
    desk.submit(turn("a", (4,) * 60, sampling(10)))
    if not is_held:
        desk.run()
    desk.submit(turn("long", (5,) * 31, sampling(0), parent="a"))
    desk.submit(turn("much", (5,) * 20, sampling(11), parent="a"))
    desk.submit(turn("after", parent="much"))
    desk.submit(turn("fits", (5,) * 20, sampling(10), parent="a"))
    desk.run()
    long, much = desk.ending("long"), desk.ending("much")
    assert (long.code, much.code) == ("context_length_exceeded",) * 2
    assert long.message == (
        "The input (101 tokens) is longer than the model's context length (100 tokens)."
    )
    assert "90 tokens from the input and 11 tokens for the completion" in much.message
    assert outcome(desk, "after") == (Outcome.INVALID_REQUEST, "Invalid request session id")
    assert desk.ending("fits").usage.num_completion_tokens == 10


def test_a_clamped_turn_gets_what_is_left_of_the_context() -> None:
    desk = desk_with_session(max_context_tokens=100)
    desk.submit(turn("a", (4,) * 60, sampling(10)))
    desk.run()
    asked = sampling(90, min_new_tokens=90)
    desk.submit(turn("b", (5,) * 20, asked, parent="a", is_clamped=True))
    desk.submit(turn("full", (5,) * 30, asked, parent="a", is_clamped=True))
    desk.submit(turn("prefill", (5,) * 30, sampling(0), parent="a", is_clamped=True))
    desk.run()
    assert desk.ending("b").usage.num_completion_tokens == 10
    assert desk.ending("full").message == (
        "The input (100 tokens) is longer than the model's context length (100 tokens)."
    )
    assert desk.ending("prefill").outcome is Outcome.LENGTH


def test_a_pool_smaller_than_the_context_is_the_limit_of_a_clamped_turn() -> None:
    desk = desk_with_session(num_pages=2)
    desk.submit(turn("a", (4,) * 20, sampling(90), is_clamped=True))
    desk.run()
    assert desk.ending("a").usage.num_completion_tokens == 12


def test_prompt_logprobs_count_from_the_whole_prompt() -> None:
    desk = desk_with_session()
    desk.submit(turn("a", (0, 1, 2)))
    desk.run()
    desk.submit(turn("b", (7, 8), parent="a", logprobs=LogprobsWanted(prompt_from=7)))
    desk.submit(turn("c", (7, 8), parent="a", logprobs=LogprobsWanted(prompt_from=8)))
    desk.submit(turn("d", (7, 8), parent="a", logprobs=LogprobsWanted(prompt_from=0)))
    desk.run()
    scored = {
        rid: [one.token_id for one in first.prompt_logprobs]
        for rid in "bd"
        for first in desk.events[rid]
        if isinstance(first, Delta) and first.first == 0
    }
    assert scored == {"b": [8], "d": [0, 1, 2, *ANSWER[:3], 7, 8]}
    assert outcome(desk, "c") == (
        Outcome.INVALID_REQUEST,
        "logprob_start_len must be in [-1, 8), got 8.",
    )


def test_an_offset_that_is_too_far_ends_a_held_turn_when_that_shows() -> None:
    desk = desk_with_session()
    desk.submit(turn("a", (0, 1, 2)))
    desk.submit(turn("b", parent="a", offset=7))
    desk.submit(turn("c", parent="b"))
    assert states(desk) == {"a": "waiting", "b": "held", "c": "held"}
    desk.run()
    assert desk.ending("b").message == "offset is 7, and the turn goes on from 6 tokens."
    assert outcome(desk, "c") == (Outcome.INVALID_REQUEST, "Invalid request session id")
    assert states(desk) == {"a": "done"}


def test_a_capacity_is_counted_in_characters_of_the_whole_prompt() -> None:
    desk = Desk()
    desk.open(capacity_chars=12)
    desk.submit(turn("a", (3, 4), sampling(3, min_new_tokens=3, stop_ids=(EOS_ID,))))
    desk.run()
    # The last token's text is "<end>", five characters of it.
    desk.submit(turn("b", (EOS_ID, 3, 4, 5, 6, 7, 8, 9)))
    desk.submit(turn("c", (EOS_ID, 3, 4, 5), parent="a"))
    desk.submit(turn("d", (EOS_ID, 3), parent="a"))
    desk.run()
    assert desk.ending("b").outcome is Outcome.LENGTH
    assert desk.ending("c").message == ("The prompt has 13 characters; session s takes at most 12.")
    assert desk.ending("d").outcome is Outcome.LENGTH


# ---- replacing


def test_replaced_turns_are_told_by_whom() -> None:
    desk = desk_with_session()
    desk.submit(turn("a"))
    desk.run()
    desk.submit(turn("old", parent="a", asked=sampling(50)))
    desk.submit(turn("held", parent="old"))
    desk.submit(turn("x", parent="a", replaces=True))
    desk.submit(turn("y", parent="x"))
    desk.run()
    for rid in ("old", "held"):
        assert outcome(desk, rid) == (Outcome.CLIENT_CANCELLED, "Replaced by turn x")
    assert len(desk.tokens("old")) == 3
    assert states(desk) == {"a": "done", "x": "done", "y": "done"}
    assert desk.kv.num_used == 0


def test_a_replacing_turn_that_fails_changes_nothing() -> None:
    desk = desk_with_session()
    desk.submit(turn("a"))
    desk.run()
    desk.submit(turn("old", parent="a", asked=sampling(9)))
    desk.submit(turn("x", parent="a", replaces=True))
    desk.step()
    desk.cancel("x")
    desk.run()
    assert states(desk) == {"a": "done", "old": "done"}


def test_two_in_one_step_that_replace_each_other_leave_one() -> None:
    desk = desk_with_session()
    desk.submit(turn("x", replaces=True, asked=sampling(2)))
    desk.submit(turn("y", replaces=True, asked=sampling(2)))
    desk.run()
    assert desk.ending("x").outcome is Outcome.LENGTH
    assert outcome(desk, "y") == (Outcome.CLIENT_CANCELLED, "Replaced by turn x")
    assert states(desk) == {"x": "done"}


# ---- opening, closing, expiring


def test_closing_refuses_what_waits_and_lets_the_rest_end() -> None:
    desk = desk_with_session(max_running=1)
    desk.submit(turn("a"))
    desk.step()
    desk.submit(turn("queued"))
    desk.submit(turn("held", parent="a"))
    said = desk.close()
    assert [one.envelope.rid for one in said] == ["queued", "held"]
    refusal = (
        Outcome.INVALID_REQUEST,
        "Invalid request: close was requested for session s",
    )
    assert outcome(desk, "queued") == outcome(desk, "held") == refusal
    assert desk.ending("queued").http_status == 400
    assert desk.close() == []
    desk.submit(turn("new"))
    assert outcome(desk, "new") == refusal
    desk.run()
    assert desk.ending("a").outcome is Outcome.LENGTH
    assert desk.scheduler.sessions(0.0) == ()
    with pytest.raises(RequestError, match="session id s does not exist"):
        desk.close()


def test_an_unknown_session_is_refused_at_the_right_address() -> None:
    desk = Desk()
    there = Origin(worker=3, epoch=2)
    asked = turn("a", origin=there)
    (said,) = desk.submit(asked)
    assert said.envelope is asked.envelope
    assert outcome(desk, "a") == (
        Outcome.INVALID_REQUEST,
        "Invalid request: session id s does not exist",
    )


def test_an_unknown_turn_is_refused() -> None:
    desk = desk_with_session()
    desk.submit(turn("b", parent="nobody"))
    assert outcome(desk, "b") == (Outcome.INVALID_REQUEST, "Invalid request session id")


def test_the_rid_of_a_turn_cannot_be_used_again_in_its_session() -> None:
    desk = desk_with_session()
    desk.open("t")
    desk.submit(turn("a"))
    desk.run()
    (said,) = desk.scheduler.submit(turn("a"), 0.0)
    assert isinstance(said.event, Ended)
    assert said.event.code == "duplicate_request"
    desk.events["a"].clear()
    desk.submit(turn("a", session_id="t"))
    desk.submit(request("b"))
    desk.run()
    assert desk.ending("a").outcome is Outcome.LENGTH


def test_sessions_expire_with_the_other_deadlines() -> None:
    desk = Desk(session_timeout_s=10.0)
    desk.open("s")
    desk.open("short", timeout_s=4.0)
    desk.submit(turn("a", asked=sampling(1)))
    assert desk.scheduler.next_deadline_s() == 4.0
    desk.now_s = 4.0
    desk.expire()
    assert [one.id for one in desk.scheduler.sessions(4.0)] == ["s"]
    desk.now_s = 20.0
    desk.expire()
    desk.run()
    assert desk.scheduler.next_deadline_s() == 30.0
    desk.now_s = 30.0
    desk.expire()
    assert desk.scheduler.sessions(30.0) == ()
    desk.submit(turn("b", parent="a"))
    assert desk.ending("b").message == "Invalid request: session id s does not exist"


def test_there_are_only_so_many_sessions() -> None:
    desk = Desk(max_sessions=1)
    desk.open()
    with pytest.raises(QueueFull):
        desk.scheduler.open_session(OpenSession("t"), 0.0)


# ---- by serial and by name


def test_a_serial_names_one_request_for_ever() -> None:
    desk = Desk()
    first = request("a", serial=1)
    desk.submit(first)
    desk.cancel("a")
    desk.submit(request("a", serial=2))
    there = Origin(worker=1, epoch=1)
    for origin, serial in [(HERE, 1), (there, 2), (HERE, 3)]:
        assert desk.scheduler.cancel(origin, serial, 0.0, is_disconnect=True) == []
    assert desk.scheduler.held_serials(HERE) == {2}
    assert desk.scheduler.held_serials(there) == set()
    desk.run()
    assert desk.scheduler.held_serials(HERE) == set()


def test_a_serial_is_held_once() -> None:
    desk = Desk()
    desk.submit(request("a", serial=1))
    desk.submit(request("b", serial=1))
    assert desk.ending("b").code == "duplicate_request"
    desk.run()
    assert desk.ending("a").outcome is Outcome.LENGTH


def test_an_abort_names_a_rid_or_a_call_exactly() -> None:
    desk = Desk()
    for rid in ("a-0", "a-1"):
        desk.submit(request(rid, group="a", origin=Origin(1, 1)))
    desk.submit(request("ab"))
    desk.submit(request("b", group="ab"))
    for nobody in ("a-", "", "A"):
        assert desk.abort(nobody) == []
    # Two workers may give one name to a request, and to a call.
    assert [one.envelope.rid for one in desk.abort("ab")] == ["ab", "b"]
    assert [one.envelope.rid for one in desk.abort("a", "enough")] == ["a-0", "a-1"]
    assert outcome(desk, "ab") == (Outcome.CLIENT_CANCELLED, "Abort in waiting queue")
    assert outcome(desk, "a-1") == (Outcome.CLIENT_CANCELLED, "enough")


def test_an_abort_of_everything_is_everything() -> None:
    desk = desk_with_session(max_running=1)
    desk.submit(turn("a"))
    desk.step()
    desk.submit(turn("b", parent="a"))
    desk.submit(request("c", origin=Origin(4, 1)))
    assert [one.envelope.rid for one in desk.abort(None)] == ["a", "b", "c"]
    assert {desk.ending(rid).outcome for rid in "abc"} == {Outcome.CLIENT_CANCELLED}
    assert desk.abort(None) == []
    assert desk.kv.num_used == 0
