"""Pieces of answers put together: whole answers, or what there is of each so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from roost.api.problems import Aborted, Dialect, Problem, problem_of
from roost.core.events import Ended, TokenLogprob, Usage
from roost.core.outcome import OUTCOMES, Outcome
from roost.frontend import AnswerHead, Answers, Piece, refusal_of


@dataclass(slots=True)
class Answer:
    """One answer so far. `ended` is None while more may come."""

    head: AnswerHead
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    num_cached_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended: Ended | None = None

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.prompt_logprobs = self.prompt_logprobs or piece.prompt_logprobs
        self.num_cached_tokens = max(self.num_cached_tokens, piece.num_cached_tokens)
        self.first_token_s = piece.first_token_s
        self.last_token_s = piece.last_token_s
        self.ended = piece.ended


async def gather(answers: Answers) -> list[Answer]:
    """Every answer, whole, in order; those that ended without one too."""
    whole = [Answer(head) for head in answers.heads]
    async for piece in answers:
        whole[piece.index].add(piece)
    return whole


def is_answer(ended: Ended) -> bool:
    """Whether a client gets what was generated (else: an error)."""
    return OUTCOMES[ended.outcome].is_answer


def problem_of_ending(ended: Ended, dialect: Dialect) -> Problem:
    """What to say of an ending that is no answer in this dialect."""
    refusal = refusal_of(ended)
    return problem_of(Aborted(ended.message or "Aborted") if refusal is None else refusal, dialect)


def first_problem(whole: Sequence[Answer], dialect: Dialect) -> Problem | None:
    """Of answers to an OpenAI route, the first that cannot be given as one; None: all can."""
    for answer in whole:
        if answer.ended is not None and not is_openai_answer(answer.ended):
            return problem_of_ending(answer.ended, dialect)
    return None


def is_openai_answer(ended: Ended) -> bool:
    """Whether OpenAI's API has a finish_reason for it: it has none for an abort."""
    return is_answer(ended) and ended.outcome is not Outcome.CLIENT_CANCELLED


def usage_of(answer: Answer) -> Usage:
    """The counts of an answer, those so far while it runs."""
    if answer.ended is not None:
        return answer.ended.usage
    return Usage(
        num_prompt_tokens=answer.head.num_prompt_tokens,
        num_completion_tokens=len(answer.token_ids),
        num_cached_tokens=answer.num_cached_tokens,
    )
