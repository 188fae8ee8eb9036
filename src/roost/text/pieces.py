"""The bytes that a piece of a vocabulary stands for."""

from typing import Final

from roost.text.vocab import TokenType, VocabKind

SPACE_MARK: Final = "\u2581"  # SentencePiece's sign for a space


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable sign for each byte, sign → byte.

    Bytes that are visible in Latin-1 stand for themselves; the others, in order, for the
    characters from U+0100 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(visible))
    signs = {chr(byte): byte for byte in visible}
    signs.update({chr(0x100 + order): byte for order, byte in enumerate(hidden)})
    return signs


_BYTE_OF_SIGN: Final = byte_alphabet()
_LITERAL: Final = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})


def byte_of_piece(piece: str) -> int | None:
    """The byte of a byte token, which is written `<0xHH>`; None for any other text."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return int(piece[3:5], 16)
        except ValueError:
            return None
    return None


def piece_bytes(piece: str, token_type: int, kind: VocabKind) -> bytes:
    """Exact bytes: control, unknown and user-defined pieces are their own text."""
    if token_type in _LITERAL:
        return piece.encode()
    if token_type == TokenType.BYTE and (byte := byte_of_piece(piece)) is not None:
        return bytes((byte,))
    if kind is VocabKind.SENTENCEPIECE:
        return piece.replace(SPACE_MARK, " ").encode()
    try:
        return bytes([_BYTE_OF_SIGN[sign] for sign in piece])
    except KeyError:  # an added token that the file calls normal is its own text
        return piece.encode()
