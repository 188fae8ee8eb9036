"""Pages on loan."""

from dataclasses import dataclass
from typing import Protocol


class Lender(Protocol):
    """What a lease needs of the pool that it came from."""

    def take(self, num_pages: int) -> tuple[int, ...] | None: ...

    def give_back(self, pages: tuple[int, ...]) -> None: ...


@dataclass(slots=True, eq=False)
class Lease:
    """Pages on loan, in the order of the tokens they hold. Freed once, by whoever holds the lease.

    `pages` is a new tuple whenever it grows and the same object otherwise, so a reader can keep
    what it made of it and compare by identity.
    """

    lender: Lender
    pages: tuple[int, ...]
    is_free: bool = False

    def extend(self, num_pages: int) -> bool:
        """Add `num_pages` at the end. False, and nothing changes, when the pool is short."""
        assert not self.is_free, "a freed lease was extended"
        more = self.lender.take(num_pages)
        if more is None:
            return False
        self.pages += more
        return True

    def part_with(self, num_pages: int) -> tuple[int, ...]:
        """The first pages belong to somebody else from now on → which those are."""
        assert num_pages <= len(self.pages), "pages that the lease does not have"
        gone, self.pages = self.pages[:num_pages], self.pages[num_pages:]
        return gone

    def free(self) -> None:
        """Give everything back. A second call does nothing."""
        if self.is_free:
            return
        self.is_free = True
        pages, self.pages = self.pages, ()
        self.lender.give_back(pages)
