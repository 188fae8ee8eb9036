"""`/v1/completions`, the legacy route that evaluation harnesses live on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.body import read_body
from roost.api.completions_body import CompletionCall, parse_completion
from roost.api.endings import is_answer, openai_finish
from roost.api.gather import Answer
from roost.api.logprobs import LegacyLogprobs, LegacyShape, joined
from roost.api.openai_call import last_events, respond
from roost.api.openai_usage import OpenAIUsage, openai_usage
from roost.api.problems import Dialect
from roost.api.service import Service
from roost.api.sse import TextFrame, frame
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

    def usage(self, answers: Sequence[Answer]) -> Completion:
        """The one chunk without a choice."""
        return self.chunk([], openai_usage(answers))

    def chunk(self, choices: list[Choice], usage: OpenAIUsage | UnsetType = UNSET) -> Completion:
        return Completion(self.call.rid, self.created, self.model, choices, usage)


class CompletionFrames:
    """The events of one call."""

    def __init__(self, shape: CompletionShape, heads: Sequence[AnswerHead]) -> None:
        self._shape = shape
        self._so_far = [Answer(head) for head in heads]
        self._writers = [shape.writer() for _ in heads]
        # By index, once there is nothing to say of an answer but its text.
        self._texts: dict[int, TextFrame] = {}

    def part(self, piece: Piece) -> bytes:
        """The chunk of one piece."""
        index, ended = piece.index, piece.ended
        answer = self._so_far[index]
        answer.pass_on(piece)
        texts = self._texts.get(index)
        if texts is not None and ended is None:
            return texts.with_text(piece.text) if piece.text else b""
        if ended is not None and not is_answer(ended, Dialect.OPENAI):
            return b""
        choice = self._writers[index].write(answer.head, piece)
        if ended is None and self._shape.call.num_top is None:
            self._texts[index] = TextFrame(self._shape.chunk([Choice(index, "")]), "text")
        return b"" if choice is None else frame(self._shape.chunk([choice]))

    def end(self) -> bytes:
        """What follows all of them."""
        return last_events(self._shape, self._so_far)


def routes(service: Service) -> list[Route]:
    """POST `/v1/completions`."""
    frontend = service.frontend

    async def completions(request: Request) -> Response:
        call = parse_completion(await read_body(request, service.config.server.max_request_bytes))
        model = service.served_name(call.model)
        shape = CompletionShape(call, model, int(service.clock.unix_s()), frontend)
        return await respond(frontend, request, shape, partial(CompletionFrames, shape))

    return [Route("/v1/completions", completions, methods=["POST"])]
