"""Logprobs in the three shapes that clients know: native, chat, and the legacy completions one."""

import codecs
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from roost.core.events import TokenLogprob

TokenBytes = Callable[[int], bytes]
NativeEntry = tuple[float | None, int, str | None]

# JSON has no −∞; OpenAI's API says this for what cannot be.
_LEAST: Final = -9999.0


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST


def token_text(token: bytes) -> str:
    """A token as text; half characters become U+FFFD."""
    return token.decode("utf-8", "replace")


class NativeLogprobs:
    """Lists of `[logprob, id, text or null]`; the text only where it was asked for."""

    def __init__(self, token_bytes: TokenBytes, *, has_text: bool) -> None:
        self._token_bytes = token_bytes
        self._has_text = has_text

    def chosen(self, entries: Iterable[TokenLogprob]) -> list[NativeEntry]:
        return [self._entry(e.token_id, e.logprob) for e in entries]

    def top(self, entries: Iterable[TokenLogprob]) -> list[list[NativeEntry] | None]:
        return [self._beside(e, e.top) for e in entries]

    def picked(self, entries: Iterable[TokenLogprob]) -> list[list[NativeEntry] | None]:
        return [self._beside(e, e.picked) for e in entries]

    def _beside(
        self, entry: TokenLogprob, pairs: tuple[tuple[int, float], ...]
    ) -> list[NativeEntry] | None:
        # Nothing predicts the first token of a prompt.
        return None if entry.logprob is None else [self._entry(i, p) for i, p in pairs]

    def _entry(self, token_id: int, logprob: float | None) -> NativeEntry:
        text = token_text(self._token_bytes(token_id)) if self._has_text else None
        return (None if logprob is None else finite(logprob), token_id, text)


class ChatTop(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTop]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatToken]
    refusal: None = None


def chat_logprobs(entries: Iterable[TokenLogprob], token_bytes: TokenBytes) -> ChatLogprobs:
    """The chat shape: always k alternatives, also where their texts are equal."""
    content = []
    for entry in entries:
        assert entry.logprob is not None, "a generated token has a logprob"
        top = [_chat_top(token_bytes(i), p) for i, p in entry.top]
        chosen = _chat_top(token_bytes(entry.token_id), entry.logprob)
        content.append(ChatToken(chosen.token, chosen.logprob, chosen.bytes, top))
    return ChatLogprobs(content)


def _chat_top(token: bytes, logprob: float) -> ChatTop:
    return ChatTop(token_text(token), finite(logprob), list(token))


class LegacyLogprobs(msgspec.Struct, frozen=True):
    """`text_offset` counts characters in the choice's own `text`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class LegacyShape:
    """The completions shape of one choice, made piece by piece: it knows where the text stands."""

    def __init__(self, token_bytes: TokenBytes, *, num_top: int) -> None:
        self._token_bytes = token_bytes
        self._num_top = num_top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def prompt(self, entries: Sequence[TokenLogprob], text: str) -> LegacyLogprobs:
        """Of an echoed prompt. What its tokens say beyond `text` (a BOS token, the space that
        SentencePiece puts first) stands at offset 0.
        """
        spelled = b"".join(self._token_bytes(e.token_id) for e in entries)
        surplus = len(token_text(spelled)) - len(text)
        shape = self.tokens(entries)
        self._num_chars = len(text)
        self._decoder.reset()
        offsets = [min(max(0, o - max(0, surplus)), len(text)) for o in shape.text_offset]
        return msgspec.structs.replace(shape, text_offset=offsets)

    def tokens(self, entries: Iterable[TokenLogprob]) -> LegacyLogprobs:
        """Of the next tokens."""
        tokens, logprobs, offsets = [], [], []
        tops: list[dict[str, float] | None] = []
        for entry in entries:
            token = self._token_bytes(entry.token_id)
            tokens.append(_legacy_text(token))
            logprobs.append(None if entry.logprob is None else finite(entry.logprob))
            tops.append(self._top(entry))
            offsets.append(self._num_chars)
            self._num_chars += len(self._decoder.decode(token))
        return LegacyLogprobs(tokens, logprobs, tops if self._num_top else None, offsets)

    def _top(self, entry: TokenLogprob) -> dict[str, float] | None:
        """The likeliest tokens by text, and the one that came, as OpenAI's API has it."""
        if entry.logprob is None:
            return None
        found: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            found.setdefault(_legacy_text(self._token_bytes(token_id)), finite(logprob))
        return found


def _legacy_text(token: bytes) -> str:
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def joined(first: LegacyLogprobs, then: LegacyLogprobs) -> LegacyLogprobs:
    """One after the other."""
    return LegacyLogprobs(
        first.tokens + then.tokens,
        first.token_logprobs + then.token_logprobs,
        None
        if first.top_logprobs is None or then.top_logprobs is None
        else first.top_logprobs + then.top_logprobs,
        first.text_offset + then.text_offset,
    )
