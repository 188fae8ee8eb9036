"""Token ids → text, piece by piece."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from roost.text.stops import HoldBack


class TokenBytes(Protocol):
    """What is needed of a tokenizer."""

    def text_bytes(self, token_id: int, *, skip_special: bool) -> bytes: ...


class TextStream:
    """Token ids → an answer's text for a client, which never changes once it is given out.

    feed, feed, …, finish: together exactly the text before the stop, no part of which is ever
    sent. A character whose bytes are spread over tokens comes with its last one; bytes that are
    not UTF-8 become U+FFFD.

    `spaces_between_special_tokens` needs no counterpart: as with every fast Hugging Face
    tokenizer, no space is ever made up between tokens.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        *,
        stops: Sequence[bytes] = (),
        regexes: Sequence[str] = (),
        skip_special: bool = True,
    ) -> None:
        """Raises RequestError for a bad expression."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._hold = HoldBack(stops, regexes)
        self._has_stops = bool(stops or regexes)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Whether the decoder waits for the rest of a character.
        self._is_within = False

    def feed(self, ids: Iterable[int]) -> str:
        data = _bytes_of(self._tokenizer, ids, self._skip_special)
        safe = self._hold.feed(data) if self._has_stops else self._hold.let_go(data)
        # Almost always; the decoder is ten times dearer.
        if not self._is_within and safe.isascii():
            return safe.decode("ascii")
        text = self._decoder.decode(safe)
        self._is_within = bool(self._decoder.getstate()[0])
        return text

    def finish(self, num_text_bytes: int | None = None) -> str:
        """The rest, up to `num_text_bytes` of generated text (None: all that was fed)."""
        return self._decoder.decode(self._hold.finish(num_text_bytes), final=True)


def _bytes_of(tokenizer: TokenBytes, ids: Iterable[int], skip_special: bool) -> bytes:
    return b"".join([tokenizer.text_bytes(i, skip_special=skip_special) for i in ids])
