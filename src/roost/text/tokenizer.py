"""Text ↔ token ids."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from roost.core.errors import RequestError
from roost.text.byte_level import ByteLevelEncoder
from roost.text.gguf_vocab import vocab_from_gguf
from roost.text.pieces import SPACE_MARK
from roost.text.sentencepiece import SentencePieceEncoder
from roost.text.special import SpecialSplitter
from roost.text.token_table import TokenTable, special_ids
from roost.text.vocab import TokenType, VocabKind, VocabSpec


class TextEncoder(Protocol):
    """Whole text → ids, without the BOS. Special tokens in the text count if `parse_special`."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]: ...


class _PlainEncoder(Protocol):
    def encode(self, text: str, *, after_special: bool) -> list[int]: ...


class Tokenizer:
    """One model's tokenizer. It is not changed by use, and threads may share it.

    bos_id, eos_id, unk_id, pad_id: None where the model has none. eos_ids: every id that ends an
    answer (eos, end of turn, end of message). add_bos: whether prompts begin with BOS; add_eos:
    whether the model's own tokenizer ends a text with EOS (embedding models want it; `encode`
    never adds it). chat_templates: name → Jinja source. table: its bytes by id.
    """

    def __init__(self, spec: VocabSpec, encoder: TextEncoder | None = None) -> None:
        """Raises ModelError when the vocabulary does not hold together."""
        self._spec = spec
        self._encoder = _SplittingEncoder(spec) if encoder is None else encoder
        self._ids = {piece: token_id for token_id, piece in enumerate(spec.pieces)}
        self.table = TokenTable(spec)
        self.bos_id, self.eos_id = spec.bos_id, spec.eos_id
        self.unk_id, self.pad_id = spec.unk_id, spec.pad_id
        self.eos_ids = spec.eos_ids
        self.add_bos, self.add_eos = spec.add_bos, spec.add_eos
        self.chat_templates = spec.chat_templates

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        return cls(vocab_from_gguf(metadata))

    @property
    def vocab_size(self) -> int:
        return len(self._spec.pieces)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Ids of `text`, with one BOS in front if the model wants it and the text has none.

        parse_special: special tokens written out in the text become their ids; otherwise they
        are text like any other, and no control token can come out. Raises RequestError for text
        that is not valid Unicode (a lone surrogate).
        """
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise RequestError(
                f"The text is not valid Unicode: a lone surrogate at character {exc.start}."
            ) from None
        ids = self._encoder.encode(text, parse_special=parse_special)
        if add_special and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """As of the table."""
        return self.table.token_bytes(token_id)

    def text_bytes(self, token_id: int, *, skip_special: bool) -> bytes:
        """As of the table."""
        return self.table.text_bytes(token_id, skip_special=skip_special)

    def is_special(self, token_id: int) -> bool:
        """As of the table."""
        return self.table.is_special(token_id)

    def id_of(self, piece: str) -> int | None:
        """By the vocabulary's own spelling of the piece; None if it has no such piece."""
        return self._ids.get(piece)

    def piece(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token, "" for an id that it lacks."""
        return self._spec.pieces[token_id] if 0 <= token_id < self.vocab_size else ""

    def special_pieces(self) -> dict[str, str]:
        """`bos_token`, `eos_token`, `unk_token` and `pad_token` as chat templates know them."""
        ids = {"bos": self.bos_id, "eos": self.eos_id, "unk": self.unk_id, "pad": self.pad_id}
        return {f"{name}_token": self.piece(i) for name, i in ids.items() if i is not None}

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of a whole token list; bytes that are not UTF-8 become U+FFFD.

        The space that SentencePiece puts before a text is taken off again.
        """
        data = b"".join([self.text_bytes(i, skip_special=skip_special) for i in ids])
        if self._spec.add_space_prefix:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")


class _SplittingEncoder:
    """Takes special and user-defined tokens out of the text, and encodes what lies between."""

    def __init__(self, spec: VocabSpec) -> None:
        self._pieces = spec.pieces
        self._is_sentencepiece = spec.kind is VocabKind.SENTENCEPIECE
        user_defined = self._texts_of(
            i for i, kind in enumerate(spec.types) if kind == TokenType.USER_DEFINED
        )
        special = self._texts_of(sorted(special_ids(spec)))
        self._all = SpecialSplitter(user_defined | special)
        self._user_defined = SpecialSplitter(
            {piece: token_id for piece, token_id in user_defined.items() if piece not in special}
        )
        self._plain: _PlainEncoder = (
            SentencePieceEncoder(spec) if self._is_sentencepiece else ByteLevelEncoder(spec)
        )

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        ids: list[int] = []
        after_special = True
        for part in (self._all if parse_special else self._user_defined).split(self._as_text(text)):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self._plain.encode(part, after_special=after_special))
            after_special = isinstance(part, int)
        return ids

    def _texts_of(self, ids: Iterable[int]) -> dict[str, int]:
        return {self._as_text(self._pieces[token_id]): token_id for token_id in ids}

    def _as_text(self, text: str) -> str:
        """To SentencePiece a space and its sign are one, also where whole tokens are sought."""
        return text.replace(SPACE_MARK, " ") if self._is_sentencepiece else text
