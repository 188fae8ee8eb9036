"""Llama (Touvron et al. 2023; Llama 2 and 3, SmolLM, Mistral …).

RMSNorm before each half of a layer, grouped-query attention with RoPE, SwiGLU; GGUF `llama` and
Hugging Face's LlamaForCausalLM and MistralForCausalLM.
"""

from dataclasses import dataclass

from roost.core.errors import UnsupportedModel
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
    window: int | None
    is_tied: bool
    # None: what the file holds decides; it says so in no other way.
    has_qkv_bias: bool | None = None
    has_output_bias: bool | None = None
    has_ffn_bias: bool | None = None

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
    qkv_bias: Weight | None
    output: Weight
    output_bias: Weight | None
    ffn_norm: Weight
    gate_up: Weight
    gate_up_bias: Weight | None
    down: Weight
    down_bias: Weight | None


@dataclass(frozen=True, slots=True)
class Weights:
    token_embedding: Weight
    layers: tuple[Layer, ...]
    final_norm: Weight
    lm_head: Weight


def read_config(files: ModelFiles) -> Config:
    return _read_gguf(files) if files.container == "gguf" else _read_hf(files)


def _read_gguf(files: ModelFiles) -> Config:
    fields = Fields(files.path, files.metadata, "llama.")
    if fields.has("expert_count") and fields.count("expert_count") > 1:
        raise UnsupportedModel(f"{files.path}: mixtures of experts are not supported")
    hidden, num_heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_dim = fields.count("attention.key_length", max(1, hidden // num_heads))
    if fields.count("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{files.path}: keys and values of different sizes")
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
        # llama files hold q and k permuted, so that pairs lie side by side.
        rope=gguf_rope(files, fields, head_dim, "interleaved"),
        window=None,
        is_tied="output.weight" not in files.tensors,
    )


def _read_hf(files: ModelFiles) -> Config:
    fields = Fields(files.path, files.metadata)
    fields.only("hidden_act", "silu")
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
        window=fields.count("sliding_window") if fields.has("sliding_window") else None,
        is_tied=fields.truth("tie_word_embeddings", default=False),
        has_qkv_bias=fields.truth("attention_bias", default=False),
        has_output_bias=fields.truth("attention_bias", default=False),
        has_ffn_bias=fields.truth("mlp_bias", default=False),
    )


def traits(config: Config) -> ModelTraits:
    return ModelTraits(
        architecture="llama",
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
    qkv = (
        (f"{at}.attn_q", config.q_size),
        (f"{at}.attn_k", config.kv_size),
        (f"{at}.attn_v", config.kv_size),
    )
    output = ((f"{at}.attn_output", hidden),)
    gate_up = ((f"{at}.ffn_gate", ffn), (f"{at}.ffn_up", ffn))
    down = ((f"{at}.ffn_down", hidden),)

    def matrix(parts: tuple[tuple[str, int], ...], cols: int) -> Weight:
        return source.matrix(*((f"{name}.weight", rows) for name, rows in parts), cols=cols)

    def bias(parts: tuple[tuple[str, int], ...], is_present: bool | None) -> Weight | None:
        if is_present is False or (is_present is None and not source.has(f"{parts[0][0]}.bias")):
            return None
        return source.vector(*((f"{name}.bias", size) for name, size in parts))

    return Layer(
        attention_norm=source.vector((f"{at}.attn_norm.weight", hidden)),
        qkv=matrix(qkv, hidden),
        qkv_bias=bias(qkv, config.has_qkv_bias),
        output=matrix(output, config.q_size),
        output_bias=bias(output, config.has_output_bias),
        ffn_norm=source.vector((f"{at}.ffn_norm.weight", hidden)),
        gate_up=matrix(gate_up, hidden),
        gate_up_bias=bias(gate_up, config.has_ffn_bias),
        down=matrix(down, ffn),
        down_bias=bias(down, config.has_ffn_bias),
    )


def forward(config: Config, weights: Weights, b: Builder) -> None:
    eps, head_dim = config.norm_eps, config.head_dim
    x = b.embed(weights.token_embedding)
    for index, layer in enumerate(weights.layers):
        h = b.rms_norm(x, layer.attention_norm, eps)
        qkv = b.linear(h, layer.qkv, layer.qkv_bias, is_fine=True)
        q, k, v = b.split(qkv, config.q_size, config.kv_size, config.kv_size)
        q, k = b.rope(q, config.rope, head_dim), b.rope(k, config.rope, head_dim)
        a = b.attention(q, k, v, _attention(config, index))
        x = b.add(x, b.linear(a, layer.output, layer.output_bias))
        h = b.rms_norm(x, layer.ffn_norm, eps)
        gate, up = b.split(
            b.linear(h, layer.gate_up, layer.gate_up_bias),
            config.ffn_size,
            config.ffn_size,
        )
        x = b.add(x, b.linear(b.gated(gate, up, "silu"), layer.down, layer.down_bias))
    b.logits(b.rms_norm(x, weights.final_norm, eps), weights.lm_head)


def _attention(config: Config, layer: int) -> AttentionSpec:
    return AttentionSpec(
        layer=layer,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        window=config.window,
    )


LLAMA = Architecture(
    read_config=read_config,
    traits=traits,
    load=load,
    forward=forward,
    is_tied=lambda config: config.is_tied,
)
