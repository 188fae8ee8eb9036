"""`/generate`: SGLang's own way to ask."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.asking import ask_stream, ask_whole
from roost.api.body import read_body
from roost.api.endings import first_problem, is_answer, problem_of_ending
from roost.api.event_stream import EventStream
from roost.api.gather import Answer
from roost.api.native_answer import NativeShape
from roost.api.native_body import parse_generate
from roost.api.problems import Dialect
from roost.api.service import Service, id_headers
from roost.api.sse import DONE, frame
from roost.core.clock import Clock
from roost.frontend import AnswerHead, Piece


class NativeFrames:
    """The events of one call: each answer to its own end. [DONE] says that all are answers."""

    def __init__(self, shape: NativeShape, heads: Sequence[AnswerHead], clock: Clock) -> None:
        self._shape = shape
        self._so_far = [Answer(head) for head in heads]
        self._clock = clock
        self._are_good = True

    def part(self, piece: Piece) -> bytes:
        """The event of one piece."""
        answer = self._so_far[piece.index]
        answer.add(piece)
        now_s = self._clock.now_s()
        if piece.ended is not None and not is_answer(piece.ended, Dialect.NATIVE):
            self._are_good = False
            return frame(self._shape.failed(answer, piece, now_s))
        if piece.text or piece.token_ids or piece.ended:
            return frame(self._shape.part(answer, piece, now_s))
        return b""

    def end(self) -> bytes:
        """Nothing, unless all are answers."""
        return DONE if self._are_good else b""


def routes(service: Service) -> list[Route]:
    """POST and PUT `/generate`."""
    frontend = service.frontend

    async def generate(request: Request) -> Response:
        call = parse_generate(await read_body(request, service.config.server.max_request_bytes))
        shape = NativeShape(call, frontend.text.token_bytes, frontend.facts.weight_version)
        headers = id_headers(call.rid)
        if not call.is_stream:
            whole = await ask_whole(frontend, call.ask, request)
            return _whole(shape, whole, service.clock.now_s(), headers)
        stream = await ask_stream(frontend, call.ask, request, Dialect.NATIVE)
        if stream.refusal is not None:
            return problem_of_ending(stream.refusal, Dialect.NATIVE).response(Dialect.NATIVE)
        frames = NativeFrames(shape, stream.answers.heads, service.clock)
        return EventStream(stream, frames, headers)

    return [Route("/generate", generate, methods=["POST", "PUT"])]


def _whole(
    shape: NativeShape, whole: Sequence[Answer], now_s: float, headers: dict[str, str]
) -> Response:
    """One answer with its status, or a list in which each says how it ended, unless all failed."""
    if not any(_is_good(answer) for answer in whole):
        problem = first_problem([answer.ended for answer in whole], Dialect.NATIVE)
        assert problem is not None, "none of them is an answer"
        return problem.response(Dialect.NATIVE)
    if shape.call.is_list:
        body = msgspec.json.encode([shape.whole(answer, now_s) for answer in whole])
    else:
        (answer,) = whole
        body = msgspec.json.encode(shape.whole(answer, now_s))
    return Response(body, headers=headers, media_type="application/json")


def _is_good(answer: Answer) -> bool:
    assert answer.ended is not None, "an answer that was gathered has ended"
    return is_answer(answer.ended, Dialect.NATIVE)
