"""A frontend in its process: calls on the server, health, its end, and what it logs."""

import asyncio
import logging

import pytest
from tests.unit.frontend.asks import HELLO, ending, expected, params, runs
from tests.unit.frontend.house import house, tokens_of

from roost.core.calls import CloseSession, FlushCache, ListSessions, OpenSession, SetLogLevel
from roost.core.clock import ManualClock
from roost.core.errors import (
    DeadlinePassed,
    EngineFault,
    QueueFull,
    RequestError,
    ShuttingDown,
)
from roost.core.events import Accepted, Delta, Started
from roost.core.outcome import Outcome
from roost.core.refusal import refusal_of
from roost.core.request import Origin, RequestId
from roost.frontend import (
    Ask,
    FrontendSettings,
    TextPrompt,
    Wish,
)
from roost.frontend.engine_view import EngineView
from roost.frontend.health import Health
from roost.wire.messages import Heartbeat, Load, Output, Outputs


@runs
async def test_calls_on_the_server_are_answered_by_id() -> None:
    levels: list[str] = []
    async with house() as it, it.front(on_log_level=levels.append) as front, it.front() as other:
        calls = [
            asyncio.create_task(front.call(call))
            for call in (OpenSession("s"), ListSessions(), SetLogLevel("warning"))
        ]
        other_call = asyncio.create_task(other.call(CloseSession("nobody's")))
        while not (other_call.done() and all(call.done() for call in calls)):
            await it.step()
        assert [(await call).is_ok for call in calls] == [True, True, True]
        assert '"s"' in (await calls[1]).result
        assert levels == ["warning"]
        with pytest.raises(RequestError, match="session id nobody's does not exist"):
            await other_call


@runs
async def test_a_call_that_nobody_answers_ends() -> None:
    async with house() as it, it.front(FrontendSettings(control_timeout_s=0.01)) as front:
        with pytest.raises(DeadlinePassed, match=r"did not answer ListSessions in 0\.01 s"):
            await front.call(ListSessions())
        with pytest.raises(DeadlinePassed, match=r"did not answer FlushCache in 0\.03 s"):
            await front.call(FlushCache(timeout_s=0.02))
        await it.step(3)  # their answers, which nobody wants any more
        front.engine_lost("The engine died.")
        with pytest.raises(EngineFault):
            await front.abort("x")


@runs
async def test_no_front_holds_more_than_the_engine_does() -> None:
    async with house(max_queued=1) as it, it.front() as front:
        held = await it.submit(front, Ask((Wish(HELLO, params(30), rid="a"),)))
        with pytest.raises(QueueFull, match=r"The request queue is full\."):
            await front.submit(Ask.one(HELLO, params(n=9)))  # 8 run and 1 waits, at most
        assert front.live == ("a",)
        assert 'roost_requests_total{outcome="queue_full"} 9' in front.metrics().decode()
        assert ending(await it.pieces(held)) is Outcome.LENGTH


@runs
async def test_a_large_batch_lets_the_loop_breathe_and_keeps_its_order() -> None:
    async with house() as it, it.front(FrontendSettings(notify_batch_size=10)) as front:
        answers = await it.submit(front, Ask.one(HELLO, params(50), rid="x"))
        outputs = [Output(RequestId("x"), 1, Started(0))]
        outputs += [Output(RequestId("x"), 1, Delta(i, (1,))) for i in range(34)]
        it.corridor.engine.send(Origin(0, 1), Outputs(tuple(outputs)))
        life = front._core.ledger.life(RequestId("x"))
        assert life is not None
        front._corridor.pump()
        seen: list[int] = []
        while not seen or seen[-1] < 34:
            seen.append(life.num_completion_tokens)
            await asyncio.sleep(0)
        assert seen == [9, 19, 29, 34]
        answers.close()


@runs
async def test_a_deadline_ends_a_request() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask((Wish(HELLO, params(50)),), timeout_s=5.0))
        await it.step(3)
        it.clock.advance(5.1)
        pieces = await it.pieces(answers)
        assert ending(pieces) is Outcome.DEADLINE
        ended = pieces[-1].ended
        assert ended is not None
        assert isinstance(refusal_of(ended), DeadlinePassed)


