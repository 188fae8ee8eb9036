"""Who holds which KV page, and which prefixes are known. Integers only: tensors are the runner's.

Takes tokens, and what of them was computed. Gives holdings of pages, each freed once by its holder,
and the longest known beginning of a prompt.
"""

from roost.cache.disk import DiskPages, identity_of
from roost.cache.disk_place import DiskPlace, disk_place
from roost.cache.holding import Holding, KvCache, Pin
from roost.cache.lease import Lease
from roost.cache.pages import PagePool, pages_for
from roost.cache.radix import Eviction, Match, PrefixTree
from roost.cache.spill import Moves, PageStore

__all__ = [
    "DiskPages",
    "DiskPlace",
    "Eviction",
    "Holding",
    "KvCache",
    "Lease",
    "Match",
    "Moves",
    "PagePool",
    "PageStore",
    "Pin",
    "PrefixTree",
    "disk_place",
    "identity_of",
    "pages_for",
]
