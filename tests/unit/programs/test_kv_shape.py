"""How much memory a page of keys and values takes."""

import pytest

from roost.core.settings import KvDtype
from roost.programs import KvShape


@pytest.mark.parametrize(
    ("dtype", "head_dim", "token_and_head_bytes"),
    [
        ("f32", 64, 2 * 64 * 4),
        ("bf16", 64, 2 * 64 * 2),
        ("int8", 64, (64 + 2 * 4) + (64 + 4)),
        ("int8", 80, (80 + 3 * 4) + (80 + 4)),
        ("int8", 16, (16 + 4) + (16 + 4)),
    ],
)
def test_a_page_is_16_tokens_of_all_layers(
    dtype: KvDtype, head_dim: int, token_and_head_bytes: int
) -> None:
    assert KvShape(30, 3, head_dim, dtype).page_bytes == 16 * 30 * 3 * token_and_head_bytes
