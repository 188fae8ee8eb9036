"""The judge: a builder that computes each op at once, in float64, as its contract reads.

One sequence from position 0, no cache, no batch. Weights are plans: raw tensors of the file,
dequantised by the `gguf` package.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from roost.models import outline_model, plan_weights
from roost.programs.builder import Activation, AttentionSpec, RopeSpec, Rows, Weight
from roost.weights import MatrixPlan, ModelFiles, RawTensor, VectorPlan

Doubles = npt.NDArray[np.float64]


class NumpyBuilder:
    """logits: f64 [num_tokens, vocab] once the model has been recorded."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = np.array(token_ids)
        self._positions = np.arange(len(token_ids), dtype=np.float64)
        self._nodes: list[Doubles] = []
        self.logits_rows: Doubles | None = None

    @property
    def result(self) -> Doubles:
        assert self.logits_rows is not None, "the model has no head"
        return self.logits_rows

    def embed(self, table: Weight, scale: float = 1.0) -> Rows:
        return self._new(_matrix(table, self._token_ids) * scale)

    def rms_norm(self, x: Rows, weight: Weight, eps: float) -> Rows:
        return self._new(_rms_norm(self._values(x), _vector(weight), eps))

    def linear(
        self, x: Rows, weight: Weight, bias: Weight | None = None, *, is_fine: bool = False
    ) -> Rows:
        y = self._values(x) @ _matrix(weight).T
        return self._new(y if bias is None else y + _vector(bias))

    def split(self, x: Rows, *widths: int) -> tuple[Rows, ...]:
        assert sum(widths) == x.width
        starts = np.cumsum([0, *widths]).tolist()
        return tuple(
            Rows(x.node, width, x.offset + start)
            for width, start in zip(widths, starts[:-1], strict=True)
        )

    def rope(self, x: Rows, spec: RopeSpec, head_dim: int) -> Rows:
        heads = self._heads(x, head_dim).copy()
        rotary_dim = 2 * len(spec.inverse_frequencies)
        angles = self._positions[:, None, None] * np.array(spec.inverse_frequencies)
        cos, sin = np.cos(angles) * spec.attention_scale, np.sin(angles) * spec.attention_scale
        if spec.style == "half":
            first, second = slice(0, rotary_dim // 2), slice(rotary_dim // 2, rotary_dim)
        else:
            first, second = slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)
        a, b = heads[:, :, first].copy(), heads[:, :, second].copy()
        heads[:, :, first] = a * cos - b * sin
        heads[:, :, second] = b * cos + a * sin
        return self._new(heads.reshape(len(self._positions), -1))

    def head_norm(self, x: Rows, weight: Weight, eps: float, head_dim: int) -> Rows:
        heads = _rms_norm(self._heads(x, head_dim), _vector(weight), eps)
        return self._new(heads.reshape(len(self._positions), -1))

    def attention(self, q: Rows, k: Rows, v: Rows, spec: AttentionSpec) -> Rows:
        group = spec.num_heads // spec.num_kv_heads
        queries = self._heads(q, spec.head_dim)
        keys = self._heads(k, spec.head_dim).repeat(group, axis=1)
        values = self._heads(v, spec.head_dim).repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", queries, keys) * spec.scale
        back = self._positions[:, None] - self._positions[None, :]
        is_seen = (back >= 0) & (back < (np.inf if spec.window is None else spec.window))
        scores = np.where(is_seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weights, values)
        return self._new(out.reshape(len(self._positions), -1))

    def gated(self, gate: Rows, up: Rows, activation: Activation) -> Rows:
        x = self._values(gate)
        if activation == "silu":
            active = x / (1 + np.exp(-x))
        else:
            active = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return self._new(active * self._values(up))

    def add(self, x: Rows, y: Rows) -> Rows:
        return self._new(self._values(x) + self._values(y))

    def logits(self, x: Rows, weight: Weight, scale: float = 1.0) -> None:
        assert self.logits_rows is None, "the head comes once"
        self.logits_rows = self._values(x) @ _matrix(weight).T * scale

    def _new(self, values: Doubles) -> Rows:
        self._nodes.append(values)
        return Rows(len(self._nodes) - 1, values.shape[1])

    def _values(self, x: Rows) -> Doubles:
        return self._nodes[x.node][:, x.offset : x.offset + x.width]

    def _heads(self, x: Rows, head_dim: int) -> Doubles:
        return self._values(x).reshape(len(self._positions), -1, head_dim)


def judge(files: ModelFiles, token_ids: Sequence[int]) -> Doubles:
    """The logits of the model after each token, f64 [num_tokens, vocab]."""
    _, record = plan_weights(files, outline_model(files))
    builder = NumpyBuilder(token_ids)
    record(builder)
    return builder.result


def log_softmax(logits: Doubles) -> Doubles:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Doubles = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def tensor_values(tensor: RawTensor, rows: npt.NDArray[np.intp] | None = None) -> Doubles:
    """The tensor's values (or some of its rows) as f64, in its shape."""
    raw = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[0], -1)
    values = dequantize(raw if rows is None else raw[rows], GGMLQuantizationType(tensor.type))
    return np.asarray(values, np.float64).reshape(-1, *tensor.shape[1:])


def _matrix(weight: Weight, rows: npt.NDArray[np.intp] | None = None) -> Doubles:
    assert isinstance(weight, MatrixPlan)
    if rows is not None:
        assert len(weight.parts) == 1
        return tensor_values(weight.parts[0], rows)
    return np.concatenate([tensor_values(part) for part in weight.parts])


def _vector(weight: Weight) -> Doubles:
    assert isinstance(weight, VectorPlan)
    return np.concatenate([tensor_values(part) for part in weight.parts]).reshape(-1) + weight.shift


def _rms_norm(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    mean_square: Doubles = (x * x).mean(axis=-1, keepdims=True)
    return x * weight / np.sqrt(mean_square + eps)
