"""SentencePiece BPE with byte fallback, from pieces and scores.

Of all neighbours that together are a piece, the pair with the highest score merges first, the
leftmost of equals (Kudo & Richardson 2018, arXiv:1808.06226; sentencepiece's bpe_model.cc). No
list of merges is needed, so a vocabulary of 262,144 pieces is ready in a fraction of a second.
"""

import re
from heapq import heapify, heappop, heappush
from typing import Final

from roost.core.errors import ModelError
from roost.text.pieces import SPACE_MARK, byte_of_piece
from roost.text.vocab import TokenType, VocabSpec

# Words recur: their ids are kept, up to this many (about 10 MB). Longer ones are rarely seen
# again.
_MAX_WORDS: Final = 1 << 15
_MAX_WORD_CHARS: Final = 32

# Control and unknown pieces are never the result of a merge: text cannot spell them.
_MERGEABLE: Final = frozenset(
    {TokenType.UNDEFINED, TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED}
)


class SentencePieceEncoder:
    """Text without special tokens → ids."""

    def __init__(self, spec: VocabSpec) -> None:
        """Raises ModelError when neither byte pieces nor an unknown piece can take odd text."""
        self._ids = {
            piece: token_id
            for token_id, (piece, kind) in enumerate(zip(spec.pieces, spec.types, strict=True))
            if kind in _MERGEABLE
        }
        self._scores = spec.scores
        self._unused = frozenset(
            token_id for token_id, kind in enumerate(spec.types) if kind == TokenType.UNUSED
        )
        self._byte_ids = _byte_ids(spec)
        self._unk_id = spec.unk_id
        if len(self._byte_ids) < 256 and spec.unk_id is None:
            raise ModelError("the vocabulary has neither all 256 byte pieces nor an unknown one")
        self._add_space_prefix = spec.add_space_prefix
        self._word_start = _word_start(spec)
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """`after_special`: the text stands at the start, or right after a special token."""
        if self._add_space_prefix and after_special:
            text = " " + text
        ids: list[int] = []
        for word in self._word_start.split(text.replace(" ", SPACE_MARK)):
            ids.extend(self._word(word))
        return ids

    def _word(self, word: str) -> tuple[int, ...]:
        ids = self._known.get(word)
        if ids is None:
            ids = tuple(self._merge(word))
            if len(word) <= _MAX_WORD_CHARS:
                if len(self._known) >= _MAX_WORDS:
                    self._known.clear()
                self._known[word] = ids
        return ids

    def _merge(self, word: str) -> list[int]:
        # A linked list of symbols over `word`: ends[i] is where symbol i ends, 0 once it was
        # merged into its left neighbour; following[i] and before[i] are its neighbours.
        size = len(word)
        ends = list(range(1, size + 1))
        following = [*range(1, size), -1]
        before = list(range(-1, size - 1))
        parts: dict[str, tuple[str, str]] = {}  # how an unused piece came about
        heap: list[tuple[float, int, int, int]] = []  # -score, left, right, end

        for left in range(size - 1):
            token_id = self._ids.get(word[left : left + 2])
            if token_id is not None:
                heap.append((-self._scores[token_id], left, left + 1, left + 2))
        heapify(heap)

        while heap:
            _, left, right, end = heappop(heap)
            # Stale when the left one grew or went, or the right one did.
            if ends[left] != right or ends[right] != end:
                continue
            if self._unused and self._ids[word[left:end]] in self._unused:
                parts[word[left:end]] = word[left:right], word[right:end]
            ends[left], ends[right] = end, 0
            after, ahead = following[right], before[left]
            following[left] = after
            if after >= 0:
                before[after] = left
                token_id = self._ids.get(word[left : ends[after]])
                if token_id is not None:
                    heappush(heap, (-self._scores[token_id], left, after, ends[after]))
            if ahead >= 0:
                token_id = self._ids.get(word[ahead:end])
                if token_id is not None:
                    heappush(heap, (-self._scores[token_id], ahead, left, end))

        ids: list[int] = []
        at = 0
        while at >= 0 and at < size:
            self._emit(word[at : ends[at]], parts, ids)
            at = following[at]
        return ids

    def _emit(self, piece: str, parts: dict[str, tuple[str, str]], ids: list[int]) -> None:
        """A piece as its id; an unused one as what it was merged from; odd text as bytes."""
        pending = [piece]
        while pending:
            text = pending.pop()
            token_id = self._ids.get(text)
            if token_id is not None and token_id in self._unused and text in parts:
                pending.extend(reversed(parts[text]))
            elif token_id is not None:
                ids.append(token_id)
            else:
                self._emit_bytes(text, ids)

    def _emit_bytes(self, text: str, ids: list[int]) -> None:
        for byte in text.encode():
            token_id = self._byte_ids.get(byte, self._unk_id)
            assert token_id is not None, "the constructor saw to it"
            ids.append(token_id)


def _byte_ids(spec: VocabSpec) -> dict[int, int]:
    found = {}
    for token_id, (piece, kind) in enumerate(zip(spec.pieces, spec.types, strict=True)):
        if kind == TokenType.BYTE and (byte := byte_of_piece(piece)) is not None:
            found[byte] = token_id
    return found


def _word_start(spec: VocabSpec) -> re.Pattern[str]:
    """Where text can be cut without changing the outcome.

    Before a space mark, unless some piece holds one right after the character that stands
    there: then a merge could cross the cut.
    """
    joined = "\0".join(piece for piece in spec.pieces if SPACE_MARK in piece)
    unsafe = "".join(sorted(set(re.findall(f"([^{SPACE_MARK}\0]){SPACE_MARK}", joined))))
    return re.compile(f"(?<=[^{SPACE_MARK}{re.escape(unsafe)}])(?={SPACE_MARK})")
