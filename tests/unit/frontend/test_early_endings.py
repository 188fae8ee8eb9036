"""Whoever aborts, leaves or is late ends a request at once, also while it is tokenised."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.unit.frontend.asks import HELLO, ending, expected, params, runs
from tests.unit.frontend.house import house, tokens_of

from roost.core.errors import (
    DeadlinePassed,
)
from roost.core.events import Ended
from roost.core.outcome import Outcome
from roost.frontend import (
    Ask,
    Wish,
)
from roost.frontend.intake import Intake, Prepared
from roost.frontend.naming import AnswerName


@runs
async def test_abort_ends_one_with_what_it_had() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params(50), rid="x"))
        await it.step(4)
        assert (await it.settled(front.abort("x", "by order"))).count == 1
        pieces = await it.pieces(answers)
        assert ending(pieces) is Outcome.CLIENT_CANCELLED
        assert pieces[-1].ended is not None
        assert pieces[-1].ended.message == "by order"
        assert tokens_of(pieces) == expected(50)[: len(tokens_of(pieces))]
        assert len(tokens_of(pieces)) >= 4
        assert (await it.settled(front.abort("x"))).count == 0


@runs
async def test_abort_works_from_another_front_and_by_the_name_of_a_call() -> None:
    async with house() as it, it.front() as front, it.front() as other:
        one = await it.submit(front, Ask.one(HELLO, params(200), rid="one"))
        many = await it.submit(front, Ask.one(HELLO, params(200, n=2), rid="many"))
        alike = await it.submit(front, Ask.one(HELLO, params(8), rid="many_"))
        assert (await it.settled(other.abort("on"))).count == 0
        assert (await it.settled(other.abort("one"))).count == 1
        assert (await it.settled(other.abort("many"))).count == 2
        assert ending(await it.pieces(one)) is Outcome.CLIENT_CANCELLED
        pieces = await it.pieces(many)
        assert [ending(pieces, i) for i in (0, 1)] == [Outcome.CLIENT_CANCELLED] * 2
        assert ending(await it.pieces(alike)) is Outcome.LENGTH


class Latch:
    """Holds up whoever tokenises until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gate = threading.Event()
        prepare = Intake.prepare

        def held(intake: Intake, ask: Ask, names: tuple[AnswerName, ...]) -> list[Prepared]:
            assert self._gate.wait(30)
            return prepare(intake, ask, names)

        monkeypatch.setattr(Intake, "prepare", held)

    def let_go(self) -> None:
        self._gate.set()


@pytest.fixture
def latch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Latch]:
    """Tokenising takes as long as a test wants."""
    held = Latch(monkeypatch)
    yield held
    held.let_go()


@pytest.mark.parametrize("name", ["many", None])
def test_an_abort_does_not_wait_for_the_tokeniser(latch: Latch, name: str | None) -> None:
    @runs
    async def run() -> None:
        async with house() as it, it.front() as front, it.front() as other:
            submitting = asyncio.create_task(front.submit(Ask.one(HELLO, params(n=2), rid="many")))
            await asyncio.sleep(0)
            assert front.live == ("many_0", "many_1")
            assert (await it.settled(other.abort(name, "stop it"))).count == 2
            answers = await submitting
            pieces = [piece async for piece in answers]
            latch.let_go()
            assert [(p.index, p.text, p.token_ids) for p in pieces] == [(0, "", ()), (1, "", ())]
            for piece in pieces:
                assert piece.ended == Ended(Outcome.CLIENT_CANCELLED, message="stop it")
            assert [(h.rid, h.prompt_ids, h.seed) for h in answers.heads] == [
                ("many_0", (), 1),
                ("many_1", (), 1),
            ]
            assert it.runner.plans == []

    run()


def test_an_answer_that_is_aborted_early_leaves_the_others_to_run(latch: Latch) -> None:
    @runs
    async def run() -> None:
        async with house() as it, it.front() as front:
            submitting = asyncio.create_task(front.submit(Ask.one(HELLO, params(n=2), rid="many")))
            await asyncio.sleep(0)
            assert (await it.settled(front.abort("many_1"))).count == 1
            assert not submitting.done()
            latch.let_go()
            pieces = await it.pieces(await it.settled(submitting))
            assert ending(pieces, 1) is Outcome.CLIENT_CANCELLED
            assert (ending(pieces, 0), tokens_of(pieces, 0)) == (Outcome.LENGTH, expected(6))

    run()


def test_a_deadline_does_not_wait_for_the_tokeniser(latch: Latch) -> None:
    @runs
    async def run() -> None:
        async with house() as it, it.front() as front:
            submitting = asyncio.create_task(
                front.submit(Ask((Wish(HELLO, params(n=2)),), timeout_s=3.0))
            )
            await asyncio.sleep(0)
            it.clock.advance(3.1)
            await it.step()
            front._core.tick()
            with pytest.raises(DeadlinePassed, match="Request waiting timeout reached"):
                await submitting
            latch.let_go()
            assert front.live == ()
            assert 'roost_requests_total{outcome="deadline"} 2' in front.metrics().decode()

    run()


def test_a_client_that_leaves_while_its_prompt_is_tokenised_is_never_sent(latch: Latch) -> None:
    @runs
    async def run() -> None:
        async with house() as it, it.front() as front:
            submitting = asyncio.create_task(front.submit(Ask.one(HELLO, params(), rid="x")))
            await asyncio.sleep(0)
            submitting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await submitting
            latch.let_go()
            assert front.live == ()
            await it.step(5)
            assert it.runner.plans == []
            expected_line = 'roost_requests_total{outcome="client_disconnected"} 1'
            assert expected_line in front.metrics().decode()

    run()


@runs
async def test_abort_of_everything_ends_what_everybody_asked_for() -> None:
    async with house() as it, it.front() as front, it.front() as other:
        mine = await it.submit(front, Ask.one(HELLO, params(200)))
        theirs = await it.submit(other, Ask.one(HELLO, params(200)))
        assert (await it.settled(front.abort(None))).count == 2
        for answers in (mine, theirs):
            assert ending(await it.pieces(answers)) is Outcome.CLIENT_CANCELLED
