"""What each token stands for. An engine needs no more of a model's text side than this."""

from roost.text.pieces import piece_bytes
from roost.text.vocab import TokenType, VocabSpec


class TokenTable:
    """The bytes of each token id, and which ids are special. eos_ids: every id that ends an
    answer (eos, end of turn, end of message). added_bos_id: what this model's tokenizer puts before
    a prompt; None: nothing. Threads may share it.
    """

    def __init__(self, spec: VocabSpec) -> None:
        self._spec = spec
        self._bytes: list[bytes | None] = [None] * len(spec.pieces)
        self._special = special_ids(spec)
        self.eos_ids = spec.eos_ids
        self.added_bos_id = spec.bos_id if spec.add_bos else None

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of one token, b"" for an id that the vocabulary lacks.

        Special tokens give the bytes of their text. A model's embedding may have more rows than
        its vocabulary has pieces; such ids stand for no text.
        """
        if not 0 <= token_id < len(self._bytes):
            return b""
        known = self._bytes[token_id]
        if known is None:
            spec = self._spec
            known = piece_bytes(spec.pieces[token_id], spec.types[token_id], spec.kind)
            self._bytes[token_id] = known
        return known

    def text_bytes(self, token_id: int, *, skip_special: bool) -> bytes:
        """What the token adds to an answer: nothing for a special token, if those are skipped.

        Stops are matched and cut on the bytes that this gives, in the engine and at the edge.
        """
        return b"" if skip_special and token_id in self._special else self.token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        """Control, unknown and end tokens: those that `skip_special` leaves out."""
        return token_id in self._special


def special_ids(spec: VocabSpec) -> frozenset[int]:
    """Control, unknown and end tokens."""
    # Plain numbers: a member of an enum is hashed and compared by Python code.
    special = {int(TokenType.CONTROL), int(TokenType.UNKNOWN)}
    return spec.eos_ids.union(i for i, kind in enumerate(spec.types) if kind in special)
