"""A request while the scheduler holds it."""

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from roost.cache import Holding
from roost.core.events import TokenLogprob, Usage
from roost.core.request import Envelope, GenerateRequest
from roost.sched.lookup import Lookup
from roost.sessions import Turn


class StopMatch(Protocol):
    """A stop string or regex that was found: which, and its bytes [start, end) in the answer."""

    @property
    def matched(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


class StopMatcher(Protocol):
    """Looks for the stops of one answer as its bytes come."""

    def feed(self, data: bytes, /) -> StopMatch | None: ...

    def skip(self, data: bytes, /) -> None:
        """Take bytes in which no stop may end."""
        ...


# (stop strings, stop regexes) → a matcher. Raises RequestError for a regex that does not compile.
NewStopMatcher = Callable[[tuple[bytes, ...], tuple[str, ...]], StopMatcher]
# (token id, skip special tokens) → the bytes that the token adds to the text.
TokenBytes = Callable[[int, bool], bytes]


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's tokens, and how far they are computed.

    tokens     0 ......... num_prompt_tokens ......... len(tokens)
               | prompt    | generated                 |
               0 ... num_computed .................... len(tokens)
               | in the KV | pending                   |

    Waiting: no pages and nothing computed, also after a retraction. Running: pages for at least
    what is computed. Held: a turn of a session whose parent lives; `request` and `tokens` are
    of the new ids alone until `know`.

    number: counts up in order of arrival.
    """

    number: int
    request: GenerateRequest
    tokens: "array[int]"
    matcher: StopMatcher | None
    queue_deadline_s: float
    turn: Turn | None = None
    num_computed: int = 0
    kv: Holding | None = None
    # For drafts, from the first on.
    lookup: Lookup | None = None
    is_started: bool = False
    is_ended: bool = False
    num_retractions: int = 0
    # Goes before others of a lower one while it runs: set when it begins to.
    rank: int = 0
    # Since when it waits, and for how long it did before it ran last.
    waits_from_s: float = 0.0
    waited_s: float = 0.0
    # Of its tokens, how many were in the cache when that was looked up last; −1: never.
    num_known_tokens: int = -1
    # Of the prompt, when it ran first.
    num_cached_tokens: int = 0
    # Seconds from arrival to the first plan that it was part of; NaN before.
    queue_s: float = math.nan
    # Until the first delta takes them; the first entry is that of token `prompt_from`.
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def envelope(self) -> Envelope:
        return self.request.envelope

    @property
    def namespace(self) -> str:
        """Only sequences of the same one share what they compute."""
        return self.request.namespace

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def max_tokens(self) -> int:
        """Prompt and answer together, at most."""
        return len(self.request.prompt_ids) + self.request.sampling.max_new_tokens

    @property
    def num_reusable(self) -> int:
        """How many of its first tokens need not be computed if they are cached: not the last one,
        and none whose logits score a prompt token.
        """
        most = len(self.tokens) - 1
        prompt_from = self.request.logprobs.prompt_from
        if prompt_from < 0 or self.num_generated > 0:
            return most
        return max(0, min(most, prompt_from + len(self.prompt_logprobs) - 1))

    @property
    def output_ids(self) -> "array[int]":
        return self.tokens[self.num_prompt_tokens :]

    @property
    def is_first(self) -> bool:
        """Among those that wait: it goes before others that came earlier."""
        return self.has_run or self.envelope.is_health_check

    @property
    def has_run(self) -> bool:
        return not math.isnan(self.queue_s)

    def know(self, request: GenerateRequest) -> None:
        """From now on the prompt is known: it is that of `request`."""
        self.request = request
        self.tokens = array("i", request.prompt_ids)
        if request.logprobs.prompt_from == 0:
            self.prompt_logprobs.append(TokenLogprob(request.prompt_ids[0], None))

    def is_overdue(self, now_s: float) -> bool:
        if self.envelope.deadline_s <= now_s:
            return True
        return not self.has_run and self.queue_deadline_s <= now_s

    def usage(self, now_s: float) -> Usage:
        waited_s = self.queue_s if self.has_run else now_s - self.envelope.arrival_s
        return Usage(
            num_prompt_tokens=self.num_prompt_tokens,
            num_completion_tokens=self.num_generated,
            num_cached_tokens=self.num_cached_tokens,
            num_retractions=self.num_retractions,
            queue_s=max(waited_s, 0.0),
        )
