"""The pool of KV pages."""

from roost.cache.lease import Lease
from roost.core.plan import PAGE_TOKENS


def pages_for(num_tokens: int) -> int:
    """How many pages hold `num_tokens` tokens."""
    return -(-num_tokens // PAGE_TOKENS)


class PagePool:
    """`num_pages` pages, numbered from 0; each is free or in exactly one lease."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 1, f"a pool of {num_pages} pages"
        self.num_pages = num_pages
        # Taken from the end: the pages that were in use last are the ones still in the caches.
        self._free = list(range(num_pages - 1, -1, -1))
        self._num_leased = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_leased(self) -> int:
        return self._num_leased

    def lease(self, num_pages: int) -> Lease | None:
        """None when the pool is short: a normal answer, so not an exception."""
        pages = self.take(num_pages)
        return None if pages is None else Lease(self, pages)

    def take(self, num_pages: int) -> tuple[int, ...] | None:
        """For leases only: who takes pages here holds them without a lease."""
        assert num_pages >= 0, f"{num_pages} pages asked for"
        if num_pages > len(self._free):
            return None
        cut = len(self._free) - num_pages
        pages = tuple(reversed(self._free[cut:]))
        del self._free[cut:]
        self._num_leased += num_pages
        return pages

    def give_back(self, pages: tuple[int, ...]) -> None:
        """For leases only."""
        self._free.extend(reversed(pages))
        self._num_leased -= len(pages)

    def check(self) -> None:
        """Assert that every page is in one place. O(pages)."""
        assert len(self._free) + self._num_leased == self.num_pages, "a page leaked"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert all(0 <= page < self.num_pages for page in free), "a page that the pool never had"
