"""What sched decides and runner does. Plain values; results are matched by the plan's number.

They stay in the process; structs, because a step makes a hundred of them.
"""

from array import array
from collections.abc import Sequence

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
    drafts:  guesses of the tokens behind `stop`, where it samples. They are computed like tokens of
             the sequence, at the positions from `stop` on, for which there are pages; each one's
             logits choose a token too. What is chosen is worth something as long as the guesses
             before it were right, see `agreeing`.
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
    drafts: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the step: tokens and drafts."""
        return self.stop - self.start + len(self.drafts)

    @property
    def num_samples(self) -> int:
        """How many tokens are chosen: the next one, and one behind each draft."""
        return 1 + len(self.drafts) if self.samples else 0

    def bans_stops(self, index: int = 0) -> bool:
        """Whether the chosen token `index` may not be one of `sampling.stop_ids`."""
        num_generated = self.stop + index - self.num_prompt_tokens
        return num_generated < self.sampling.min_new_tokens

    def agreeing(self, chosen: Sequence[int]) -> int:
        """How many of the tokens chosen, in order of position, hold: each whose logits had only
        right drafts before them. At least the first.
        """
        num_right = 0
        while num_right < len(self.drafts) and self.drafts[num_right] == chosen[num_right]:
            num_right += 1
        return num_right + 1


class BatchPlan(msgspec.Struct, frozen=True):
    """One step. `number` counts up by one from plan to plan.

    copies: (from, to) KV pages to be copied before anything is computed, in this order.
    saves, loads: (page, digest) to be kept on disk before that, and to be read from there after it.
    There may be loads and no slices.
    """

    number: int
    slices: tuple[Slice, ...]
    copies: tuple[tuple[int, int], ...] = ()
    saves: tuple[tuple[int, bytes], ...] = ()
    loads: tuple[tuple[int, bytes], ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.slices)


class SliceResult(msgspec.Struct, frozen=True):
    """What came out of a slice: the tokens that were chosen, prompt logprobs if wanted.

    token_ids: empty when the slice samples nothing; else one, and another for each draft that
    turned out right, in order. logprobs: as long, or empty when not asked for.
    fault: not empty when this row's logits are not finite; the request ends, others go on.
    """

    request_id: RequestId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    fault: str = ""


class StepResult(msgspec.Struct, frozen=True):
    """Results in the order of the plan's slices. unread: pages of its loads that could not be read;
    nobody computes with a page in the step that loads it.
    """

    number: int
    results: tuple[SliceResult, ...]
    unread: tuple[int, ...] = ()
