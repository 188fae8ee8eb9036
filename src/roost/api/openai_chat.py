"""`/v1/chat/completions`."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.asking import Stream, ask_stream, ask_whole
from roost.api.body import read_body
from roost.api.chat_body import ChatCall, parse_chat
from roost.api.endings import first_problem, is_answer, openai_finish, problem_of_ending
from roost.api.gather import Answer
from roost.api.logprobs import ChatLogprobs, TokenBytes, chat_logprobs
from roost.api.openai_usage import OpenAIUsage, openai_usage
from roost.api.problems import Dialect
from roost.api.service import Service, id_headers
from roost.api.sse import DONE, EventStream, frame
from roost.core.events import TokenLogprob
from roost.frontend import Piece


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


def routes(service: Service) -> list[Route]:
    """POST `/v1/chat/completions`."""
    frontend = service.frontend

    async def chat_completions(request: Request) -> Response:
        call = parse_chat(await read_body(request, service.config.server.max_request_bytes))
        model = service.served_name(call.model)
        shape = ChatShape(call, model, int(service.clock.unix_s()), frontend.text.token_bytes)
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

    return [Route("/v1/chat/completions", chat_completions, methods=["POST"])]


async def _frames(shape: ChatShape, stream: Stream) -> AsyncIterator[bytes]:
    so_far = [Answer(head) for head in stream.answers.heads]
    begun: set[int] = set()
    async for piece in stream.pieces():
        so_far[piece.index].add(piece)
        if piece.ended is not None and not is_answer(piece.ended, Dialect.OPENAI):
            continue
        out = b""
        if piece.index not in begun:
            begun.add(piece.index)
            out += frame(shape.begin(piece.index))
        if piece.text or piece.logprobs:
            out += frame(shape.more(piece))
        if piece.ended is not None:
            out += frame(shape.end(piece))
        if out:
            yield out
    # The other answers of the call have come to their own ends first.
    problem = first_problem([answer.ended for answer in so_far], Dialect.OPENAI)
    if problem is not None:
        yield problem.frame(Dialect.OPENAI)
        return
    if shape.call.includes_usage:
        yield frame(shape.usage(so_far))
    yield DONE
