"""From a checked call of OpenAI's to its response: what chat and completions have in common."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from roost.api.asking import ask_stream, ask_whole
from roost.api.endings import first_problem, problem_of_ending
from roost.api.event_stream import EventStream, Frames
from roost.api.gather import Answer
from roost.api.problems import Dialect, Problem
from roost.api.service import id_headers
from roost.api.sse import DONE, frame
from roost.frontend import AnswerHead, Ask, Frontend


class Call(Protocol):
    """A checked body."""

    @property
    def ask(self) -> Ask: ...

    @property
    def rid(self) -> str: ...

    @property
    def is_stream(self) -> bool: ...

    @property
    def includes_usage(self) -> bool: ...


class Shape(Protocol):
    """Makes the answers of one call."""

    @property
    def call(self) -> Call: ...

    def whole(self, answers: Sequence[Answer]) -> msgspec.Struct: ...

    def usage(self, answers: Sequence[Answer]) -> msgspec.Struct:
        """The one chunk without a choice."""
        ...


async def respond(
    frontend: Frontend,
    request: Request,
    shape: Shape,
    new_frames: Callable[[Sequence[AnswerHead]], Frames],
) -> Response:
    """Whole, or as a stream of what `new_frames` makes. Raises RequestError or ClientGone."""
    call = shape.call
    headers = id_headers(call.rid)
    if not call.is_stream:
        whole = await ask_whole(frontend, call.ask, request)
        problem = _problem(whole)
        if problem is not None:
            return problem.response(Dialect.OPENAI)
        body = msgspec.json.encode(shape.whole(whole))
        return Response(body, headers=headers, media_type="application/json")
    stream = await ask_stream(frontend, call.ask, request, Dialect.OPENAI)
    if stream.refusal is not None:
        return problem_of_ending(stream.refusal, Dialect.OPENAI).response(Dialect.OPENAI)
    return EventStream(stream, new_frames(stream.answers.heads), headers)


def last_events(shape: Shape, answers: Sequence[Answer]) -> bytes:
    """An error if an answer is none, or what there is to say behind all of them."""
    problem = _problem(answers)
    if problem is not None:
        return problem.frame(Dialect.OPENAI)
    return frame(shape.usage(answers)) + DONE if shape.call.includes_usage else DONE


def _problem(answers: Sequence[Answer]) -> Problem | None:
    return first_problem([answer.ended for answer in answers], Dialect.OPENAI)
