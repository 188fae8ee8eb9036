"""What travels up: everything that the engine can say about a request, and nothing else.

An event carries no address. Only an outbox can pair it with an envelope and send it, so no path,
and no error path either, can say something to nobody.
"""

import msgspec

from roost.core.outcome import OUTCOMES, Outcome


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token at one position, with the alternatives that were asked for.

    logprob is None only for the first prompt token, which nothing predicts.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    picked: tuple[tuple[int, float], ...] = ()


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """The engine holds the request: it will end, and nothing but the request's own run or its
    client will make it end with an error. A response head may be sent.
    """


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """Its prefill begins. Sent once, also when a retracted request starts again.

    prompt_ids: for a turn of a session, the whole prompt, which only the engine knows; else empty.
    """

    num_cached_tokens: int
    prompt_ids: tuple[int, ...] = ()


class Delta(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    """New tokens, in order; `logprobs` as long as `token_ids`, or empty when not asked for.

    first: how many tokens of the answer came before, so that one that got lost is noticed.
    `prompt_logprobs` comes once, with the first delta (or with none and no tokens, for a request
    of zero new tokens).
    """

    first: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Counts of one request. All are always there, in refusals too."""

    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    num_retractions: int = 0
    queue_s: float = 0.0


class TooLong(msgspec.Struct, frozen=True, array_like=True):
    """What did not fit: the prompt alone (max_new_tokens None), or prompt and answer together."""

    num_prompt_tokens: int
    max_new_tokens: int | None
    limit_tokens: int


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The one terminal event.

    matched: the stop token's id, or the stop string or regex, for `stop`. text_bytes: how many
    bytes of generated text come before the matched stop; −1: all of them. message, code, status:
    for an ending that is not an answer (status 0: the table's). too_long: of one that is refused
    for its length; each API says it in its own words.
    """

    outcome: Outcome
    usage: Usage = Usage()
    matched: int | str | None = None
    text_bytes: int = -1
    message: str = ""
    code: str = ""
    status: int = 0
    too_long: TooLong | None = None

    @property
    def http_status(self) -> int:
        return self.status or OUTCOMES[self.outcome].http_status


Event = Accepted | Started | Delta | Ended
