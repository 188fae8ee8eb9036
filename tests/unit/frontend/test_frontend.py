"""The frontend over the real engine loop: what is asked is answered once, whatever happens."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import ParamSpec

import pytest
from tests.sim.fake_runner import alone, letters
from tests.sim.requests import sampling
from tests.unit.frontend.house import house, text_of, tokens_of

from roost.core.calls import CloseSession, FlushCache, ListSessions, OpenSession, SetLogLevel
from roost.core.errors import (
    DeadlinePassed,
    DuplicateRequest,
    EngineFault,
    PromptTooLong,
    QueueFull,
    RequestError,
    ShuttingDown,
    TooManyTokens,
)
from roost.core.events import Accepted, Delta, Ended, Started
from roost.core.outcome import Outcome
from roost.core.params import SamplingParams
from roost.core.request import LogprobsWanted, Origin, RequestId
from roost.frontend import (
    Ask,
    ChatPrompt,
    FrontendSettings,
    Piece,
    Prompt,
    SessionWish,
    TextPrompt,
    TokenPrompt,
    Wish,
    refusal_of,
)
from roost.frontend.intake import Intake, Prepared
from roost.frontend.naming import AnswerName
from roost.wire.messages import Heartbeat, Load, Output, Outputs

P = ParamSpec("P")
HELLO = TextPrompt("hello")
HELLO_IDS = (7, 4, 11, 11, 14)


def runs(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test to its end."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(30):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


def params(num: int = 6, **more: object) -> SamplingParams:
    return SamplingParams(**({"max_new_tokens": num, "ignore_eos": True, "seed": 1} | more))  # type: ignore[arg-type]


def ending(pieces: list[Piece], index: int = 0) -> Outcome:
    endings = [p.ended for p in pieces if p.index == index and p.ended is not None]
    assert len(endings) == 1
    return endings[0].outcome


def expected(num: int, seed: int = 1, prompt: tuple[int, ...] = HELLO_IDS) -> list[int]:
    return alone(prompt, sampling(num, seed=seed))


def spelled(ids: list[int]) -> str:
    return b"".join(letters(i, True) for i in ids).decode()


@runs
async def test_an_answer_comes_token_by_token_and_ends_once() -> None:
    async with house() as it, it.front() as front:
        pieces = await it.ask(front, Ask.one(HELLO, params()))
        assert tokens_of(pieces) == expected(6)
        assert text_of(pieces) == spelled(expected(6))
        assert ending(pieces) is Outcome.LENGTH
        assert len(pieces) == 6
        assert [p.num_tokens for p in pieces] == [1, 2, 3, 4, 5, 6]
        assert pieces[-1].ended is not None
        assert pieces[-1].ended.usage.num_prompt_tokens == 5
        assert pieces[-1].ended.usage.num_completion_tokens == 6
        assert pieces[0].first_token_s == it.clock.now_s()


@runs
async def test_the_head_says_what_was_asked() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params(), rid="mine"))
        (head,) = answers.heads
        assert (head.rid, head.seed, head.prompt_ids) == ("mine", 1, HELLO_IDS)
        assert (head.prompt_text, head.max_new_tokens, head.num_prompt_tokens) == ("hello", 6, 5)
        await it.pieces(answers)


@runs
async def test_messages_are_rendered_by_the_template() -> None:
    async with house() as it, it.front() as front:
        chat = ChatPrompt(({"role": "user", "content": "hi"},))
        answers = await it.submit(front, Ask.one(chat, params()))
        assert answers.heads[0].prompt_text == "uhia"
        assert await front.text.render(chat) == ("uhia", [20, 7, 8, 0])
        await it.pieces(answers)


@runs
async def test_a_drawn_seed_gives_the_same_answer_again() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params(seed=None)))
        seed = answers.heads[0].seed
        assert 0 <= seed < 2**53
        first = await it.pieces(answers)
        again = await it.ask(front, Ask.one(HELLO, params(seed=seed)))
        assert tokens_of(first) == tokens_of(again)


@runs
async def test_n_answers_draw_with_seeds_of_their_own_and_end_each_once() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params(n=3), rid="g"))
        assert [h.rid for h in answers.heads] == ["g_0", "g_1", "g_2"]
        assert [h.seed for h in answers.heads] == [1, 2, 3]
        pieces = await it.pieces(answers)
        for index in range(3):
            assert tokens_of(pieces, index) == expected(6, seed=1 + index)
            assert ending(pieces, index) is Outcome.LENGTH


@runs
async def test_a_list_is_numbered_prompt_by_prompt() -> None:
    async with house() as it, it.front() as front:
        wishes = (
            Wish(TokenPrompt((1,)), params(3, n=2)),
            Wish(TokenPrompt((2,)), params(2)),
        )
        answers = await it.submit(front, Ask(wishes, rid="r"))
        assert [(h.rid, h.prompt_index) for h in answers.heads] == [
            ("r_0", 0),
            ("r_1", 0),
            ("r_2", 1),
        ]
        pieces = await it.pieces(answers)
        assert tokens_of(pieces, 1) == expected(3, seed=2, prompt=(1,))
        assert tokens_of(pieces, 2) == expected(2, prompt=(2,))


@runs
async def test_a_slow_reader_gets_larger_pieces_of_the_same_text() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params(20)))
        await it.step(5)
        first = await anext(answers)
        assert len(first.token_ids) == 5
        await it.step(30)
        rest = await it.pieces(answers)
        assert len(rest) == 1
        assert tokens_of([first, *rest]) == expected(20)


@runs
async def test_a_stop_string_is_cut_off_and_no_part_of_it_is_shown() -> None:
    full = spelled(expected(20))
    stop = full[8:11]
    async with house() as it, it.front() as front:
        pieces = await it.ask(front, Ask.one(HELLO, params(20, stop=[stop])))
        assert text_of(pieces) == full[: full.index(stop)]
        assert ending(pieces) is Outcome.STOP
        assert pieces[-1].ended is not None
        assert pieces[-1].ended.matched == stop
        kept = await it.ask(front, Ask.one(HELLO, params(20, stop=[stop], no_stop_trim=True)))
        assert text_of(kept) == full[: full.index(stop) + 3]


@runs
async def test_a_stop_token_with_text_is_cut_off_also_for_a_slow_reader() -> None:
    ids = expected(20)
    stop_id = ids[6]
    cut = spelled(ids[: ids.index(stop_id)])
    async with house() as it, it.front() as front:
        ask = Ask.one(HELLO, params(20, stop_token_ids=[stop_id]))
        assert text_of(await it.ask(front, ask)) == cut
        answers = await it.submit(front, ask)
        await it.step(30)
        slow = await it.pieces(answers)
        assert (len(slow), text_of(slow)) == (1, cut)
        assert slow[0].token_ids[-1] == stop_id


@runs
async def test_logprobs_come_with_their_tokens() -> None:
    async with house() as it, it.front() as front:
        wanted = LogprobsWanted(chosen=True, prompt_from=0)
        pieces = await it.ask(front, Ask.one(HELLO, params(4), logprobs=wanted))
        assert [x.token_id for p in pieces for x in p.logprobs] == expected(4)
        assert [x.token_id for x in pieces[0].prompt_logprobs] == list(HELLO_IDS)
        assert all(p.prompt_logprobs == () for p in pieces[1:])


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (Ask.one(TextPrompt(""), params()), RequestError, "prompt is empty"),
        (Ask.one(TokenPrompt(()), params()), RequestError, "prompt is empty"),
        (Ask(()), RequestError, "list of prompts is empty"),
        (Ask.one(TokenPrompt((3, 26)), params()), RequestError, "got 26 at position 1"),
        (Ask.one(TokenPrompt((-1,)), params()), RequestError, "got -1 at position 0"),
        (Ask.one(TokenPrompt((1,) * 257), params()), PromptTooLong, "257 tokens"),
        (Ask.one(TokenPrompt((1,) * 250), params(7)), TooManyTokens, "total of 257 tokens"),
        (Ask.one(HELLO, params(n=0)), RequestError, "n must be in"),
        (Ask.one(HELLO, params(n=129)), RequestError, "n must be in"),
        (Ask.one(HELLO, params(temperature=-1.0)), RequestError, "temperature must be"),
        (Ask.one(HELLO, params(stop_regex="(")), RequestError, "stop_regex"),
        (Ask.one(HELLO, params(), rid=""), RequestError, "rid must have"),
        (Ask.one(HELLO, params(), rid="HEALTH_CHECK_x"), RequestError, "must not begin"),
        (Ask.one(TextPrompt("Z"), params()), RequestError, "letters only"),
        (Ask((Wish(HELLO),), timeout_s=0.0), RequestError, "timeout must be over 0"),
        (Ask((Wish(HELLO),), timeout_s=float("nan")), RequestError, "timeout must be over 0"),
        (
            Ask((Wish(HELLO, rid="a"), Wish(HELLO, rid="a"))),
            RequestError,
            "rids of one call must differ",
        ),
        (
            Ask.one(HELLO, params(), logprobs=LogprobsWanted(top=129)),
            RequestError,
            "top_logprobs must be",
        ),
        (
            Ask.one(HELLO, params(), logprobs=LogprobsWanted(prompt_from=5)),
            RequestError,
            "logprob_start_len must be",
        ),
        (
            Ask((Wish(HELLO, params()), Wish(TextPrompt(""), params()))),
            RequestError,
            "prompt is empty",
        ),
    ],
)
@runs
async def test_what_cannot_be_served_raises_before_anything_runs(
    ask: Ask, error: type[RequestError], message: str
) -> None:
    async with house() as it, it.front() as front:
        with pytest.raises(error, match=message):
            await it.submit(front, ask)
        assert front.live == ()
        assert it.runner.plans == []
        metrics = front.metrics().decode()
        # One ending for each request that it would have been; one, where that is not known.
        num = 2 if len(ask.wishes) == 2 and "differ" not in message else 1
        assert f'roost_requests_total{{outcome="invalid_request"}} {num}.0' in metrics


@runs
async def test_clamping_cuts_an_answer_to_what_fits() -> None:
    async with house() as it, it.front() as front:
        wish = Wish(TokenPrompt((1,) * 250), params(100, min_new_tokens=90))
        answers = await it.submit(front, Ask((wish,), overflow="clamp"))
        assert answers.heads[0].max_new_tokens == 6
        assert ending(await it.pieces(answers)) is Outcome.LENGTH
        full = Wish(TokenPrompt((1,) * 256), params(100))
        with pytest.raises(PromptTooLong):
            await it.submit(front, Ask((full,), overflow="clamp"))


@runs
async def test_a_pool_smaller_than_the_context_is_the_limit() -> None:
    async with house(num_pages=2) as it, it.front() as front:
        with pytest.raises(TooManyTokens, match="context length of 32 tokens"):
            await it.submit(front, Ask.one(HELLO, params(28)))
        pieces = await it.ask(front, Ask.one(HELLO, params(27)))
        assert tokens_of(pieces) == expected(27)


@runs
async def test_a_duplicate_rid_is_refused_and_the_first_goes_on() -> None:
    async with house() as it, it.front() as front, it.front() as other:
        first = await it.submit(front, Ask.one(HELLO, params(), rid="x"))
        for who in (front, other):  # known here, and known to the engine only
            with pytest.raises(DuplicateRequest, match="Duplicate request ID detected: x"):
                await it.submit(who, Ask.one(HELLO, params(), rid="x"))
        assert tokens_of(await it.pieces(first)) == expected(6)


@runs
async def test_a_list_is_served_all_or_none() -> None:
    async with house() as it, it.front() as front:
        first = await it.submit(front, Ask.one(HELLO, params(), rid="r_2"))
        with pytest.raises(DuplicateRequest, match="r_2"):
            await it.submit(front, Ask((Wish(HELLO, params()),) * 4, rid="r"))
        assert front.live == ("r_2",)
        await it.pieces(first)


@runs
async def test_a_full_queue_refuses_before_the_first_byte() -> None:
    async with house(max_queued=1) as it, it.front() as front:
        with pytest.raises(QueueFull, match=r"The request queue is full\.") as caught:
            await it.submit(front, Ask.one(HELLO, params(n=3)))
        assert caught.value.http_status == 503
        assert front.live == ()


@runs
async def test_a_reader_who_leaves_frees_everything_at_once() -> None:
    async with house() as it, it.front() as front:
        answers = await it.submit(front, Ask.one(HELLO, params(50, n=2)))
        await it.step(3)
        await answers.aclose()
        await answers.aclose()
        assert front.live == ()
        await it.step(1)
        assert it.scheduler.load().num_running == 0
        with pytest.raises(StopAsyncIteration):
            await anext(answers)


@runs
async def test_a_caller_who_is_cancelled_while_waiting_leaves_nothing() -> None:
    async with house() as it, it.front() as front:
        submitting = asyncio.create_task(front.submit(Ask.one(HELLO, params())))
        await asyncio.sleep(0)
        assert [len(front.live)] == [1]
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        assert front.live == ()
        await it.step(2)
        assert it.scheduler.load().num_waiting == 0


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


# ---- sessions


def turn(
    prompt: Prompt, rid: str, parent: str | None, *, num: int = 6, overflow: bool = False
) -> Ask:
    return Ask(
        (Wish(prompt, params(num)),),
        rid=rid,
        session=SessionWish("s", parent),
        overflow="clamp" if overflow else "refuse",
    )


@runs
async def test_a_turn_goes_on_from_an_earlier_one() -> None:
    async with house() as it, it.front() as front:
        await it.settled(front.call(OpenSession("s")))
        first = await it.ask(front, turn(HELLO, "1", None))
        assert (tokens_of(first), first[0].prompt_ids) == (expected(6), HELLO_IDS)
        answers = await it.submit(front, turn(TokenPrompt((1, 2)), "2", "1"))
        assert answers.heads[0].prompt_ids == (1, 2)
        second = await it.pieces(answers)
        whole = (*HELLO_IDS, *expected(6), 1, 2)
        assert second[0].prompt_ids == whole
        assert [p.prompt_ids for p in second[1:]] == [None] * (len(second) - 1)
        assert tokens_of(second) == expected(6, prompt=whole)
        assert second[-1].ended is not None
        assert second[-1].ended.usage.num_prompt_tokens == len(whole)


@runs
async def test_a_chat_goes_on_with_what_the_template_puts_behind_an_answer() -> None:
    async with house() as it, it.front() as front:
        await it.settled(front.call(OpenSession("s")))
        await it.ask(front, turn(ChatPrompt(({"role": "user", "content": "hi"},)), "1", None))
        more = ChatPrompt(({"role": "user", "content": "so"},))
        answers = await it.submit(front, turn(more, "2", "1"))
        assert answers.heads[0].prompt_text == "usoa"
        first = (20, 7, 8, 0)
        pieces = await it.pieces(answers)
        assert pieces[0].prompt_ids == (*first, *expected(6, prompt=first), 20, 18, 14, 0)


@runs
async def test_a_turn_is_checked_here_for_what_is_new_and_there_for_the_whole() -> None:
    async with house() as it, it.front() as front:
        await it.settled(front.call(OpenSession("s")))
        with pytest.raises(TooManyTokens, match="total of 257 tokens"):
            await it.submit(front, turn(HELLO, "0", None, num=252))
        await it.ask(front, turn(TokenPrompt((1,) * 100), "1", None, num=100))
        with pytest.raises(RequestError, match="total of 257 tokens") as caught:
            await it.submit(front, turn(TokenPrompt((1,)), "2", "1", num=56))
        assert (caught.value.code, caught.value.http_status) == (TooManyTokens.code, 400)
        clamped = await it.ask(front, turn(TokenPrompt((1,)), "2", "1", num=60, overflow=True))
        assert len(tokens_of(clamped)) == 55
        with pytest.raises(RequestError, match="Invalid request session id"):
            await it.submit(front, turn(HELLO, "3", "no such turn"))
        unknown = Ask((Wish(HELLO, params()),), session=SessionWish("t"))
        with pytest.raises(RequestError, match="session id t does not exist"):
            await it.submit(front, unknown)
        bad = Ask(
            (Wish(HELLO, params(), LogprobsWanted(prompt_from=-2)),), session=SessionWish("s")
        )
        with pytest.raises(RequestError, match="logprob_start_len must be at least -1, got -2"):
            await it.submit(front, bad)


@runs
async def test_each_answer_of_an_ask_is_a_turn_of_its_own() -> None:
    async with house() as it, it.front() as front:
        await it.settled(front.call(OpenSession("s")))
        ask = Ask((Wish(HELLO, params(n=2)),), rid="r", session=SessionWish("s"))
        await it.ask(front, ask)
        pieces = await it.ask(front, turn(TokenPrompt((3,)), "next", "r_1"))
        assert pieces[0].prompt_ids == (*HELLO_IDS, *expected(6, seed=2), 3)


# ---- the loop


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
