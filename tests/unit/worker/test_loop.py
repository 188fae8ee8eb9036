"""The engine's loop over memory channels, a fake runner and a clock that the test moves."""

import threading

import pytest
from tests.sim.fake_runner import FakeRunner, alone
from tests.sim.requests import request, sampling, serial_of
from tests.unit.worker.rig import FACTS, HERE, THERE, Bench, ending_of, heard, outcome_of, said

from roost.core.calls import Pause
from roost.core.events import Accepted, Delta, Ended, Started
from roost.core.outcome import Outcome
from roost.core.plan import BatchPlan, StepResult
from roost.core.request import Origin
from roost.wire.messages import (
    Audit,
    Audited,
    Cancel,
    Control,
    Goodbye,
    Heartbeat,
    Hello,
    Noted,
    Outputs,
    Welcome,
)


def test_hello_is_answered_with_the_facts_and_a_heartbeat() -> None:
    bench = Bench()
    worker = bench.corridor.connect(HERE)
    worker.send(Hello(HERE))
    assert not bench.turn()
    welcome, beat, *_ = worker.receive()
    assert welcome == Welcome(1, FACTS)
    assert isinstance(beat, Heartbeat)
    assert beat.load.num_kv_tokens == 1024


def test_a_request_is_accepted_before_its_step_and_then_runs_to_its_end() -> None:
    bench = Bench()
    worker = bench.connect()
    worker.send(request("a", 3, sampling(2)))
    assert bench.turn()
    first, second = worker.receive()
    assert said([first], "a") == [Accepted()]
    answer = alone((0, 1, 2), sampling(2))
    assert said([second], "a") == [Started(0), Delta(0, (answer[0],))]
    assert bench.turn()
    assert outcome_of(worker.receive(), "a") is Outcome.LENGTH
    assert not bench.turn()


def test_one_message_a_worker_a_step_and_only_its_own() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    for i in range(2):
        here.send(request(f"h{i}", 3, sampling(9)))
        there.send(request(f"t{i}", 3, sampling(9), origin=THERE))
    bench.turn()
    here.receive()
    there.receive()
    bench.turn()
    (one,), (other,) = here.receive(), there.receive()
    assert isinstance(one, Outputs)
    assert isinstance(other, Outputs)
    assert [output.rid for output in one.outputs] == ["h0", "h1"]
    assert [output.rid for output in other.outputs] == ["t0", "t1"]


def test_a_cancel_ends_the_one_request_that_it_names() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    here.send(request("a", 3, sampling(9), serial=1))
    here.send(request("b", 3, sampling(2), serial=2))
    there.send(request("c", 3, sampling(2), serial=1, origin=THERE))
    here.send(Cancel(HERE, 1, is_disconnect=False, message="enough"))
    while bench.turn():
        pass
    messages = here.receive()
    ending = ending_of(messages, "a")
    assert (ending.outcome, ending.message) == (Outcome.CLIENT_CANCELLED, "enough")
    assert outcome_of(messages, "b") is Outcome.LENGTH
    assert outcome_of(there.receive(), "c") is Outcome.LENGTH


def test_a_late_cancel_spares_the_next_request_of_that_rid() -> None:
    bench = Bench()
    here = bench.connect()
    here.send(request("a", 3, sampling(1), serial=1))
    assert bench.turn()
    here.receive()
    here.send(request("a", 3, sampling(1), serial=2))
    here.send(Cancel(HERE, 1, is_disconnect=True))
    assert bench.turn()
    outputs = [one for m in here.receive() if isinstance(m, Outputs) for one in m.outputs]
    assert [one.serial for one in outputs] == [2, 2, 2, 2]
    last = outputs[-1].event
    assert isinstance(last, Ended)
    assert last.outcome is Outcome.LENGTH


def test_a_client_that_leaves_takes_back_only_what_its_own_worker_asked_for() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    here.send(request("a", 3, sampling(2)))
    there.send(request("a", 3, sampling(2), origin=THERE))
    there.send(Cancel(THERE, serial_of("a"), is_disconnect=True))
    while bench.turn():
        pass
    assert outcome_of(here.receive(), "a") is Outcome.LENGTH
    assert outcome_of(there.receive(), "a") is Outcome.INVALID_REQUEST