@runs
async def test_a_deadline_that_the_engine_forgets_is_kept_here() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask((Wish(HELLO, params(50)),), timeout_s=5.0))
        it.clock.advance(20.0)
        front._core.tick()
        piece = await anext(answers)
        assert piece.ended is not None
        assert piece.ended.outcome is Outcome.DEADLINE


@runs
async def test_a_step_that_fails_ends_its_requests_and_the_next_is_served() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params()))
        it.runner.fail_next = True
        assert ending(await it.pieces(answers)) is Outcome.ENGINE_FAULT
        assert ending(await it.ask(front, Ask.one(HELLO, params()))) is Outcome.LENGTH
        assert "roost_server_faults_total 1.0" in front.metrics().decode()


@runs
async def test_an_engine_that_is_lost_ends_everything_as_its_fault() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params()))
        front.engine_lost("The engine died.")
        assert not front.health.is_alive()
        piece = await anext(answers)
        assert piece.ended is not None
        assert piece.ended.outcome is Outcome.ENGINE_FAULT
        with pytest.raises(EngineFault):
            await front.submit(Ask.one(HELLO, params()))


@runs
async def test_what_ends_while_it_is_tokenised_is_heard_of() -> None:
    async with house() as it, it.front() as front:
        submitting = asyncio.create_task(front.submit(Ask.one(HELLO, params(), rid="a")))
        await asyncio.sleep(0)
        assert front.live == (RequestId("a"),)
        front.end_all(Outcome.SHUTTING_DOWN, "The server is shutting down.")
        # Its rid is free again, and what ends under it first has nothing to do with the second.
        second = await it.submit(front, Ask.one(HELLO, params(), rid="a"))
        with pytest.raises(ShuttingDown, match="The server is shutting down"):
            await submitting
        assert ending(await it.pieces(second)) is Outcome.LENGTH


@runs
async def test_alive_is_having_been_heard_of_late() -> None:
    async with house() as it, it.front(FrontendSettings(heartbeat_timeout_s=10.0)) as front:
        assert front.health.is_alive()
        assert front.health.is_ready()
        it.clock.advance(10.0)
        assert not front.health.is_alive()
        # An old beat that lay unread is no news; a new one is.
        it.corridor.engine.send(Origin(0, 1), Heartbeat(105.0, Load(num_running=1)))
        assert front.health.is_alive()
        assert front.load.num_running == 1
        it.clock.advance(6.0)
        assert not front.health.is_alive()
        await it.step()
        assert front.health.is_alive()


@runs
async def test_draining_refuses_new_asks_and_finishes_the_old() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params()))
        front.drain()
        assert not front.health.is_ready()
        with pytest.raises(ShuttingDown):
            await front.submit(Ask.one(HELLO, params()))
        assert not await front.wait_idle(0.0)
        assert ending(await it.pieces(answers)) is Outcome.LENGTH
        assert await front.wait_idle(0.0)


@runs
async def test_closing_ends_what_lives_as_shutting_down() -> None:
    async with house() as it:
        async with it.front() as front:
            answers = await it.submit(front, Ask.one(HELLO, params(50)))
            await it.step(2)
        pieces = [piece async for piece in answers]
        assert ending(pieces) is Outcome.SHUTTING_DOWN
        assert len(tokens_of(pieces)) == 2


@runs
async def test_the_health_check_generates_and_is_no_traffic() -> None:
    async with house(max_queued=1) as it, it.front() as front:
        queued = await it.submit(front, Ask.one(HELLO, params(3)))
        checks = [asyncio.create_task(front.health.generates(5.0)) for _ in range(5)]
        while not all(check.done() for check in checks):
            await it.step()
        assert [await check for check in checks] == [True] * 5
        assert ending(await it.pieces(queued)) is Outcome.LENGTH
        while front.live:  # the probes that others' tokens answered for end by themselves
            await it.step()
        metrics = front.metrics().decode()
        assert 'roost_requests_total{outcome="length"} 1.0' in metrics
        assert "roost_generation_tokens_total 3.0" in metrics


