"""The prefix tree finds exactly what was entered, frees what nobody holds, and keeps its books."""

from array import array
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from roost.cache import PagePool
from roost.cache.radix import Eviction, Node, PrefixTree
from roost.core.plan import PAGE_TOKENS


def ids(*runs: tuple[int, int]) -> "array[int]":
    """(token, how often) …"""
    return array("i", [token for token, count in runs for _ in range(count)])


class Shelf:
    """A tree, and sequences that enter what they compute as a scheduler does."""

    def __init__(self, num_pages: int = 32, eviction: Eviction = "lru") -> None:
        self.pool = PagePool(num_pages)
        self.tree = PrefixTree(self.pool, eviction)

    def page(self) -> int:
        pages = self.pool.take(1)
        assert pages is not None
        return pages[0]

    def enter(self, tokens: "array[int]", namespace: str = "") -> Node:
        """Enter all of it, hold nothing afterwards → the node of its last full page."""
        node = self.tree.match(namespace, ids(), 0).node
        self.tree.hold(node)
        full = len(tokens) // PAGE_TOKENS * PAGE_TOKENS
        for start in range(0, full, PAGE_TOKENS):
            page = self.page()
            node, is_new = self.tree.extend(
                node, tokens[start : start + PAGE_TOKENS].tobytes(), page
            )
            if not is_new:
                self.pool.give_back((page,))
        if full < len(tokens):
            page = self.page()
            _, is_new = self.tree.keep_tail(node, tokens[full:].tobytes(), page)
            if not is_new:
                self.pool.give_back((page,))
        self.tree.release(node)
        self.tree.check()
        return node

    def known(self, tokens: "array[int]", namespace: str = "") -> int:
        return self.tree.match(namespace, tokens, len(tokens)).num_tokens

    def use(self, tokens: "array[int]") -> None:
        match = self.tree.match("", tokens, len(tokens))
        self.tree.hold(match.node, match.tail)
        self.tree.release(match.node)


def test_a_match_is_exact_to_the_token() -> None:
    shelf = Shelf()
    shelf.enter(ids((1, 16), (2, 16), (3, 5)))
    assert shelf.known(ids((1, 16), (2, 16), (3, 5))) == 37
    assert shelf.known(ids((1, 16), (2, 16), (3, 4), (9, 9))) == 36
    assert shelf.known(ids((1, 16), (2, 7), (9, 30))) == 23
    assert shelf.known(ids((1, 3))) == 3
    assert shelf.known(ids((9, 1), (1, 16))) == 0


def test_the_limit_leaves_tokens_to_compute() -> None:
    shelf = Shelf()
    tokens = ids((1, 32))
    shelf.enter(tokens)
    match = shelf.tree.match("", tokens, 31)
    assert (match.num_tokens, len(match.pages), match.num_tail_tokens) == (31, 1, 15)
    assert shelf.tree.match("", tokens, 0).num_tokens == 0


def test_pages_come_in_the_order_of_their_tokens() -> None:
    shelf = Shelf()
    shelf.enter(ids((1, 16), (2, 16), (3, 3)))
    match = shelf.tree.match("", ids((1, 16), (2, 16), (3, 3)), 35)
    assert match.pages == (0, 1)
    assert match.tail is not None
    assert match.tail.page == 2


def test_what_two_computed_is_kept_once() -> None:
    shelf = Shelf()
    for _ in range(3):
        shelf.enter(ids((1, 16), (2, 16), (3, 3)))
    assert shelf.tree.num_pages == shelf.pool.num_leased == 3


def test_a_longer_page_takes_the_place_of_its_own_beginning() -> None:
    shelf = Shelf()
    shelf.enter(ids((1, 5)))
    shelf.enter(ids((1, 9)))
    shelf.enter(ids((1, 3)))
    assert (shelf.tree.num_pages, shelf.known(ids((1, 16)))) == (1, 9)
    shelf.enter(ids((1, 16)))
    assert (shelf.tree.num_pages, shelf.known(ids((1, 20)))) == (1, 16)


def test_namespaces_share_nothing() -> None:
    shelf = Shelf()
    shelf.enter(ids((1, 20)), "a")
    assert shelf.known(ids((1, 20)), "b") == 0
    assert shelf.known(ids((1, 20)), "a") == 20


def test_what_is_held_is_not_evicted() -> None:
    shelf = Shelf()
    node = shelf.enter(ids((1, 16), (2, 16), (3, 16)))
    middle = node.parent
    assert middle is not None
    shelf.tree.hold(middle)
    assert shelf.tree.num_evictable == 1
    assert len(shelf.tree.evict(10)) == 1
    assert shelf.known(ids((1, 16), (2, 16), (3, 16))) == 32
    shelf.tree.release(middle)
    assert len(shelf.tree.evict(10)) == 2
    assert shelf.pool.num_free == 32
    shelf.tree.check()


