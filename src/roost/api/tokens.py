"""`/tokenize` and `/detokenize`: what a prompt becomes, and what ids say."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.body import NOT_YET, names_of, parse, read_body, refuse_named
from roost.api.chat_body import ChatFields, chat_prompt
from roost.api.service import Service
from roost.api.sse import until_gone
from roost.core.errors import RequestError


class TokenizeBody(msgspec.Struct, frozen=True):
    """Exactly one of `prompt` and `messages`; the latter are read as a chat's."""

    prompt: str | list[str] | None = None
    model: str | None = None
    add_special_tokens: bool = True


class Tokenized(msgspec.Struct, frozen=True):
    """For a list of prompts, lists. `prompt`: the text that was tokenised."""

    tokens: list[int] | list[list[int]]
    count: int | list[int]
    max_model_len: int
    prompt: str | list[str]


class DetokenizeBody(msgspec.Struct, frozen=True):
    tokens: list[int | list[int]]
    model: str | None = None
    skip_special_tokens: bool = True


class Detokenized(msgspec.Struct, frozen=True):
    text: str | list[str]


def routes(service: Service) -> list[Route]:
    """POST `/tokenize`, `/detokenize`, and both under `/v1`."""
    max_bytes = service.config.server.max_request_bytes

    async def tokenize(request: Request) -> Response:
        body = await read_body(request, max_bytes)
        tokenized = await until_gone(_tokenize(service, body), request.receive)
        return Response(msgspec.json.encode(tokenized), media_type="application/json")

    async def detokenize(request: Request) -> Response:
        asked = parse(await read_body(request, max_bytes), DetokenizeBody)
        service.served_name(asked.model)
        text = _detokenize(service, asked)
        return Response(msgspec.json.encode(Detokenized(text)), media_type="application/json")

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/v1/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/v1/detokenize", detokenize, methods=["POST"]),
    ]


async def _tokenize(service: Service, body: bytes) -> Tokenized:
    names = names_of(body)
    refuse_named(names, {"tools": NOT_YET})
    asked = parse(body, TokenizeBody)
    service.served_name(asked.model)
    has_messages = bytes(names.get("messages", b"null")) != b"null"
    if (asked.prompt is not None) == has_messages:
        raise RequestError("Give exactly one of prompt and messages.", param="prompt")
    frontend = service.frontend
    limit = frontend.facts.max_context_tokens
    if asked.prompt is None:
        text, ids = await frontend.text.render(chat_prompt(parse(body, ChatFields)))
        return Tokenized(ids, len(ids), limit, text)
    texts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    found = [await frontend.text.encode(t, add_special=asked.add_special_tokens) for t in texts]
    if isinstance(asked.prompt, str):
        return Tokenized(found[0], len(found[0]), limit, asked.prompt)
    return Tokenized(found, [len(ids) for ids in found], limit, asked.prompt)


def _detokenize(service: Service, asked: DetokenizeBody) -> str | list[str]:
    flat = [t for t in asked.tokens if isinstance(t, int)]
    lists = [t for t in asked.tokens if isinstance(t, list)]
    if flat and lists:
        raise RequestError("tokens must be ids, or lists of ids, not both.", param="tokens")
    vocab_size = service.frontend.facts.vocab_size
    for token_id in (*flat, *(t for ids in lists for t in ids)):
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"tokens must hold ids in [0, {vocab_size}), got {token_id}.", param="tokens"
            )
    texts = [
        service.frontend.text.decode(tuple(ids), skip_special=asked.skip_special_tokens)
        for ids in (lists or [flat])
    ]
    return texts if lists else texts[0]