@runs
async def test_a_health_check_that_joins_one_behind_its_token_waits_for_another() -> None:
    goes_on, checks = asyncio.Event(), list[float]()

    async def generate(timeout_s: float) -> None:
        checks.append(timeout_s)
        if len(checks) == 1:
            await goes_on.wait()
        else:
            health.token_came()

    health = Health(
        EngineView(), ManualClock(), lambda: None, generate, is_taking=lambda: True, timeout_s=1.0
    )
    first = asyncio.create_task(health.generates(5.0))
    await asyncio.sleep(0)
    health.token_came()
    assert await first
    # The request of the first check has not ended, and no more tokens come of it.
    second = asyncio.create_task(health.generates(5.0))
    await asyncio.sleep(0)
    goes_on.set()
    assert await second
    assert len(checks) == 2


@runs
async def test_the_health_check_fails_when_no_token_comes() -> None:
    async with house() as it, it.front() as front:
        assert not await front.health.generates(0.02)
        del it


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.message for r in caplog.records if r.levelno >= level and r.name[:5] == "roost"]


@runs
async def test_late_output_is_said_once_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    async with house() as it, it.front() as front:
        for number in range(20):
            answers = await it.submit(front, Ask.one(HELLO, params(50), rid=str(number)))
            answers.close()
        # Tokens that were on their way, as when the engine is in the middle of a step.
        late = tuple(Output(RequestId(str(n)), n + 1, Delta(0, (1,))) for n in range(20))
        it.corridor.engine.send(Origin(0, 1), Outputs(late + late))
        await it.step()
        front._core.tick()
        front._core.tick()
        (line,) = (r for r in caplog.records if r.levelno == logging.WARNING)
        facts = line.__dict__
        assert (facts["cause"], facts["num_requests"], facts["num_outputs"]) == ("client", 20, 40)
        assert said(caplog, logging.ERROR) == []
        assert 'roost_late_outputs_total{cause="client"} 40.0' in front.metrics().decode()
        assert "roost_server_faults_total 0.0" in front.metrics().decode()


@runs
async def test_output_for_a_stranger_is_counted_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params()))
        stranger = Output(RequestId("never seen"), 99, Delta(0, (1,)))
        it.corridor.engine.send(Origin(0, 1), Outputs((stranger,)))
        assert tokens_of(await it.pieces(answers)) == expected(6)
        front._core.tick()
        assert said(caplog, logging.WARNING) == ["output came for requests that are not known here"]
        assert 'roost_late_outputs_total{cause="unknown"} 1.0' in front.metrics().decode()


@runs
async def test_an_event_that_the_table_forbids_ends_that_request_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with house() as it, it.front() as front:
        bad = await it.submit(front, Ask.one(HELLO, params(), rid="bad"))
        good = await it.submit(front, Ask.one(HELLO, params(), rid="good"))
        again = Output(RequestId("bad"), 1, Accepted())
        it.corridor.engine.send(Origin(0, 1), Outputs((again,)))
        assert ending(await it.pieces(bad)) is Outcome.ENGINE_FAULT
        assert tokens_of(await it.pieces(good)) == expected(6)
        assert "roost_protocol_violations_total 1.0" in front.metrics().decode()
        assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


@runs
async def test_each_ending_is_one_line_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with house() as it, it.front() as front:
        await it.ask(front, Ask.one(HELLO, params(), rid="fine"))
        (await it.submit(front, Ask.one(HELLO, params(), rid="gone"))).close()
        with pytest.raises(RequestError):
            await it.submit(front, Ask.one(TextPrompt(""), params(), rid="bad"))
        faulty = await it.submit(front, Ask.one(HELLO, params(), rid="faulty"))
        it.runner.faults.add("faulty")
        await it.pieces(faulty)
        lines = [r for r in caplog.records if r.name == "roost.requests"]
        shown = {r.__dict__["rid"]: (r.levelno, r.__dict__["outcome"]) for r in lines}
        assert shown == {
            "fine": (logging.INFO, "length"),
            "gone": (logging.INFO, "client_disconnected"),
            "bad": (logging.INFO, "invalid_request"),
            "faulty": (logging.ERROR, "engine_fault"),
        }
        assert len(lines) == 4
