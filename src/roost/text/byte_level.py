"""Byte-level BPE through the `tokenizers` library."""

from collections.abc import Sequence
from typing import Final

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from roost.core.errors import ModelError
from roost.text.pretokenizers import pre_tokenizer_named
from roost.text.vocab import TokenType, VocabSpec

# About two milliseconds' work; below, the library's threads are not worth their start.
_LONG_CHARS: Final = 4096


class ByteLevelEncoder:
    """Text without special tokens → ids."""

    def __init__(self, spec: VocabSpec) -> None:
        """Raises ModelError when merges and pieces do not fit together."""
        pre = pre_tokenizer_named(spec.pre)
        self._tokenizer = Tokenizer(_bpe(spec, ignore_merges=pre.ignore_merges))
        splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
        to_signs = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_signs])
        if pre.nfc:
            self._tokenizer.normalizer = normalizers.NFC()

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """`after_special` makes no difference here: nothing is put before the text."""
        del after_special
        return ids_of(self._tokenizer, text)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode with a tokenizer of the library, without its own special tokens around.

    While a long text is encoded, other threads run: an event loop would stand still for seconds.
    (The library lets go of the interpreter only for batches.)
    """
    if len(text) < _LONG_CHARS:
        return tokenizer.encode(text, add_special_tokens=False).ids
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return encoding.ids


def _bpe(spec: VocabSpec, *, ignore_merges: bool) -> models.BPE:
    ids = {piece: token_id for token_id, piece in enumerate(spec.pieces)}
    if ignore_merges:  # else a word of the text could be a control token
        for piece, kind in zip(spec.pieces, spec.types, strict=True):
            if kind == TokenType.CONTROL:
                ids.pop(piece, None)
    pairs = _pairs(spec.merges)
    try:
        return models.BPE(vocab=ids, merges=pairs, ignore_merges=ignore_merges)
    except Exception as exc:  # the library raises nothing narrower
        raise ModelError(f"tokenizer.ggml.merges do not fit the vocabulary: {exc}") from exc


def _pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise ModelError(f"tokenizer.ggml.merges has {merge!r}, not two pieces")
        pairs.append((left, right))
    return pairs
