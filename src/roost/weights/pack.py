"""From raw tensors to the packed matrices that the kernels stream; packed once, kept on disk."""

import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

import numpy as np

from roost import _native
from roost.core.errors import ModelError
from roost.kernels import FORMATS_OF_GGML, PackedMatrix, Segment, Vector, aligned_bytes
from roost.weights.files import ModelFiles
from roost.weights.ggml import FLOAT_TYPES, GgmlType, RawTensor, tensor_nbytes
from roost.weights.memory import huge_bytes
from roost.weights.packfile import Bytes, PackFile
from roost.weights.plan import MatrixPlan, VectorPlan, WeightPlanner
from roost.weights.values import float_values

Quantization = Literal["int8", "int4"]
_GROUP: Final = 32  # inputs that share a scale: rows of other lengths stay as they are


@dataclass(frozen=True, slots=True)
class PackOptions:
    """cache_dir: where packed weights are kept; None: nowhere. quantize: float matrices on load.

    on_progress(done_bytes, total_bytes of the files) is called from the thread that packs.
    """

    cache_dir: Path | None = None
    quantize: Quantization | None = None
    num_threads: int = 1
    on_progress: Callable[[int, int], None] | None = None


class PackedWeights:
    """Packed matrices and vectors, handed out by the names that they were planned under."""

    def __init__(
        self,
        matrices: dict[tuple[str, ...], PackedMatrix],
        vectors: dict[tuple[str, ...], Vector],
        notes: tuple[str, ...],
    ) -> None:
        self._matrices = matrices
        self._vectors = vectors
        self.notes = notes

    def has(self, name: str) -> bool:
        return any(name in names for names in (*self._matrices, *self._vectors))

    def matrix(
        self,
        *parts: tuple[str, int],
        cols: int,
        is_table: bool = False,  # noqa: ARG002 — settled when it was planned
    ) -> PackedMatrix:
        matrix = self._matrices[tuple(name for name, _ in parts)]
        assert matrix.cols == cols, "planned and loaded differ"
        return matrix

    def vector(
        self,
        *parts: tuple[str, int],
        shift: float = 0.0,  # noqa: ARG002 — added when it was packed
    ) -> Vector:
        return self._vectors[tuple(name for name, _ in parts)]


