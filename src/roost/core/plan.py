"""What sched decides and runner does. Plain values; results are matched by the plan's number.

They stay in the process; structs, because a step makes a hundred of them.
"""

from array import array

import msgspec

from roost.core.events import TokenLogprob
from roost.core.params import Sampling
from roost.core.request import LogprobsWanted, RequestId

PAGE_TOKENS = 16


class Slice(msgspec.Struct, frozen=True):
    """Compute tokens [start, stop) of one sequence in this step.

    tokens:  ids of the whole sequence so far, prompt and generated, int32; it is the sequence's
             own array and only read here.  ``0 … start … stop ≤ len(tokens)``
    pages:   KV pages of the sequence in order; page i holds tokens [16·i, 16·i + 16).
    samples: the logits of position stop−1 choose the next token; only where stop == len(tokens),
             and not there for a request of zero new tokens.
    prompt_logprobs: positions p in [start, stop) whose logits are wanted for the prompt logprob of
             token p+1, as a half-open range (first, last); first == last: none.
    are_stops_banned: the next token may not be one of `sampling.stop_ids` (min_new_tokens).
    """

    request_id: RequestId
    tokens: "array[int]"
    num_prompt_tokens: int
    start: int
    stop: int
    pages: tuple[int, ...]
    samples: bool
    sampling: Sampling
    logprobs: LogprobsWanted
    prompt_logprobs: tuple[int, int] = (0, 0)
    are_stops_banned: bool = False

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


class BatchPlan(msgspec.Struct, frozen=True):
    """One step. `number` counts up by one from plan to plan.

    copies: (from, to) KV pages to be copied before anything is computed, in this order.
    """

    number: int
    slices: tuple[Slice, ...]
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.slices)


class SliceResult(msgspec.Struct, frozen=True):
    """What came out of a slice: the sampled token if it samples, prompt logprobs if wanted.

    fault: not empty when this row's logits are not finite; the request ends, others go on.
    """

    request_id: RequestId
    token_id: int | None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    fault: str = ""


class StepResult(msgspec.Struct, frozen=True):
    """Results in the order of the plan's slices."""

    number: int
    results: tuple[SliceResult, ...]
