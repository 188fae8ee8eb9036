"""Turns of a session: what is new is asked, and the whole is answered."""

import pytest
from tests.unit.frontend.asks import HELLO, HELLO_IDS, expected, params, runs
from tests.unit.frontend.house import house, tokens_of

from roost.core.calls import OpenSession
from roost.core.errors import (
    RequestError,
    TooManyTokens,
)
from roost.core.request import LogprobsWanted
from roost.frontend import (
    Ask,
    ChatPrompt,
    Prompt,
    SessionWish,
    TokenPrompt,
    Wish,
)


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
