"""A vocabulary as plain data: what a tokenizer is built from, wherever it was read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final


class TokenType(IntEnum):
    """The numbers of `tokenizer.ggml.token_type` (they are SentencePiece's piece types)."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class VocabKind(Enum):
    """How the text of a piece stands for bytes, and how text becomes pieces."""

    BYTE_LEVEL = "byte-level BPE"
    SENTENCEPIECE = "SentencePiece BPE"


@dataclass(frozen=True, slots=True, eq=False)
class VocabSpec:
    """pieces[id] and types[id] (TokenType numbers) name every token.

    merges: "left right", best first (byte-level). scores[id]: higher merges first (SentencePiece).
    pre: the pre-tokenizer's name (byte-level). eos_ids: every id that ends an answer.
    chat_templates: "default" and others ("tool_use"), as Jinja source.
    """

    kind: VocabKind
    pieces: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    pre: str = "default"
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    chat_templates: Mapping[str, str] = field(default_factory=dict)


# Tokens that end an answer in the families that use them, whatever else the file says.
_END_PIECES: Final = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<eos>",
        "</s>",
        "<EOT>",
        "[EOS]",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)
# Some converters call their chat tokens user-defined. HTML tags are that too: `</s>` strikes out.
_NOT_TEXT: Final = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED})
_MAYBE_TEXT: Final = frozenset({"</s>", "<eos>", "<EOT>", "[EOS]", "[EOT]"})


def end_ids(pieces: Sequence[str], types: Sequence[int], named: Sequence[int]) -> frozenset[int]:
    """The ids that end an answer: `named` by the file, and the known ones by their text.

    A piece of known text counts when it is a control token, or is user-defined and could not be
    meant as text. In the harmony format `<|end|>` closes a message, not the answer, and is left
    out.
    """
    found = {
        token_id
        for token_id, piece in enumerate(pieces)
        if piece in _END_PIECES
        and types[token_id] in _NOT_TEXT
        and (types[token_id] == TokenType.CONTROL or piece not in _MAYBE_TEXT)
    }
    texts = {pieces[token_id] for token_id in found}
    if {"<|return|>", "<|call|>"} <= texts:
        found = {token_id for token_id in found if pieces[token_id] != "<|end|>"}
    return frozenset(found.union(named))
