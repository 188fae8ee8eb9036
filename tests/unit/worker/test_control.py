"""Calls on the whole server, as the engine obeys and answers them."""

import json
import math

import pytest
from tests.sim.requests import request, sampling, serial_of
from tests.unit.worker.rig import (
    FACTS,
    HERE,
    THERE,
    Bench,
    done_of,
    ending_of,
    heard,
    outcome_of,
    said,
)

from roost.core.calls import (
    Abort,
    CloseSession,
    FlushCache,
    ListSessions,
    OpenSession,
    Pause,
    PauseMode,
    Resume,
    SetLogLevel,
)
from roost.core.events import Accepted, Delta, Started
from roost.core.outcome import Outcome
from roost.core.request import Origin, RequestId, SessionTurn
from roost.wire import WorkerSide
from roost.wire.messages import (
    Cancel,
    Control,
    ControlDone,
    Goodbye,
    Hello,
    Noted,
    Notice,
    ToWorker,
    Welcome,
)

FOUR = [Origin(worker, 1) for worker in range(4)]
A = RequestId("a")


def notice_of(messages: list[ToWorker]) -> Notice:
    (notice,) = (message for message in messages if isinstance(message, Notice))
    return notice


def answer(worker: WorkerSide, origin: Origin, count: int = 0) -> Notice:
    """Hear one notice and do as it says."""
    notice = notice_of(heard(worker))
    worker.send(Noted(origin, notice.call_id, count))
    return notice


# ---- abort


def refused(call_id: str, words: str, code: str, status: int) -> ControlDone:
    return ControlDone(call_id, is_ok=False, message=words, code=code, status=status)


def test_an_abort_ends_what_is_here_then_asks_every_worker_and_adds_up() -> None:
    bench = Bench()
    workers = [bench.connect(origin) for origin in FOUR]
    for origin, worker in zip(FOUR, workers, strict=True):
        rid = f"r{origin.worker}"
        worker.send(request(rid, 3, sampling(50), origin=origin, group="call"))
    workers[0].send(request("other", 3, sampling(50), origin=FOUR[0]))
    bench.turn()
    for worker in workers:
        worker.receive()
    workers[1].send(Control(FOUR[1], "c1", Abort(RequestId("call"), "enough")))
    bench.turn()
    for origin, worker in zip(FOUR, workers, strict=True):
        messages = heard(worker)
        notice = next(m for m in messages if isinstance(m, Notice))
        # The ending comes first, so that a worker does not count it again.
        ending = ending_of(messages[: messages.index(notice)], f"r{origin.worker}")
        assert (ending.outcome, ending.message) == (Outcome.CLIENT_CANCELLED, "enough")
        assert notice.call == Abort(RequestId("call"), "enough")
        worker.send(Noted(origin, notice.call_id, origin.worker))
    bench.turn()
    done = done_of([m for m in heard(workers[1]) if isinstance(m, ControlDone)])
    assert done == ControlDone("c1", is_ok=True, message="10 requests were aborted.", count=10)
    assert bench.scheduler.load().num_running == 1
    assert all(not isinstance(m, ControlDone) for w in workers for m in w.receive())


def test_an_abort_of_everything_leaves_nothing() -> None:
    bench = Bench(max_running=1)
    here, there = bench.connect(HERE), bench.connect(THERE)
    for rid in "ab":
        here.send(request(rid, 3, sampling(50)))
    there.send(request("c", 3, sampling(50), origin=THERE))
    bench.turn()
    here.receive()
    messages = bench.call(here, Abort(None))
    assert {outcome_of(messages, rid) for rid in "ab"} == {Outcome.CLIENT_CANCELLED}
    here.send(Noted(HERE, notice_of(messages).call_id, 0))
    messages = heard(there)
    assert outcome_of(messages, "c") is Outcome.CLIENT_CANCELLED
    there.send(Noted(THERE, notice_of(messages).call_id, 1))
    bench.turn()
    assert done_of(heard(here)).count == 4
    load = bench.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_used_pages) == (0, 0, 0)


@pytest.mark.parametrize("name", ["", "r", "r1x", "unknown"])
def test_an_abort_of_what_is_not_there_is_harmless_and_says_so(name: str) -> None:
    bench = Bench()
    here = bench.connect()
    here.send(request("r1", 3, sampling(50)))
    bench.turn()
    here.receive()
    here.send(Noted(HERE, notice_of(bench.call(here, Abort(RequestId(name)))).call_id, 0))
    bench.turn()
    (done,) = (m for m in heard(here) if isinstance(m, ControlDone))
    assert done == ControlDone("c1", is_ok=True, message="No requests were aborted.")
    assert bench.scheduler.load().num_running == 1


# ---- a broadcast, and workers that come and go


