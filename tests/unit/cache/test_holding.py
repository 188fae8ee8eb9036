"""What a sequence holds: shared pages and its own, entered as they fill, and freed once."""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from roost.cache import Holding, KvCache, PagePool, Pin
from roost.core.plan import PAGE_TOKENS


def ids(*runs: tuple[int, int]) -> "array[int]":
    """(token, how often) …"""
    return array("i", [token for token, count in runs for _ in range(count)])


def cache(num_pages: int = 8, *, is_on: bool = True) -> KvCache:
    return KvCache(PagePool(num_pages), prefixes="on" if is_on else "off")


def opened(kv: KvCache, tokens: "array[int]", namespace: str = "") -> Holding:
    """As the scheduler does: the last token is always computed."""
    holding = kv.open(kv.match(namespace, tokens, len(tokens) - 1), len(tokens))
    assert holding is not None
    return holding


def computed(kv: KvCache, tokens: "array[int]", namespace: str = "") -> Holding:
    """A sequence that ran and has ended, with all its tokens computed."""
    holding = opened(kv, tokens, namespace)
    holding.settle(tokens, len(tokens))
    holding.free(tokens, len(tokens))
    return holding


def known(kv: KvCache, tokens: "array[int]", namespace: str = "") -> int:
    return kv.match(namespace, tokens, len(tokens)).num_tokens


A_B_TAIL = ids((1, 16), (2, 16), (3, 5))


def test_a_first_sequence_owns_all_of_its_pages() -> None:
    kv = cache()
    holding = opened(kv, A_B_TAIL)
    assert (holding.pages, holding.lease.pages, holding.copy) == ((0, 1, 2), (0, 1, 2), None)
    assert (kv.num_used, kv.num_kept, kv.num_available) == (3, 0, 5)


def test_full_pages_go_to_the_tree_and_stay_where_they_are() -> None:
    kv = cache()
    holding = opened(kv, A_B_TAIL)
    pages = holding.pages
    holding.settle(A_B_TAIL, 15)
    assert holding.pages is pages
    holding.settle(A_B_TAIL, 33)
    assert (holding.pages, holding.lease.pages) == ((0, 1, 2), (2,))
    assert (kv.num_used, kv.num_kept, kv.num_available) == (3, 2, 5)
    assert known(kv, A_B_TAIL) == 32
    kv.check([holding], [])


def test_all_that_was_computed_is_found_again_and_takes_no_free_page() -> None:
    kv = cache()
    computed(kv, A_B_TAIL)
    assert (kv.num_used, kv.num_kept, kv.num_available) == (0, 3, 8)
    again = opened(kv, A_B_TAIL)
    assert (again.num_cached, again.pages, again.copy) == (36, (0, 1, 3), (2, 3))
    kv.check([again], [])


def test_two_that_compute_the_same_end_up_on_the_same_pages() -> None:
    kv = cache()
    one, two = opened(kv, A_B_TAIL), opened(kv, A_B_TAIL)
    assert (one.pages, two.pages) == ((0, 1, 2), (3, 4, 5))
    one.settle(A_B_TAIL, 32)
    two.settle(A_B_TAIL, 32)
    assert (one.pages, two.pages) == ((0, 1, 2), (0, 1, 5))
    assert (kv.num_used, kv.num_kept) == (4, 2)
    one.free(A_B_TAIL, 37)
    two.free(A_B_TAIL, 37)
    assert (kv.num_used, kv.num_kept, kv.pool.num_free) == (0, 3, 5)
    kv.check([], [])


def test_what_was_not_computed_is_not_kept() -> None:
    kv = cache()
    holding = opened(kv, A_B_TAIL)
    holding.free(A_B_TAIL, 20)
    assert known(kv, A_B_TAIL) == 20
    assert (kv.num_kept, kv.pool.num_free) == (2, 6)


def test_a_page_that_may_not_have_been_copied_is_not_kept() -> None:
    """The step that was to copy it failed, and meanwhile its original was evicted."""
    kv = cache(4)
    computed(kv, ids((1, 16), (2, 9)))
    holding = opened(kv, ids((1, 16), (2, 7), (3, 1)))
    assert (holding.num_cached, holding.copy) == (23, (1, 2))
    assert holding.extend(2)
    assert known(kv, ids((1, 16), (2, 9))) == 16
    holding.free(ids((1, 16), (2, 7), (3, 1)), holding.num_cached)
    assert known(kv, ids((1, 16), (2, 9))) == 16
    kv.check([], [])


