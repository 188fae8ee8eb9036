"""The prefix tree: which KV pages hold what, so that a common beginning is computed once.

An edge is a page: up to 16 tokens. Full pages have children, a page that is not full is a leaf.
What a sequence computes is entered page by page, prompt and answer alike, and stays when the
sequence has ended, until its page is needed for something else.
"""

import heapq
import itertools
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from roost.cache.pages import PagePool
from roost.core.plan import PAGE_TOKENS

_TOKEN_BYTES = 4
# Entries of the heap that are out of date are swept when they outnumber the pages by so much.
_SLACK = 64

Eviction = Literal["lru", "lfu", "fifo"]


@dataclass(slots=True, eq=False)
class Node:
    """One page in the tree, under its parent's.

    key: its tokens as int32 bytes; of a root, which has no page, its namespace. num_holds: running
    sequences to whose prefix it belongs. num_pins: of sessions, likewise. is_detached: the cache
    was flushed; nobody finds it any more, and it goes when its last holder lets go.
    """

    parent: "Node | None"
    key: bytes
    page: int
    children: dict[bytes, "Node"] = field(default_factory=dict)
    sorted_keys: list[bytes] = field(default_factory=list)
    num_holds: int = 0
    num_pins: int = 0
    num_uses: int = 0
    used_at: int = 0
    born_at: int = 0
    is_detached: bool = False
    is_gone: bool = False
    # What took its place, and with that its pins.
    heir: "Node | None" = None
    # Of everything down to here, once it was asked for; b"": it was not.
    digest: bytes = b""

    @property
    def num_tokens(self) -> int:
        return len(self.key) // _TOKEN_BYTES

    @property
    def is_root(self) -> bool:
        return self.parent is None


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known beginning of some tokens.

    pages: full pages, of `node` and those above it. tail: a page of which only the first
    `num_tail_tokens` tokens fit, so it has to be copied; None: there is none.
    """

    node: Node
    pages: tuple[int, ...]
    tail: Node | None = None
    num_tail_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.pages) * PAGE_TOKENS + self.num_tail_tokens

    @property
    def num_held(self) -> int:
        """Pages of it that some sequence holds already: to share them costs nothing."""
        return sum(one.num_holds > 0 for one in _upwards(self.node))


_RANKS: Final[dict[Eviction, Callable[[Node], tuple[int, ...]]]] = {
    "lru": lambda node: (node.used_at,),
    "lfu": lambda node: (node.num_uses, node.used_at),
    "fifo": lambda node: (node.born_at,),
}


class PrefixTree:
    """Owns the pages that it was given; everything else of `pool` is on lease or free."""

    def __init__(self, pool: PagePool, eviction: Eviction = "lru") -> None:
        self._pool = pool
        self._rank = _RANKS[eviction]
        # Of the namespaces that have pages here, or are held.
        self._roots: dict[bytes, Node] = {}
        self._clock = itertools.count(1)
        self._ties = itertools.count()
        # Leaves that nobody holds, the next to go first; entries that are out of date are skipped.
        self._heap: list[tuple[tuple[int, ...], int, Node]] = []
        # Roots of before a flush, while something below them is held.
        self._detached: list[Node] = []
        self._num_pages = 0
        self._num_held = 0

    @property
    def num_pages(self) -> int:
        """Pages in the tree."""
        return self._num_pages

    @property
    def num_evictable(self) -> int:
        """Pages that could be had by evicting everything that no sequence holds."""
        return self._num_pages - self._num_held

    def match(self, namespace: str, tokens: "array[int]", limit: int) -> Match:
        """The longest beginning of `tokens[:limit]` that is here. Changes nothing: to keep what was
        found, `hold` it before anything else is done to the tree.
        """
        key = namespace.encode()
        node = self._roots.get(key) or Node(None, key, -1)
        pages: list[int] = []
        start = 0
        while start + PAGE_TOKENS <= limit:
            child = node.children.get(tokens[start : start + PAGE_TOKENS].tobytes())
            if child is None:
                break
            node = child
            pages.append(node.page)
            start += PAGE_TOKENS
        rest = tokens[start : min(start + PAGE_TOKENS, limit)].tobytes()
        tail, num_tail_tokens = _nearest(node, rest)
        return Match(node, tuple(pages), tail, num_tail_tokens)

    def hold(self, node: Node, tail: Node | None = None) -> None:
        """Keep this page and those above it until `release`. They, and the tail that was found
        below, count as used once, and now.
        """
        now = next(self._clock)
        root = node
        for one in _upwards(node):
            if one.num_holds == 0:
                self._num_held += 1
            one.num_holds += 1
            _use(one, now)
            assert one.parent is not None, "a root among the pages"
            root = one.parent
        root.num_holds += 1
        if tail is not None:
            _use(tail, now)
            self._offer(tail)
        # Another may have begun this namespace since the match: then nobody finds this one.
        if not root.is_detached and self._roots.setdefault(root.key, root) is not root:
            root.is_detached = True

    def release(self, node: Node) -> None:
        """Let go of what was held; it was in use until now."""
        now = next(self._clock)
        root = node
        for one in list(_upwards(node)):
            assert one.num_holds > 0, "released what was not held"
            assert one.parent is not None, "a root among the pages"
            root = one.parent
            one.num_holds -= 1
            one.used_at = now
            if one.num_holds == 0:
                self._num_held -= 1
                if one.is_detached:
                    self._remove(one)
        root.num_holds -= 1
        self._offer(node)
        self._forget(root)

    def pin(self, node: Node) -> None:
        """Evict this page and those above it only when nothing else is left."""
        for one in _upwards(node):
            one.num_pins += 1
            self._offer(one)

    def unpin(self, node: Node) -> None:
        """Take back a `pin`."""
        for one in _upwards(_latest(node)):
            assert one.num_pins > 0, "unpinned what was not pinned"
            one.num_pins -= 1
            # The page itself may be gone; then it is one above it that can be evicted.
            self._offer(one)

    def extend(self, node: Node, tokens: bytes, page: int) -> tuple[Node, bool]:
        """Enter a full page, computed by a sequence that holds `node`, below it, and hold that.

        False: an equal page was here already. The sequence is to use that one, and `page` stays its
        own to give back. True: the tree owns `page`.
        """
        assert len(tokens) == PAGE_TOKENS * _TOKEN_BYTES, "only full pages have children"
        child = node.children.get(tokens)
        is_new = child is None
        if child is None:
            child = self._insert(node, tokens, page)
        if child.num_holds == 0:
            self._num_held += 1
        child.num_holds += 1
        _use(child, next(self._clock))
        return child, is_new

    def keep_tail(self, node: Node, tokens: bytes, page: int) -> tuple[Node, bool]:
        """Enter a page that is not full → who has its tokens now.

        False: they are here already, or nobody would find them; `page` stays the caller's.
        """
        assert 0 < len(tokens) < PAGE_TOKENS * _TOKEN_BYTES, "a tail is a page that is not full"
        if node.is_detached:
            return node, False
        nearest, num_tokens = _nearest(node, tokens)
        is_new = nearest is None or num_tokens * _TOKEN_BYTES < len(tokens)
        if nearest is None or is_new:
            nearest = self._insert(node, tokens, page)
        _use(nearest, next(self._clock))
        self._offer(nearest)
        return nearest, is_new

    def evict(self, num_pages: int) -> list[Node]:
        """Free so many pages that nobody holds, the least worth keeping first → what they were."""
        gone: list[Node] = []
        while len(gone) < num_pages and self._heap:
            rank, _, node = heapq.heappop(self._heap)
            if node.is_gone or node.num_holds or node.children or rank != self._rank_of(node):
                continue
            self._remove(node)
            gone.append(node)
        return gone

    @property
    def whole_pages(self) -> list[Node]:
        """All that are full, what was used last first. O(pages)."""
        nodes = [node for root in self._roots.values() for node in _below(root)]
        nodes = [node for node in nodes if node.num_tokens == PAGE_TOKENS]
        return sorted(nodes, key=lambda node: node.used_at, reverse=True)

    def flush(self) -> int:
        """Forget everything → how many pages were freed. What is held is found by nobody from now
        on, and goes when it is released.
        """
        num_before = self._num_pages
        for root in self._roots.values():
            root.is_detached = True
            if root.children:
                self._detached.append(root)
            for node in list(_below(root)):
                if node.num_holds:
                    node.is_detached = True
                else:
                    self._remove(node)
        self._roots.clear()
        self._heap.clear()
        return num_before - self._num_pages

    def check(
        self, held: Sequence[Node] | None = None, pinned: Sequence[Node] | None = None
    ) -> None:
        """Assert that the books balance. O(pages). held, pinned: all, once for each holder."""
        roots = [*self._roots.values(), *self._detached]
        nodes = [node for root in roots for node in _below(root)]
        assert len(nodes) == self._num_pages, "a page is in the tree and not counted"
        assert len({node.page for node in nodes}) == len(nodes), "two nodes have one page"
        assert sum(node.num_holds > 0 for node in nodes) == self._num_held, "holds are miscounted"
        assert all(r.children or r.num_holds for r in self._roots.values()), "an empty namespace"
        offered = {id(node) for rank, _, node in self._heap if rank == self._rank_of(node)}
        for node in nodes:
            assert sorted(node.children) == node.sorted_keys, "children and their order disagree"
            below = sum(child.num_holds for child in node.children.values())
            assert node.num_holds >= below, "a hold that does not reach the root"
            assert node.num_tokens == PAGE_TOKENS or not node.children, "a tail has children"
            assert not node.is_gone, "a node that went is still found"
            if not (node.num_holds or node.children):
                assert node.is_detached is False, "a flushed page that nobody holds is kept"
                assert id(node) in offered, "a page that can never be evicted"
        if held is not None:
            counts = Counter(id(one) for node in held for one in _upwards(node))
            assert all(n.num_holds == counts[id(n)] for n in nodes), "a page is held by nobody"
        if pinned is not None:
            counts = Counter(id(one) for node in pinned for one in _upwards(_latest(node)))
            assert all(n.num_pins == counts[id(n)] for n in nodes), "a page is pinned by nobody"

    def _forget(self, root: Node) -> None:
        """Names of namespaces are the clients': one that is empty takes no memory."""
        if root.children or root.num_holds or self._roots.get(root.key) is not root:
            return
        del self._roots[root.key]

    def _insert(self, parent: Node, key: bytes, page: int) -> Node:
        now = next(self._clock)
        node = Node(parent, key, page, used_at=now, born_at=now, is_detached=parent.is_detached)
        # A tail that this page begins with says nothing that this one does not.
        at = bisect_left(parent.sorted_keys, key)
        if at and key.startswith(parent.sorted_keys[at - 1]):
            tail = parent.children[parent.sorted_keys[at - 1]]
            tail.heir, node.num_pins = node, tail.num_pins
            self._remove(tail)
        if parent.is_root and parent.is_detached and not parent.children:
            self._detached.append(parent)
        parent.children[key] = node
        insort(parent.sorted_keys, key)
        self._num_pages += 1
        return node

    def _remove(self, node: Node) -> None:
        """Take a leaf that nobody holds out of the tree, and give its page back."""
        assert node.parent is not None, "the root has no page"
        assert not node.children, "a page was dropped from under others"
        assert not node.num_holds, "a page that is held was dropped"
        node.is_gone = True
        parent = node.parent
        del parent.children[node.key]
        del parent.sorted_keys[bisect_left(parent.sorted_keys, node.key)]
        self._num_pages -= 1
        self._pool.give_back((node.page,))
        if not parent.is_root:
            self._offer(parent)
        elif not parent.children and parent.is_detached:
            self._detached.remove(parent)
        else:
            self._forget(parent)

    def _offer(self, node: Node) -> None:
        """If it can be evicted, let it be found by `evict`, ranked as it is now."""
        if node.is_root or node.is_gone or node.is_detached or node.children or node.num_holds:
            return
        heapq.heappush(self._heap, (self._rank_of(node), next(self._ties), node))
        if len(self._heap) > 2 * self._num_pages + _SLACK:
            current = {id(n): n for rank, _, n in self._heap if not n.is_gone}
            self._heap = [
                (self._rank_of(n), next(self._ties), n)
                for n in current.values()
                if not (n.children or n.num_holds)
            ]
            heapq.heapify(self._heap)

    def _rank_of(self, node: Node) -> tuple[int, ...]:
        """The least goes first."""
        return (int(node.num_pins > 0), *self._rank(node))


