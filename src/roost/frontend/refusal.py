"""Endings and errors are two faces of one thing: an `Ended` on the wire, a RequestError in hand."""

from typing import Final

from roost.core.errors import (
    DeadlinePassed,
    DuplicateRequest,
    EngineFault,
    QueueFull,
    RequestError,
    ShuttingDown,
)
from roost.core.events import Ended
from roost.core.outcome import OUTCOMES, Outcome

_ERRORS: Final[dict[Outcome, type[RequestError]]] = {
    Outcome.QUEUE_FULL: QueueFull,
    Outcome.DEADLINE: DeadlinePassed,
    Outcome.SHUTTING_DOWN: ShuttingDown,
    Outcome.ENGINE_FAULT: EngineFault,
}
_OUTCOMES: Final = {error.code: outcome for outcome, error in _ERRORS.items()}


def refusal_of(ended: Ended, rid: str = "") -> RequestError | None:
    """The error that says what `ended` says; None for an answer.

    Its code and status are the ending's own where that has some, else its kind's.
    """
    if OUTCOMES[ended.outcome].is_answer:
        return None
    if ended.code == DuplicateRequest.code and rid:
        return DuplicateRequest(rid)
    kind = _ERRORS.get(ended.outcome, RequestError)
    error = kind(ended.message or f"The request ended: {ended.outcome}.")
    if ended.code:
        error.code = ended.code
    error.http_status = ended.http_status
    return error


def ending_of(error: RequestError) -> Ended:
    """The ending of a request that `error` refuses."""
    outcome = _OUTCOMES.get(error.code, Outcome.INVALID_REQUEST)
    return Ended(outcome, message=error.message, code=error.code, status=error.http_status)
