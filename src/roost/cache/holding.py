"""What one sequence holds of the KV cache, and the door to pool and tree."""

from array import array
from collections.abc import Collection
from typing import Literal

from roost.cache.following import following
from roost.cache.lease import Lease
from roost.cache.pages import PagePool, pages_for
from roost.cache.radix import Eviction, Match, Node, PrefixTree
from roost.cache.spill import Move, Moves, PageStore, Spill
from roost.core.plan import PAGE_TOKENS


class KvCache:
    """Pages on lease, pages in the tree, and free ones. What the tree keeps for later gives way.

    prefixes: "on": what was computed is kept and found again. "off": each sequence computes all.
    store: where pages go that the tree gives up, and come back from; None: nowhere.
    """

    def __init__(
        self,
        pool: PagePool,
        *,
        prefixes: Literal["on", "off"] = "on",
        eviction: Eviction = "lru",
        store: PageStore | None = None,
    ) -> None:
        self.pool = pool
        self._tree = PrefixTree(pool, eviction)
        self.keeps_prefixes = prefixes == "on"
        self._spill: Spill | None = None
        if store is not None and prefixes == "on":
            self._spill = Spill(store, self._tree, pool)

    @property
    def num_available(self) -> int:
        """Pages that can be had: free ones, and those that the tree keeps for nobody."""
        return self.pool.num_free + self._tree.num_evictable

    @property
    def num_kept(self) -> int:
        """Pages in the tree."""
        return self._tree.num_pages

    @property
    def num_used(self) -> int:
        """Pages that live sequences hold."""
        return self.pool.num_pages - self.num_available

    @property
    def num_stored(self) -> int:
        """Pages in the store."""
        return 0 if self._spill is None else self._spill.store.num_pages

    @property
    def num_fetched(self) -> int:
        """Pages that ever came back from the store."""
        return 0 if self._spill is None else self._spill.num_fetched

    def match(self, namespace: str, tokens: "array[int]", limit: int) -> Match:
        """The longest known beginning of `tokens[:limit]`."""
        if not self.keeps_prefixes:
            limit = 0
        return self._tree.match(namespace, tokens, limit)

    def open(self, match: Match, num_tokens: int) -> "Holding | None":
        """Pages for `num_tokens` tokens, those of the match among them. None when it is short."""
        self._tree.hold(match.node, match.tail)
        pages = self.take(pages_for(num_tokens) - len(match.pages))
        if pages is None:
            self._tree.release(match.node)
            return None
        return Holding(self._tree, Lease(self, pages), match, keeps=self.keeps_prefixes)

    def fetch(self, match: Match, tokens: "array[int]", limit: int) -> bool:
        """Have what the store knows of `tokens[:limit]` beyond the match brought back by the next
        moves. True: it is on its way, or will be; so it is found when those that ask wait a step.
        """
        spill = self._spill
        if spill is None:
            return False
        start = len(match.pages) * PAGE_TOKENS
        digests = spill.beyond(match.node, tokens, start, limit)
        if not digests:
            return False
        if spill.is_coming(digests[0]) or spill.num_room <= 0:
            return True
        digests = digests[: spill.num_room]
        self._tree.hold(match.node)
        pages = self.take(len(digests))
        if pages is None:
            self._tree.release(match.node)
            return False
        spill.begin(match.node, tokens, start, digests, pages)
        return True

    @property
    def has_moves(self) -> bool:
        """Pages wait to come back from the store, also when there is nothing to compute."""
        return self._spill is not None and bool(self._spill.coming)

    def take_moves(self) -> Moves:
        """What goes to the store, and comes from it, with the next plan."""
        return Moves() if self._spill is None else self._spill.take_moves()

    def land(self, unread: Collection[int] | None) -> None:
        """The last moves were made, but for the pages `unread`; None: nobody knows."""
        if self._spill is not None:
            self._spill.land(unread)

    def leave_all(self) -> tuple[Move, ...]:
        """The last saves of all; none without a store."""
        return () if self._spill is None else self._spill.leave_all()

    def flush(self) -> int:
        """Forget what nobody holds → how many pages that was. The rest is not found again."""
        if self._spill is not None:
            self._spill.flush()
        return self._tree.flush()

    def take(self, num_pages: int) -> tuple[int, ...] | None:
        """For leases: as the pool's, but what the tree keeps for nobody gives way."""
        lacking = num_pages - self.pool.num_free
        if lacking > 0:
            if lacking > self._tree.num_evictable:
                return None
            gone = self._tree.evict(lacking)
            assert len(gone) == lacking, "pages that can be evicted are not found"
            if self._spill is not None:
                self._spill.leave(gone)
        return self.pool.take(num_pages)

    def give_back(self, pages: tuple[int, ...]) -> None:
        """For leases."""
        self.pool.give_back(pages)

    def check(self, holdings: "list[Holding]", pins: "list[Pin] | None" = None) -> None:
        """Assert that the books balance, given everything that is open, and all pins. O(pages)."""
        self.pool.check()
        pinned = None if pins is None else [pin.node for pin in pins]
        held = [one.node for one in holdings]
        own = [page for one in holdings for page in one.lease.pages]
        if self._spill is not None:
            held += self._spill.held
            own += self._spill.coming
        self._tree.check(held, pinned)
        assert len(set(own)) == len(own), "two sequences own one page"
        assert len(own) + self._tree.num_pages == self.pool.num_leased, "a page is nobody's"


