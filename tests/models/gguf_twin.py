"""GGUF twins of the tiny Hugging Face models: the same weights under GGUF's names and order."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tests.golden.tiny_models import VARIANTS, Variant, config_of, weights_of

Floats = npt.NDArray[np.float32]

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
}
# Of seven layers the sixth sees everything, and heads are scaled by their size: what a gemma3 file
# leaves unsaid. (The tiny model with goldens has other kinds and another scale.)
GEMMA3 = Variant(
    "gemma3_pattern",
    "Gemma3ForCausalLM",
    {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 32,
        "rope_local_base_freq": 10_000.0,
        "rope_theta": 1_000_000.0,
        "sliding_window": 24,
    },
    head_dim=32,
    layers=7,
)
# Mistral's window has no key in a llama file.
TWINS = tuple(
    variant
    for variant in VARIANTS
    if variant.architecture in _ARCHITECTURES
    and variant.architecture != "Gemma3ForCausalLM"
    and variant.dtype == "F32"
)

_PLACES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_PLACES = _PLACES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_twin(path: Path, variant: Variant, extra_tokens: Sequence[str] = ()) -> None:
    config = config_of(variant)
    architecture = _ARCHITECTURES[variant.architecture]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(_int(config, "num_hidden_layers"))
    writer.add_context_length(_int(config, "max_position_embeddings"))
    writer.add_embedding_length(_int(config, "hidden_size"))
    writer.add_feed_forward_length(_int(config, "intermediate_size"))
    writer.add_head_count(_int(config, "num_attention_heads"))
    writer.add_head_count_kv(_int(config, "num_key_value_heads"))
    writer.add_key_length(variant.head_dim)
    writer.add_value_length(variant.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    base = config["rope_theta"]
    assert isinstance(base, float)
    writer.add_rope_freq_base(base)
    if architecture == "gemma3":
        writer.add_sliding_window(_int(config, "sliding_window"))
    _add_scaling(writer, variant)
    if extra_tokens:
        writer.add_token_list(extra_tokens)
    for name, values in weights_of(variant).items():
        stem, _, kind = name.rpartition(".")
        place, stored = _OUTER.get(stem, stem), values
        if stem.startswith("model.layers."):
            _, _, layer, rest = stem.split(".", 3)
            places = _GEMMA_PLACES if architecture == "gemma3" else _PLACES
            place = f"blk.{layer}.{places[rest]}"
            if architecture == "llama" and rest in {"self_attn.q_proj", "self_attn.k_proj"}:
                stored = _permuted(values, variant.head_dim)
        if architecture == "gemma3" and "norm" in stem:
            stored = values + np.float32(1)
        writer.add_tensor(f"{place}.{kind}", stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _permuted(values: Floats, head_dim: int) -> Floats:
    """Rows of each head from (first halves, second halves) to pairs side by side."""
    heads = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(values.shape)


def _add_scaling(writer: gguf.GGUFWriter, variant: Variant) -> None:
    scaling = variant.config.get("rope_scaling")
    if not isinstance(scaling, dict):
        return
    if scaling["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(scaling, variant.head_dim))
        return
    writer.add_string(f"{writer.arch}.rope.scaling.type", scaling["rope_type"])
    writer.add_rope_scaling_factor(scaling["factor"])
    if scaling["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def _llama3_factors(scaling: dict[str, float], head_dim: int) -> Floats:
    """Llama 3.1's rule as converters write it: one divisor a frequency."""
    frequencies = 10_000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    wavelengths = 2 * np.pi / frequencies
    original = scaling["original_max_position_embeddings"]
    low, high, factor = (scaling[k] for k in ("low_freq_factor", "high_freq_factor", "factor"))
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _int(config: dict[str, object], key: str) -> int:
    value = config[key]
    assert isinstance(value, int)
    return value