def begin(bench: Bench) -> list[WorkerSide]:
    """Four workers, of which the first has asked for an abort."""
    workers = [bench.connect(origin) for origin in FOUR]
    workers[0].send(Control(FOUR[0], "c1", Abort(A)))
    bench.turn()
    return workers


def test_a_worker_that_dies_in_the_middle_counts_as_having_answered() -> None:
    bench = Bench()
    workers = begin(bench)
    for i in (0, 1, 2):
        answer(workers[i], FOUR[i], 1)
    bench.turn()
    assert heard(workers[0]) == []
    workers[0].send(Goodbye(FOUR[3]))
    bench.turn()
    assert done_of(heard(workers[0])).count == 3


def test_a_worker_that_cannot_be_reached_counts_as_having_answered() -> None:
    bench = Bench()
    workers = [bench.connect(origin) for origin in FOUR]
    workers[3].close()
    workers[0].send(Control(FOUR[0], "c1", Abort(A)))
    bench.turn()
    for i in (0, 1, 2):
        answer(workers[i], FOUR[i], 1)
    bench.turn()
    assert done_of(heard(workers[0])).count == 3


def test_a_worker_that_lives_its_next_life_counts_as_having_answered() -> None:
    bench = Bench()
    workers = begin(bench)
    for i in (0, 1, 2):
        answer(workers[i], FOUR[i], 1)
    next_life = bench.corridor.connect(Origin(3, 2))
    next_life.send(Hello(Origin(3, 2)))
    # Too late: the life that says so is over.
    workers[3].send(Noted(FOUR[3], notice_of(heard(workers[3])).call_id, 100))
    bench.turn()
    assert done_of(heard(workers[0])).count == 3
    assert heard(next_life) == [Welcome(1, FACTS)]


def test_two_broadcasts_at_a_time_do_not_mix() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    here.send(Control(HERE, "c1", Abort(A)))
    there.send(Control(THERE, "c1", Abort(RequestId("b"))))
    bench.turn()
    first, second = heard(here)
    assert heard(there) == [first, second]
    assert isinstance(first, Notice)
    assert isinstance(second, Notice)
    assert (first.call, second.call) == (Abort(A), Abort(RequestId("b")))
    here.send(Noted(HERE, second.call_id, 1))
    here.send(Noted(HERE, first.call_id, 2))
    there.send(Noted(THERE, first.call_id, 4))
    bench.turn()
    assert done_of(heard(here)).count == 6
    assert heard(there) == []
    there.send(Noted(THERE, second.call_id, 8))
    bench.turn()
    assert done_of(heard(there)).count == 9
    assert heard(here) == []


def test_a_caller_that_dies_leaves_nothing_behind() -> None:
    bench = Bench()
    workers = begin(bench)
    answer(workers[1], FOUR[1])
    workers[0].send(Goodbye(FOUR[0]))
    bench.turn()
    for i in (2, 3):
        answer(workers[i], FOUR[i])
    bench.turn()
    assert [heard(worker) for worker in workers[1:]] == [[], [], []]
    assert bench.loop._desk.next_deadline_s() == math.inf


def test_a_worker_that_never_answers_is_given_up_after_half_a_minute() -> None:
    bench = Bench()
    here, _there = bench.connect(HERE), bench.connect(THERE)
    here.send(Control(HERE, "c1", Abort(A)))
    bench.turn()
    answer(here, HERE)
    bench.clock.advance(29.9)
    bench.turn()
    assert heard(here) == []
    assert bench.loop._idle_s() == pytest.approx(0.1)
    bench.clock.advance(0.2)
    bench.turn()
    words = "1 HTTP workers did not confirm it in time."
    assert done_of(heard(here)) == refused("c1", words, "deadline", 504)


# ---- log level


def test_a_log_level_reaches_this_process_every_worker_and_those_that_come() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    messages = bench.call(here, SetLogLevel("debug"))
    assert bench.levels == ["debug"]
    assert notice_of(messages).call == SetLogLevel("debug")
    here.send(Noted(HERE, notice_of(messages).call_id, 0))
    answer(there, THERE)
    bench.turn()
    assert done_of(heard(here)) == ControlDone("c1", is_ok=True)
    third = bench.corridor.connect(Origin(2, 1))
    third.send(Hello(Origin(2, 1)))
    bench.turn()
    assert heard(third) == [Welcome(1, FACTS, "debug")]


# ---- flush


def test_a_flush_with_nothing_live_is_done_at_once() -> None:
    bench = Bench()
    done = done_of(bench.call(bench.connect(), FlushCache(0.0)))
    assert done == ControlDone("c1", is_ok=True, message="0 tokens were forgotten.")


