"""What an ask gives: heads, known once it is accepted, and pieces as they come."""

from dataclasses import dataclass

import msgspec

from roost.core.events import Ended, TokenLogprob
from roost.core.request import RequestId


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is known of one answer when its request has been accepted.

    prompt_ids: of a session's turn, what is new; the whole comes with its first piece.
    prompt_text: what was tokenised (a chat: as rendered); None for a prompt given as ids.
    seed: given or drawn; the same seed gives this answer again.
    arrival_s: monotonic seconds.
    """

    index: int
    prompt_index: int
    rid: RequestId
    seed: int
    prompt_ids: tuple[int, ...]
    prompt_text: str | None
    max_new_tokens: int
    arrival_s: float

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids)


class Piece(msgspec.Struct, frozen=True):
    """What came of one answer since its last piece. Text never changes once given.

    text: may lag behind `token_ids` (half a character, the beginning of a stop string) and may be
        empty. token_ids: every generated token, those of a matched stop too.
    logprobs: as long as `token_ids`, or empty when not asked for.
    prompt_logprobs: once, in the first piece, when asked for.
    prompt_ids: once, in the first piece of a session's turn that has run: the whole prompt.
    ended: in the last piece of an answer, and there only. The piece may carry text, too.
    num_tokens: generated so far, this piece included.
    first_token_s, last_token_s: monotonic seconds; None while there is no token.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    ended: Ended | None = None
    num_tokens: int = 0
    num_cached_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