@pytest.mark.parametrize(
    ("eviction", "left"), [("lru", (0, 16, 16)), ("fifo", (0, 16, 16)), ("lfu", (16, 16, 0))]
)
def test_each_policy_gives_up_what_it_says(eviction: Eviction, left: tuple[int, ...]) -> None:
    """Entered 1, 2, 3; used: 1 three times, then 2 twice, then 3 once: the last use is 3's."""
    shelf = Shelf(eviction=eviction)
    for token in (1, 2, 3):
        shelf.enter(ids((token, 16)))
    for token, times in ((1, 3), (2, 2), (3, 1)):
        for _ in range(times):
            shelf.use(ids((token, 16)))
    shelf.tree.evict(1)
    kept = {node.key[0] for node in shelf.tree.match("", ids(), 0).node.children.values()}
    assert tuple(16 if token in kept else 0 for token in (1, 2, 3)) == left


def test_a_pin_gives_way_when_nothing_else_is_left() -> None:
    shelf = Shelf()
    pinned = shelf.enter(ids((1, 32)))
    shelf.tree.pin(pinned)
    shelf.enter(ids((2, 32)))
    assert len(shelf.tree.evict(2)) == 2
    assert shelf.known(ids((1, 32))) == 32
    assert len(shelf.tree.evict(2)) == 2
    shelf.tree.unpin(pinned)
    shelf.tree.check()
    assert shelf.pool.num_free == 32


def test_a_flush_lets_those_who_run_end() -> None:
    shelf = Shelf()
    node = shelf.enter(ids((1, 32), (2, 5)))
    shelf.enter(ids((3, 16)))
    shelf.tree.hold(node)
    assert shelf.tree.flush() == 2
    assert shelf.known(ids((1, 32))) == 0
    shelf.tree.check()
    # Whoever runs goes on below what it holds, and nobody finds that.
    page = shelf.page()
    deeper, is_new = shelf.tree.extend(node, ids((7, 16)).tobytes(), page)
    assert is_new
    shelf.enter(ids((1, 16)))
    shelf.tree.release(deeper)
    shelf.tree.check()
    assert shelf.tree.num_pages == shelf.pool.num_leased == 1


def test_many_uses_of_one_page_cost_no_memory() -> None:
    shelf = Shelf()
    shelf.enter(ids((1, 16)))
    for _ in range(1000):
        shelf.use(ids((1, 16)))
    assert len(shelf.tree._heap) <= 2 + 64 + 1
    assert len(shelf.tree.evict(1)) == 1


class Model(RuleBasedStateMachine):
    """Against a list of everything that was entered: a match is never longer than what is known,
    and with a pool that is large enough never shorter."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[array[int]] = []
        self.held: list[Node] = []

    @initialize(num_pages=st.sampled_from([8, 200]), eviction=st.sampled_from(get_args(Eviction)))
    def open(self, num_pages: int, eviction: Eviction) -> None:
        self.shelf = Shelf(num_pages, eviction)
        self.is_large = num_pages == 200

    # Few tokens, long runs: so that prefixes are common.
    @rule(runs=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 8, 16])), max_size=4))
    def enter(self, runs: list[tuple[int, int]]) -> None:
        tokens = ids(*runs)
        needed = -(-len(tokens) // PAGE_TOKENS)
        pool, tree = self.shelf.pool, self.shelf.tree
        if pool.num_free < needed:
            tree.evict(needed - pool.num_free)
        if pool.num_free >= needed:
            self.shelf.enter(tokens)
            self.entered.append(tokens)

    @rule(runs=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 8, 16])), max_size=4))
    def match(self, runs: list[tuple[int, int]]) -> None:
        tokens = ids(*runs)
        best = max((_common(tokens, other) for other in self.entered), default=0)
        found = self.shelf.known(tokens)
        assert found <= best
        if self.is_large:
            assert found == best

    @rule(index=st.integers(0, 20))
    def hold(self, index: int) -> None:
        if self.entered:
            tokens = self.entered[index % len(self.entered)]
            node = self.shelf.tree.match("", tokens, len(tokens)).node
            if not node.is_root:
                self.shelf.tree.hold(node)
                self.held.append(node)

    @rule(index=st.integers(0, 20))
    def release(self, index: int) -> None:
        if self.held:
            self.shelf.tree.release(self.held.pop(index % len(self.held)))

    @rule()
    def flush(self) -> None:
        self.shelf.tree.flush()
        self.entered.clear()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "shelf"):
            self.shelf.tree.check()
            self.shelf.pool.check()
            assert self.shelf.tree.num_pages == self.shelf.pool.num_leased

    def teardown(self) -> None:
        if hasattr(self, "shelf"):
            for node in self.held:
                self.shelf.tree.release(node)
            self.shelf.tree.flush()
            assert self.shelf.pool.num_leased == 0


def _common(a: "array[int]", b: "array[int]") -> int:
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