def test_a_request_and_its_cancel_in_one_breath() -> None:
    bench = Bench()
    worker = bench.connect()
    worker.send(request("a"))
    worker.send(Cancel(HERE, serial_of("a"), is_disconnect=True))
    worker.send(Cancel(HERE, serial_of("never"), is_disconnect=True))
    assert not bench.turn()
    assert [type(event) for event in said(worker.receive(), "a")] == [Accepted, Ended]


def test_a_worker_that_is_gone_is_seen_once_and_its_requests_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    for i in range(3):
        there.send(request(f"t{i}", 3, sampling(50), origin=THERE))
    here.send(request("a", 3, sampling(3)))
    bench.turn()
    there.close()
    for _ in range(4):
        bench.turn()
    assert bench.scheduler.load().num_running == 0
    assert outcome_of(here.receive(), "a") is Outcome.LENGTH
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["HTTP worker 1 (life 1) is gone; its 3 requests are cancelled"]
    assert bench.loop._outbox.num_gone == 1


def test_goodbye_ends_what_that_life_asked_for() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    there.send(request("t", 3, sampling(50), origin=THERE))
    bench.turn()
    here.send(Goodbye(THERE))
    bench.turn()
    assert bench.scheduler.load().num_running == 0
    # Late words of the life that is over start nothing.
    there.send(request("late", 3, sampling(50), origin=THERE))
    assert not bench.turn()


def test_a_new_life_ends_the_old_one_and_serves() -> None:
    bench = Bench()
    old = bench.connect(Origin(0, 1))
    old.send(request("a", 3, sampling(50), origin=Origin(0, 1)))
    bench.turn()
    new = bench.corridor.connect(Origin(0, 2))
    new.send(Hello(Origin(0, 2)))
    bench.turn()
    assert bench.scheduler.load().num_running == 0
    new.receive()
    new.send(request("b", 3, sampling(1), origin=Origin(0, 2)))
    bench.turn()
    assert outcome_of(new.receive(), "b") is Outcome.LENGTH


def test_a_hello_is_answered_each_time_and_changes_nothing_else() -> None:
    bench = Bench()
    worker = bench.connect()
    worker.send(request("a", 3, sampling(2)))
    worker.send(Hello(HERE))
    worker.send(Hello(HERE))
    while bench.turn():
        pass
    messages = worker.receive()
    assert [m for m in messages if isinstance(m, Welcome)] == [Welcome(1, FACTS)] * 2
    assert outcome_of(messages, "a") is Outcome.LENGTH
    assert bench.loop._outbox.num_gone == 0


def test_a_late_hello_of_a_life_that_is_over_does_not_bring_it_back() -> None:
    bench = Bench()
    old, new = bench.connect(Origin(0, 1)), bench.connect(Origin(0, 2))
    new.send(request("b", 3, sampling(1), origin=Origin(0, 2)))
    old.send(Hello(Origin(0, 1)))
    assert bench.turn()
    assert old.receive() == []
    assert outcome_of(new.receive(), "b") is Outcome.LENGTH
    bench.clock.advance(1.0)
    bench.turn()
    assert [type(message) for message in new.receive()] == [Heartbeat]


def test_heartbeats_come_every_half_second_of_work_and_of_idling() -> None:
    bench = Bench()
    worker = bench.connect()
    for _ in range(10):
        bench.clock.advance(0.25)
        bench.turn()
    beats = [m for m in worker.receive() if isinstance(m, Heartbeat)]
    assert [beat.at_s for beat in beats] == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_an_idle_loop_sleeps_until_the_next_beat_or_deadline() -> None:
    bench = Bench(max_running=1)
    worker = bench.connect()
    assert bench.loop._idle_s() == 0.5
    bench.loop._desk.is_paused = True
    worker.send(request("a", deadline_s=0.125))
    bench.turn()
    assert bench.loop._idle_s() == 0.125
    bench.clock.advance(0.125)
    bench.turn()
    assert outcome_of(worker.receive(), "a") is Outcome.DEADLINE


