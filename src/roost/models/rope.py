"""Rotary embedding: from what files say of it to frequencies.

Formulas: RoPE (Su et al. 2021), position interpolation (Chen et al. 2023), YaRN (Peng et al. 2023,
"NTK by parts"), and Llama 3.1's rule by wavelength. Computed in double, rounded once to f32.
"""

from dataclasses import dataclass
from math import ceil, floor, log, pi

import numpy as np

from roost.core.errors import UnsupportedModel
from roost.models.fields import Fields
from roost.programs.builder import RopeSpec, RopeStyle
from roost.weights import ModelFiles, float_values

_FACTORS_TENSOR = "rope_freqs.weight"

# Unscaled ones begin at 1; a scaling that makes them this much faster is a damaged number.
_MAX_FREQUENCY = 1e3


@dataclass(frozen=True, slots=True)
class Unscaled:
    """The frequencies as they are."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3:
    """Wavelengths above original/low are divided by `factor`, those below original/high kept."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context_tokens: int


@dataclass(frozen=True, slots=True)
class Yarn:
    """Frequencies that turn less than beta_slow times in the original context are divided by
    `factor`, those above beta_fast kept, with a ramp between; cos and sin times attention_scale.
    """

    factor: float
    original_context_tokens: int
    beta_fast: float
    beta_slow: float
    attention_scale: float


@dataclass(frozen=True, slots=True)
class Divided:
    """Each frequency divided by its own factor: GGUF's form of Llama 3.1's rule."""

    factors: tuple[float, ...]


Scaling = Unscaled | Linear | Llama3 | Yarn | Divided


