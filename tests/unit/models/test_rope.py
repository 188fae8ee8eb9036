"""RoPE frequencies follow the published rules, and what the reference computes in float32."""

import math
from pathlib import Path

import numpy as np
import pytest

from roost.core.errors import ModelError, UnsupportedModel
from roost.models.fields import Fields
from roost.models.rope import (
    Divided,
    Linear,
    Llama3,
    Unscaled,
    Yarn,
    gguf_rope,
    hf_rope,
    rope_spec,
    yarn_attention_scale,
)
from roost.weights import GgmlType, ModelFiles, RawTensor

# Of transformers 5.24's ROPE_INIT_FUNCTIONS, heads of 32, float32; off by up to three ulps.
DEFAULT = [
    1.0,
    0.562341332,
    0.316227764,
    0.177827939,
    0.100000001,
    0.0562341288,
    0.0316227786,
    0.0177827943,
    0.00999999978,
    0.00562341325,
    0.00316227786,
    0.00177827943,
    0.00100000005,
    0.000562341302,
    0.000316227786,
    0.00017782794,
]
LLAMA3 = [
    1.0,
    0.440366626,
    0.193922758,
    0.0853971019,
    0.0376060307,
    0.0165604409,
    0.00729266508,
    0.00321144611,
    0.000524846022,
    7.78465546e-05,
    3.42810235e-05,
    1.50962178e-05,
    6.64786967e-06,
    2.92749974e-06,
    1.28917316e-06,
    5.6770881e-07,
]
YARN = [
    1.0,
    0.421696514,
    0.177827939,
    0.0749894157,
    0.0316227786,
    0.0133352149,
    0.00477990136,
    0.00165996165,
    0.000549999997,
    0.000168678584,
    4.44569851e-05,
    1.87473561e-05,
    7.90569356e-06,
    3.33380353e-06,
    1.40585337e-06,
    5.92843435e-07,
]
YARN_MSCALE = [
    1.0,
    0.562341332,
    0.316227764,
    0.177827939,
    0.100000001,
    0.0562341288,
    0.0316227786,
    0.0143151497,
    0.00609999988,
    0.00233371649,
    0.000695701048,
    4.44569851e-05,
    2.49999994e-05,
    1.40585325e-05,
    7.90569447e-06,
    4.44569832e-06,
]
CONFIGS: dict[str, tuple[dict[str, object], list[float], float, int]] = {
    "default": ({"max_position_embeddings": 8192}, DEFAULT, 1.0, 8192),
    "linear": (
        {
            "max_position_embeddings": 8192,
            "rope_theta": 10_000,
            "rope_scaling": {"type": "linear", "factor": 4},
        },
        [value / 4 for value in DEFAULT],
        1.0,
        8192,
    ),
    "llama3": (
        {
            "max_position_embeddings": 131_072,
            "rope_theta": 500_000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
        LLAMA3,
        1.0,
        131_072,
    ),
    "yarn": (
        {
            "max_position_embeddings": 32_768,
            "rope_theta": 1_000_000.0,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32_768,
            },
        },
        YARN,
        1.138629436111989,
        131_072,
    ),
    "yarn, newer keys": (
        {
            "max_position_embeddings": 163_840,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 40.0,
                "original_max_position_embeddings": 4096,
                "mscale": 0.7,
                "mscale_all_dim": 0.5,
                "beta_fast": 16,
                "beta_slow": 2,
            },
        },
        YARN_MSCALE,
        1.0622887960785043,
        163_840,
    ),
}


def files_of(metadata: dict[str, object], *tensors: RawTensor) -> ModelFiles:
    return ModelFiles(
        path=Path("model"),
        container="gguf",
        architecture="llama",
        metadata=metadata,
        tensors={tensor.name: tensor for tensor in tensors},
        header_bytes=b"",
        weight_paths=(),
    )


def fields_of(metadata: dict[str, object]) -> Fields:
    return Fields(Path("model"), metadata)


@pytest.mark.parametrize("name", CONFIGS)
def test_config_json_gives_the_references_frequencies(name: str) -> None:
    config, expected, attention_scale, context = CONFIGS[name]
    spec, max_context_tokens = hf_rope(files_of({}), fields_of(config), 32)
    assert spec.style == "half"
    assert spec.inverse_frequencies == pytest.approx(expected, rel=4e-7)
    assert spec.attention_scale == pytest.approx(attention_scale, rel=1e-15)
    assert max_context_tokens == context


