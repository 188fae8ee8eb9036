"""Token ids → text, piece by piece."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from roost.text.stops import HoldBack


class TokenBytes(Protocol):
    """What is needed of a tokenizer."""

    def text_bytes(self, token_id: int, *, skip_special: bool) -> bytes: ...


class Detokenizer:
    """Token ids → text that never changes once it is given out. O(1) a token.

    A character whose bytes are spread over tokens comes with its last one. Bytes that are not
    UTF-8 become U+FFFD. The pieces joined are the text that one call over all ids would give.

    `spaces_between_special_tokens` needs no counterpart: as with every fast Hugging Face
    tokenizer, no space is ever made up between tokens.
    """

    def __init__(self, tokenizer: TokenBytes, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        return self._decoder.decode(_bytes_of(self._tokenizer, ids, self._skip_special))

    def finish(self) -> str:
        """What was left of a character that did not become whole: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)


class TextStream:
    """The answer's text for a client: a Detokenizer that sends no part of a stop.

    feed, feed, …, finish: together exactly the text before the stop.
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
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        data = _bytes_of(self._tokenizer, ids, self._skip_special)
        return self._decoder.decode(self._hold.feed(data))

    def finish(self, num_text_bytes: int | None = None) -> str:
        """The rest, up to `num_text_bytes` of generated text (None: all that was fed)."""
        return self._decoder.decode(self._hold.finish(num_text_bytes), final=True)


def _bytes_of(tokenizer: TokenBytes, ids: Iterable[int], skip_special: bool) -> bytes:
    return b"".join([tokenizer.text_bytes(i, skip_special=skip_special) for i in ids])
