"""Names of pages by what they hold: each is a hash of its tokens and of the page before it.

So a name stands for everything from the first token on, and equal names mean equal beginnings.
"""

from hashlib import blake2b
from typing import Final

from roost.cache.radix import Node

DIGEST_BYTES: Final = 16


def first_digest(namespace: bytes) -> bytes:
    """The name of what stands before the first page of a namespace."""
    return blake2b(namespace, digest_size=DIGEST_BYTES, person=b"roost-first").digest()


def next_digest(before: bytes, tokens: bytes) -> bytes:
    """The name of a full page (its tokens as int32 bytes) that follows the page `before`."""
    return blake2b(before + tokens, digest_size=DIGEST_BYTES, person=b"roost-next").digest()


def digest_of(node: Node) -> bytes:
    """The name of a page in the tree, also when it has just left that; of a root: what is before
    the first page. It is remembered there.
    """
    path = []
    while not node.digest and node.parent is not None:
        path.append(node)
        node = node.parent
    digest = node.digest = node.digest or first_digest(node.key)
    for one in reversed(path):
        digest = one.digest = next_digest(digest, one.key)
    return digest
