"""What a model may say: the ops of a forward pass, as a device-neutral interface.

A model is one function over a `Builder`; the builder of a device records or runs it. `Rows` stands
for f32 rows [num_rows, width] of the step's ragged batch: one row a token, of any sequence.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

RopeStyle = Literal["interleaved", "half"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Rows:
    """A handle on f32 [num_rows, width] in a program; `node` is the builder's own number.

    `offset`: first column within the node's buffer (a split is a view, not a copy).
    """

    node: int
    width: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding. inverse_frequencies: f32 as Python floats, [rotary_dim / 2], scaling
    already applied; attention_scale multiplies cos and sin (YaRN's mscale).

    style: "interleaved" rotates pairs (2i, 2i+1) — llama GGUF files are permuted for it; "half"
    rotates (i, i + rotary_dim/2) — Hugging Face checkpoints.
    """

    style: RopeStyle
    inverse_frequencies: tuple[float, ...]
    attention_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Causal attention over the paged KV of one layer.

    num_heads query heads share num_kv_heads (num_heads % num_kv_heads == 0). scale multiplies q·k.
    window: tokens that a position may look back on, itself included; None: all.
    """

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None


class Weight(Protocol):
    """A packed matrix [rows (outputs), cols (inputs)] that the device's builder understands."""

    @property
    def rows(self) -> int: ...

    @property
    def cols(self) -> int: ...


class Builder(Protocol):
    """The ops. Each row takes the same instructions in the same order, whatever the batch."""

    def embed(self, table: Weight, scale: float = 1.0) -> Rows:
        """rows[t] = table[token_ids[t]] · scale → [rows, table.cols]."""
        ...

    def rms_norm(self, x: Rows, weight: Weight, eps: float) -> Rows:
        """x · weight / sqrt(mean(x²) + eps), weight f32 [1, width]."""
        ...

    def linear(
        self, x: Rows, weight: Weight, bias: Weight | None = None, *, is_fine: bool = False
    ) -> Rows:
        """x · weightᵀ (+ bias) → [rows, weight.rows]. A fused weight is one Weight.

        is_fine: where weights are quantised and x would be rounded to 8 bits for them, keep about
        15: for the few products whose rounding the answer feels most, at twice their arithmetic.
        Queries and keys are such, since softmax multiplies their error: of the variance that 8-bit
        activations add to SmolLM2-135M's logprobs, a third comes from them and a sixth from the
        head.
        """
        ...

    def split(self, x: Rows, *widths: int) -> tuple[Rows, ...]:
        """Views on columns; the widths add up to x.width."""
        ...

    def rope(self, x: Rows, spec: RopeSpec, head_dim: int) -> Rows:
        """Rotate each head of x [rows, heads · head_dim] by its row's position."""
        ...

    def head_norm(self, x: Rows, weight: Weight, eps: float, head_dim: int) -> Rows:
        """RMSNorm of each head on its own, weight f32 [1, head_dim]."""
        ...

    def attention(self, q: Rows, k: Rows, v: Rows, spec: AttentionSpec) -> Rows:
        """Write k, v to the layer's KV pages, then attend → [rows, num_heads · head_dim]."""
        ...

    def gated(self, gate: Rows, up: Rows, activation: Activation) -> Rows:
        """activation(gate) · up."""
        ...

    def add(self, x: Rows, y: Rows) -> Rows: ...

    def logits(self, x: Rows, weight: Weight, scale: float = 1.0) -> None:
        """The end: scores over the vocabulary, only for the rows that the step asks for. Fine."""
        ...
