"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on q, k and v.

GGUF `qwen2` and Hugging Face's Qwen2ForCausalLM.
"""

from dataclasses import replace

from roost.models import llama
from roost.models.architecture import Architecture, ModelTraits
from roost.models.fields import Fields
from roost.models.llama import Config
from roost.models.rope import gguf_rope, hf_rope
from roost.weights import ModelFiles


def read_config(files: ModelFiles) -> Config:
    return _read_gguf(files) if files.container == "gguf" else _read_hf(files)


def _read_gguf(files: ModelFiles) -> Config:
    fields = Fields(files.path, files.metadata, "qwen2.")
    hidden, num_heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_dim = fields.count("attention.key_length", max(1, hidden // num_heads))
    embedding = files.tensors.get("token_embd.weight")
    return Config(
        vocab_size=embedding.shape[0] if embedding else fields.count("vocab_size"),
        hidden=hidden,
        ffn_size=fields.count("feed_forward_length"),
        num_layers=fields.count("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_context_tokens=fields.count("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=gguf_rope(files, fields, head_dim, "half"),
        window=None,
        is_tied="output.weight" not in files.tensors,
        has_qkv_bias=True,
    )


def _read_hf(files: ModelFiles) -> Config:
    fields = Fields(files.path, files.metadata)
    fields.only("hidden_act", "silu")
    fields.only("use_sliding_window", value=False)
    hidden, num_heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", max(1, hidden // num_heads))
    rope, max_context_tokens = hf_rope(files, fields, head_dim)
    return Config(
        vocab_size=fields.count("vocab_size"),
        hidden=hidden,
        ffn_size=fields.count("intermediate_size"),
        num_layers=fields.count("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_context_tokens=max_context_tokens,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        window=None,
        is_tied=fields.truth("tie_word_embeddings", default=False),
        has_qkv_bias=True,
        has_output_bias=False,
        has_ffn_bias=False,
    )


def traits(config: Config) -> ModelTraits:
    return replace(llama.traits(config), architecture="qwen2")


QWEN2 = Architecture(
    read_config=read_config,
    traits=traits,
    load=llama.load,
    forward=llama.forward,
    is_tied=lambda config: config.is_tied,
)
