"""The model of random weights: its size, and the same numbers in every file."""

from math import prod

import gguf
import numpy as np
from bench.models import Tensor, drawn, tensors

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def test_it_has_1_1_billion_weights_and_a_head_of_its_own() -> None:
    wanted = list(tensors(22, 49_152))
    assert len({tensor.name for tensor in wanted}) == len(wanted) == 3 + 22 * 9
    assert sum(prod(tensor.shape) for tensor in wanted) == 1_170_302_976
    assert Tensor("output.weight", (49_152, 2_048)) in wanted


def test_a_tensor_depends_on_its_name_alone() -> None:
    first, again = (drawn(Tensor("a.weight", (5, 64)), Q8_0) for _ in range(2))
    assert first.shape == (5, 68)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, drawn(Tensor("b.weight", (5, 64)), Q8_0))
    values = gguf.quants.dequantize(first, Q8_0)
    assert 0.015 < values.std() < 0.025
