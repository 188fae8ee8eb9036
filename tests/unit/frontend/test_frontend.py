"""The frontend over the real engine loop: what is asked is answered once."""

import asyncio

import pytest
from tests.unit.frontend.asks import HELLO, HELLO_IDS, ending, expected, params, runs, spelled
from tests.unit.frontend.house import house, text_of, tokens_of

from roost.core.errors import (
    DuplicateRequest,
    PromptTooLong,
    QueueFull,
    RequestError,
    TooManyTokens,
)
from roost.core.outcome import Outcome
from roost.core.request import LogprobsWanted
from roost.frontend import (
    Ask,
    ChatPrompt,
    TextPrompt,
    TokenPrompt,
    Wish,
)


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
