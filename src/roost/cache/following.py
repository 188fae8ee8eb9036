"""What came after a beginning in other sequences, as far as the prefix tree remembers."""

from array import array
from bisect import bisect_left
from typing import Final

from roost.cache.radix import Node

# Of those that begin alike so many are looked at.
_MOST_CANDIDATES: Final = 8


def following(node: Node, begun: bytes, most: int) -> "array[int]":
    """Up to `most` tokens that another sequence had behind the page `node` and `begun`, tokens of
    the next page as int32 bytes; of several sequences the one that was used last. Nothing is held,
    and nothing counts as used.
    """
    found: array[int] = array("i")
    at: Node | None = node
    while at is not None and len(found) < most:
        at = _continued(at, begun)
        if at is not None:
            found.frombytes(at.key[len(begun) :])
            begun = b""
    return found[:most]


def _continued(node: Node, begun: bytes) -> Node | None:
    """The page below that begins so and goes on."""
    keys = node.sorted_keys
    first = bisect_left(keys, begun)
    best: Node | None = None
    for key in keys[first : first + _MOST_CANDIDATES]:
        if not key.startswith(begun):
            break
        child = node.children[key]
        goes_on = len(key) > len(begun) or child.children
        if goes_on and (best is None or child.used_at > best.used_at):
            best = child
    return best
