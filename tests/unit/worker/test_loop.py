"""The engine's loop over memory channels, a fake runner and a clock that the test moves."""

import json
import threading

import pytest
from tests.sim.fake_runner import VOCAB_SIZE, FakeRunner, alone, letters
from tests.sim.requests import request, sampling

from roost.cache import PagePool
from roost.core.clock import ManualClock
from roost.core.events import Accepted, Delta, Ended, Started
from roost.core.outcome import Outcome
from roost.core.plan import BatchPlan, StepResult
from roost.core.request import Origin, RequestId
from roost.sched import SchedLimits, Scheduler
from roost.text import StopMatcher
from roost.wire import MemoryCorridor, WorkerSide
from roost.wire.messages import (
    Cancel,
    Control,
    ControlDone,
    Goodbye,
    Heartbeat,
    Hello,
    ModelFacts,
    Outputs,
    ToWorker,
    Welcome,
)
from roost.worker import EngineLoop

FACTS = ModelFacts("m.gguf", "llama", "llama", VOCAB_SIZE, 512, (25,), 1024, "bf16", "avx2", 2, "v")
HERE = Origin(0, 1)
THERE = Origin(1, 1)


class Bench:
    """An engine with as many workers as are connected to it."""

    def __init__(self, *, max_queued: int = 10, max_running: int = 4) -> None:
        self.corridor = MemoryCorridor()
        self.clock = ManualClock()
        self.runner = FakeRunner(64)
        limits = SchedLimits(VOCAB_SIZE, 512, max_running, max_queued, max_step_tokens=32)
        self.scheduler = Scheduler(PagePool(64), limits, letters, StopMatcher)
        self.loop = EngineLoop(
            self.corridor.engine, self.scheduler, self.runner, FACTS, clock=self.clock
        )

    def connect(self, origin: Origin = HERE) -> WorkerSide:
        worker = self.corridor.connect(origin)
        worker.send(Hello(origin))
        self.loop.step()
        worker.receive()
        return worker

    def turn(self) -> bool:
        did_compute = self.loop.step()
        self.scheduler.check()
        return did_compute


def said(messages: list[ToWorker], rid: str) -> list[object]:
    outputs = [m for m in messages if isinstance(m, Outputs)]
    return [one.event for m in outputs for one in m.outputs if one.rid == rid]


def outcome_of(messages: list[ToWorker], rid: str) -> Outcome:
    (ending,) = (event for event in said(messages, rid) if isinstance(event, Ended))
    return ending.outcome


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
    assert said([second], "a") == [Started(0), Delta((answer[0],))]
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


def test_a_cancel_from_another_worker_ends_at_the_owner() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    here.send(request("a", 3, sampling(9)))
    bench.turn()
    here.receive()
    there.send(Cancel(RequestId("a"), is_disconnect=False))
    assert not bench.turn()
    assert outcome_of(here.receive(), "a") is Outcome.CLIENT_CANCELLED
    assert there.receive() == []


def test_a_client_that_leaves_takes_back_only_what_its_own_worker_asked_for() -> None:
    bench = Bench()
    here, there = bench.connect(HERE), bench.connect(THERE)
    here.send(request("a", 3, sampling(2)))
    there.send(request("a", 3, sampling(2), origin=THERE))
    there.send(Cancel(RequestId("a"), is_disconnect=True, owner=THERE))
    while bench.turn():
        pass
    assert outcome_of(here.receive(), "a") is Outcome.LENGTH
    assert outcome_of(there.receive(), "a") is Outcome.INVALID_REQUEST


def test_a_request_and_its_cancel_in_one_breath() -> None:
    bench = Bench()
    worker = bench.connect()
    worker.send(request("a"))
    worker.send(Cancel(RequestId("a"), is_disconnect=True))
    worker.send(Cancel(RequestId("never"), is_disconnect=True))
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
    bench.loop._switch.is_paused = True
    worker.send(request("a", deadline_s=0.125))
    bench.turn()
    assert bench.loop._idle_s() == 0.125
    bench.clock.advance(0.125)
    bench.turn()
    assert outcome_of(worker.receive(), "a") is Outcome.DEADLINE


def control(worker: WorkerSide, bench: Bench, verb: str) -> tuple[ControlDone, list[ToWorker]]:
    worker.send(Control(HERE, f"call-{verb}", verb))
    bench.turn()
    messages = worker.receive()
    (done,) = (m for m in messages if isinstance(m, ControlDone))
    assert done.call_id == f"call-{verb}"
    return done, messages


def test_abort_all_ends_everything_before_it_answers() -> None:
    bench = Bench(max_running=1)
    worker = bench.connect()
    for rid in "ab":
        worker.send(request(rid, 3, sampling(50)))
    bench.turn()
    worker.receive()
    done, messages = control(worker, bench, "abort_all")
    assert (done.is_ok, done.message) == (True, "2 requests aborted")
    assert isinstance(messages[-1], ControlDone)
    assert {outcome_of(messages, rid) for rid in "ab"} == {Outcome.CLIENT_CANCELLED}


def test_a_paused_engine_accepts_and_computes_nothing_until_it_resumes() -> None:
    bench = Bench()
    worker = bench.connect()
    assert control(worker, bench, "pause")[0].is_ok
    worker.send(request("a", 3, sampling(1)))
    assert not bench.turn()
    assert said(worker.receive(), "a") == [Accepted()]
    assert control(worker, bench, "resume")[1][-1] is not None
    assert bench.scheduler.load().num_steps == 1


def test_load_is_told_as_json() -> None:
    bench = Bench()
    worker = bench.connect()
    worker.send(request("a", 20, sampling(9)))
    done, _ = control(worker, bench, "load")
    told = json.loads(done.message)
    assert (told["num_waiting"], told["num_running"], told["num_kv_tokens"]) == (1, 0, 1024)


def test_flushing_an_empty_cache_is_fine() -> None:
    bench = Bench()
    assert control(bench.connect(), bench, "flush_cache")[0].is_ok


def test_an_unknown_verb_is_answered_not_raised() -> None:
    bench = Bench()
    done, _ = control(bench.connect(), bench, "explode")
    assert (done.is_ok, done.message) == (False, "unknown verb 'explode'")


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
    (ending,) = (event for event in said(messages, "a") if isinstance(event, Ended))
    assert ending.message == "The engine failed in a step: RuntimeError"
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
