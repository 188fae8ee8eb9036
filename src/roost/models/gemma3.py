"""Gemma 3, text (Gemma Team 2025): norms before and after each half of a layer, a norm on each head
of q and k, five layers that look back on a window for each that sees everything, GeGLU.

GGUF `gemma3` and Hugging Face's Gemma3ForCausalLM.
"""

from dataclasses import dataclass

from roost.models.architecture import Architecture, ModelTraits, WeightSource
from roost.models.fields import Fields
from roost.models.rope import Unscaled, gguf_rope, hf_rope, rope_spec
from roost.programs.builder import AttentionSpec, Builder, RopeSpec, Weight
from roost.weights import ModelFiles

# Layer i is global when (i + 1) is a multiple; and the base of the windowed layers' RoPE.
_GLOBAL_EVERY = 6
_LOCAL_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Config:
    """norm_shift: Hugging Face stores the norms' weights less one; GGUF files have it added."""

    vocab_size: int
    hidden: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context_tokens: int
    norm_eps: float
    norm_shift: float
    attention_scale: float
    window: int
    is_global: tuple[bool, ...]
    global_rope: RopeSpec
    local_rope: RopeSpec
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
    post_attention_norm: Weight
    ffn_norm: Weight
    gate_up: Weight
    down: Weight
    post_ffn_norm: Weight


@dataclass(frozen=True, slots=True)
class Weights:
    token_embedding: Weight
    layers: tuple[Layer, ...]
    final_norm: Weight
    lm_head: Weight


def read_config(files: ModelFiles) -> Config:
    return _read_gguf(files) if files.container == "gguf" else _read_hf(files)


