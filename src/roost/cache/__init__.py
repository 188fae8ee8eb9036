"""Who holds which KV page. Integers only; the tensors are the runner's.

Takes a number of pages. Gives leases on them, each freed once by its holder.
"""

from roost.cache.lease import Lease
from roost.cache.pages import PagePool, pages_for

__all__ = ["Lease", "PagePool", "pages_for"]
