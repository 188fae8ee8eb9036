"""`/v1/chat/completions`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.body import read_body
from roost.api.chat_body import ChatCall, parse_chat
from roost.api.endings import is_answer, openai_finish
from roost.api.gather import Answer
from roost.api.logprobs import ChatLogprobs, TokenBytes, chat_logprobs
from roost.api.openai_call import last_events, respond
from roost.api.openai_usage import OpenAIUsage, openai_usage
from roost.api.problems import Dialect
from roost.api.service import Service
from roost.api.sse import TextFrame, frame
from roost.core.events import TokenLogprob
from roost.frontend import AnswerHead, Piece


class Message(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    matched_stop: int | str | None


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: OpenAIUsage
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """`finish_reason` is null until the last chunk of its index."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: int | str | UnsetType | None = UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: OpenAIUsage | UnsetType = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Makes the answer to one call, whole or in chunks."""

    call: ChatCall
    model: str
    created: int
    token_bytes: TokenBytes

    def whole(self, answers: Sequence[Answer]) -> ChatCompletion:
        choices = [
            Choice(
                index=answer.head.index,
                message=Message(answer.text),
                logprobs=self._logprobs(answer.logprobs),
                finish_reason=openai_finish(answer.ended),
                matched_stop=None if answer.ended is None else answer.ended.matched,
            )
            for answer in answers
        ]
        return ChatCompletion(
            self.call.rid, self.created, self.model, choices, openai_usage(answers)
        )

    def begin(self, index: int) -> ChatChunk:
        """The first chunk of an index: the role, and nothing else."""
        return self._chunk(ChunkChoice(index, Delta(role="assistant")))

    def more(self, piece: Piece) -> ChatChunk:
        return self._chunk(
            ChunkChoice(piece.index, Delta(content=piece.text), self._logprobs(piece.logprobs))
        )

    def texts(self, index: int) -> TextFrame:
        """Makes what `more` makes of pieces that are text only."""
        return TextFrame(self._chunk(ChunkChoice(index, Delta(content=""))), "content")

    def end(self, piece: Piece) -> ChatChunk:
        """The last chunk of an index, and the only one with a finish_reason."""
        assert piece.ended is not None, "the last piece has its ending"
        reason = openai_finish(piece.ended)
        return self._chunk(
            ChunkChoice(
                piece.index, Delta(), finish_reason=reason, matched_stop=piece.ended.matched
            )
        )

    def usage(self, answers: Sequence[Answer]) -> ChatChunk:
        """The one chunk without a choice."""
        return ChatChunk(self.call.rid, self.created, self.model, [], openai_usage(answers))

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        return ChatChunk(self.call.rid, self.created, self.model, [choice])

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return chat_logprobs(entries, self.token_bytes) if self.call.has_logprobs else None


class ChatFrames:
    """The events of one call."""

    def __init__(self, shape: ChatShape, heads: Sequence[AnswerHead]) -> None:
        self._shape = shape
        self._so_far = [Answer(head) for head in heads]
        # By index, of the answers that have begun.
        self._texts: dict[int, TextFrame] = {}

    def part(self, piece: Piece) -> bytes:
        """The chunks of one piece: its answer's role first, and its end last."""
        index, ended = piece.index, piece.ended
        self._so_far[index].pass_on(piece)
        texts = self._texts.get(index)
        if texts is not None and ended is None and not piece.logprobs:
            return texts.with_text(piece.text) if piece.text else b""
        if ended is not None and not is_answer(ended, Dialect.OPENAI):
            return b""
        out = b""
        if texts is None:
            self._texts[index] = self._shape.texts(index)
            out += frame(self._shape.begin(index))
        if piece.text or piece.logprobs:
            out += frame(self._shape.more(piece))
        if ended is not None:
            out += frame(self._shape.end(piece))
        return out

    def end(self) -> bytes:
        """What follows all of them."""
        return last_events(self._shape, self._so_far)


def routes(service: Service) -> list[Route]:
    """POST `/v1/chat/completions`."""
    frontend = service.frontend

    async def chat_completions(request: Request) -> Response:
        call = parse_chat(await read_body(request, service.config.server.max_request_bytes))
        model = service.served_name(call.model)
        shape = ChatShape(call, model, int(service.clock.unix_s()), frontend.text.token_bytes)
        return await respond(frontend, request, shape, partial(ChatFrames, shape))

    return [Route("/v1/chat/completions", chat_completions, methods=["POST"])]