def _read_gguf(files: ModelFiles) -> Config:
    fields = Fields(files.path, files.metadata, "gemma3.")
    fields.only("final_logit_softcapping", value=None)
    hidden, num_heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_dim, num_layers = fields.count("attention.key_length"), fields.count("block_count")
    embedding = files.tensors.get("token_embd.weight")
    every = fields.count("attention.sliding_window_pattern", _GLOBAL_EVERY)
    return Config(
        vocab_size=embedding.shape[0] if embedding else fields.count("vocab_size"),
        hidden=hidden,
        ffn_size=fields.count("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_context_tokens=fields.count("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        norm_shift=0.0,
        # Files do not say; of the family only the 27B, the one of 62 layers, scales otherwise.
        attention_scale=(hidden / num_heads if num_layers == 62 else head_dim) ** -0.5,
        window=fields.count("attention.sliding_window"),
        is_global=tuple((i + 1) % every == 0 for i in range(num_layers)),
        global_rope=gguf_rope(files, fields, head_dim, "half"),
        local_rope=rope_spec(
            "half",
            head_dim,
            fields.number("rope.freq_base_swa", _LOCAL_BASE),
            Unscaled(),
        ),
        is_tied="output.weight" not in files.tensors,
    )


def _read_hf(files: ModelFiles) -> Config:
    fields = Fields(files.path, files.metadata)
    fields.only("hidden_activation", "gelu_pytorch_tanh")
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        fields.only(key, value=None)
    for key in ("attention_bias", "use_bidirectional_attention"):
        fields.only(key, value=False)
    head_dim, num_layers = fields.count("head_dim", 256), fields.count("num_hidden_layers")
    num_heads = fields.count("num_attention_heads")
    global_rope, max_context_tokens = hf_rope(files, fields, head_dim)
    return Config(
        vocab_size=fields.count("vocab_size"),
        hidden=fields.count("hidden_size"),
        ffn_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_context_tokens=max_context_tokens,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        norm_shift=1.0,
        attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        window=fields.count("sliding_window"),
        is_global=_hf_layer_kinds(fields, num_layers),
        global_rope=global_rope,
        local_rope=rope_spec("half", head_dim, _hf_local_base(fields), Unscaled()),
        is_tied=fields.truth("tie_word_embeddings", default=True),
    )


def _hf_layer_kinds(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    if not fields.has("layer_types"):
        every = fields.count("sliding_window_pattern", _GLOBAL_EVERY)
        return tuple((i + 1) % every == 0 for i in range(num_layers))
    kinds = fields.texts("layer_types")
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise fields.error(f"layer_types names {sorted(set(kinds))} for {len(kinds)} layers")
    return tuple(kind == "full_attention" for kind in kinds)


def _hf_local_base(fields: Fields) -> float:
    parameters = fields.part("rope_parameters")
    local = parameters.part("sliding_attention") if parameters else None
    if local is not None:
        return local.number("rope_theta", _LOCAL_BASE)
    return fields.number("rope_local_base_freq", _LOCAL_BASE)


def traits(config: Config) -> ModelTraits:
    return ModelTraits(
        architecture="gemma3",
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
        final_norm=source.vector(("output_norm.weight", hidden), shift=config.norm_shift),
        lm_head=embedding
        if config.is_tied
        else source.matrix(("output.weight", vocab), cols=hidden, is_table=True),
    )


def _load_layer(config: Config, source: WeightSource, at: str) -> Layer:
    hidden, ffn = config.hidden, config.ffn_size

    def norm(name: str, size: int) -> Weight:
        return source.vector((f"{at}.{name}.weight", size), shift=config.norm_shift)

    return Layer(
        attention_norm=norm("attn_norm", hidden),
        qkv=source.matrix(
            (f"{at}.attn_q.weight", config.q_size),
            (f"{at}.attn_k.weight", config.kv_size),
            (f"{at}.attn_v.weight", config.kv_size),
            cols=hidden,
        ),
        q_norm=norm("attn_q_norm", config.head_dim),
        k_norm=norm("attn_k_norm", config.head_dim),
        output=source.matrix((f"{at}.attn_output.weight", hidden), cols=config.q_size),
        post_attention_norm=norm("post_attention_norm", hidden),
        ffn_norm=norm("ffn_norm", hidden),
        gate_up=source.matrix(
            (f"{at}.ffn_gate.weight", ffn),
            (f"{at}.ffn_up.weight", ffn),
            cols=hidden,
        ),
        down=source.matrix((f"{at}.ffn_down.weight", hidden), cols=ffn),
        post_ffn_norm=norm("post_ffw_norm", hidden),
    )


def forward(config: Config, weights: Weights, b: Builder) -> None:
    eps, head_dim = config.norm_eps, config.head_dim
    x = b.embed(weights.token_embedding, scale=config.hidden**0.5)
    for index, layer in enumerate(weights.layers):
        rope = config.global_rope if config.is_global[index] else config.local_rope
        h = b.rms_norm(x, layer.attention_norm, eps)
        qkv = b.linear(h, layer.qkv, is_fine=True)
        q, k, v = b.split(qkv, config.q_size, config.kv_size, config.kv_size)
        q = b.rope(b.head_norm(q, layer.q_norm, eps, head_dim), rope, head_dim)
        k = b.rope(b.head_norm(k, layer.k_norm, eps, head_dim), rope, head_dim)
        a = b.linear(b.attention(q, k, v, _attention(config, index)), layer.output)
        x = b.add(x, b.rms_norm(a, layer.post_attention_norm, eps))
        h = b.rms_norm(x, layer.ffn_norm, eps)
        gate, up = b.split(b.linear(h, layer.gate_up), config.ffn_size, config.ffn_size)
        f = b.linear(b.gated(gate, up, "gelu_tanh"), layer.down)
        x = b.add(x, b.rms_norm(f, layer.post_ffn_norm, eps))
    b.logits(b.rms_norm(x, weights.final_norm, eps), weights.lm_head)


def _attention(config: Config, layer: int) -> AttentionSpec:
    return AttentionSpec(
        layer=layer,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.attention_scale,
        window=None if config.is_global[layer] else config.window,
    )


GEMMA3 = Architecture(
    read_config=read_config,
    traits=traits,
    load=load,
    forward=forward,
    is_tied=lambda config: config.is_tied,
    hf_layer_names={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)
