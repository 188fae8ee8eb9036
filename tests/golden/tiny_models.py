"""Tiny models with random weights as Hugging Face folders, the same bytes on every machine.

Only numpy's Philox bits and exact arithmetic are used, so that the tests can make the folders
without PyTorch; the logits that a float32 reference finds for them are kept in `parity/tiny.npz`
(`bench/parity/tiny_reference.py` writes them). Vocabulary: the 256 bytes, in order, then 8 control
tokens, of which 256 begins and 257 ends a sequence.
"""

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

VOCAB_SIZE = 264
BOS_ID, EOS_ID = 256, 257
PROMPT_TOKENS = 96

_HIDDEN, _FFN, _LAYERS, _HEADS, _KV_HEADS = 64, 176, 2, 4, 2


@dataclass(frozen=True)
class Variant:
    """One tiny model: what its `config.json` says beyond the common part."""

    name: str
    architecture: str = "LlamaForCausalLM"
    config: dict[str, object] = field(default_factory=dict)
    tied: bool = True
    dtype: str = "F32"
    head_dim: int = 16
    layers: int = _LAYERS

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the query, key and value projections add a bias."""
        return self.architecture == "Qwen2ForCausalLM" or bool(self.config.get("attention_bias"))

    @property
    def has_head_norms(self) -> bool:
        """Whether each query and key head is normalised."""
        return self.architecture in {"Qwen3ForCausalLM", "Gemma3ForCausalLM"}


def _rope(kind: str, **more: object) -> dict[str, object]:
    return {"rope_scaling": {"rope_type": kind, **more}}


VARIANTS = (
    Variant("llama"),
    Variant("llama_untied", tied=False),
    Variant("llama_bf16", tied=False, dtype="BF16"),
    Variant("llama_f16", dtype="F16"),
    Variant("llama_head_dim", head_dim=32),
    Variant("llama_rope_linear", config=_rope("linear", factor=4.0)),
    Variant(
        "llama_rope_llama3",
        config=_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    Variant(
        "llama_rope_yarn",
        config=_rope("yarn", factor=4.0, original_max_position_embeddings=64),
    ),
    Variant("llama_attention_bias", config={"attention_bias": True}),
    Variant("llama_all_biases", config={"attention_bias": True, "mlp_bias": True}, tied=False),
    Variant("mistral", "MistralForCausalLM", {"sliding_window": 24}, tied=False),
    Variant("qwen2", "Qwen2ForCausalLM", tied=False),
    Variant("qwen3", "Qwen3ForCausalLM", head_dim=32),
    Variant(
        "gemma3",
        "Gemma3ForCausalLM",
        {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 24,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "sliding_window": 24,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
        head_dim=32,
        layers=3,
    ),
)


def config_of(variant: Variant) -> dict[str, object]:
    """The content of `config.json`."""
    model_type = variant.architecture.removesuffix("ForCausalLM").lower()
    return {
        "architectures": [variant.architecture],
        "model_type": "gemma3_text" if model_type == "gemma3" else model_type,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": _HIDDEN,
        "intermediate_size": _FFN,
        "num_hidden_layers": variant.layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": variant.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": variant.tied,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[variant.dtype],
        **variant.config,
    }


def weights_of(variant: Variant) -> dict[str, Floats]:
    """Parameter name → f32 values, such as the model's own type can hold exactly."""
    bits = np.random.Generator(np.random.Philox(key=2_026))
    gemma = variant.architecture == "Gemma3ForCausalLM"
    weights: dict[str, Floats] = {}

    def draw(name: str, *shape: int, scale: float, middle: float = 0.0) -> None:
        # The sum of four even draws: near enough to normal, and without a libm in it.
        evens = bits.integers(-32_768, 32_768, (4, *shape)).sum(axis=0).astype(np.float64)
        values = evens / 37_837.0 * scale + middle
        weights[name] = _rounded(values.astype(np.float32), variant.dtype)

    def norm(name: str, size: int) -> None:
        draw(name, size, scale=0.2, middle=0.0 if gemma else 1.0)

    def linear(name: str, outputs: int, inputs: int, *, bias: bool = False) -> None:
        draw(f"{name}.weight", outputs, inputs, scale=1.25 * inputs**-0.5)
        if bias:
            draw(f"{name}.bias", outputs, scale=0.25)

    draw("model.embed_tokens.weight", VOCAB_SIZE, _HIDDEN, scale=0.3)
    biased, head_dim = variant.has_qkv_bias, variant.head_dim
    output_biased = bool(variant.config.get("attention_bias"))
    mlp_biased = bool(variant.config.get("mlp_bias"))
    for layer in range(variant.layers):
        at = f"model.layers.{layer}"
        norm(f"{at}.input_layernorm.weight", _HIDDEN)
        linear(f"{at}.self_attn.q_proj", _HEADS * head_dim, _HIDDEN, bias=biased)
        linear(f"{at}.self_attn.k_proj", _KV_HEADS * head_dim, _HIDDEN, bias=biased)
        linear(f"{at}.self_attn.v_proj", _KV_HEADS * head_dim, _HIDDEN, bias=biased)
        linear(f"{at}.self_attn.o_proj", _HIDDEN, _HEADS * head_dim, bias=output_biased)
        if variant.has_head_norms:
            norm(f"{at}.self_attn.q_norm.weight", head_dim)
            norm(f"{at}.self_attn.k_norm.weight", head_dim)
        norm(f"{at}.post_attention_layernorm.weight", _HIDDEN)
        if gemma:
            norm(f"{at}.pre_feedforward_layernorm.weight", _HIDDEN)
            norm(f"{at}.post_feedforward_layernorm.weight", _HIDDEN)
        linear(f"{at}.mlp.gate_proj", _FFN, _HIDDEN, bias=mlp_biased)
        linear(f"{at}.mlp.up_proj", _FFN, _HIDDEN, bias=mlp_biased)
        linear(f"{at}.mlp.down_proj", _HIDDEN, _FFN, bias=mlp_biased)
    norm("model.norm.weight", _HIDDEN)
    if not variant.tied:
        draw("lm_head.weight", VOCAB_SIZE, _HIDDEN, scale=0.3)
    return weights