def rope_spec(style: RopeStyle, rotary_dim: int, base: float, scaling: Scaling) -> RopeSpec:
    """The spec of a rotary embedding over the first `rotary_dim` dimensions of a head."""
    plain = [base ** (-2.0 * i / rotary_dim) for i in range(rotary_dim // 2)]
    attention_scale = 1.0
    match scaling:
        case Unscaled():
            scaled = plain
        case Linear(factor):
            scaled = [frequency / factor for frequency in plain]
        case Llama3():
            scaled = [_llama3(frequency, scaling) for frequency in plain]
        case Yarn():
            scaled = _yarn(plain, rotary_dim, base, scaling)
            attention_scale = scaling.attention_scale
        case Divided(factors):
            scaled = [frequency / factor for frequency, factor in zip(plain, factors, strict=True)]
    return RopeSpec(style, tuple(float(np.float32(value)) for value in scaled), attention_scale)


def yarn_attention_scale(factor: float, weight: float = 1.0) -> float:
    """YaRN's mscale: 0.1 · weight · ln(factor) + 1, and 1 where nothing is stretched."""
    return 0.1 * weight * log(factor) + 1.0 if factor > 1 else 1.0


def gguf_rope(files: ModelFiles, fields: Fields, head_dim: int, style: RopeStyle) -> RopeSpec:
    """The rotary embedding of a GGUF file. fields: those of its architecture."""
    rotary_dim = _rotary_dim(fields, fields.count("rope.dimension_count", head_dim), head_dim)
    base = fields.number("rope.freq_base", 10_000.0)
    return _checked(fields, style, rotary_dim, base, gguf_scaling(files, fields, rotary_dim))


def hf_rope(files: ModelFiles, fields: Fields, head_dim: int) -> tuple[RopeSpec, int]:
    """The rotary embedding of a config.json, and the context in tokens that it makes usable.

    Older files have `rope_theta` beside `rope_scaling`, newer ones both in `rope_parameters`.
    """
    context = fields.count("max_position_embeddings")
    parameters = fields.part("rope_parameters") or fields.part("rope_scaling")
    if parameters is not None:
        # Models with two kinds of layers have one mapping a kind; local ones are never scaled.
        parameters = parameters.part("full_attention") or parameters
    base = fields.number("rope_theta", 10_000.0)
    factor = fields.number("partial_rotary_factor", 1.0)
    if parameters is not None:
        base = parameters.number("rope_theta", base)
        factor = parameters.number("partial_rotary_factor", factor)
    scaling = hf_scaling(files, parameters, context)
    if isinstance(scaling, Yarn):
        # max_position_embeddings may name the context before or after stretching.
        context = max(context, int(scaling.original_context_tokens * scaling.factor))
    rotary_dim = _rotary_dim(fields, int(head_dim * factor), head_dim)
    return _checked(fields, "half", rotary_dim, base, scaling), context


def _checked(
    fields: Fields, style: RopeStyle, rotary_dim: int, base: float, scaling: Scaling
) -> RopeSpec:
    """`rope_spec` of numbers from a file. Raises ModelError when no angles come of them."""
    if base <= 1:
        raise fields.error(f"RoPE with the base {base}")
    with np.errstate(over="ignore"):
        spec = rope_spec(style, rotary_dim, base, scaling)
    if not all(0 <= value < _MAX_FREQUENCY for value in spec.inverse_frequencies):
        raise fields.error(f"RoPE frequencies of {spec.inverse_frequencies[:2]} … by {scaling}")
    return spec


def _rotary_dim(fields: Fields, rotary_dim: int, head_dim: int) -> int:
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise fields.error(f"RoPE over {rotary_dim} of {head_dim} dimensions of a head")
    return rotary_dim


def gguf_scaling(files: ModelFiles, fields: Fields, rotary_dim: int) -> Scaling:
    """The scaling of a GGUF file: `<arch>.rope.scaling.*`, or a tensor of factors."""
    kind = fields.text("rope.scaling.type", "none")
    if kind == "longrope" or "rope_factors_long.weight" in files.tensors:
        raise UnsupportedModel(f"{files.path}: RoPE scaling 'longrope' is not supported")
    if _FACTORS_TENSOR in files.tensors:
        factors = float_values(files.tensors[_FACTORS_TENSOR])
        if len(factors) != rotary_dim // 2 or not (factors > 0).all():
            raise fields.error(
                f"{_FACTORS_TENSOR} holds {len(factors)} factors, not {rotary_dim // 2} above 0",
            )
        return Divided(tuple(factors.tolist()))
    if kind == "none":
        # Older files wrote the linear factor under this key, and no type.
        factor = fields.number("rope.scale_linear", 1.0)
        return Linear(factor) if factor != 1.0 else Unscaled()
    factor = fields.number("rope.scaling.factor")
    if kind == "linear":
        return Linear(factor)
    if kind == "yarn":
        own = fields.number("rope.scaling.attn_factor", 1.0)
        return Yarn(
            factor=factor,
            original_context_tokens=fields.count("rope.scaling.original_context_length"),
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_scale=own * yarn_attention_scale(factor),
        )
    raise UnsupportedModel(
        f"{files.path}: RoPE scaling {kind!r} is not supported; none, linear, yarn and llama3 are",
    )


def hf_scaling(files: ModelFiles, parameters: Fields | None, max_context_tokens: int) -> Scaling:
    """The scaling of a config.json: its `rope_scaling` or `rope_parameters` mapping."""
    if parameters is None:
        return Unscaled()
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    match kind:
        case "default" | "none":
            return Unscaled()
        case "linear":
            return Linear(parameters.number("factor"))
        case "llama3":
            return Llama3(
                factor=parameters.number("factor"),
                low_frequency_factor=parameters.number("low_freq_factor"),
                high_frequency_factor=parameters.number("high_freq_factor"),
                original_context_tokens=parameters.count("original_max_position_embeddings"),
            )
        case "yarn":
            return _hf_yarn(parameters, max_context_tokens)
        case _:
            raise UnsupportedModel(
                f"{files.path}: RoPE scaling {kind!r} is not supported; "
                "linear, yarn and llama3 are",
            )


def _hf_yarn(parameters: Fields, max_context_tokens: int) -> Yarn:
    original = parameters.count("original_max_position_embeddings", max_context_tokens)
    factor = parameters.number("factor", max_context_tokens / original)
    if parameters.has("attention_factor"):
        attention_scale = parameters.number("attention_factor")
    elif parameters.has("mscale") and parameters.has("mscale_all_dim"):
        attention_scale = yarn_attention_scale(
            factor,
            parameters.number("mscale"),
        ) / yarn_attention_scale(factor, parameters.number("mscale_all_dim"))
    else:
        attention_scale = yarn_attention_scale(factor)
    return Yarn(
        factor=factor,
        original_context_tokens=original,
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        attention_scale=attention_scale,
    )


def _llama3(frequency: float, scaling: Llama3) -> float:
    turns = scaling.original_context_tokens * frequency / (2 * pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    if turns < low:
        return frequency / scaling.factor
    if turns > high:
        return frequency
    kept = (turns - low) / (high - low)
    return (1 - kept) * frequency / scaling.factor + kept * frequency


def _yarn(plain: list[float], rotary_dim: int, base: float, scaling: Yarn) -> list[float]:
    def dimension_of(num_turns: float) -> float:
        # The (fractional) pair index whose frequency turns so often in the original context.
        wavelength = scaling.original_context_tokens / (num_turns * 2 * pi)
        return rotary_dim * log(wavelength) / (2 * log(base))

    low = max(floor(dimension_of(scaling.beta_fast)), 0)
    high = min(ceil(dimension_of(scaling.beta_slow)), rotary_dim - 1)
    width = high - low or 0.001
    scaled = []
    for index, frequency in enumerate(plain):
        stretched = min(max((index - low) / width, 0.0), 1.0)
        scaled.append(frequency / scaling.factor * stretched + frequency * (1 - stretched))
    return scaled
