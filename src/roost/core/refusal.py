"""Endings and errors are two faces of one thing: an `Ended` on the wire, a RequestError in hand."""

from typing import Final

from roost.core.errors import (
    DeadlinePassed,
    DuplicateRequest,
    EngineFault,
    PromptTooLong,
    QueueFull,
    RequestError,
    ShuttingDown,
    TooManyTokens,
)
from roost.core.events import Ended, TooLong, Usage
from roost.core.outcome import OUTCOMES, Outcome

_ERRORS: Final[dict[Outcome, type[RequestError]]] = {
    Outcome.QUEUE_FULL: QueueFull,
    Outcome.DEADLINE: DeadlinePassed,
    Outcome.SHUTTING_DOWN: ShuttingDown,
    Outcome.ENGINE_FAULT: EngineFault,
}
_OUTCOMES: Final = {error.code: outcome for outcome, error in _ERRORS.items()}


def ending_of(error: RequestError, usage: Usage | None = None) -> Ended:
    """The ending of a request that `error` refuses."""
    return Ended(
        _OUTCOMES.get(error.code, Outcome.INVALID_REQUEST),
        Usage() if usage is None else usage,
        message=error.message,
        code=error.code,
        status=error.http_status,
        too_long=_too_long(error),
    )


def refusal_of(ended: Ended, rid: str = "") -> RequestError | None:
    """The error that says what `ended` says; None for an answer.

    Its code and status are the ending's own where that has some, else its kind's.
    """
    if OUTCOMES[ended.outcome].is_answer:
        return None
    if ended.code == DuplicateRequest.code and rid:
        return DuplicateRequest(rid)
    if ended.too_long is not None:
        return _error_of_length(ended.too_long)
    message = ended.message or f"The request ended: {ended.outcome}."
    return _error(_ERRORS.get(ended.outcome), message, ended.code, ended.http_status)


def refusal_named(message: str, code: str, status: int) -> RequestError:
    """The error that has this code, as it was when it was raised elsewhere."""
    return _error(_ERRORS.get(_OUTCOMES.get(code, Outcome.INVALID_REQUEST)), message, code, status)


def _error(kind: type[RequestError] | None, message: str, code: str, status: int) -> RequestError:
    error = (kind or RequestError)(message)
    if code:
        error.code = code
    error.http_status = status
    return error


def _too_long(error: RequestError) -> TooLong | None:
    match error:
        case PromptTooLong():
            return TooLong(error.num_prompt_tokens, None, error.max_context_tokens)
        case TooManyTokens():
            return TooLong(error.num_prompt_tokens, error.max_new_tokens, error.limit_tokens)
        case _:
            return None


def _error_of_length(facts: TooLong) -> RequestError:
    if facts.max_new_tokens is None:
        return PromptTooLong(
            num_prompt_tokens=facts.num_prompt_tokens, max_context_tokens=facts.limit_tokens
        )
    return TooManyTokens(
        num_prompt_tokens=facts.num_prompt_tokens,
        max_new_tokens=facts.max_new_tokens,
        limit_tokens=facts.limit_tokens,
    )
