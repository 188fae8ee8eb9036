"""Drafts for a step: they cost rows, and give tokens where they are right.

A draft changes no answer: which token comes next is a matter of the tokens before it, the seed and
the position, and a draft counts only if it is that token.
"""

from collections.abc import Sequence as Many
from typing import Final

import msgspec

from roost.cache import KvCache
from roost.core.plan import PAGE_TOKENS, Slice
from roost.sched.lookup import NUM_RATES, Lookup
from roost.sched.sequence import Sequence

_MOST_DRAFTS: Final = 8
# A step of more rows computes as long as it reads weights, and each row more costs its full time.
_MOST_ROWS: Final = 8
# By so much of its time a step of one row takes longer with each row more (4-bit weights, two
# cores). A little too high rather than too low: then drafts are made only where they pay.
_ROW_COST: Final = 0.2


def best_number(rate: float, num_rows: int) -> int:
    """How many drafts give most tokens a second, when each of `num_rows` sequences has as many.

    A sequence gains one token a step, and the drafts that are right up to the first that is not;
    each is right with probability `rate`.
    """
    best, best_speed = 0, 0.0
    num_tokens, is_right = 0.0, 1.0
    for num_drafts in range(_MOST_DRAFTS + 1):
        num_tokens += is_right
        is_right *= rate
        speed = num_tokens / (1.0 + _ROW_COST * (num_rows * (1 + num_drafts) - 1))
        if speed > best_speed:
            best, best_speed = num_drafts, speed
    return best


# By rows of the step, and by rate from 0 to 1 in twentieths.
_BEST: Final = tuple(
    tuple(best_number(rate / NUM_RATES, max(rows, 1)) for rate in range(NUM_RATES + 1))
    for rows in range(_MOST_ROWS + 1)
)


class Speculator:
    """Adds drafts to slices, and learns from what came of them."""

    def __init__(self) -> None:
        self.num_drafts = 0
        self.num_right = 0

    def add(
        self, sequences: Many[Sequence], slices: list[Slice], kv: KvCache, max_tokens: int
    ) -> None:
        """Put drafts into those of `slices` that decode, in a step of at most `max_tokens` rows.

        They get pages of what is to be had, and never another's.
        """
        num_rows = sum(part.num_tokens for part in slices)
        if num_rows > _MOST_ROWS:
            return
        best = _BEST[num_rows]
        left = max_tokens - num_rows
        for index, (seq, part) in enumerate(zip(sequences, slices, strict=True)):
            if not part.samples or part.num_tokens > 1:
                continue
            most = min(_MOST_DRAFTS, left, seq.max_tokens - len(seq.tokens) - 1)
            if most <= 0:
                continue
            if seq.lookup is None:
                seq.lookup = Lookup()
            assert seq.kv is not None, "it decodes without pages"
            drafts = seq.lookup.draft(seq.tokens, seq.kv.guess(seq.tokens, most), best, most)
            drafts = drafts[: _room(seq, kv, len(drafts), len(sequences))]
            if drafts:
                left -= len(drafts)
                slices[index] = msgspec.structs.replace(part, drafts=drafts, pages=seq.kv.pages)

    def learn(self, seq: Sequence, part: Slice, num_chosen: int) -> None:
        """So many tokens of a slice with drafts hold."""
        assert seq.lookup is not None, "drafts from nowhere"
        seq.lookup.learn(len(part.drafts), num_chosen - 1)
        self.num_drafts += len(part.drafts)
        self.num_right += num_chosen - 1


def _room(seq: Sequence, kv: KvCache, num_drafts: int, num_running: int) -> int:
    """For how many drafts there are pages, one more being taken if that leaves one for everybody
    who will need it.
    """
    assert seq.kv is not None, "drafts without pages"
    room = len(seq.kv.pages) * PAGE_TOKENS - len(seq.tokens)
    if num_drafts > room and kv.num_available > num_running and seq.kv.extend(1):
        room += PAGE_TOKENS
    return room
