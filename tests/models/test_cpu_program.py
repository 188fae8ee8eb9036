"""The CPU's program computes what the judge computes, for every architecture."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.golden.tiny_models import VARIANTS, Variant, prompt_ids, write_model
from tests.models.gguf_twin import TWINS, write_twin
from tests.models.numpy_builder import Doubles, judge, log_softmax

from roost.kernels import ThreadPool, available_isas
from roost.models import LoadedModel, load_model
from roost.programs import CpuBuilder, CpuProgram, HeadRow, KvShape, StepInputs
from roost.weights import ModelFiles, PackOptions, open_model

PAGE_TOKENS = 16


@contextmanager
def program_of(model: LoadedModel, num_rows: int, isa: str) -> Iterator[CpuProgram]:
    traits = model.traits
    pool = ThreadPool(2)
    builder = CpuBuilder(
        max_rows=num_rows,
        max_logits_rows=num_rows,
        isa=isa,
        pool=pool,
        kv=KvShape(traits.num_layers, traits.num_kv_heads, traits.head_dim, "f32"),
        num_pages=-(-num_rows // PAGE_TOKENS),
        max_context_tokens=traits.max_context_tokens,
    )
    model.record(builder)
    program = builder.finish()
    try:
        yield program
    finally:
        program.close()
        pool.close()


def logprobs(
    files: ModelFiles,
    ids: list[int],
    isa: str,
    picked: int = 64,
    options: PackOptions = PackOptions(num_threads=2),  # noqa: B008 — frozen
) -> Doubles:
    """f64 [len(ids), picked]: logprobs of the first `picked` ids after each token."""
    vocabulary = np.arange(picked, dtype=np.int32)
    num_pages = -(-len(ids) // PAGE_TOKENS)
    inputs = StepInputs(
        token_ids=np.array(ids, np.int32),
        positions=np.arange(len(ids), dtype=np.int32),
        slice_offsets=np.array([0, len(ids)], np.int32),
        pages=np.arange(num_pages, dtype=np.int32),
        page_offsets=np.array([0, num_pages], np.int32),
        heads=[
            HeadRow(row=row, sampling=None, target_id=0, picked_ids=vocabulary)
            for row in range(len(ids))
        ],
    )
    with program_of(load_model(files, options), len(ids), isa) as program:
        outputs = program.run(inputs)
    assert not outputs.faults.any()
    return np.array([outputs.picked(index) for index in range(len(ids))])


def judged(files: ModelFiles, ids: list[int], picked: int = 64) -> Doubles:
    result: Doubles = log_softmax(judge(files, ids))[:, :picked]
    return result


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_float_weights_agree_closely(tmp_path: Path, variant: Variant, isa: str) -> None:
    write_model(tmp_path / "model", variant)
    files = open_model(tmp_path / "model")
    error = np.abs(logprobs(files, prompt_ids(), isa) - judged(files, prompt_ids()))
    assert error.max() < 5e-5  # float32 against float64


@pytest.mark.parametrize("variant", TWINS, ids=lambda variant: variant.name)
def test_both_containers_agree(tmp_path: Path, variant: Variant) -> None:
    write_twin(tmp_path / "twin.gguf", variant)
    files = open_model(tmp_path / "twin.gguf")
    isa = available_isas()[-1]
    error = np.abs(logprobs(files, prompt_ids(), isa) - judged(files, prompt_ids()))
    assert error.max() < 5e-5


@pytest.mark.parametrize(("quantize", "limit"), [("int8", 0.1), ("int4", 0.8)])
def test_quantised_on_load_stays_near(tmp_path: Path, quantize: str, limit: float) -> None:
    variant = next(variant for variant in VARIANTS if variant.name == "llama_bf16")
    write_model(tmp_path / "model", variant)
    files = open_model(tmp_path / "model")
    options = PackOptions(quantize="int8" if quantize == "int8" else "int4")
    found = logprobs(files, prompt_ids(), available_isas()[-1], options=options)
    error = np.abs(found - judged(files, prompt_ids())).mean()
    # A linear layer of random weights loses about 1 % (8 bits) or 8 % (4 bits) of its spread, there
    # are eight of them on the way, and logits spread by 2.4.
    assert 1e-3 < error < limit


def test_the_demo_model_agrees_but_for_its_activations(demo_model: Path) -> None:
    files = open_model(demo_model)
    ids = [504, 3575, 282, 4649, 314, 7042, 30, 657, 314, 260, 2240, 3575]
    expected = judged(files, ids, 49_152)
    found = logprobs(files, ids, available_isas()[-1], 49_152)
    likely: npt.NDArray[np.intp] = np.argsort(-expected, axis=1)[:, :5]
    rows = np.arange(len(ids))[:, None]
    # The judge, its activations rounded to eight bits too, is 0.066 away from itself.
    assert np.abs(found[rows, likely] - expected[rows, likely]).mean() < 0.1
    assert found[4].argmax() == expected[4].argmax() == 7042  # The capital of France is … Paris
