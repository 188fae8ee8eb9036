"""The CPU's builder: records a model's calls, then lowers them to one native program."""

from collections.abc import Sequence
from dataclasses import dataclass

from roost import _native
from roost.core.plan import PAGE_TOKENS
from roost.core.settings import KvDtype
from roost.kernels import PackedMatrix, ThreadPool, Vector
from roost.programs import emission, marshal
from roost.programs.builder import Activation, AttentionSpec, RopeSpec, Rows, Weight
from roost.programs.lowering import lower
from roost.programs.recording import (
    Add,
    Attention,
    Embed,
    Gated,
    HeadNorm,
    Linear,
    Logits,
    Recording,
    RmsNorm,
    Rope,
)
from roost.programs.step import StepInputs, StepOutputs


@dataclass(frozen=True, slots=True)
class KvShape:
    """One sequence token's KV: num_layers × num_kv_heads × head_dim keys and as many values."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: KvDtype = "bf16"

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: 16 tokens of all layers."""
        match self.dtype:
            case "bf16":
                head_bytes = 2 * 2 * self.head_dim
            case "f32":
                head_bytes = 2 * 4 * self.head_dim
            case "int8":  # and f32 scales: for each 32 values of K, and one for V
                head_bytes = 2 * self.head_dim + 4 * -(-self.head_dim // 32) + 4
        return PAGE_TOKENS * self.num_layers * self.num_kv_heads * head_bytes


class CpuBuilder:
    """A `Builder` whose `finish` gives a `CpuProgram`.

    max_rows: most rows (tokens) of a step. max_logits_rows: most rows of a step whose logits are
    wanted. isa: of `kernels.available_isas()`. pool: outlives the program. num_pages: KV pages of
    16 tokens, reserved and taken from the system as they are first written. max_context_tokens:
    positions are below it.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_logits_rows: int,
        isa: str,
        pool: ThreadPool,
        kv: KvShape,
        num_pages: int,
        max_context_tokens: int,
    ) -> None:
        assert kv.head_dim % 16 == 0, "head_dim must be a multiple of 16"
        self._recording = Recording()
        self._kv = kv
        self._has_logits = False
        self._pool = pool
        self._max_rows = max_rows
        self._max_logits_rows = max_logits_rows
        self._isa = isa
        self._num_pages = num_pages
        self._max_context_tokens = max_context_tokens

    def embed(self, table: Weight, scale: float = 1.0) -> Rows:
        return self._recording.append(Embed(_matrix(table), scale), table.cols)

    def rms_norm(self, x: Rows, weight: Weight, eps: float) -> Rows:
        assert weight.cols == x.width
        return self._recording.append(RmsNorm(x, _vector(weight), eps), x.width)

    def linear(
        self, x: Rows, weight: Weight, bias: Weight | None = None, *, is_fine: bool = False
    ) -> Rows:
        assert weight.cols == x.width
        assert bias is None or bias.cols == weight.rows
        bias_vector = None if bias is None else _vector(bias)
        return self._recording.append(Linear(x, _matrix(weight), bias_vector, is_fine), weight.rows)

    def split(self, x: Rows, *widths: int) -> tuple[Rows, ...]:
        assert sum(widths) == x.width, "the parts of a split must add up to its width"
        offsets = [x.offset + sum(widths[:index]) for index in range(len(widths))]
        return tuple(Rows(x.node, w, at) for w, at in zip(widths, offsets, strict=True))

    def rope(self, x: Rows, spec: RopeSpec, head_dim: int) -> Rows:
        assert x.width % head_dim == 0
        assert 2 * len(spec.inverse_frequencies) <= head_dim
        return self._recording.append(Rope(x, spec, head_dim), x.width)

    def head_norm(self, x: Rows, weight: Weight, eps: float, head_dim: int) -> Rows:
        assert x.width % head_dim == 0
        assert weight.cols == head_dim
        return self._recording.append(HeadNorm(x, _vector(weight), eps, head_dim), x.width)

    def attention(self, q: Rows, k: Rows, v: Rows, spec: AttentionSpec) -> Rows:
        assert 0 <= spec.layer < self._kv.num_layers
        assert spec.num_kv_heads == self._kv.num_kv_heads
        assert spec.head_dim == self._kv.head_dim
        assert spec.num_heads % spec.num_kv_heads == 0
        assert q.width == spec.num_heads * spec.head_dim
        assert k.width == v.width == spec.num_kv_heads * spec.head_dim
        assert spec.window is None or spec.window > 0
        return self._recording.append(Attention(q, k, v, spec), q.width)

    def gated(self, gate: Rows, up: Rows, activation: Activation) -> Rows:
        assert gate.width == up.width
        return self._recording.append(Gated(gate, up, activation), gate.width)

    def add(self, x: Rows, y: Rows) -> Rows:
        assert x.width == y.width
        return self._recording.append(Add(x, y), x.width)

    def logits(self, x: Rows, weight: Weight, scale: float = 1.0) -> None:
        assert not self._has_logits, "a program has one end"
        assert weight.cols == x.width
        self._recording.append(Logits(x, _matrix(weight), scale), weight.rows)
        self._has_logits = True

    def finish(self) -> "CpuProgram":
        """The program. Raises MemoryError when its buffers cannot be reserved."""
        assert self._has_logits, "a program ends with logits"
        kv = self._kv
        native = _native.Program(
            self._isa,
            self._pool.native,
            (self._max_rows, self._max_logits_rows, self._max_context_tokens),
            (self._num_pages, kv.num_layers, kv.num_kv_heads, kv.head_dim, kv.dtype),
        )
        emission.emit(native, lower(self._recording))
        native.finish()
        return CpuProgram(native, self._kv, self._num_pages)


class CpuProgram:
    """A recorded forward pass with its buffers and its KV cache. One run at a time."""

    def __init__(self, native: _native.Program, kv: KvShape, num_pages: int) -> None:
        self._native: _native.Program | None = native
        self.kv = kv
        self.num_pages = num_pages
        self.vocab_size: int = native.vocab_size

    @property
    def nbytes(self) -> int:
        """Bytes of buffers at most, without weights and KV pages."""
        return self._open().buffer_nbytes

    def run(self, inputs: StepInputs) -> StepOutputs:
        """One step: KV of all rows is written, then the wanted rows are scored or sampled.

        The GIL is released meanwhile. Raises ValueError when the inputs are out of range (an id, a
        page, a row, more rows than the program has), before anything is written.
        """
        return marshal.run(self._open(), inputs, self.vocab_size)

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy KV pages, all layers, in order. Raises ValueError on a page out of range."""
        self._open().copy_pages(list(sources), list(targets))

    def read_page(self, page: int) -> bytes:
        """What a KV page holds, all layers. Raises ValueError on a page out of range."""
        return self._open().read_page(page)

    def write_page(self, page: int, data: bytes) -> None:
        """Let a KV page hold what `read_page` gave, of any page of an equal program. Raises
        ValueError on a page out of range and on another number of bytes.
        """
        self._open().write_page(page, data)

    def close(self) -> None:
        """Free buffers and KV pages. Twice is harmless."""
        native, self._native = self._native, None
        if native is not None:
            native.close()

    def _open(self) -> _native.Program:
        assert self._native is not None, "the program is closed"
        return self._native


def _matrix(weight: Weight) -> PackedMatrix:
    assert isinstance(weight, PackedMatrix), "the CPU's matrices are kernels.PackedMatrix"
    return weight


def _vector(weight: Weight) -> Vector:
    assert isinstance(weight, Vector), "the CPU's vectors are kernels.Vector"
    return weight
