"""Each architecture computes what its reference implementation computes, from either container.

The goldens are float32 logits of the original implementations for models with random weights
(tests/golden/tiny_models.py); the judge runs ours in float64 on the same weights.
"""

from pathlib import Path

import numpy as np
import pytest
from tests.golden.tiny_models import VARIANTS, Variant, prompt_ids, write_model
from tests.models.gguf_twin import GEMMA3, TWINS, write_twin
from tests.models.numpy_builder import Doubles, judge, log_softmax

from roost.weights import open_model

GOLDEN = Path(__file__).parents[1] / "golden" / "parity" / "tiny.npz"

# The reference computes in float32: 2⁻²⁴ · 64 sums · 3 layers, logits of about 4, leaves 3e-5.
TOLERANCE = 5e-5


def golden(variant: Variant, what: str) -> Doubles:
    with np.load(GOLDEN) as arrays:
        return np.asarray(arrays[f"{variant.name}/{what}"], np.float64)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_folder_gives_the_references_logits(tmp_path: Path, variant: Variant) -> None:
    write_model(tmp_path / "model", variant)
    ids = prompt_ids()
    logits = judge(open_model(tmp_path / "model"), ids)
    positions = golden(variant, "positions").astype(int)
    assert np.abs(logits[positions] - golden(variant, "logits")).max() < TOLERANCE
    following = log_softmax(logits)[np.arange(len(ids) - 1), ids[1:]]
    assert np.abs(following - golden(variant, "next")).max() < TOLERANCE


@pytest.mark.parametrize("variant", TWINS, ids=lambda variant: variant.name)
def test_a_gguf_file_gives_the_same(tmp_path: Path, variant: Variant) -> None:
    write_twin(tmp_path / "twin.gguf", variant)
    logits = judge(open_model(tmp_path / "twin.gguf"), prompt_ids())
    positions = golden(variant, "positions").astype(int)
    assert np.abs(logits[positions] - golden(variant, "logits")).max() < TOLERANCE


def test_gemma_files_agree_on_norms_windows_and_scales(tmp_path: Path) -> None:
    # GGUF adds one to the norms, and leaves the kinds of layers to the reader.
    write_model(tmp_path / "model", GEMMA3)
    write_twin(tmp_path / "twin.gguf", GEMMA3)
    ids = prompt_ids()
    theirs = judge(open_model(tmp_path / "model"), ids)
    ours = judge(open_model(tmp_path / "twin.gguf"), ids)
    assert np.abs(theirs - ours).max() < TOLERANCE
