"""Pages beside the cache, in memory: what the disk tier is to the scheduler and to a runner."""

from array import array

from roost.core.plan import PAGE_TOKENS


class Shelf:
    """Holds `max_pages` of the fake model's pages; the one that came first goes first.

    lost: reading these fails, though they are said to be here.
    """

    def __init__(self, max_pages: int = 1000) -> None:
        self.page_bytes = PAGE_TOKENS * 4
        self.max_pages = max_pages
        self.pages: dict[bytes, bytes] = {}
        self.lost: set[bytes] = set()
        self.num_reads = 0

    # ---- the scheduler's

    def __contains__(self, digest: bytes) -> bool:
        return digest in self.pages

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    def flush(self) -> None:
        self.pages.clear()

    def let_wait(self) -> None:
        """Nobody ever waits here."""

    # ---- the runner's

    def wants(self, digest: bytes) -> bool:
        return digest not in self.pages

    def write(self, digest: bytes, page: bytes) -> None:
        assert len(page) == self.page_bytes
        self.pages[digest] = page
        while len(self.pages) > self.max_pages:
            del self.pages[next(iter(self.pages))]

    def read(self, digest: bytes) -> bytes | None:
        self.num_reads += 1
        if digest in self.lost:
            self.pages.pop(digest, None)
        return self.pages.get(digest)

    def save(self, digest: bytes, tokens: list[int]) -> None:
        """A page of the fake runner's, for its tokens are all that it holds."""
        assert -1 not in tokens, "a page is kept that nobody has computed"
        if self.wants(digest):
            self.write(digest, array("i", tokens).tobytes())

    def load(self, digest: bytes) -> list[int] | None:
        page = self.read(digest)
        return None if page is None else array("i", page).tolist()
