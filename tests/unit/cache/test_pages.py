import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.cache import Lease, PagePool, pages_for


def test_pages_are_rounded_up_to_sixteen_tokens() -> None:
    assert [pages_for(n) for n in (0, 1, 16, 17, 32, 33)] == [0, 1, 1, 2, 2, 3]


def test_a_lease_takes_from_the_pool_and_gives_back() -> None:
    pool = PagePool(4)
    lease = pool.lease(3)
    assert lease is not None
    assert list(lease.pages) == [0, 1, 2]
    assert (pool.num_free, pool.num_leased) == (1, 3)
    lease.free()
    assert (pool.num_free, pool.num_leased) == (4, 0)
    assert len(lease.pages) == 0
    pool.check()


def test_a_short_pool_says_none_and_keeps_what_it_has() -> None:
    pool = PagePool(2)
    assert pool.lease(3) is None
    assert pool.num_free == 2


def test_freeing_twice_gives_back_once() -> None:
    pool = PagePool(2)
    lease = pool.lease(1)
    assert lease is not None
    lease.free()
    other = pool.lease(2)
    assert other is not None
    lease.free()
    assert pool.num_free == 0
    pool.check()


def test_extending_keeps_the_order_and_changes_nothing_when_short() -> None:
    pool = PagePool(3)
    lease = pool.lease(1)
    assert lease is not None
    assert lease.extend(1)
    before = lease.pages
    assert before == (0, 1)
    assert not lease.extend(2)
    assert lease.pages is before
    assert pool.num_free == 1


def test_a_freed_lease_cannot_grow() -> None:
    pool = PagePool(2)
    lease = pool.lease(1)
    assert lease is not None
    lease.free()
    with pytest.raises(AssertionError, match="a freed lease was extended"):
        lease.extend(1)


def test_check_finds_a_page_that_leaked() -> None:
    pool = PagePool(2)
    pool._free.pop()
    with pytest.raises(AssertionError, match="a page leaked"):
        pool.check()


def test_check_finds_a_page_given_back_twice() -> None:
    pool = PagePool(2)
    pool._free[:] = [1, 1]
    with pytest.raises(AssertionError, match="a page is free twice"):
        pool.check()


@given(st.lists(st.tuples(st.sampled_from(["lease", "extend", "free"]), st.integers(0, 7))))
def test_every_page_is_in_one_place(moves: list[tuple[str, int]]) -> None:
    pool = PagePool(12)
    leases: list[Lease] = []
    for verb, number in moves:
        if verb == "lease":
            lease = pool.lease(number)
            if lease is not None:
                leases.append(lease)
        elif leases:
            chosen = leases[number % len(leases)]
            if verb == "free":
                chosen.free()
                leases.remove(chosen)
            else:
                chosen.extend(1)
        pool.check()
        held = [page for lease in leases for page in lease.pages]
        assert len(set(held)) == len(held) == pool.num_leased
