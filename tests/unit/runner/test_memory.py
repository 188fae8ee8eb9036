import pytest

from roost.core.errors import ModelError
from roost.runner import FreeMemory, KvNeeds, plan_kv

GIB = 1 << 30
FREE = FreeMemory(8 * GIB, "what the machine has available")


def needs(token_bytes: int, context: int, running: int, asked: int | None = None) -> KvNeeds:
    return KvNeeds(token_bytes, context, running, asked)


def test_a_quarter_of_what_is_free_unless_less_is_of_use() -> None:
    plan = plan_kv(needs(1 << 14, 8192, 64), FREE)
    assert plan.num_tokens == 2 * GIB >> 14
    assert plan.num_bytes == 2 * GIB
    assert plan.why == (
        "131072 tokens, 2.00 GiB: a quarter of 8.00 GiB free (what the machine has available)"
    )


def test_never_more_than_all_requests_can_use() -> None:
    plan = plan_kv(needs(1 << 10, 100, 3), FREE)
    assert plan.num_pages == 19  # 300 tokens
    assert plan.why == "304 tokens, 0.00 GiB: all that 3 requests of 100 tokens can use"


def test_what_is_asked_for_is_rounded_up_to_pages() -> None:
    assert plan_kv(needs(1 << 10, 4096, 1, asked=1000), FREE).num_tokens == 1008


def test_asking_for_more_than_fits_names_the_numbers() -> None:
    with pytest.raises(ModelError) as caught:
        plan_kv(needs(1 << 20, 4096, 1, asked=10_000), FREE)
    assert caught.value.message == (
        "max_total_tokens=10000 needs 9.77 GiB of KV cache (1048576 bytes a token); 7.20 GiB may "
        "be used of 8.00 GiB free (what the machine has available)"
    )


def test_no_room_for_anything_useful_names_the_numbers() -> None:
    with pytest.raises(ModelError, match=r"256 tokens need 0\.25 GiB .*a quarter .* is 0\.12 GiB"):
        plan_kv(needs(1 << 20, 4096, 1), FreeMemory(GIB // 2, "a limit"))


def test_a_model_with_a_short_context_needs_no_more_than_that() -> None:
    assert plan_kv(needs(1 << 20, 64, 1), FreeMemory(GIB // 2, "a limit")).num_tokens == 64