def test_a_copied_page_is_kept_once_more_of_it_was_computed() -> None:
    kv = cache()
    computed(kv, ids((1, 16), (2, 9)))
    tokens = ids((1, 16), (2, 7), (3, 1))
    opened(kv, tokens).free(tokens, 24)
    assert known(kv, tokens) == 24
    assert known(kv, ids((1, 16), (2, 9))) == 25


def test_what_nobody_holds_gives_way_and_what_is_held_does_not() -> None:
    kv = cache(6)
    computed(kv, ids((9, 32)))
    holding = opened(kv, A_B_TAIL)
    holding.settle(A_B_TAIL, 37)
    assert kv.num_available == 3
    assert holding.extend(3)
    assert not holding.extend(1)
    assert (known(kv, ids((9, 32))), known(kv, A_B_TAIL)) == (0, 32)
    kv.check([holding], [])


def test_too_few_pages_change_nothing() -> None:
    kv = cache(4)
    computed(kv, ids((1, 32)))
    match = kv.match("", ids((1, 32), (2, 48)), 80)
    assert match.num_tokens == 32
    assert kv.open(match, 80) is None
    assert (kv.num_available, known(kv, ids((1, 32)))) == (4, 32)
    kv.check([], [])


def test_namespaces_compute_for_themselves_and_leave_nothing_behind() -> None:
    kv = cache()
    for name in ("", "a", "b"):
        holding = opened(kv, A_B_TAIL, name)
        assert holding.num_cached == 0
        holding.free(A_B_TAIL, 37)
    for number in range(1000):
        assert known(kv, A_B_TAIL, f"asked only {number}") == 0
        opened(kv, ids((1, 3)), f"computed nothing {number}").free(ids((1, 3)), 0)
    assert set(kv._tree._roots) <= {b"", b"a", b"b"}
    kv.check([], [])


def test_two_that_begin_a_namespace_at_once_do_no_harm() -> None:
    kv = cache()
    first, second = (kv.match("x", A_B_TAIL, 36) for _ in range(2))
    one, two = kv.open(first, 37), kv.open(second, 37)
    assert one is not None
    assert two is not None
    for holding in (one, two):
        holding.settle(A_B_TAIL, 32)
    kv.check([one, two], [])
    assert known(kv, A_B_TAIL, "x") == 32
    two.free(A_B_TAIL, 37)
    one.free(A_B_TAIL, 37)
    assert (known(kv, A_B_TAIL, "x"), kv.num_kept) == (37, 3)
    kv.check([], [])


def test_a_longer_page_inherits_the_pins_of_that_whose_place_it_takes() -> None:
    kv = cache(6)
    pin = computed(kv, ids((1, 16), (2, 5))).pin()
    computed(kv, ids((1, 16), (2, 12)))
    computed(kv, ids((1, 16), (2, 16), (3, 1)))
    kv.check([], [pin])
    computed(kv, ids((9, 64)))
    assert known(kv, ids((1, 16), (2, 16))) == 32
    computed(kv, ids((8, 96)))
    kv.check([], [pin])
    pin.free()
    kv.check([], [])


def test_looking_is_not_using() -> None:
    kv = KvCache(PagePool(4), eviction="lfu")
    computed(kv, ids((1, 16)))
    computed(kv, ids((2, 16)))
    opened(kv, ids((2, 17))).free(ids((2, 17)), 16)
    for _ in range(9):
        known(kv, ids((1, 16)))
    opened(kv, ids((3, 48)))
    assert (known(kv, ids((1, 16))), known(kv, ids((2, 16)))) == (0, 16)


def test_after_a_flush_what_runs_is_found_by_nobody_and_goes_when_it_ends() -> None:
    kv = cache()
    settled, fresh = opened(kv, A_B_TAIL), opened(kv, ids((7, 20)))
    settled.settle(A_B_TAIL, 32)
    assert kv.flush() == 0
    # The one that had entered nothing yet has no page in the tree, and goes on all the same.
    fresh.settle(ids((7, 20)), 17)
    kv.check([settled, fresh], [])
    assert (known(kv, A_B_TAIL), known(kv, ids((7, 20)))) == (0, 0)
    settled.free(A_B_TAIL, 37)
    fresh.free(ids((7, 20)), 20)
    assert (kv.num_kept, kv.pool.num_free) == (0, 8)
    kv.check([], [])


def test_without_prefixes_nothing_is_kept() -> None:
    kv = cache(is_on=False)
    holding = computed(kv, A_B_TAIL)
    assert (known(kv, A_B_TAIL), kv.num_kept, kv.pool.num_free) == (0, 0, 8)
    holding.pin().free()


