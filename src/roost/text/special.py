"""Finds tokens that are taken whole out of the text, before anything else looks at it."""

import re
from collections.abc import Iterator, Mapping


class SpecialSplitter:
    """Cuts text at the given pieces: leftmost first, of those the longest."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """ids: piece → id; empty pieces are never found."""
        self._ids = {piece: token_id for piece, token_id in ids.items() if piece}
        lengths: dict[str, set[int]] = {}
        for piece in self._ids:
            lengths.setdefault(piece[:2], set()).add(len(piece))
        # By the first two characters: the lengths to try, longest first.
        self._lengths = {head: sorted(sizes, reverse=True) for head, sizes in lengths.items()}
        heads = "|".join(map(re.escape, self._lengths))
        self._head = re.compile(heads) if heads else None

    def split(self, text: str) -> Iterator[str | int]:
        """Text (never empty) and token ids, in order."""
        if self._head is None:
            if text:
                yield text
            return
        done = at = 0
        while (head := self._head.search(text, at)) is not None:
            start = head.start()
            piece = self._longest(text, start)
            if piece is None:
                at = start + 1
                continue
            if start > done:
                yield text[done:start]
            yield self._ids[piece]
            done = at = start + len(piece)
        if done < len(text):
            yield text[done:]

    def _longest(self, text: str, start: int) -> str | None:
        # A piece of one character has itself for a head.
        for head in (text[start : start + 2], text[start]):
            for size in self._lengths.get(head, ()):
                piece = text[start : start + size]
                if piece in self._ids:
                    return piece
        return None
