"""Weights in Python's hands: packed matrices as lists of segments, and plain f32 vectors."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from roost import _native

Bytes = npt.NDArray[np.uint8]
ALIGNMENT = 64


class WeightFormat(enum.IntEnum):
    """How a segment is stored; the numbers are those of native/src/kernels.h."""

    F32 = 0
    F16 = 1
    BF16 = 2
    U4M = 3
    U4 = 4
    U5M = 5
    U5 = 6
    U6G16 = 7
    U8 = 8


# GGUF's tensor types (ggml.h, `enum ggml_type`) and what they are packed to.
FORMATS_OF_GGML = {
    0: WeightFormat.F32,
    1: WeightFormat.F16,
    2: WeightFormat.U4,  # Q4_0
    3: WeightFormat.U4M,  # Q4_1
    6: WeightFormat.U5,  # Q5_0
    7: WeightFormat.U5M,  # Q5_1
    8: WeightFormat.U8,  # Q8_0
    12: WeightFormat.U4M,  # Q4_K
    13: WeightFormat.U5M,  # Q5_K
    14: WeightFormat.U6G16,  # Q6_K
    30: WeightFormat.BF16,
}


def aligned_bytes(nbytes: int) -> Bytes:
    """u8 [nbytes] of zeros on a 64-byte boundary, as the kernels want it."""
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Some output rows of a matrix in one packed format. scale: power of two on every result.

    data: u8, contiguous, 64-byte aligned, held as long as the segment lives; a view on a
    memory-mapped file will do.
    """

    format: WeightFormat
    rows: int
    cols: int
    scale: float
    data: Bytes

    def __post_init__(self) -> None:
        assert self.rows > 0
        assert self.cols > 0
        assert self.data.dtype == np.uint8
        assert self.data.ndim == 1
        assert self.data.flags.c_contiguous
        assert self.data.ctypes.data % ALIGNMENT == 0, "packed weights must be 64-byte aligned"


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """A matrix [rows outputs, cols inputs]: its segments one below the other. A `Weight`."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        assert self.segments
        assert len({segment.cols for segment in self.segments}) == 1, "stacked parts differ in cols"

    @classmethod
    def pack(cls, ggml_type: int, raw: Bytes, rows: int, cols: int) -> Self:
        """Pack raw GGML blocks, u8 of the file, into memory of its own.

        Raises ValueError when the type is not known or the sizes do not fit.
        """
        if ggml_type not in FORMATS_OF_GGML:
            raise ValueError(f"GGML type {ggml_type} is not one that roost packs")
        data = aligned_bytes(_native.packed_nbytes(ggml_type, rows, cols))
        scale = _native.pack(ggml_type, raw, rows, cols, data)
        return cls((Segment(FORMATS_OF_GGML[ggml_type], rows, cols, scale, data),))

    @classmethod
    def stack(cls, parts: Iterable["PackedMatrix"]) -> Self:
        """The parts one below the other, as one weight; formats may differ, nothing is copied."""
        return cls(tuple(segment for part in parts for segment in part.segments))

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def cols(self) -> int:
        return self.segments[0].cols

    @property
    def has_float(self) -> bool:
        """True when some segment multiplies f32 activations."""
        return any(segment.format <= WeightFormat.BF16 for segment in self.segments)

    @property
    def has_quantised(self) -> bool:
        """True when some segment multiplies int8 activations."""
        return any(segment.format > WeightFormat.BF16 for segment in self.segments)


class Vector:
    """f32 [1, cols]: a norm's weight or a bias, in memory of its own. A `Weight`."""

    __slots__ = ("values",)

    def __init__(self, values: npt.ArrayLike) -> None:
        """values: [cols] or [1, cols], cast to f32."""
        array = np.asarray(values, np.float32)
        assert array.ndim == 1 or (array.ndim == 2 and array.shape[0] == 1)
        memory = aligned_bytes(array.size * 4).view(np.float32)
        memory[:] = array.reshape(-1)
        self.values: npt.NDArray[np.float32] = memory

    @property
    def rows(self) -> int:
        return 1

    @property
    def cols(self) -> int:
        return self.values.size
