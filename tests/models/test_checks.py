"""What does not fit together is refused before any weight is read, by the name of what is wrong."""

import contextlib
import json
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.golden.tiny_models import VARIANTS, config_of, write_model
from tests.models.gguf_twin import write_twin

from roost.core.errors import ModelError, UnsupportedModel
from roost.models import ARCHITECTURES, outline_model, plan_weights
from roost.weights import open_model

LLAMA = next(variant for variant in VARIANTS if variant.name == "llama")
UNTIED = next(variant for variant in VARIANTS if variant.name == "llama_untied")


def refuse(path: Path) -> str:
    """The message that `path` is refused with."""

    def check() -> None:
        files = open_model(path)
        plan_weights(files, outline_model(files))

    with pytest.raises(ModelError) as raised:
        check()
    return str(raised.value)


def changed(folder: Path, **changes: object) -> Path:
    write_model(folder, LLAMA)
    (folder / "config.json").write_text(json.dumps(config_of(LLAMA) | changes))
    return folder


def test_an_unknown_architecture_is_named_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_tensor("w", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    started = time.perf_counter()
    with pytest.raises(UnsupportedModel) as raised:
        outline_model(open_model(path))
    assert time.perf_counter() - started < 1
    assert "'mamba' is not supported" in str(raised.value)
    assert all(name in str(raised.value) for name in ARCHITECTURES)
    assert str(path) in str(raised.value)


def test_traits_say_the_sizes(tmp_path: Path) -> None:
    write_model(tmp_path / "m", UNTIED)
    traits = outline_model(open_model(tmp_path / "m")).traits
    assert (traits.architecture, traits.vocab_size, traits.hidden) == ("llama", 264, 64)
    assert (traits.num_layers, traits.num_heads, traits.num_kv_heads) == (2, 4, 2)
    assert (traits.head_dim, traits.max_context_tokens) == (16, 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "'model.embed_tokens.weight' has the shape [264, 64]; the hyper"),
        ({"num_hidden_layers": 3}, "tensor 'model.layers.2.input_layernorm.weight' is missing"),
        ({"num_hidden_layers": 1}, "9 tensors are not part of the architecture 'LlamaFor"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 KV heads"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, not a whole number from 1 on"),
        ({"num_attention_heads": None}, "the hyperparameter num_attention_heads is missing"),
        ({"intermediate_size": 175}, "mlp.gate_proj.weight' has the shape [176, 64]"),
        ({"vocab_size": 300}, "has the shape [264, 64]; the hyperparameters say [300, 64]"),
        ({"head_dim": 24}, "heads of 24 dimensions; multiples of 16 are supported"),
        ({"tie_word_embeddings": False}, "tensor 'lm_head.weight' is missing"),
        ({"attention_bias": True}, "self_attn.q_proj.bias' is missing"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; only 'silu' is supported"),
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported"),
        ({"architectures": []}, "`architectures` is missing"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "weights quantised by awq are not read",
        ),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "'dynamic' is not supported"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    assert message in refuse(changed(tmp_path / "m", **changes))


def test_biases_that_the_config_denies_are_refused(tmp_path: Path) -> None:
    biased = next(variant for variant in VARIANTS if variant.name == "llama_attention_bias")
    write_model(tmp_path / "m", biased)
    config = config_of(biased) | {"attention_bias": False}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    assert "self_attn.k_proj.bias" in refuse(tmp_path / "m")


def test_the_copy_of_a_tied_head_is_passed_over(tmp_path: Path) -> None:
    write_model(tmp_path / "m", UNTIED)
    config = config_of(UNTIED) | {"tie_word_embeddings": True}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    files = open_model(tmp_path / "m")
    planner, _ = plan_weights(files, outline_model(files))
    assert ("output.weight",) not in planner.matrices


def test_types_without_a_kernel_are_refused_by_name(tmp_path: Path) -> None:
    write_twin(tmp_path / "m.gguf", LLAMA)
    content = (tmp_path / "m.gguf").read_bytes()
    # The type number of blk.0.ffn_down, F32, becomes that of I32: the same size.
    name = b"blk.0.ffn_down.weight"
    place = content.index(name) + len(name) + 4 + 16
    patched = content[:place] + (26).to_bytes(4, "little") + content[place + 4 :]
    (tmp_path / "m.gguf").write_bytes(patched)
    message = refuse(tmp_path / "m.gguf")
    assert "tensor 'blk.0.ffn_down.weight' is of type I32; BF16, F16, F32, Q4_0" in message


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_twin(path, LLAMA, extra_tokens=[f"t{i}" for i in range(265)])
    assert "265 tokens in the vocabulary, 264 embeddings" in refuse(path)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("twin") / "m.gguf"
    write_twin(path, next(variant for variant in VARIANTS if variant.name == "llama_rope_yarn"))
    return path


# Where the metadata stand: magic, counts, then pairs up to the first tensor's name.
METADATA_BYTES = range(24, 900)


@given(
    flips=st.lists(
        st.tuples(st.sampled_from(METADATA_BYTES), st.integers(0, 255)), min_size=1, max_size=4
    )
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200
)
def test_damaged_hyperparameters_are_refused_or_harmless(
    twin: Path, tmp_path: Path, flips: list[tuple[int, int]]
) -> None:
    content = bytearray(twin.read_bytes())
    for place, value in flips:
        content[place] = value
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with contextlib.suppress(ModelError):
        files = open_model(path)
        plan_weights(files, outline_model(files))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 1.0}, "RoPE with the base 1.0"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-40}}, "RoPE frequencies of"),
        ({"max_position_embeddings": 1 << 40}, "a context of 1099511627776 tokens"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    assert message in refuse(changed(tmp_path / "m", **changes))
