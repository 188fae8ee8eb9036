"""Names of pages by what they hold: each is a hash of its tokens and of the page before it.

So a name stands for everything from the first token on, and equal names mean equal beginnings.
"""

from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16


def first_digest(namespace: bytes) -> bytes:
    """The name of what stands before the first page of a namespace."""
    return blake2b(namespace, digest_size=DIGEST_BYTES, person=b"roost-first").digest()


def next_digest(before: bytes, tokens: bytes) -> bytes:
    """The name of a full page (its tokens as int32 bytes) that follows the page `before`."""
    return blake2b(before + tokens, digest_size=DIGEST_BYTES, person=b"roost-next").digest()
