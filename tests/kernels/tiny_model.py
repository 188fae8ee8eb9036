"""A small random transformer: recorded on a builder, and computed in float64 as the judge."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from roost.kernels import PackedMatrix, ThreadPool, Vector
from roost.programs import (
    AttentionSpec,
    CpuBuilder,
    CpuProgram,
    HeadRow,
    KvShape,
    RopeSpec,
    RowSampling,
    StepInputs,
    StepOutputs,
)

F64 = npt.NDArray[np.float64]
GGML_F32 = 0
GGML_Q8_0 = 8


@dataclass(frozen=True)
class Shape:
    hidden: int = 64
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    vocab: int = 67
    num_layers: int = 2
    window: int | None = None
    rope: str = "half"
    activation: str = "silu"
    has_head_norm: bool = False
    has_post_norm: bool = False
    has_bias: bool = False
    quantised: bool = False
    kv_dtype: str = "f32"

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def _q8_0(w: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Rows in GGUF's Q8_0: per 32 values an f16 scale, then 32 int8."""
    groups = w.reshape(-1, 32)
    scale = (np.abs(groups).max(axis=1) / 127).astype(np.float16)
    q = np.rint(groups / scale[:, None].astype(np.float32)).astype(np.int8)
    blocks = np.empty((len(groups), 34), np.uint8)
    blocks[:, :2] = scale[:, None].view(np.uint8)
    blocks[:, 2:] = q.view(np.uint8)
    return blocks.reshape(-1)


@dataclass
class TinyModel:
    shape: Shape
    seed: int = 0
    arrays: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        s = self.shape

        def put(name: str, *dims: int, scale: float) -> None:
            self.arrays[name] = (rng.standard_normal(dims) * scale).astype(np.float32)

        put("embed", s.vocab, s.hidden, scale=1.0)
        put("head", s.vocab, s.hidden, scale=0.3)
        put("final_norm", s.hidden, scale=1.0)
        for i in range(s.num_layers):
            put(f"{i}.norm", s.hidden, scale=1.0)
            put(f"{i}.ffn_norm", s.hidden, scale=1.0)
            put(f"{i}.post_norm", s.hidden, scale=1.0)
            put(f"{i}.q_norm", s.head_dim, scale=1.0)
            put(f"{i}.k_norm", s.head_dim, scale=1.0)
            put(f"{i}.qkv", s.q_size + 2 * s.kv_size, s.hidden, scale=s.hidden**-0.5)
            put(f"{i}.qkv_bias", s.q_size + 2 * s.kv_size, scale=0.5)
            put(f"{i}.o", s.hidden, s.q_size, scale=s.q_size**-0.5)
            put(f"{i}.gate_up", 2 * s.ffn, s.hidden, scale=s.hidden**-0.5)
            put(f"{i}.down", s.hidden, s.ffn, scale=s.ffn**-0.5)

    @property
    def frequencies(self) -> tuple[float, ...]:
        half = self.shape.head_dim // 2
        exponents = np.arange(half) / half
        return tuple(float(np.float32(100.0**-e)) for e in exponents)

    def matrix(self, name: str) -> PackedMatrix:
        w = self.arrays[name]
        if self.shape.quantised:
            return PackedMatrix.pack(GGML_Q8_0, _q8_0(w), *w.shape)
        return PackedMatrix.pack(GGML_F32, w.reshape(-1).view(np.uint8), *w.shape)

    def record(self, b: CpuBuilder) -> None:
        s = self.shape
        rope = RopeSpec(s.rope, self.frequencies)  # type: ignore[arg-type]
        x = b.embed(self.matrix("embed"), 2.0)
        for i in range(s.num_layers):
            h = b.rms_norm(x, Vector(self.arrays[f"{i}.norm"]), 1e-5)
            bias = Vector(self.arrays[f"{i}.qkv_bias"]) if s.has_bias else None
            qkv = b.linear(h, self.matrix(f"{i}.qkv"), bias, is_fine=True)
            q, k, v = b.split(qkv, s.q_size, s.kv_size, s.kv_size)
            if s.has_head_norm:
                q = b.head_norm(q, Vector(self.arrays[f"{i}.q_norm"]), 1e-6, s.head_dim)
                k = b.head_norm(k, Vector(self.arrays[f"{i}.k_norm"]), 1e-6, s.head_dim)
            q, k = b.rope(q, rope, s.head_dim), b.rope(k, rope, s.head_dim)
            spec = AttentionSpec(
                i, s.num_heads, s.num_kv_heads, s.head_dim, s.head_dim**-0.5, s.window
            )
            a = b.linear(b.attention(q, k, v, spec), self.matrix(f"{i}.o"))
            if s.has_post_norm:
                a = b.rms_norm(a, Vector(self.arrays[f"{i}.post_norm"]), 1e-5)
            x = b.add(x, a)
            h = b.rms_norm(x, Vector(self.arrays[f"{i}.ffn_norm"]), 1e-5)
            gate, up = b.split(b.linear(h, self.matrix(f"{i}.gate_up")), s.ffn, s.ffn)
            h = b.gated(gate, up, s.activation)  # type: ignore[arg-type]
            x = b.add(x, b.linear(h, self.matrix(f"{i}.down")))
        b.logits(b.rms_norm(x, Vector(self.arrays["final_norm"]), 1e-5), self.matrix("head"), 0.5)

    def program(
        self, pool: ThreadPool, isa: str, *, max_rows: int = 64, num_pages: int = 256
    ) -> CpuProgram:
        s = self.shape
        b = CpuBuilder(
            max_rows=max_rows,
            max_logits_rows=max_rows,
            isa=isa,
            pool=pool,
            kv=KvShape(s.num_layers, s.num_kv_heads, s.head_dim, s.kv_dtype),  # type: ignore[arg-type]
            num_pages=num_pages,
            max_context_tokens=16 * num_pages,
        )
        self.record(b)
        return b.finish()

    def logprobs(self, tokens: list[int]) -> F64:
        """Log-softmax at every position, [len(tokens), vocab], in float64."""
        s = self.shape
        w = {name: array.astype(np.float64) for name, array in self.arrays.items()}
        x = w["embed"][tokens] * 2.0
        for i in range(s.num_layers):
            qkv = _norm(x, w[f"{i}.norm"], 1e-5) @ w[f"{i}.qkv"].T
            if s.has_bias:
                qkv += w[f"{i}.qkv_bias"]
            q, k, v = np.split(qkv, [s.q_size, s.q_size + s.kv_size], axis=1)
            q, k = (part.reshape(len(tokens), -1, s.head_dim) for part in (q, k))
            if s.has_head_norm:
                q = _norm(q, w[f"{i}.q_norm"], 1e-6)
                k = _norm(k, w[f"{i}.k_norm"], 1e-6)
            q, k = self._rope(q), self._rope(k)
            a = self._attend(q, k, v.reshape(len(tokens), -1, s.head_dim)) @ w[f"{i}.o"].T
            if s.has_post_norm:
                a = _norm(a, w[f"{i}.post_norm"], 1e-5)
            x = x + a
            gate, up = np.split(_norm(x, w[f"{i}.ffn_norm"], 1e-5) @ w[f"{i}.gate_up"].T, 2, axis=1)
            x = x + (_activate(gate, s.activation) * up) @ w[f"{i}.down"].T
        logits = _norm(x, w["final_norm"], 1e-5) @ w["head"].T * 0.5
        shifted = logits - logits.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

    def _rope(self, x: F64) -> F64:
        angles = np.arange(len(x))[:, None] * np.array(self.frequencies)
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        y = np.empty_like(x)
        half = self.shape.head_dim // 2
        first, second = (
            (slice(0, half), slice(half, None))
            if self.shape.rope == "half"
            else (slice(0, None, 2), slice(1, None, 2))
        )
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y

    def _attend(self, q: F64, k: F64, v: F64) -> F64:
        s = self.shape
        if s.kv_dtype == "bf16":
            k, v = _to_bf16(k), _to_bf16(v)
        elif s.kv_dtype == "int8":
            k, v = _to_int8(k, 32), _to_int8(v, s.head_dim)
        group = s.num_heads // s.num_kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("ihd,jhd->hij", q, k) * s.head_dim**-0.5
        i, j = np.indices(scores.shape[1:])
        hidden = (j > i) | (j <= i - (s.window or len(q)))
        scores[:, hidden] = -np.inf
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        return np.asarray(np.einsum("hij,jhd->ihd", p, v).reshape(len(q), -1))


