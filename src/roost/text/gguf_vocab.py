"""`tokenizer.*` keys of a GGUF file → VocabSpec.

Keys and defaults: the GGUF specification (ggml/docs/gguf.md) and what llama.cpp assumes when a
key is absent.
"""

from collections.abc import Mapping
from typing import Final

from roost.core.errors import ModelError, UnsupportedModel
from roost.text.pretokenizers import pre_tokenizer_named
from roost.text.vocab import TokenType, VocabKind, VocabSpec, end_ids

_PREFIX: Final = "tokenizer.ggml."
_KINDS: Final = {"gpt2": VocabKind.BYTE_LEVEL, "llama": VocabKind.SENTENCEPIECE}
# What SentencePiece LLaMA files mean when they do not say (llama.cpp's defaults).
_SENTENCEPIECE_BOS, _SENTENCEPIECE_EOS, _SENTENCEPIECE_UNK = 1, 2, 0


def vocab_from_gguf(metadata: Mapping[str, object]) -> VocabSpec:
    """Read the vocabulary out of a GGUF's metadata (strings, numbers, bools and lists of them).

    Raises ModelError for a key that is missing or of the wrong shape, UnsupportedModel for a
    tokenizer model or a pre-tokenizer that roost does not have.
    """
    model = _text(metadata, "model")
    kind = _KINDS.get(model)
    if kind is None:
        known = ", ".join(sorted(_KINDS))
        raise UnsupportedModel(f"unknown tokenizer.ggml.model {model!r}; known: {known}")
    pieces = _texts(metadata, "tokens")
    types = [int(number) for number in _numbers(metadata, "token_type", len(pieces))]
    types = types or [int(TokenType.NORMAL)] * len(pieces)
    is_sentencepiece = kind is VocabKind.SENTENCEPIECE
    pre = _text(metadata, "pre", "default")
    unk_default = _SENTENCEPIECE_UNK if is_sentencepiece else None
    bos_id = _id(metadata, "bos", len(pieces), _SENTENCEPIECE_BOS if is_sentencepiece else None)
    eos_id = _id(metadata, "eos", len(pieces), _SENTENCEPIECE_EOS if is_sentencepiece else None)
    default_bos = is_sentencepiece or pre_tokenizer_named(pre).add_bos
    named = (eos_id, *(_id(metadata, name, len(pieces), None) for name in ("eot", "eom")))
    scores = _numbers(metadata, "scores", len(pieces))
    if is_sentencepiece and not scores:
        raise ModelError("tokenizer.ggml.scores is missing, and tokenizer.ggml.model is 'llama'")
    return VocabSpec(
        kind=kind,
        pieces=pieces,
        types=types,
        merges=() if is_sentencepiece else _texts(metadata, "merges"),
        scores=scores,
        pre=pre,
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=_id(metadata, "unknown", len(pieces), unk_default),
        pad_id=_id(metadata, "padding", len(pieces), None),
        eos_ids=end_ids(pieces, types, [i for i in named if i is not None]),
        add_bos=bos_id is not None and _flag(metadata, "add_bos_token", default=default_bos),
        add_eos=eos_id is not None and _flag(metadata, "add_eos_token", default=False),
        add_space_prefix=is_sentencepiece and _flag(metadata, "add_space_prefix", default=True),
        chat_templates=_templates(metadata),
    )


def _templates(metadata: Mapping[str, object]) -> dict[str, str]:
    """`tokenizer.chat_template` is the default one; `tokenizer.chat_template.NAME` are others."""
    found = {}
    for key, value in metadata.items():
        if key == "tokenizer.chat_template" and isinstance(value, str):
            found["default"] = value
        elif key.startswith("tokenizer.chat_template.") and isinstance(value, str):
            found[key.removeprefix("tokenizer.chat_template.")] = value
    return found


def _text(metadata: Mapping[str, object], name: str, default: str | None = None) -> str:
    value = metadata.get(_PREFIX + name, default)
    if not isinstance(value, str):
        raise ModelError(f"{_PREFIX}{name} is {_what(value)}, not a string")
    return value


def _texts(metadata: Mapping[str, object], name: str) -> list[str]:
    value = metadata.get(_PREFIX + name)
    if not isinstance(value, list | tuple) or not set(map(type, value)) <= {str}:
        raise ModelError(f"{_PREFIX}{name} is {_what(value)}, not a list of strings")
    return list(value)


def _numbers(metadata: Mapping[str, object], name: str, length: int) -> list[float]:
    """Empty when the key is absent. Takes lists and arrays (anything with `tolist`)."""
    value = metadata.get(_PREFIX + name)
    if value is None:
        return []
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, list | tuple) or not set(map(type, listed)) <= {int, float, bool}:
        raise ModelError(f"{_PREFIX}{name} is {_what(value)}, not a list of numbers")
    if len(listed) != length:
        raise ModelError(f"{_PREFIX}{name} has {len(listed)} entries for {length} tokens")
    return list(listed)


def _id(
    metadata: Mapping[str, object], name: str, vocab_size: int, default: int | None
) -> int | None:
    key = f"{_PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return default if default is not None and default < vocab_size else None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"{key} is {_what(value)}, not an id")
    # Some converters write -1 or 2^32 - 1 for "there is none".
    return value if 0 <= value < vocab_size else None


def _flag(metadata: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = metadata.get(_PREFIX + name, default)
    if not isinstance(value, bool | int):
        raise ModelError(f"{_PREFIX}{name} is {_what(value)}, not true or false")
    return bool(value)


def _what(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
