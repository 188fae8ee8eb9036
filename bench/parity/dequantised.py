"""A GGUF file as a `transformers` model in float32, with exactly the weights that the file states.

Every tensor is dequantised by the `gguf` package; nothing is rounded again. llama.cpp's converter
interleaves the rows of the Llama query and key projections (its rotation pairs neighbours; the one
of `transformers` pairs halves), and stores Gemma's norm weights with one added: both are undone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

Array = NDArray[np.float32]

# GGUF tensor of a block → the `transformers` parameter of a layer.
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA_LAYER_NAMES = _LAYER_NAMES | {"ffn_norm": "post_attention_layernorm"}
_GEMMA_LAYER_NAMES = _LAYER_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def load(path: Path) -> transformers.PreTrainedModel:
    """The model of `path` (architecture `llama` or `gemma3`), float32, ready to run."""
    reader = GGUFReader(path)
    architecture = _text(reader, "general.architecture")
    tensors = {
        tensor.name: np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        for tensor in reader.tensors
    }
    build = {"llama": _llama, "gemma3": _gemma3}[architecture]
    model, state = build(reader, tensors)
    tied = "lm_head.weight" not in state
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    return model.float().eval()


def _llama(
    reader: GGUFReader, tensors: dict[str, Array]
) -> tuple[transformers.PreTrainedModel, dict[str, Array]]:
    heads = _int(reader, "llama.attention.head_count")
    kv_heads = _int(reader, "llama.attention.head_count_kv")
    config = transformers.LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=_int(reader, "llama.embedding_length"),
        intermediate_size=_int(reader, "llama.feed_forward_length"),
        num_hidden_layers=_int(reader, "llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=_int(reader, "llama.context_length"),
        rms_norm_eps=_float(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_theta=_float(reader, "llama.rope.freq_base"),
        tie_word_embeddings="output.weight" not in tensors,
        attn_implementation="eager",
    )

    def undo(name: str, array: Array) -> Array:
        if ".q_proj." in name:
            return _halves(array, heads)
        return _halves(array, kv_heads) if ".k_proj." in name else array

    state = _renamed(tensors, _LLAMA_LAYER_NAMES, undo)
    return transformers.LlamaForCausalLM(config), state


def _gemma3(
    reader: GGUFReader, tensors: dict[str, Array]
) -> tuple[transformers.PreTrainedModel, dict[str, Array]]:
    layers = _int(reader, "gemma3.block_count")
    config = transformers.Gemma3TextConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=_int(reader, "gemma3.embedding_length"),
        intermediate_size=_int(reader, "gemma3.feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=_int(reader, "gemma3.attention.head_count"),
        num_key_value_heads=_int(reader, "gemma3.attention.head_count_kv"),
        head_dim=_int(reader, "gemma3.attention.key_length"),
        query_pre_attn_scalar=_int(reader, "gemma3.attention.key_length"),
        max_position_embeddings=_int(reader, "gemma3.context_length"),
        rms_norm_eps=_float(reader, "gemma3.attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "full_attention": {
                "rope_type": "default",
                "rope_theta": _float(reader, "gemma3.rope.freq_base"),
            },
            # Not stated by the file: a constant of the architecture.
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        sliding_window=_int(reader, "gemma3.attention.sliding_window"),
        layer_types=[
            "full_attention" if (layer + 1) % 6 == 0 else "sliding_attention"
            for layer in range(layers)
        ],
        attn_implementation="eager",
    )

    def undo(name: str, array: Array) -> Array:
        return array - np.float32(1) if "norm." in name else array

    state = _renamed(tensors, _GEMMA_LAYER_NAMES, undo)
    return transformers.Gemma3ForCausalLM(config), state


def _renamed(
    tensors: dict[str, Array], layer_names: dict[str, str], undo: Callable[[str, Array], Array]
) -> dict[str, Array]:
    """The tensors under the names of `transformers`, as it wants them."""
    state: dict[str, Array] = {}
    for theirs, array in tensors.items():
        if theirs in _OUTER_NAMES:
            name = _OUTER_NAMES[theirs]
        else:
            _, layer, kind, suffix = theirs.split(".")
            name = f"model.layers.{layer}.{layer_names[kind]}.{suffix}"
        state[name] = np.array(undo(name, array), order="C")
    return state


def _halves(array: Array, heads: int) -> Array:
    """Rows [head, half_dim, 2] as [head, 2, half_dim]: neighbours become halves."""
    rows, columns = array.shape
    parted = array.reshape(heads, rows // heads // 2, 2, columns)
    return parted.swapaxes(1, 2).reshape(rows, columns)


def _text(reader: GGUFReader, key: str) -> str:
    return str(_contents(reader, key))


def _int(reader: GGUFReader, key: str) -> int:
    return cast("int", _contents(reader, key))


def _float(reader: GGUFReader, key: str) -> float:
    return float(cast("float", _contents(reader, key)))


def _contents(reader: GGUFReader, key: str) -> object:
    field = reader.get_field(key)
    assert field is not None, f"the file has no {key}"
    return cast("object", field.contents())