def test_a_flush_that_waits_for_nothing_leaves_those_alone_who_run() -> None:
    bench = Bench()
    here = bench.connect()
    here.send(request("a", 40, sampling(3)))
    bench.turn()
    # Its two full pages are in use, and are found by nobody from now on.
    (flushed,) = (m for m in bench.call(here, FlushCache()) if isinstance(m, ControlDone))
    assert flushed == ControlDone("c1", is_ok=True, message="0 tokens were forgotten.")
    here.send(request("b", 40, sampling(1)))
    for _ in range(4):
        bench.turn()
    messages = heard(here)
    assert outcome_of(messages, "a") is Outcome.LENGTH
    assert ending_of(messages, "b").usage.num_cached_tokens == 0


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.nan])
def test_a_flush_that_may_not_wait_is_refused_while_requests_live(timeout_s: float) -> None:
    bench = Bench(max_running=1)
    here = bench.connect()
    for rid in "ab":
        here.send(request(rid, 3, sampling(50)))
    bench.turn()
    here.send(Control(HERE, "c1", FlushCache(timeout_s)))
    bench.turn()
    (done,) = (m for m in heard(here) if isinstance(m, ControlDone))
    words = "Requests are running (1) or waiting (1); the cache can be flushed when none is."
    assert done == refused("c1", words, "invalid_request", 400)


def test_a_flush_waits_until_the_last_request_has_ended() -> None:
    bench = Bench()
    here = bench.connect()
    here.send(request("a", 3, sampling(3)))
    here.send(Control(HERE, "c1", FlushCache(5.0)))
    bench.turn()
    bench.turn()
    assert not any(isinstance(m, ControlDone) for m in heard(here))
    bench.turn()
    messages = heard(here)
    assert outcome_of(messages, "a") is Outcome.LENGTH
    assert done_of(messages).is_ok


def test_a_flush_ends_with_the_cancel_that_leaves_nothing() -> None:
    bench = Bench()
    here = bench.connect()
    here.send(request("a", 3, sampling(50)))
    here.send(Control(HERE, "c1", FlushCache(5.0)))
    bench.turn()
    here.send(Cancel(HERE, serial_of("a"), is_disconnect=True))
    bench.turn()
    assert done_of(heard(here)).is_ok


def test_a_flush_gives_up_at_its_time_also_when_nothing_else_happens() -> None:
    bench = Bench()
    here = bench.connect()
    bench.call(here, Pause("in_place"))
    here.send(request("a", 3, sampling(50)))
    here.send(Control(HERE, "c1", FlushCache(0.125)))
    bench.turn()
    here.receive()
    assert bench.loop._idle_s() == 0.125
    bench.clock.advance(0.125)
    bench.turn()
    assert not done_of(heard(here)).is_ok
    assert bench.loop._idle_s() == 0.375


def test_a_second_flush_is_refused_while_one_waits_and_not_after() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    here.send(request("a", 3, sampling(50)))
    here.send(Control(HERE, "c1", FlushCache(5.0)))
    bench.turn()
    words = "Another flush is waiting until no request is running."
    done = done_of(bench.call(there, FlushCache(5.0), origin=THERE))
    assert done == refused("c1", words, "invalid_request", 400)
    # The first one's caller dies, and so does its request.
    there.send(Goodbye(HERE))
    bench.turn()
    assert heard(there) == []
    assert done_of(bench.call(there, FlushCache(5.0), origin=THERE)).is_ok


# ---- pause


def paused(mode: PauseMode) -> tuple[Bench, WorkerSide, list[ToWorker]]:
    """One request runs, one waits, then comes the pause → what is heard of it."""
    bench = Bench(max_running=1)
    here = bench.connect()
    for rid in "ab":
        here.send(request(rid, 3, sampling(3)))
    bench.turn()
    here.receive()
    return bench, here, bench.call(here, Pause(mode))


def test_a_pause_in_place_keeps_what_runs_and_resume_goes_on() -> None:
    bench, here, messages = paused("in_place")
    assert messages == [ControlDone("c1", is_ok=True)]
    load = bench.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_used_pages) == (1, 1, 1)
    here.send(request("late", 3, sampling(1)))
    assert not bench.turn()
    assert said(heard(here), "late") == [Accepted()]
    done, *messages = bench.call(here, Resume())
    assert done == ControlDone("c1", is_ok=True)
    while bench.turn():
        pass
    messages += heard(here)
    assert {outcome_of(messages, rid) for rid in ("a", "b", "late")} == {Outcome.LENGTH}


