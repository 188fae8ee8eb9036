"""Qwen3 (Yang et al. 2025), dense: Llama with an RMSNorm on each head of q and k before RoPE.

GGUF `qwen3` and Hugging Face's Qwen3ForCausalLM.
"""

from dataclasses import dataclass

from roost.models.architecture import Architecture, ModelTraits, WeightSource
from roost.models.fields import Fields
from roost.models.rope import gguf_rope, hf_rope
from roost.programs.builder import AttentionSpec, Builder, RopeSpec, Weight
from roost.weights import ModelFiles


@dataclass(frozen=True, slots=True)
class Config:
    vocab_size: int
    hidden: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context_tokens: int
    norm_eps: float
    rope: RopeSpec
    is_tied: bool

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Weight
    qkv: Weight
    q_norm: Weight
    k_norm: Weight
    output: Weight
    ffn_norm: Weight
    gate_up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class Weights:
    token_embedding: Weight
    layers: tuple[Layer, ...]
    final_norm: Weight
    lm_head: Weight


def read_config(files: ModelFiles) -> Config:
    return _read_gguf(files) if files.container == "gguf" else _read_hf(files)


def _read_gguf(files: ModelFiles) -> Config:
    fields = Fields(files.path, files.metadata, "qwen3.")
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
        is_tied="output.weight" not in files.tensors,
    )


def _read_hf(files: ModelFiles) -> Config:
    fields = Fields(files.path, files.metadata)
    fields.only("hidden_act", "silu")
    fields.only("use_sliding_window", value=False)
    fields.only("attention_bias", value=False)
    head_dim = fields.count("head_dim", 128)
    rope, max_context_tokens = hf_rope(files, fields, head_dim)
    num_heads = fields.count("num_attention_heads")
    return Config(
        vocab_size=fields.count("vocab_size"),
        hidden=fields.count("hidden_size"),
        ffn_size=fields.count("intermediate_size"),
        num_layers=fields.count("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_context_tokens=max_context_tokens,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        is_tied=fields.truth("tie_word_embeddings", default=False),
    )


def traits(config: Config) -> ModelTraits:
    return ModelTraits(
        architecture="qwen3",
        vocab_size=config.vocab_size,
        hidden=config.hidden,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_context_tokens=config.max_context_tokens,
    )


def load(config: Config, source: WeightSource) -> Weights:
    vocab, hidden = config.vocab_size, config.hidden
    embedding = source.matrix(("token_embd.weight", vocab), cols=hidden, is_table=True)
    return Weights(
        token_embedding=embedding,
        layers=tuple(_load_layer(config, source, f"blk.{i}") for i in range(config.num_layers)),
        final_norm=source.vector(("output_norm.weight", hidden)),
        lm_head=embedding
        if config.is_tied
        else source.matrix(("output.weight", vocab), cols=hidden, is_table=True),
    )


def _load_layer(config: Config, source: WeightSource, at: str) -> Layer:
    hidden, ffn = config.hidden, config.ffn_size
    return Layer(
        attention_norm=source.vector((f"{at}.attn_norm.weight", hidden)),
        qkv=source.matrix(
            (f"{at}.attn_q.weight", config.q_size),
            (f"{at}.attn_k.weight", config.kv_size),
            (f"{at}.attn_v.weight", config.kv_size),
            cols=hidden,
        ),
        q_norm=source.vector((f"{at}.attn_q_norm.weight", config.head_dim)),
        k_norm=source.vector((f"{at}.attn_k_norm.weight", config.head_dim)),
        output=source.matrix((f"{at}.attn_output.weight", hidden), cols=config.q_size),
        ffn_norm=source.vector((f"{at}.ffn_norm.weight", hidden)),
        gate_up=source.matrix(
            (f"{at}.ffn_gate.weight", ffn),
            (f"{at}.ffn_up.weight", ffn),
            cols=hidden,
        ),
        down=source.matrix((f"{at}.ffn_down.weight", hidden), cols=ffn),
    )


def forward(config: Config, weights: Weights, b: Builder) -> None:
    eps, head_dim = config.norm_eps, config.head_dim
    x = b.embed(weights.token_embedding)
    for index, layer in enumerate(weights.layers):
        h = b.rms_norm(x, layer.attention_norm, eps)
        qkv = b.linear(h, layer.qkv, is_fine=True)
        q, k, v = b.split(qkv, config.q_size, config.kv_size, config.kv_size)
        q = b.rope(b.head_norm(q, layer.q_norm, eps, head_dim), config.rope, head_dim)
        k = b.rope(b.head_norm(k, layer.k_norm, eps, head_dim), config.rope, head_dim)
        a = b.attention(q, k, v, _attention(config, index))
        x = b.add(x, b.linear(a, layer.output))
        h = b.rms_norm(x, layer.ffn_norm, eps)
        gate, up = b.split(b.linear(h, layer.gate_up), config.ffn_size, config.ffn_size)
        x = b.add(x, b.linear(b.gated(gate, up, "silu"), layer.down))
    b.logits(b.rms_norm(x, weights.final_norm, eps), weights.lm_head)


def _attention(config: Config, layer: int) -> AttentionSpec:
    return AttentionSpec(
        layer=layer,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
    )


QWEN3 = Architecture(
    read_config=read_config,
    traits=traits,
    load=load,
    forward=forward,
    is_tied=lambda config: config.is_tied,
)