def _norm(x: F64, w: F64, eps: float) -> F64:
    return np.asarray(x * w / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps))


def _activate(x: F64, activation: str) -> F64:
    if activation == "silu":
        return np.asarray(x / (1 + np.exp(-x)))
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _to_bf16(x: F64) -> F64:
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def _to_int8(x: F64, group: int) -> F64:
    """[..., head_dim], a scale for each `group` values."""
    parts = []
    for at in range(0, x.shape[-1], group):
        part = x[..., at : at + group]
        largest = np.abs(part).max(axis=-1, keepdims=True)
        parts.append(np.rint(part * (127 / largest)) * (largest / 127))
    return np.concatenate(parts, axis=-1)


GREEDY = RowSampling()


@dataclass(frozen=True)
class Piece:
    """Tokens [start, stop) of a sequence, whose page table is `pages`."""

    tokens: list[int]
    start: int
    stop: int
    pages: list[int]


def step(pieces: list[Piece], heads: list[HeadRow]) -> StepInputs:
    """A step of these pieces, in order."""
    token_ids = [t for p in pieces for t in p.tokens[p.start : p.stop]]
    positions = [i for p in pieces for i in range(p.start, p.stop)]
    lengths = [p.stop - p.start for p in pieces]
    return StepInputs(
        np.array(token_ids, np.int32),
        np.array(positions, np.int32),
        np.cumsum([0, *lengths], dtype=np.int32),
        np.array([page for p in pieces for page in p.pages], np.int32),
        np.cumsum([0, *(len(p.pages) for p in pieces)], dtype=np.int32),
        heads,
    )


def all_logprobs(outputs: StepOutputs, vocab: int) -> npt.NDArray[np.float32]:
    """[L, vocab], when every head row picked the whole vocabulary."""
    return outputs.picked_logprobs.reshape(-1, vocab)


def score_rows(rows: range, vocab: int) -> list[HeadRow]:
    everything = np.arange(vocab, dtype=np.int32)
    return [HeadRow(row, None, target_id=0, picked_ids=everything) for row in rows]


def score(
    program: CpuProgram, tokens: list[int], chunks: list[int], pages: list[int] | None = None
) -> npt.NDArray[np.float32]:
    """Logprobs at every position, the sequence computed in chunks of these lengths, then the rest.

    `chunks` is used up.
    """
    table = pages or list(range((len(tokens) + 15) // 16))
    out = []
    start = 0
    while start < len(tokens):
        length = chunks.pop(0) if chunks else len(tokens) - start
        stop = min(len(tokens), start + length)
        rows = score_rows(range(stop - start), program.vocab_size)
        outputs = program.run(step([Piece(tokens, start, stop, table)], rows))
        assert not outputs.faults.any()
        out.append(all_logprobs(outputs, program.vocab_size))
        start = stop
    return np.concatenate(out)