def test_a_pause_that_retracts_gives_the_memory_back_and_resume_goes_on() -> None:
    bench, here, messages = paused("retract")
    assert messages == [ControlDone("c1", is_ok=True, count=1)]
    load = bench.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_used_pages) == (0, 2, 0)
    assert not bench.turn()
    messages = bench.call(here, Resume())
    while bench.turn():
        pass
    messages += heard(here)
    ending = ending_of(messages, "a")
    assert (ending.outcome, ending.usage.num_completion_tokens) == (Outcome.LENGTH, 3)
    assert ending.usage.num_retractions == 1
    assert [type(event) for event in said(messages, "a")[:1]] == [Delta]
    assert outcome_of(messages, "b") is Outcome.LENGTH


def test_a_pause_that_aborts_ends_all_everywhere_and_what_comes_waits() -> None:
    bench, here, messages = paused("abort")
    assert {outcome_of(messages, rid) for rid in "ab"} == {Outcome.CLIENT_CANCELLED}
    notice = notice_of(messages)
    assert notice.call == Abort(None)
    here.send(Noted(HERE, notice.call_id, 1))
    here.send(request("late", 3, sampling(1)))
    assert not bench.turn()
    messages = heard(here)
    assert done_of(messages).count == 3
    assert said(messages, "late") == [Accepted()]
    messages = bench.call(here, Resume())
    assert [type(event) for event in said(messages, "late")][:1] == [Started]
    assert outcome_of(messages, "late") is Outcome.LENGTH


def test_to_resume_what_is_not_paused_is_harmless() -> None:
    bench = Bench()
    assert done_of(bench.call(bench.connect(), Resume())).is_ok


# ---- sessions


def test_a_session_is_opened_listed_and_closed() -> None:
    bench = Bench()
    here = bench.connect()
    assert bench.call(here, OpenSession("s")) == [ControlDone("c1", is_ok=True)]
    (done,) = bench.call(here, ListSessions())
    assert isinstance(done, ControlDone)
    assert [one["id"] for one in json.loads(done.result)] == ["s"]
    assert bench.call(here, CloseSession("s")) == [ControlDone("c1", is_ok=True)]
    (done,) = bench.call(here, ListSessions())
    assert isinstance(done, ControlDone)
    assert json.loads(done.result) == []


def test_what_a_session_call_may_not_do_is_told_to_its_caller() -> None:
    bench = Bench()
    here = bench.connect()
    words = "Invalid request: session id s does not exist"
    assert bench.call(here, CloseSession("s")) == [refused("c1", words, "invalid_request", 400)]
    bench.call(here, OpenSession("s"))
    (done,) = bench.call(here, OpenSession("s"))
    assert isinstance(done, ControlDone)
    assert not done.is_ok
    assert done.message.startswith("Failed to open the session.")


def test_a_close_refuses_turns_that_wait_at_their_own_worker() -> None:
    bench = Bench(max_running=1)
    here, there = bench.connect(HERE), bench.connect(THERE)
    bench.call(here, OpenSession("s"))
    here.send(request("one", 3, sampling(2), turn=SessionTurn("s")))
    bench.turn()
    turn = SessionTurn("s", parent=RequestId("one"))
    there.send(request("two", 3, sampling(2), origin=THERE, turn=turn))
    there.send(Control(THERE, "c1", CloseSession("s")))
    bench.turn()
    messages = heard(there)
    ending = ending_of(messages, "two")
    assert ending.outcome is Outcome.INVALID_REQUEST
    assert ending.message == "Invalid request: close was requested for session s"
    (done,) = (m for m in messages if isinstance(m, ControlDone))
    assert done == ControlDone("c1", is_ok=True, count=1)
    while bench.turn():
        pass
    assert outcome_of(heard(here), "one") is Outcome.LENGTH


def test_a_death_that_ends_a_turn_held_for_it_is_told_to_its_worker_in_the_same_turn() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    bench.call(here, OpenSession("s"))
    there.send(request("one", 3, sampling(50), origin=THERE, turn=SessionTurn("s")))
    bench.turn()
    here.send(request("two", turn=SessionTurn("s", parent=RequestId("one"))))
    bench.turn()
    here.receive()
    there.close()
    bench.clock.advance(1.0)
    bench.turn()
    assert outcome_of(heard(here), "two") is Outcome.INVALID_REQUEST


# ---- the end


def test_whoever_waits_for_an_answer_gets_one_when_the_engine_stops() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    here.send(request("a", 3, sampling(50)))
    here.send(Control(HERE, "c1", Abort(RequestId("b"))))
    there.send(Control(THERE, "c2", FlushCache(5.0)))
    bench.turn()
    bench.loop.close()
    words = "The engine stopped before this was done."
    messages = heard(here)
    assert outcome_of(messages, "a") is Outcome.SHUTTING_DOWN
    assert done_of(messages) == refused("c1", words, "shutting_down", 503)
    assert done_of(heard(there)) == refused("c2", words, "shutting_down", 503)
