"""What a model file gives: how to read its hyperparameters, what it needs, what it computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from roost.core.errors import ModelError, UnsupportedModel
from roost.programs.builder import Builder, Weight
from roost.weights import ModelFiles


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What the rest of the engine must know of a model: sizes, no tensors.

    vocab_size: rows of the output head, at least the number of tokens. max_context_tokens: as the
    model was trained, or stretched by its own RoPE scaling.
    """

    architecture: str
    vocab_size: int
    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context_tokens: int


class WeightSource(Protocol):
    """Where a model takes its weights from, by GGUF's names. A part is (name, rows).

    A first pass plans and checks, a second hands out what was packed: a model cannot tell.
    """

    def has(self, name: str) -> bool: ...

    def matrix(self, *parts: tuple[str, int], cols: int, is_table: bool = False) -> Weight:
        """The parts stacked: [sum of rows, cols]. is_table: an embedding or output head."""
        ...

    def vector(self, *parts: tuple[str, int], shift: float = 0.0) -> Weight:
        """f32 [1, sum of sizes], `shift` added."""
        ...


Recorder = Callable[[Builder], None]


@dataclass(frozen=True, slots=True)
class Outline:
    """A model whose hyperparameters are read and whose weights are not.

    bind: takes the weights, gives the function that records the forward pass.
    local_name: from GGUF's name of a tensor to the files' own. ignored: tensors that mean nothing.
    """

    traits: ModelTraits
    bind: Callable[[WeightSource], Recorder]
    local_name: Callable[[str], str]
    ignored: Callable[[str], bool]


ConfigT = TypeVar("ConfigT")
WeightsT = TypeVar("WeightsT")

# GGUF's names in a layer → Hugging Face's, where most architectures agree.
_HF_LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HF_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

# Beyond it lie damaged numbers, and positions that 32-bit floats cannot tell apart.
_MAX_CONTEXT_TOKENS = 1 << 24

# Derived from hyperparameters that are read anyway, or read beside the planner.
_MEANINGLESS_SUFFIXES = ("rotary_emb.inv_freq", "rope_freqs.weight")


@dataclass(frozen=True, slots=True)
class Architecture(Generic[ConfigT, WeightsT]):
    """One architecture, put together by its model file.

    hf_layer_names: where Hugging Face's names in a layer differ from the usual ones.
    """

    read_config: Callable[[ModelFiles], ConfigT]
    traits: Callable[[ConfigT], ModelTraits]
    load: Callable[[ConfigT, WeightSource], WeightsT]
    forward: Callable[[ConfigT, WeightsT, Builder], None]
    is_tied: Callable[[ConfigT], bool]
    hf_layer_names: Mapping[str, str] = field(default_factory=dict)

    def outline(self, files: ModelFiles) -> Outline:
        """Read and check the hyperparameters. Raises ModelError; touches no weight."""
        config = self.read_config(files)
        traits = self.traits(config)
        _check(files, traits)

        def bind(source: WeightSource) -> Recorder:
            return partial(self.forward, config, self.load(config, source))

        is_gguf = files.container == "gguf"
        names = {**_HF_LAYER_NAMES, **self.hf_layer_names}
        head = "output.weight" if is_gguf else "lm_head.weight"
        is_tied = self.is_tied(config)
        return Outline(
            traits,
            bind,
            local_name=(lambda name: name) if is_gguf else partial(_hf_name, names),
            ignored=lambda name: name.endswith(_MEANINGLESS_SUFFIXES) or (is_tied and name == head),
        )


def _hf_name(layer_names: Mapping[str, str], name: str) -> str:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight"""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{_HF_NAMES[stem]}.{kind}"
    _, layer, place = stem.split(".", 2)
    return f"model.layers.{layer}.{layer_names[place]}.{kind}"


def _check(files: ModelFiles, traits: ModelTraits) -> None:
    if traits.num_heads % traits.num_kv_heads:
        raise ModelError(
            f"{files.path}: {traits.num_heads} heads cannot share {traits.num_kv_heads} KV heads",
        )
    if traits.head_dim % 16:
        raise UnsupportedModel(
            f"{files.path}: heads of {traits.head_dim} dimensions; multiples of 16 are supported",
        )
    if traits.max_context_tokens > _MAX_CONTEXT_TOKENS:
        raise ModelError(f"{files.path}: a context of {traits.max_context_tokens} tokens")
    tokens = files.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > traits.vocab_size:
        raise ModelError(
            f"{files.path}: {len(tokens)} tokens in the vocabulary, {traits.vocab_size} embeddings",
        )
