"""Asking the frontend on behalf of a client that may leave: for whole answers, or for a stream."""

from dataclasses import dataclass, replace

from starlette.requests import Request

from roost.api.auth import tenant_of
from roost.api.endings import is_answer
from roost.api.gather import Answer, gather
from roost.api.problems import Dialect
from roost.api.sse import until_gone
from roost.core.events import Ended
from roost.frontend import Answers, Ask, Frontend, Piece
from roost.observe import trace_of


async def ask_whole(frontend: Frontend, ask: Ask, request: Request) -> list[Answer]:
    """Every answer of an ask, ended. Raises RequestError or ClientGone."""
    return await until_gone(_whole(frontend, _traced(ask, request)), request.receive)


async def _whole(frontend: Frontend, ask: Ask) -> list[Answer]:
    answers = await frontend.submit(ask)
    try:
        return await gather(answers)
    finally:
        await answers.aclose()


@dataclass(frozen=True, slots=True)
class Stream:
    """Answers and their first pieces, which are known before the response head is sent, so that a
    refusal has its status. `refusal`: none of the answers is one; how the first of them ended.
    """

    answers: Answers
    first: tuple[Piece, ...]
    refusal: Ended | None


async def ask_stream(frontend: Frontend, ask: Ask, request: Request, dialect: Dialect) -> Stream:
    """Submit, and wait until there is something to send. Raises RequestError or ClientGone."""
    return await until_gone(_stream(frontend, _traced(ask, request), dialect), request.receive)


async def _stream(frontend: Frontend, ask: Ask, dialect: Dialect) -> Stream:
    answers = await frontend.submit(ask)
    try:
        first = await _beginning(answers, dialect)
    except BaseException:
        await answers.aclose()
        raise
    failed = {p.index: p.ended for p in first if _is_failed(p, dialect)}
    refusal = failed[0] if len(failed) == len(answers.heads) else None
    if refusal is not None:
        await answers.aclose()
    return Stream(answers, first, refusal)


async def _beginning(answers: Answers, dialect: Dialect) -> tuple[Piece, ...]:
    """The pieces up to the first that is a part of an answer; or all: each answer failed."""
    pieces = []
    async for piece in answers:
        pieces.append(piece)
        if not _is_failed(piece, dialect):
            break
    return tuple(pieces)


def _is_failed(piece: Piece, dialect: Dialect) -> bool:
    return piece.ended is not None and not is_answer(piece.ended, dialect)


def _traced(ask: Ask, request: Request) -> Ask:
    """The ask with its caller, and the trace context that it brings, if any."""
    trace = trace_of(request.headers.get("traceparent"))
    return replace(ask, trace=trace, tenant=tenant_of(request.scope))
