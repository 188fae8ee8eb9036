"""What comes next in one sequence, guessed from what came after the same tokens before."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# The end of the sequence must have been there before to so many tokens; more than the most are not
# compared.
_LEAST_MATCH: Final = 2
_MOST_MATCH: Final = 8
# So many earlier occurrences of the last two tokens are looked at, the latest first.
_MOST_CANDIDATES: Final = 16
# So many tokens are entered at a time, so that a long prompt delays no step: half a millisecond.
_MOST_ENTERED: Final = 1024
# By so much each draft that was tried moves what is thought of its kind.
_WEIGHT: Final = 0.15
# Chances to draft that pass before a kind that did not pay is tried again, at first and at most.
_LEAST_PATIENCE: Final = 16
_MOST_PATIENCE: Final = 256
# Kinds of a match of 2, 3, 4 and 5, or more tokens, and of another sequence with this beginning:
# how likely one more token of it is to be right, before anything is known.
_FIRST_RATES: Final = (0.25, 0.4, 0.6, 0.8, 0.8)
_KIND_OF_LENGTH: Final = (0, 0, 0, 1, 2, 2, 3, 3, 3)
KIND_OF_OTHERS: Final = 4

# Steps of a table over rates from 0 to 1.
NUM_RATES: Final = 20


class TokenIndex:
    """Finds the latest place at which a sequence stood as it stands now. Entering a token, and a
    search, take a time that does not depend on how many there are.
    """

    __slots__ = ("_before", "_last")

    def __init__(self) -> None:
        # The last two tokens → the position behind where they were latest.
        self._last: dict[int, int] = {}
        # By position: the one before it that has the same two tokens before it; 0: there is none.
        self._before = array("i", (0, 0))

    def enter(self, tokens: "array[int]") -> bool:
        """Learn what was added to the sequence. False: that is too much for once, call again."""
        last, before = self._last, self._before
        stop = min(len(tokens), len(before) + _MOST_ENTERED)
        for position in range(len(before), stop):
            pair = tokens[position - 2] << 32 | tokens[position - 1]
            before.append(last.get(pair, 0))
            last[pair] = position
        return stop == len(tokens)

    def find(self, tokens: "array[int]") -> tuple[int, int]:
        """The position behind the best earlier place, and how many tokens before it are as those
        at the end; (0, 0): there is none. `tokens` has been entered.
        """
        end = len(tokens)
        if end <= _LEAST_MATCH:
            return 0, 0
        at = self._last.get(tokens[end - 2] << 32 | tokens[end - 1], 0)
        best, length = 0, 0
        for _ in range(_MOST_CANDIDATES):
            if at == 0 or length == _MOST_MATCH:
                break
            common = _LEAST_MATCH
            most = min(_MOST_MATCH, at)
            while common < most and tokens[at - 1 - common] == tokens[end - 1 - common]:
                common += 1
            if common > length:
                best, length = at, common
            at = self._before[at]
        return best, length


@dataclass(slots=True)
class Trust:
    """How often drafts of one kind are right, as this sequence goes."""

    rate: float
    num_passed: int = 0
    patience: int = _LEAST_PATIENCE

    def wanted(self, best: Sequence[int]) -> int:
        """How many drafts to try now. best: that number by rate, from 0 to 1."""
        num_drafts = best[round(self.rate * NUM_RATES)]
        if num_drafts:
            return num_drafts
        self.num_passed += 1
        if self.num_passed < self.patience:
            return 0
        self.num_passed = 0
        return 1

    def learn(self, num_drafts: int, num_right: int) -> None:
        """What came of some drafts. Nothing is known of those behind the first that was wrong."""
        for _ in range(num_right):
            self.rate += _WEIGHT * (1.0 - self.rate)
        if num_right < num_drafts:
            self.rate -= _WEIGHT * self.rate
        is_useless = num_right == 0
        self.patience = min(2 * self.patience, _MOST_PATIENCE) if is_useless else _LEAST_PATIENCE


class Lookup:
    """What is known for the drafts of one sequence."""

    __slots__ = ("_index", "_kind", "_trusts")

    def __init__(self) -> None:
        self._index = TokenIndex()
        self._trusts = [Trust(rate) for rate in _FIRST_RATES]
        self._kind = 0

    def draft(
        self, tokens: "array[int]", others: Sequence[int], best: Sequence[int], most: int
    ) -> tuple[int, ...]:
        """At most `most` tokens that may come next.

        others: what another sequence with this beginning went on with, which is preferred. best:
        how many drafts pay, by how likely each is to be right.
        """
        is_complete = self._index.enter(tokens)
        if others:
            self._kind = KIND_OF_OTHERS
            return tuple(others[: min(most, self._trusts[KIND_OF_OTHERS].wanted(best))])
        at, length = self._index.find(tokens) if is_complete else (0, 0)
        if length == 0:
            return ()
        self._kind = _KIND_OF_LENGTH[length]
        num_drafts = min(most, self._trusts[self._kind].wanted(best))
        # What repeats right up to the end goes on repeating.
        period = len(tokens) - at
        return tuple([tokens[at + i % period] for i in range(num_drafts)])

    def learn(self, num_drafts: int, num_right: int) -> None:
        """What came of the drafts that were made last."""
        self._trusts[self._kind].learn(num_drafts, num_right)