def prompt_ids() -> list[int]:
    """The prompt that the logits are kept for."""
    bits = np.random.Generator(np.random.Philox(key=96))
    drawn: list[int] = bits.integers(0, 256, PROMPT_TOKENS).tolist()
    return drawn


def write_model(folder: Path, variant: Variant) -> None:
    """Write `config.json`, `model.safetensors` and a byte tokenizer into `folder` (made here)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(variant), indent=1))
    _write_safetensors(folder / "model.safetensors", weights_of(variant), variant.dtype)
    _write_tokenizer(folder)


def _rounded(values: Floats, dtype: str) -> Floats:
    """`values` rounded to what `dtype` holds, to nearest and ties to even."""
    if dtype == "F16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        bits = values.view(np.uint32)
        kept = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return kept.view(np.float32)
    return values


def _stored(values: Floats, dtype: str) -> bytes:
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype("<f4").tobytes()


def _write_safetensors(path: Path, weights: dict[str, Floats], dtype: str) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    offset = 0
    for name, values in sorted(weights.items()):
        part = _stored(values, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(part)],
        }
        offset += len(part)
        parts.append(part)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))


def _write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer without merges: one token a byte."""
    # GPT-2's printable stand-ins: a byte that prints stands for itself, the others from U+0100 on.
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    pieces = [chr(byte) if byte in prints else chr(next(moved)) for byte in range(256)]
    control = ["<|begin|>", "<|end|>", *(f"<|control_{n}|>" for n in range(2, 8))]
    added = [
        {
            "id": 256 + index,
            "content": piece,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, piece in enumerate(control)
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: index for index, piece in enumerate([*pieces, *control])},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": control[0],
        "eos_token": control[1],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 256,
        "chat_template": (
            "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
            "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
        ),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
