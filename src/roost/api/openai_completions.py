"""`/v1/completions`, the legacy route that evaluation harnesses live on."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.asking import Stream, ask_stream, ask_whole
from roost.api.body import read_body
from roost.api.completions_body import CompletionCall, parse_completion
from roost.api.endings import first_problem, is_answer, openai_finish, problem_of_ending
from roost.api.gather import Answer
from roost.api.logprobs import LegacyLogprobs, LegacyShape, joined
from roost.api.openai_usage import OpenAIUsage, openai_usage
from roost.api.problems import Dialect
from roost.api.service import Service, id_headers
from roost.api.sse import DONE, EventStream, frame
from roost.frontend import AnswerHead, Frontend, Piece


class Choice(msgspec.Struct, frozen=True):
    """Whole, or a chunk: `finish_reason` is null until the last chunk of its index."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: int | str | UnsetType | None = UNSET


class Completion(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: OpenAIUsage | UnsetType = UNSET
    object: Literal["text_completion"] = "text_completion"


@dataclass(slots=True)
class ChoiceWriter:
    """Makes the choices of one answer, the echoed prompt first."""

    call: CompletionCall
    frontend: Frontend
    _legacy: LegacyShape | None = field(init=False)
    _has_begun: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        num_top = self.call.num_top
        self._legacy = (
            None
            if num_top is None
            else LegacyShape(self.frontend.text.token_bytes, num_top=num_top)
        )

    def write(self, head: AnswerHead, piece: Piece) -> Choice | None:
        """The choice that says what `piece` adds; None: it adds nothing that can be seen."""
        text, logprobs = piece.text, None
        if self._legacy is not None:
            logprobs = self._legacy.tokens(())
            if self.call.has_echo and not self._has_begun:
                logprobs = self._legacy.prompt(piece.prompt_logprobs, self._prompt_text(head))
            logprobs = joined(logprobs, self._legacy.tokens(piece.logprobs))
        if self.call.has_echo and not self._has_begun:
            text = self._prompt_text(head) + text
        self._has_begun = True
        ended = piece.ended
        if not text and ended is None and not (logprobs and logprobs.tokens):
            return None
        return Choice(
            head.index,
            text,
            logprobs,
            openai_finish(ended),
            UNSET if ended is None else ended.matched,
        )

    def _prompt_text(self, head: AnswerHead) -> str:
        if head.prompt_text is not None:
            return head.prompt_text
        return self.frontend.text.decode(head.prompt_ids, skip_special=self.call.skips_special)


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """Makes the answer to one call, whole or in chunks."""

    call: CompletionCall
    model: str
    created: int
    frontend: Frontend

    def writer(self) -> ChoiceWriter:
        return ChoiceWriter(self.call, self.frontend)

    def whole(self, answers: Sequence[Answer]) -> Completion:
        choices = []
        for answer in answers:
            piece = Piece(
                answer.head.index,
                text=answer.text,
                token_ids=tuple(answer.token_ids),
                logprobs=tuple(answer.logprobs),
                prompt_logprobs=answer.prompt_logprobs,
                ended=answer.ended,
            )
            choice = self.writer().write(answer.head, piece)
            assert choice is not None, "an ending can be seen"
            choices.append(choice)
        return self.chunk(choices, openai_usage(answers))

    def chunk(self, choices: list[Choice], usage: OpenAIUsage | UnsetType = UNSET) -> Completion:
        return Completion(self.call.rid, self.created, self.model, choices, usage)


def routes(service: Service) -> list[Route]:
    """POST `/v1/completions`."""
    frontend = service.frontend

    async def completions(request: Request) -> Response:
        call = parse_completion(await read_body(request, service.config.server.max_request_bytes))
        model = service.served_name(call.model)
        shape = CompletionShape(call, model, int(service.clock.unix_s()), frontend)
        headers = id_headers(call.rid)
        if not call.is_stream:
            whole = await ask_whole(frontend, call.ask, request)
            problem = first_problem([a.ended for a in whole], Dialect.OPENAI)
            if problem is not None:
                return problem.response(Dialect.OPENAI)
            body = msgspec.json.encode(shape.whole(whole))
            return Response(body, headers=headers, media_type="application/json")
        stream = await ask_stream(frontend, call.ask, request, Dialect.OPENAI)
        if stream.refusal is not None:
            return problem_of_ending(stream.refusal, Dialect.OPENAI).response(Dialect.OPENAI)
        return EventStream(_frames(shape, stream), stream.answers, headers)

    return [Route("/v1/completions", completions, methods=["POST"])]


async def _frames(shape: CompletionShape, stream: Stream) -> AsyncIterator[bytes]:
    so_far = [Answer(head) for head in stream.answers.heads]
    writers = [shape.writer() for _ in so_far]
    async for piece in stream.pieces():
        answer = so_far[piece.index]
        answer.add(piece)
        if piece.ended is not None and not is_answer(piece.ended, Dialect.OPENAI):
            continue
        choice = writers[piece.index].write(answer.head, piece)
        if choice is not None:
            yield frame(shape.chunk([choice]))
    # The other answers of the call have come to their own ends first.
    problem = first_problem([answer.ended for answer in so_far], Dialect.OPENAI)
    if problem is not None:
        yield problem.frame(Dialect.OPENAI)
        return
    if shape.call.includes_usage:
        yield frame(shape.chunk([], openai_usage(so_far)))
    yield DONE
