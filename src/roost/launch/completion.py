"""What the library gives for one answer."""

from dataclasses import dataclass

from roost.core.events import TokenLogprob, Usage
from roost.core.outcome import OUTCOMES, FinishType, Outcome
from roost.core.request import RequestId
from roost.frontend import AnswerHead, Piece


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer, whole.

    finish_reason: "stop", "length", or "abort" for one that was cancelled. matched: the stop
    token's id, or the stop string or expression, that ended it. seed: gives this answer again.
    logprobs: as long as `token_ids`, if asked for. first_token_s, total_s: seconds from the call.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishType
    matched: int | str | None
    outcome: Outcome
    usage: Usage
    seed: int
    rid: RequestId
    prompt_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    first_token_s: float | None = None
    total_s: float = 0.0


def completion_of(head: AnswerHead, pieces: list[Piece], now_s: float) -> Completion:
    """The answer that all its pieces, of which the last has the ending, make together."""
    last = pieces[-1]
    assert last.ended is not None, "the answer has not ended"
    first_s = last.first_token_s
    return Completion(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token_id for piece in pieces for token_id in piece.token_ids),
        finish_reason=OUTCOMES[last.ended.outcome].finish,
        matched=last.ended.matched,
        outcome=last.ended.outcome,
        usage=last.ended.usage,
        seed=head.seed,
        rid=head.rid,
        prompt_ids=head.prompt_ids,
        logprobs=tuple(x for piece in pieces for x in piece.logprobs),
        prompt_logprobs=tuple(x for piece in pieces for x in piece.prompt_logprobs),
        first_token_s=None if first_s is None else first_s - head.arrival_s,
        total_s=now_s - head.arrival_s,
    )