@dataclass(frozen=True, slots=True)
class _SegmentPlan:
    """Parts of one type, stacked and packed as one. target: what the result is packed like."""

    parts: tuple[RawTensor, ...]
    target: GgmlType
    quantize_bits: int | None

    @property
    def rows(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def cols(self) -> int:
        return self.parts[0].shape[1]

    @property
    def source_nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def packed_nbytes(self) -> int:
        return _native.packed_nbytes(self.target, self.rows, self.cols)

    def pack(self, target: Bytes) -> float:
        """Fill `target`; returns the power of two that multiplies results."""
        if self.quantize_bits is not None:
            values = [float_values(part) for part in self.parts]
            for part, part_values in zip(self.parts, values, strict=True):
                if not np.isfinite(part_values).all():
                    raise ModelError(f"tensor {part.name!r} holds values that are not finite")
            matrix = (values[0] if len(values) == 1 else np.concatenate(values)).reshape(
                self.rows,
                self.cols,
            )
            return _native.quantize_matrix(matrix, self.quantize_bits, target)
        data = [np.frombuffer(part.data, np.uint8) for part in self.parts]
        raw = data[0] if len(data) == 1 else np.concatenate(data)
        return _native.pack(self.target, raw, self.rows, self.cols, target)


def pack_weights(files: ModelFiles, planner: WeightPlanner, options: PackOptions) -> PackedWeights:
    """Everything that was planned, packed now or mapped from an earlier start's file."""
    plans = {names: _segments(plan, options.quantize) for names, plan in planner.matrices.items()}
    segments = [segment for group in plans.values() for segment in group]
    packed, note = _packed(files, segments, options)
    finished = iter(packed)
    matrices = {
        names: PackedMatrix(tuple(next(finished) for _ in group)) for names, group in plans.items()
    }
    vectors = {names: _vector(plan) for names, plan in planner.vectors.items()}
    return PackedWeights(matrices, vectors, (note,))


def _segments(plan: MatrixPlan, quantize: Quantization | None) -> tuple[_SegmentPlan, ...]:
    def kind(part: RawTensor) -> tuple[GgmlType, int | None]:
        if quantize is None or part.type not in FLOAT_TYPES or plan.cols % _GROUP:
            return part.type, None
        # Embeddings and heads lose most from four bits, and are looked up or read once a token.
        bits = 8 if plan.is_table or quantize == "int8" else 4
        return (GgmlType.Q8_0 if bits == 8 else GgmlType.Q4_1), bits

    return tuple(
        _SegmentPlan(tuple(parts), target, bits)
        for (target, bits), parts in groupby(plan.parts, kind)
    )


def _vector(plan: VectorPlan) -> Vector:
    values = [float_values(part) for part in plan.parts]
    return Vector(np.concatenate(values) + np.float32(plan.shift))


def _packed(
    files: ModelFiles,
    segments: Sequence[_SegmentPlan],
    options: PackOptions,
) -> tuple[list[Segment], str]:
    sizes = [segment.packed_nbytes for segment in segments]
    reason = "no cache directory"
    if options.cache_dir is not None:
        kept = _pack_file(files, segments, options.cache_dir, options.quantize)
        found = kept.map(sizes)
        if found is not None:
            return _finish(segments, found), f"packed weights read from {kept.path}"
        try:
            with kept.write(sizes) as (targets, taken):
                taken.extend(_fill(segments, targets, options))
        except OSError as error:
            reason = f"{error.strerror}: {options.cache_dir}"
        else:
            written = kept.map(sizes)
            if written is not None:
                return _finish(segments, written), f"weights packed, kept at {kept.path}"
            reason = f"{kept.path} did not stay as written"
    targets = huge_bytes(sizes)
    scales = _fill(segments, targets, options)
    return (
        _finish(segments, list(zip(targets, scales, strict=True))),
        f"weights packed, not kept ({reason})",
    )


def _finish(segments: Sequence[_SegmentPlan], packed: list[tuple[Bytes, float]]) -> list[Segment]:
    return [
        Segment(FORMATS_OF_GGML[plan.target], plan.rows, plan.cols, scale, data)
        for plan, (data, scale) in zip(segments, packed, strict=True)
    ]


def _fill(
    segments: Sequence[_SegmentPlan],
    targets: Sequence[Bytes],
    options: PackOptions,
) -> list[float]:
    """Pack each segment into its target, on threads: the native calls let go of the GIL."""
    total_bytes = sum(segment.source_nbytes for segment in segments)
    done_bytes = 0
    scales = [1.0] * len(segments)
    pool = ThreadPoolExecutor(options.num_threads, "roost-pack")
    try:
        futures: dict[Future[float], int] = {}
        # The largest first, so that no thread is left alone with it at the end.
        for index in sorted(range(len(segments)), key=lambda i: -segments[i].source_nbytes):
            futures[pool.submit(segments[index].pack, targets[index])] = index
        for future in as_completed(futures):
            index = futures[future]
            scales[index] = future.result()
            done_bytes += segments[index].source_nbytes
            if options.on_progress is not None:
                options.on_progress(done_bytes, total_bytes)
    finally:
        # After a failure, or when the user has had enough, nobody waits for the rest.
        pool.shutdown(cancel_futures=True)
    return scales


def _pack_file(
    files: ModelFiles,
    segments: Sequence[_SegmentPlan],
    cache_dir: Path,
    quantize: Quantization | None,
) -> PackFile:
    identity = files.identity()
    key = hashlib.sha256(f"{identity} {quantize}".encode())
    for segment in segments:
        names = "+".join(part.name for part in segment.parts)
        key.update(f"{names} {segment.rows}x{segment.cols} {segment.target.name};".encode())
    for type_, bits in sorted(
        {(segment.target, segment.quantize_bits or 0) for segment in segments}
    ):
        key.update(_layout_sample(type_, bits or None))
    name = re.sub(r"[^\w.-]", "_", files.name, flags=re.ASCII)[:80]
    return PackFile(cache_dir, f"{name}-{identity}-{quantize or 'as-is'}", key.digest())


def _layout_sample(type_: GgmlType, bits: int | None) -> bytes:
    """A small matrix as this build packs it: any change of the layout changes the key."""
    rows, cols = 17, 512
    target = aligned_bytes(_native.packed_nbytes(type_, rows, cols))
    if bits is not None:
        values = np.sin(np.arange(rows * cols, dtype=np.float64)).astype(np.float32)
        scale = _native.quantize_matrix(values.reshape(rows, cols), bits, target)
    else:
        # Bytes below 124 are finite floats of every width.
        raw = (np.arange(tensor_nbytes(type_, (rows, cols), "sample")) * 37 % 101 + 1).astype(
            np.uint8
        )
        scale = _native.pack(type_, raw, rows, cols, target)
    return f"{type_.name} {scale};".encode() + target.tobytes()
