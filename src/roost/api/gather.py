"""Pieces of answers put together: whole answers, or what there is of each so far."""

from dataclasses import dataclass, field, replace

from roost.core.events import Ended, TokenLogprob, Usage
from roost.frontend import AnswerHead, Answers, Piece


@dataclass(slots=True)
class Answer:
    """One answer so far. `ended` is None while more may come."""

    head: AnswerHead
    text: str = ""
    num_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    num_cached_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended: Ended | None = None

    def add(self, piece: Piece) -> None:
        """Take what a piece adds."""
        self.text += piece.text
        self.logprobs += piece.logprobs
        self.prompt_logprobs = self.prompt_logprobs or piece.prompt_logprobs
        self.token_ids += piece.token_ids
        self.pass_on(piece)

    def pass_on(self, piece: Piece) -> None:
        """Keep what a piece says of the answer, but not what it adds: its client has that."""
        if piece.prompt_ids is not None:
            # A turn of a session: its prompt is more than the text that the client sent.
            self.head = replace(self.head, prompt_ids=piece.prompt_ids, prompt_text=None)
        self.num_tokens = piece.num_tokens
        self.num_cached_tokens = piece.num_cached_tokens
        self.first_token_s = piece.first_token_s
        self.last_token_s = piece.last_token_s
        self.ended = piece.ended


async def gather(answers: Answers) -> list[Answer]:
    """Every answer, whole, in order; those that ended without one too."""
    whole = [Answer(head) for head in answers.heads]
    async for piece in answers:
        whole[piece.index].add(piece)
    return whole


def usage_of(answer: Answer) -> Usage:
    """The counts of an answer, those so far while it runs."""
    if answer.ended is not None:
        return answer.ended.usage
    return Usage(
        num_prompt_tokens=answer.head.num_prompt_tokens,
        num_completion_tokens=answer.num_tokens,
        num_cached_tokens=answer.num_cached_tokens,
    )
