"""What came after a beginning in other sequences."""

from array import array

from roost.cache import KvCache, PagePool

A = array("i", range(100, 150))


def cache_with(*sequences: "array[int]") -> KvCache:
    """A cache in which these sequences ran, one after another."""
    kv = KvCache(PagePool(64))
    for tokens in sequences:
        run(kv, tokens, len(tokens))
    return kv


def run(kv: KvCache, tokens: "array[int]", num_computed: int) -> None:
    holding = kv.open(kv.match("", tokens, len(tokens) - 1), len(tokens))
    assert holding is not None
    holding.free(tokens, num_computed)


def guess(kv: KvCache, tokens: "array[int]", most: int = 8) -> list[int]:
    """Of one that runs, all but its last token computed."""
    holding = kv.open(kv.match("", tokens, len(tokens) - 1), len(tokens))
    assert holding is not None
    holding.settle(tokens, len(tokens) - 1)
    found = holding.guess(tokens, most).tolist()
    holding.free(tokens, len(tokens) - 1)
    kv.check([])
    return found


def test_what_another_went_on_with_from_wherever_this_one_is() -> None:
    for num_tokens in range(1, len(A)):
        kv = cache_with(A)
        rest = A[num_tokens : num_tokens + 8].tolist()
        assert guess(kv, A[:num_tokens]) == rest


def test_nothing_behind_the_end_of_what_is_known() -> None:
    kv = cache_with(A)
    assert guess(kv, A) == []
    assert guess(kv, A[:47], most=8) == [147, 148, 149]
    assert guess(kv, array("i", [*A[:20], 7])) == []
    assert guess(kv, array("i", [7])) == []


def test_as_many_as_are_wanted_across_pages() -> None:
    assert guess(cache_with(A), A[:3], most=40) == A[3:43].tolist()
    assert guess(cache_with(A), A[:3], most=0) == []


def test_of_several_the_one_that_was_used_last() -> None:
    other = array("i", [*A[:18], *range(500, 532)])
    kv = cache_with(A, other)
    # Only the full page is looked up, and that is both's.
    assert guess(kv, A[:17]) == [117, *range(500, 507)]
    run(kv, A, len(A))
    assert guess(kv, A[:17]) == A[17:25].tolist()


def test_another_s_namespace_says_nothing() -> None:
    kv = KvCache(PagePool(64))
    holding = kv.open(kv.match("theirs", A, 49), 50)
    assert holding is not None
    holding.free(A, 50)
    assert guess(kv, A[:20]) == []


def test_a_guess_uses_nothing() -> None:
    other = array("i", [*A[:18], *range(500, 532)])
    kv = cache_with(A, other)
    holding = kv.open(kv.match("", A[:17], 16), 17)
    assert holding is not None
    before = kv.num_used
    for _ in range(3):
        assert holding.guess(A[:17], 8).tolist() == [117, *range(500, 507)]
        assert holding.guess(A[:20], 8).tolist() == A[20:28].tolist()
    assert kv.num_used == before
    holding.free(A[:17], 16)