def test_a_pin_covers_the_tail_and_is_freed_once() -> None:
    kv = cache(6)
    pin = computed(kv, A_B_TAIL).pin()
    kv.check([], [pin])
    # Newer, but of no session: these go first.
    computed(kv, ids((9, 48)))
    other = opened(kv, ids((8, 48)))
    assert (known(kv, A_B_TAIL), known(kv, ids((9, 48)))) == (37, 0)
    # A pin is a wish: memory that is wanted is given.
    assert other.extend(3)
    assert known(kv, A_B_TAIL) == 0
    pin.free()
    pin.free()
    other.free(ids((8, 48)), 48)
    kv.check([], [])


def test_of_two_unused_beginnings_that_goes_first_whose_use_ended_first() -> None:
    kv = cache(5)
    long = opened(kv, ids((1, 32)))
    long.settle(ids((1, 32)), 32)
    computed(kv, ids((2, 32)))
    long.free(ids((1, 32)), 32)
    opened(kv, ids((3, 32)))
    assert (known(kv, ids((1, 32))), known(kv, ids((2, 32)))) == (32, 16)


class Machine(RuleBasedStateMachine):
    """Sequences come, compute, grow and go; pages hold what their holders believe."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[tuple[Holding, array[int], int]] = []
        self.pins: list[Pin] = []
        self.written: dict[int, list[int]] = {}

    @initialize(num_pages=st.sampled_from([4, 7, 60]))
    def build(self, num_pages: int) -> None:
        self.kv = cache(num_pages)
        self.written = {page: [-1] * PAGE_TOKENS for page in range(num_pages)}

    @rule(
        runs=st.lists(st.tuples(st.integers(1, 2), st.sampled_from([1, 7, 16])), min_size=1),
        namespace=st.sampled_from(["", "", "x"]),
    )
    def come(self, runs: list[tuple[int, int]], namespace: str) -> None:
        tokens = ids(*runs[:5])
        holding = self.kv.open(self.kv.match(namespace, tokens, len(tokens) - 1), len(tokens))
        if holding is None:
            return
        if holding.copy is not None:
            source, target = holding.copy
            self.written[target] = list(self.written[source])
        self.running.append((holding, tokens, holding.num_cached))
        self._reads(holding, tokens, holding.num_cached)

    @rule(index=st.integers(0, 9), count=st.integers(1, 20))
    def compute(self, index: int, count: int) -> None:
        if not self.running:
            return
        at = index % len(self.running)
        holding, tokens, done = self.running[at]
        stop = min(done + count, len(tokens))
        for position in range(done, stop):
            page = holding.pages[position // PAGE_TOKENS]
            assert page in holding.lease.pages, "a shared page is written"
            self.written[page][position % PAGE_TOKENS] = tokens[position]
        holding.settle(tokens, stop)
        self.running[at] = (holding, tokens, stop)
        self._reads(holding, tokens, stop)

    @rule(index=st.integers(0, 9), token=st.integers(1, 2), num_pages=st.integers(1, 2))
    def grow(self, index: int, token: int, num_pages: int) -> None:
        if not self.running:
            return
        holding, tokens, _ = self.running[index % len(self.running)]
        if holding.extend(num_pages):
            tokens.extend([token] * (len(holding.pages) * PAGE_TOKENS - len(tokens)))

    @rule(index=st.integers(0, 9), is_pinned=st.booleans())
    def go(self, index: int, is_pinned: bool) -> None:
        if not self.running:
            return
        holding, tokens, done = self.running.pop(index % len(self.running))
        holding.free(tokens, done)
        if is_pinned:
            self.pins.append(holding.pin())

    @rule(index=st.integers(0, 9))
    def unpin(self, index: int) -> None:
        if self.pins:
            self.pins.pop(index % len(self.pins)).free()

    @rule()
    def flush(self) -> None:
        self.kv.flush()

    @invariant()
    def books_balance(self) -> None:
        if not self.written:
            return
        self.kv.check([holding for holding, _, _ in self.running], self.pins)
        assert self.kv.num_available + self.kv.num_used == len(self.written)
        for holding, tokens, done in self.running:
            self._reads(holding, tokens, done)

    def _reads(self, holding: Holding, tokens: "array[int]", done: int) -> None:
        seen = [self.written[page][i] for page in holding.pages for i in range(PAGE_TOKENS)]
        assert seen[:done] == tokens[:done].tolist(), "a page holds something else"

    def teardown(self) -> None:
        while self.running:
            self.go(0, False)
        while self.pins:
            self.unpin(0)
        if self.written:
            self.kv.check([], [])
            self.kv.flush()
            assert self.kv.pool.num_free == len(self.written)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