def _below(node: Node) -> Iterator[Node]:
    """Everything under a node, the children of each before it."""
    # A prefix may be thousands of pages deep, so not by recursion.
    found = []
    stack = list(node.children.values())
    while stack:
        one = stack.pop()
        found.append(one)
        stack.extend(one.children.values())
    return reversed(found)


def _upwards(node: Node) -> Iterator[Node]:
    """A node and those above it, without the root."""
    at: Node | None = node
    while at is not None and at.parent is not None:
        yield at
        at = at.parent


def _latest(node: Node) -> Node:
    """What has the tokens of a page now."""
    while node.heir is not None:
        node = node.heir
    return node


def _use(node: Node, now: int) -> None:
    node.used_at = now
    node.num_uses += 1


def _nearest(node: Node, wanted: bytes) -> tuple[Node | None, int]:
    """The child that has most of the first tokens of `wanted`, and how many those are."""
    # Of sorted keys, one of the two neighbours of a text shares most of its beginning.
    keys = node.sorted_keys
    at = bisect_left(keys, wanted)
    best, most = None, 0
    for key in keys[max(at - 1, 0) : at + 1]:
        num_tokens = _common_tokens(key, wanted)
        if num_tokens > most:
            best, most = node.children[key], num_tokens
    return best, most


def _common_tokens(a: bytes, b: bytes) -> int:
    end = min(len(a), len(b))
    for at in range(0, end, _TOKEN_BYTES):
        if a[at : at + _TOKEN_BYTES] != b[at : at + _TOKEN_BYTES]:
            return at // _TOKEN_BYTES
    return end // _TOKEN_BYTES
