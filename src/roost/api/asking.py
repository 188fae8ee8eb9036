"""Asking the frontend on behalf of a client that may leave: for whole answers, or for a stream."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from starlette.requests import Request

from roost.api.gather import Answer, gather, is_answer
from roost.api.sse import until_gone
from roost.core.events import Ended
from roost.frontend import Answers, Ask, Frontend, Piece
from roost.observe import trace_of


async def ask_whole(frontend: Frontend, ask: Ask, request: Request) -> list[Answer]:
    """Every answer of an ask, ended. Raises RequestError or ClientGone."""
    answers = await until_gone(frontend.submit(_traced(ask, request)), request.receive)
    try:
        return await until_gone(gather(answers), request.receive)
    finally:
        await answers.aclose()


@dataclass(frozen=True, slots=True)
class Stream:
    """Answers and their first piece, which is known before the response head is sent, so that a
    refusal has its status. `refusal`: the first piece is an ending that is no answer.
    """

    answers: Answers
    first: Piece

    @property
    def refusal(self) -> Ended | None:
        ended = self.first.ended
        return None if ended is None or is_answer(ended) else ended

    async def pieces(self) -> AsyncIterator[Piece]:
        """All of them, the first one too."""
        yield self.first
        async for piece in self.answers:
            yield piece


async def ask_stream(frontend: Frontend, ask: Ask, request: Request) -> Stream:
    """Submit, and wait for the first piece. Raises RequestError or ClientGone."""
    answers = await until_gone(frontend.submit(_traced(ask, request)), request.receive)
    try:
        first = await until_gone(anext(answers), request.receive)
    except BaseException:
        await answers.aclose()
        raise
    stream = Stream(answers, first)
    if stream.refusal is not None:
        await answers.aclose()
    return stream


def _traced(ask: Ask, request: Request) -> Ask:
    """The ask with the caller's trace context, if it brings one."""
    return replace(ask, trace=trace_of(request.headers.get("traceparent")))