class Pin:
    """A beginning that a session will go on from: it is evicted when nothing else is left.

    It keeps no page, so it may be gone when it is wanted; then it is computed again.
    """

    __slots__ = ("_is_free", "_tree", "node")

    def __init__(self, tree: PrefixTree, node: Node) -> None:
        self._tree = tree
        self._is_free = False
        self.node = node
        tree.pin(node)

    def free(self) -> None:
        """A second call does nothing."""
        if not self._is_free:
            self._is_free = True
            self._tree.unpin(self.node)


class Holding:
    """Pages of one sequence in the order of its tokens: first those of its prefix, which belong to
    the tree, then its own. node: the last of the former; once it is freed, the last page of what it
    computed.

    pages      0 ............ num_shared ............ len(pages)
               | in the tree  | on lease              |

    `pages` is a new tuple whenever it changes and the same object otherwise. copy: (from, to): the
    first of its own pages begins as a copy of another, to be made before the sequence is computed.
    """

    __slots__ = ("_keeps", "_shared", "_tree", "copy", "lease", "node", "num_cached", "pages")

    def __init__(self, tree: PrefixTree, lease: Lease, match: Match, *, keeps: bool) -> None:
        """match: whose node is held; it is let go by `free`. keeps: enter what is computed."""
        self._tree = tree
        self._keeps = keeps
        self.lease = lease
        self.node: Node = match.node
        self._shared = match.pages
        self.pages = (*match.pages, *lease.pages)
        self.num_cached = match.num_tokens
        self.copy = None if match.tail is None else (match.tail.page, lease.pages[0])

    def extend(self, num_pages: int) -> bool:
        """Add `num_pages` at the end. False, and nothing changes, when there are too few."""
        if not self.lease.extend(num_pages):
            return False
        self.pages = (*self._shared, *self.lease.pages)
        return True

    def guess(self, tokens: "array[int]", most: int) -> "array[int]":
        """Up to `most` tokens that came next in another sequence of this beginning."""
        return following(self.node, tokens[len(self._shared) * PAGE_TOKENS :].tobytes(), most)

    def pin(self) -> "Pin":
        """Keep what was computed, once it was freed, for whoever goes on from there."""
        assert self.lease.is_free, "pinned before it was freed"
        return Pin(self._tree, self.node)

    def settle(self, tokens: "array[int]", num_computed: int) -> None:
        """Enter the pages that are full by now, so that others find them."""
        if not self._keeps:
            return
        start = len(self._shared) * PAGE_TOKENS
        if num_computed < start + PAGE_TOKENS:
            return
        shared = list(self._shared)
        while num_computed >= start + PAGE_TOKENS:
            key = tokens[start : start + PAGE_TOKENS].tobytes()
            (page,) = self.lease.part_with(1)
            self.node, is_new = self._tree.extend(self.node, key, page)
            if not is_new:
                self.lease.lender.give_back((page,))
            shared.append(self.node.page)
            start += PAGE_TOKENS
        self._shared = tuple(shared)
        self.pages = (*self._shared, *self.lease.pages)

    def free(self, tokens: "array[int]", num_computed: int) -> None:
        """Give everything back; what was computed stays in the tree while there is room."""
        self.settle(tokens, num_computed)
        held = self.node
        start = len(self._shared) * PAGE_TOKENS
        # Of a page that was to be copied nobody knows whether it was, before more is computed.
        if self._keeps and num_computed > max(start, self.num_cached):
            tail = tokens[start:num_computed].tobytes()
            self.node, is_new = self._tree.keep_tail(held, tail, self.lease.pages[0])
            if is_new:
                self.lease.part_with(1)
        self.lease.free()
        self._tree.release(held)