def test_an_audit_names_what_the_engine_does_not_hold_behind_all_that_was_said() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    here.send(request("runs", 3, sampling(9), serial=1))
    here.send(request("ends", 3, sampling(1), serial=2))
    there.send(request("other", 3, sampling(9), serial=3, origin=THERE))
    bench.turn()
    here.receive()
    here.send(request("refused", (99,), serial=5))
    here.send(Audit(HERE, 7, (1, 2, 3, 4, 5)))
    bench.turn()
    outputs, audited, *_ = heard(here)
    assert outcome_of([outputs], "refused") is Outcome.INVALID_REQUEST
    assert audited == Audited(7, (2, 3, 4, 5))
    assert [m for m in there.receive() if isinstance(m, Audited)] == []


def test_a_worker_that_was_given_up_and_asks_is_taken_back() -> None:
    bench = Bench()
    here = bench.connect()
    here.send(request("a", 3, sampling(50), serial=1))
    bench.turn()
    bench.loop._part_with(HERE, 0.0)
    bench.turn()
    here.receive()
    here.send(request("deaf", serial=2))
    here.send(Audit(HERE, 1, (1, 2)))
    assert not bench.turn()
    assert heard(here) == [Welcome(1, FACTS), Audited(1, (1, 2))]
    here.send(request("b", 3, sampling(1), serial=3))
    assert bench.turn()
    assert outcome_of(here.receive(), "b") is Outcome.LENGTH


def test_words_of_a_life_that_is_over_do_nothing() -> None:
    bench = Bench()
    old, new = bench.connect(Origin(0, 1)), bench.connect(Origin(0, 2))
    old.send(request("a", origin=Origin(0, 1)))
    old.send(Cancel(Origin(0, 1), 1, is_disconnect=True))
    old.send(Control(Origin(0, 1), "c1", Pause("in_place")))
    old.send(Noted(Origin(0, 1), "1.1", 3))
    old.send(Audit(Origin(0, 1), 1, (1,)))
    old.send(Goodbye(Origin(0, 1)))
    assert not bench.turn()
    assert old.receive() == []
    new.send(request("b", 3, sampling(1), origin=Origin(0, 2)))
    assert bench.turn()
    assert outcome_of(new.receive(), "b") is Outcome.LENGTH


def test_a_step_that_raises_ends_those_in_it_and_the_engine_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    worker = bench.connect()
    worker.send(request("a", 3, sampling(3)))
    bench.runner.fail_next = True
    bench.turn()
    messages = worker.receive()
    assert outcome_of(messages, "a") is Outcome.ENGINE_FAULT
    assert ending_of(messages, "a").message == "The engine failed in a step: RuntimeError"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    worker.send(request("b", 3, sampling(1)))
    bench.turn()
    assert outcome_of(worker.receive(), "b") is Outcome.LENGTH


def test_closing_ends_what_is_left_and_gives_everything_back() -> None:
    bench = Bench(max_running=1)
    worker = bench.connect()
    for rid in "ab":
        worker.send(request(rid, 3, sampling(50)))
    bench.turn()
    bench.loop.close()
    messages = worker.receive()
    assert {outcome_of(messages, rid) for rid in "ab"} == {Outcome.SHUTTING_DOWN}
    assert bench.runner.is_closed


def test_run_serves_in_its_thread_until_it_is_stopped() -> None:
    bench = Bench()
    worker = bench.corridor.connect(HERE)
    worker.send(Hello(HERE))
    worker.send(request("a", 3, sampling(4)))
    thread = threading.Thread(target=bench.loop.run)
    thread.start()
    bench.loop.stop()
    worker.send(Goodbye(HERE))
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert bench.runner.is_closed


class BrokenRunner(FakeRunner):
    """Answers with the result of a plan that nobody made."""

    def execute(self, plan: BatchPlan) -> StepResult:
        result = super().execute(plan)
        return StepResult(result.number + 1, result.results)


def test_a_bug_of_the_engine_ends_everybody_as_its_fault_and_is_raised() -> None:
    bench = Bench(max_running=1)
    bench.loop._executor = broken = BrokenRunner(64)
    worker = bench.connect()
    for rid in "ab":
        worker.send(request(rid, 3, sampling(50)))
    with pytest.raises(AssertionError, match="plan 1, result 2"):
        bench.loop.run()
    messages = worker.receive()
    assert {outcome_of(messages, rid) for rid in "ab"} == {Outcome.ENGINE_FAULT}
    assert broken.is_closed
