"""How an ending is said in each dialect. All of it follows from the table of outcomes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from roost.api.problems import Aborted, Dialect, Problem, problem_of
from roost.core.events import Ended
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.refusal import refusal_of

# The outcomes that these APIs have a word for; with them every other ending is an error.
_OPENAI_FINISH: Final[Mapping[Outcome, str]] = {
    Outcome.STOP: "stop",
    Outcome.LENGTH: "length",
    Outcome.TOOL_CALLS: "tool_calls",
}
_ANTHROPIC_STOP: Final[Mapping[Outcome, str]] = {
    Outcome.STOP: "end_turn",
    Outcome.LENGTH: "max_tokens",
    Outcome.TOOL_CALLS: "tool_use",
}


@dataclass(frozen=True, slots=True)
class EndingShape:
    """One ending in one dialect.

    status: before the first byte. reason: what the answer says of its end. error_type, error_code:
    of the error that takes an answer's place; None, where there is no error or no such field.
    """

    status: int
    reason: str | None
    error_type: str | None
    error_code: str | int | None


@dataclass(frozen=True, slots=True)
class EndingShapes:
    """One ending in every dialect."""

    native: EndingShape
    openai: EndingShape
    anthropic: EndingShape


def shape_of(outcome: Outcome) -> EndingShapes:
    """What clients are told of an ending that brings no words of its own."""
    ended = Ended(outcome)
    return EndingShapes(
        native=_shape(ended, Dialect.NATIVE, OUTCOMES[outcome].finish),
        openai=_shape(ended, Dialect.OPENAI, openai_finish(ended)),
        anthropic=_shape(ended, Dialect.ANTHROPIC, anthropic_stop(ended)),
    )


def is_answer(ended: Ended, dialect: Dialect) -> bool:
    """Whether a client gets what was generated; else, an error.

    Only the native API has a word for an answer that its client aborted.
    """
    match dialect:
        case Dialect.NATIVE:
            return OUTCOMES[ended.outcome].is_answer
        case Dialect.OPENAI:
            return ended.outcome in _OPENAI_FINISH
        case Dialect.ANTHROPIC:
            return ended.outcome in _ANTHROPIC_STOP
        case _:
            assert_never(dialect)


def problem_of_ending(ended: Ended, dialect: Dialect) -> Problem:
    """What to say of an ending that is no answer in this dialect."""
    refusal = refusal_of(ended)
    if refusal is None:
        return problem_of(Aborted(ended.message or "Aborted"), dialect)
    return problem_of(refusal, dialect)


def first_problem(endings: Iterable[Ended | None], dialect: Dialect) -> Problem | None:
    """Of the first that is no answer in this dialect; None: all are."""
    for ended in endings:
        if ended is not None and not is_answer(ended, dialect):
            return problem_of_ending(ended, dialect)
    return None


def native_finish(ended: Ended | None) -> dict[str, object] | None:
    """`finish_reason` in the native words; None while it has not ended."""
    if ended is None:
        return None
    kind = OUTCOMES[ended.outcome].finish
    match kind:
        case "stop":
            return {"type": kind, "matched": ended.matched}
        case "length":
            return {"type": kind, "length": ended.usage.num_completion_tokens}
        case "abort":
            problem = problem_of_ending(ended, Dialect.NATIVE)
            is_error = not is_answer(ended, Dialect.NATIVE)
            return {
                "type": kind,
                "message": problem.message,
                "status_code": problem.status if is_error else None,
                "err_type": problem.code if is_error else None,
            }
        case _:
            assert_never(kind)


def openai_finish(ended: Ended | None) -> str | None:
    """`finish_reason` from OpenAI's set; None while it has not ended, and for an error."""
    return None if ended is None else _OPENAI_FINISH.get(ended.outcome)


def anthropic_stop(ended: Ended | None) -> str | None:
    """`stop_reason` from Anthropic's set; None while it has not ended, and for an error."""
    if ended is None:
        return None
    if ended.outcome is Outcome.STOP and isinstance(ended.matched, str):
        return "stop_sequence"
    return _ANTHROPIC_STOP.get(ended.outcome)


def _shape(ended: Ended, dialect: Dialect, reason: str | None) -> EndingShape:
    if is_answer(ended, dialect):
        return EndingShape(OUTCOMES[ended.outcome].http_status, reason, None, None)
    problem = problem_of_ending(ended, dialect)
    codes: dict[Dialect, str | int | None] = {
        Dialect.NATIVE: problem.status,
        Dialect.OPENAI: problem.code,
        Dialect.ANTHROPIC: None,
    }
    return EndingShape(problem.status, reason, problem.type_in(dialect), codes[dialect])
