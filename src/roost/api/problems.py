"""What a client is told when it gets no answer: status, headers and body, in its API's dialect.

OpenAI's shape is `{"error": {"message", "type", "param", "code"}}`. The native routes have it with
`code` as the number, and `object` and `message` at the top for SGLang's clients. Anthropic's is
`{"type": "error", "error": {"type", "message"}}`. A body stays under 4 KB and repeats no long
input.
"""

import enum
import re
from dataclasses import dataclass
from typing import Final, assert_never

import msgspec
from starlette.responses import Response

from roost.core.errors import (
    PromptTooLong,
    RequestError,
    RoostError,
    ShuttingDown,
    TooManyTokens,
)

# 450 characters of at most four bytes, twice (native bodies repeat it), and the rest: < 4,096.
_MAX_MESSAGE_CHARS: Final = 450
_MAX_PARAM_CHARS: Final = 64
_RETRY_AFTER_S: Final = 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    499: "client_closed_request",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
# Where Anthropic's API has another word than OpenAI's. Both call the rest invalid_request_error.
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}

# What a field of the sampling parameters is called on the OpenAI routes.
_OPENAI_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "input_ids": "prompt",
    "text": "prompt",
    "logprob_start_len": "logprobs",
}


_LENGTHS: Final = ("max_new_tokens", "min_new_tokens")


class UnsupportedMediaType(RequestError):
    """The body is not declared as JSON."""

    code = "unsupported_media_type"
    http_status = 415


class Unauthenticated(RequestError):
    code = "invalid_api_key"
    http_status = 401


class Forbidden(RequestError):
    code = "forbidden"
    http_status = 403


class NoSuchRoute(RequestError):
    code = "no_such_route"
    http_status = 404


class MethodNotAllowed(RequestError):
    """`allowed`: the methods that the route takes, as the Allow header lists them."""

    code = "method_not_allowed"
    http_status = 405

    def __init__(self, message: str, *, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class Aborted(RequestError):
    """Ended by an abort call, on an API whose answers have no word for it.

    400, since clients repeat a request that got 408, 409, 429 or 5xx.
    """

    code = "aborted"


class Dialect(enum.Enum):
    """Whose shape a body has."""

    OPENAI = "openai"
    NATIVE = "native"
    ANTHROPIC = "anthropic"


def dialect_of(path: str) -> Dialect:
    """The dialect of a route: `/v1/messages…` is Anthropic's, the rest of `/v1/…` OpenAI's."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return Dialect.ANTHROPIC
    return Dialect.OPENAI if path.startswith("/v1/") or path == "/v1" else Dialect.NATIVE


class _Detail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | int


class _OpenAIBody(msgspec.Struct, frozen=True):
    error: _Detail


class _NativeBody(msgspec.Struct, frozen=True):
    error: _Detail
    message: str
    object: str = "error"


class _AnthropicDetail(msgspec.Struct, frozen=True):
    type: str
    message: str


class _AnthropicBody(msgspec.Struct, frozen=True):
    error: _AnthropicDetail
    type: str = "error"


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal or fault, ready to be said."""

    status: int
    code: str
    message: str
    param: str | None = None
    allowed_methods: str | None = None
    closes_connection: bool = False

    def type_in(self, dialect: Dialect) -> str:
        """The error's type in the words of an API."""
        words = _ANTHROPIC_TYPES if dialect is Dialect.ANTHROPIC else _TYPES
        return words.get(self.status, "invalid_request_error")

    def fields(self, dialect: Dialect) -> msgspec.Struct:
        """The body, to be encoded: < 4 KB of JSON."""
        message = _CONTROL.sub(" ", self.message)
        if len(message) > _MAX_MESSAGE_CHARS:
            message = message[: _MAX_MESSAGE_CHARS - 1] + "…"
        param = None if self.param is None else _CONTROL.sub(" ", self.param)[:_MAX_PARAM_CHARS]
        kind = self.type_in(dialect)
        match dialect:
            case Dialect.OPENAI:
                return _OpenAIBody(_Detail(message, kind, param, self.code))
            case Dialect.ANTHROPIC:
                return _AnthropicBody(_AnthropicDetail(kind, message))
            case Dialect.NATIVE:
                return _NativeBody(_Detail(message, kind, param, self.status), message)
            case _:
                assert_never(dialect)

    def body(self, dialect: Dialect) -> bytes:
        """JSON, < 4 KB."""
        return msgspec.json.encode(self.fields(dialect))

    def frame(self, dialect: Dialect) -> bytes:
        """The last event of a stream that fails after its head was sent."""
        # Anthropic's events have names; the other two APIs' have none.
        name = b"event: error\n" if dialect is Dialect.ANTHROPIC else b""
        return name + b"data: " + self.body(dialect) + b"\n\n"

    def response(self, dialect: Dialect) -> Response:
        headers = {}
        if self.status == 503:
            headers["retry-after"] = str(_RETRY_AFTER_S)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.allowed_methods is not None:
            headers["allow"] = self.allowed_methods
        if self.closes_connection:
            headers["connection"] = "close"
        return Response(self.body(dialect), self.status, headers, "application/json")


def problem_of(error: RoostError, dialect: Dialect) -> Problem:
    """What to say of an error. Its wording follows what each API's clients match."""
    return Problem(
        status=error.http_status,
        code=error.code,
        message=_message(error, dialect),
        param=_param(error, dialect),
        allowed_methods=error.allowed if isinstance(error, MethodNotAllowed) else None,
        closes_connection=isinstance(error, ShuttingDown) or error.http_status == 413,
    )


# The server closes a connection on which a bug showed: clients must not send the next call there.
INTERNAL: Final = Problem(
    500, "internal", "The server failed to handle this request.", closes_connection=True
)


def _param(error: RoostError, dialect: Dialect) -> str | None:
    if not isinstance(error, RequestError) or error.param is None:
        return None
    if dialect is Dialect.NATIVE:
        return error.param
    return _OPENAI_NAMES.get(error.param, error.param)


def _message(error: RoostError, dialect: Dialect) -> str:
    if dialect is Dialect.NATIVE:
        return error.message
    if isinstance(error, PromptTooLong):
        if dialect is Dialect.ANTHROPIC:
            # Agents compact their history when they read these words.
            return (
                f"prompt is too long: {error.num_prompt_tokens} tokens > "
                f"{error.max_context_tokens} maximum"
            )
        return (
            f"This model's maximum context length is {error.max_context_tokens} tokens. However, "
            f"your prompt has {error.num_prompt_tokens} tokens. Please shorten it."
        )
    if isinstance(error, TooManyTokens):
        total = error.num_prompt_tokens + error.max_new_tokens
        return (
            f"This model's maximum context length is {error.limit_tokens} tokens. However, you "
            f"asked for {total} tokens: {error.num_prompt_tokens} in the prompt and "
            f"{error.max_new_tokens} for the answer. Please ask for fewer."
        )
    message = error.message
    if isinstance(error, RequestError) and error.param in _LENGTHS:
        for ours in _LENGTHS:
            message = message.replace(ours, _OPENAI_NAMES[ours])
    return message
