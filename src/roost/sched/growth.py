"""How far answers go, and so how many pages will be wanted before others are given back."""

from collections.abc import Iterable
from typing import Final, Protocol

from roost.cache import KvCache, Match, pages_for
from roost.core.plan import PAGE_TOKENS
from roost.sched.sequence import Sequence

# What an answer is taken to have, as long as none was seen: a short paragraph.
FIRST_GUESS_TOKENS: Final = 128
# The last twenty answers make the estimate: enough to even out long and short, few enough to follow
# when the work changes.
_KEPT = 0.95
# A retraction says that too many were let in: answers are then expected to be so much longer, and
# that is forgotten by a twentieth with each answer that ends. Three times as long at most, or the
# first answers after a rush would find an empty machine.
_MARGIN_STEP = 0.25
_MAX_MARGIN = 2.0


class Growth(Protocol):
    """Says whether there is room for one more."""

    def pages(self, seq: Sequence) -> int:
        """Pages that it will have at its end."""
        ...

    def lacking(self, kv: KvCache, running: Iterable[Sequence], seq: Sequence, match: Match) -> int:
        """Pages that are too few for `seq`, of which `match` is known, beside what runs; <= 0: it
        has room.
        """
        ...


class FixedGrowth:
    """Every sequence grows by the same number of tokens, and nothing is given back before."""

    def __init__(self, growth_tokens: int) -> None:
        self._growth_tokens = growth_tokens

    def pages(self, seq: Sequence) -> int:
        return pages_for(min(len(seq.tokens) + self._growth_tokens, seq.max_tokens))

    def lacking(self, kv: KvCache, running: Iterable[Sequence], seq: Sequence, match: Match) -> int:
        wanted = self.pages(seq) - match.num_held
        for other in running:
            assert other.kv is not None, "running without pages"
            # It may have more than it is expected to need, for drafts; nobody else has those.
            wanted += max(self.pages(other) - len(other.kv.pages), 0)
        return wanted - kv.num_available


class LearnedGrowth:
    """An answer goes as far, of what it was allowed, as answers lately went."""

    def __init__(self) -> None:
        # Of answers: how many count, and how far they went in all, each in [0, 1].
        self._num_ended = 0.0
        self._sum_shares = 0.0
        self._margin = 0.0

    def more_tokens(self, seq: Sequence) -> int:
        """What is still to come of its answer. Who outlives the estimate goes on for a page."""
        most = seq.request.sampling.max_new_tokens
        guess = min(most, FIRST_GUESS_TOKENS)
        length = (guess + self._sum_shares * most) / (1 + self._num_ended)
        more = int(length * (1 + self._margin)) - seq.num_generated
        return min(max(more, PAGE_TOKENS), seq.max_tokens - len(seq.tokens))

    def pages(self, seq: Sequence) -> int:
        return pages_for(len(seq.tokens) + self.more_tokens(seq))

    def lacking(self, kv: KvCache, running: Iterable[Sequence], seq: Sequence, match: Match) -> int:
        """As each ends, it gives back what only it has, and those that go on grow into that: so
        what is wanted is the most at any ending, not what all have at their own.
        """
        now = pages_for(len(seq.tokens)) - match.num_held
        # Of each: tokens to come, and pages that come free at its end.
        parts = [(self.more_tokens(other), _own_pages(other)) for other in running]
        if not parts:
            return self.pages(seq) - match.num_held - kv.num_available
        parts.append((self.more_tokens(seq), pages_for(len(seq.tokens)) - len(match.pages)))
        parts.sort()
        most = 0
        given_back = 0
        for i, (more, own) in enumerate(parts):
            most = max(most, (len(parts) - i) * pages_for(more) - given_back)
            given_back += own
        return now + most - kv.num_available

    def ended(self, seq: Sequence) -> None:
        """Its answer has come to its own end."""
        most = seq.request.sampling.max_new_tokens
        if most == 0:
            return
        self._num_ended = self._num_ended * _KEPT + 1
        self._sum_shares = self._sum_shares * _KEPT + seq.num_generated / most
        self._margin *= _KEPT

    def retracted(self) -> None:
        """The pages did not suffice."""
        self._margin = min(self._margin + _MARGIN_STEP, _MAX_MARGIN)


def _own_pages(seq: Sequence) -> int:
    """Those behind what was known when it began to run: the others may have more holders."""
    assert seq.kv is not None, "running without pages"
    return len(seq.kv.pages) - seq.kv.num_cached // PAGE_TOKENS