def test_frequencies_are_rounded_once_to_f32() -> None:
    spec = rope_spec("interleaved", 8, 10_000.0, Unscaled())
    expected = [float(np.float32(10_000.0**exponent)) for exponent in (0, -0.25, -0.5, -0.75)]
    assert list(spec.inverse_frequencies) == expected
    assert spec.attention_scale == 1.0


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    scaling = Llama3(8.0, 1.0, 4.0, 8192)
    plain = rope_spec("half", 64, 500_000.0, Unscaled()).inverse_frequencies
    scaled = rope_spec("half", 64, 500_000.0, scaling).inverse_frequencies
    for before, after in zip(plain, scaled, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4:
            assert after == before
        elif wavelength > 8192:
            assert after == pytest.approx(before / 8, rel=1e-7)
        else:
            assert before / 8 < after < before


def test_yarn_keeps_the_first_and_divides_the_last() -> None:
    scaling = Yarn(16.0, 4096, 32.0, 1.0, yarn_attention_scale(16.0))
    plain = rope_spec("half", 128, 10_000.0, Unscaled()).inverse_frequencies
    spec = rope_spec("half", 128, 10_000.0, scaling)
    assert spec.inverse_frequencies[0] == plain[0]
    assert spec.inverse_frequencies[-1] == pytest.approx(plain[-1] / 16, rel=1e-7)
    assert spec.attention_scale == pytest.approx(0.1 * math.log(16) + 1)
    assert yarn_attention_scale(1.0) == 1.0


def test_a_gguf_file_says_its_scaling() -> None:
    linear: dict[str, object] = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    assert gguf_rope(files_of({}), fields_of(linear), 32, "half") == rope_spec(
        "half", 32, 10_000.0, Linear(4.0)
    )
    legacy: dict[str, object] = {"rope.scale_linear": 4.0}
    assert gguf_rope(files_of({}), fields_of(legacy), 32, "half") == rope_spec(
        "half", 32, 10_000.0, Linear(4.0)
    )
    yarn: dict[str, object] = {
        "rope.freq_base": 1_000_000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32_768,
    }
    spec = gguf_rope(files_of({}), fields_of(yarn), 32, "half")
    assert spec.inverse_frequencies == pytest.approx(YARN, rel=2e-7)
    assert spec.attention_scale == pytest.approx(1.138629436111989, rel=1e-15)


def test_a_tensor_of_factors_divides_each_frequency() -> None:
    factors = np.array([1, 2, 4, 8], "<f4")
    tensor = RawTensor("rope_freqs.weight", GgmlType.F32, (4,), factors.view(np.uint8).data)
    spec = gguf_rope(files_of({}, tensor), fields_of({}), 8, "interleaved")
    assert spec == rope_spec("interleaved", 8, 10_000.0, Divided((1.0, 2.0, 4.0, 8.0)))
    with pytest.raises(ModelError, match="holds 4 factors, not 8 above 0"):
        gguf_rope(files_of({}, tensor), fields_of({}), 16, "interleaved")


def test_only_the_rotary_part_of_a_head_turns() -> None:
    partial: dict[str, object] = {"rope.dimension_count": 8}
    assert len(gguf_rope(files_of({}), fields_of(partial), 32, "half").inverse_frequencies) == 4
    factor: dict[str, object] = {"max_position_embeddings": 64, "partial_rotary_factor": 0.5}
    spec, _ = hf_rope(files_of({}), fields_of(factor), 32)
    assert len(spec.inverse_frequencies) == 8


@pytest.mark.parametrize("dimensions", [7, 34])
def test_impossible_rotary_parts_are_refused(dimensions: int) -> None:
    metadata: dict[str, object] = {"rope.dimension_count": dimensions}
    with pytest.raises(ModelError, match=f"RoPE over {dimensions} of 32 dimensions"):
        gguf_rope(files_of({}), fields_of(metadata), 32, "half")


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope"])
def test_other_scalings_are_refused_by_name(kind: str) -> None:
    config: dict[str, object] = {
        "max_position_embeddings": 64,
        "rope_scaling": {"rope_type": kind, "factor": 2.0},
    }
    with pytest.raises(UnsupportedModel, match=f"RoPE scaling '{kind}' is not supported"):
        hf_rope(files_of({}), fields_of(config), 32)
    metadata: dict[str, object] = {"rope.scaling.type": kind, "rope.scaling.factor": 2.0}
    with pytest.raises(UnsupportedModel, match=f"RoPE scaling '{kind}' is not supported"):
        gguf_rope(files_of({}), fields_of(metadata), 32, "half")
