"""The element types of GGUF tensors: number, block length, block bytes.

Source: the type table of the GGUF specification and ggml's block layouts (public facts).
"""

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import prod
from typing import Final

from roost.core.errors import ModelError


class GgmlType(IntEnum):
    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39


# type → (elements in a block, bytes of a block)
BLOCKS: Final[dict[GgmlType, tuple[int, int]]] = {
    GgmlType.F32: (1, 4),
    GgmlType.F16: (1, 2),
    GgmlType.Q4_0: (32, 18),
    GgmlType.Q4_1: (32, 20),
    GgmlType.Q5_0: (32, 22),
    GgmlType.Q5_1: (32, 24),
    GgmlType.Q8_0: (32, 34),
    GgmlType.Q2_K: (256, 84),
    GgmlType.Q3_K: (256, 110),
    GgmlType.Q4_K: (256, 144),
    GgmlType.Q5_K: (256, 176),
    GgmlType.Q6_K: (256, 210),
    GgmlType.IQ2_XXS: (256, 66),
    GgmlType.IQ2_XS: (256, 74),
    GgmlType.IQ3_XXS: (256, 98),
    GgmlType.IQ1_S: (256, 50),
    GgmlType.IQ4_NL: (32, 18),
    GgmlType.IQ3_S: (256, 110),
    GgmlType.IQ2_S: (256, 82),
    GgmlType.IQ4_XS: (256, 136),
    GgmlType.I8: (1, 1),
    GgmlType.I16: (1, 2),
    GgmlType.I32: (1, 4),
    GgmlType.I64: (1, 8),
    GgmlType.F64: (1, 8),
    GgmlType.IQ1_M: (256, 56),
    GgmlType.BF16: (1, 2),
    GgmlType.TQ1_0: (256, 54),
    GgmlType.TQ2_0: (256, 66),
    GgmlType.MXFP4: (32, 17),
}

FLOAT_TYPES: Final = frozenset({GgmlType.F32, GgmlType.F16, GgmlType.BF16})

# What the packer takes: these and no other become matrices.
PACKABLE_TYPES: Final = FLOAT_TYPES | {
    GgmlType.Q4_0,
    GgmlType.Q4_1,
    GgmlType.Q5_0,
    GgmlType.Q5_1,
    GgmlType.Q8_0,
    GgmlType.Q4_K,
    GgmlType.Q5_K,
    GgmlType.Q6_K,
}

# Far above any real tensor, and small enough that products stay exact and cheap.
MAX_ELEMENTS: Final = 1 << 48


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the file holds it.

    shape: outermost first, so a matrix is (rows = outputs, cols = inputs). data: its bytes, a
    read-only view of the mapped file, rows one after another.
    """

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    data: memoryview

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def tensor_nbytes(type_: GgmlType, shape: tuple[int, ...], where: str) -> int:
    """Bytes of a tensor. Raises ModelError when the shape is absurd or cuts a block in two."""
    block, block_bytes = BLOCKS[type_]
    num_elements = prod(shape)
    if not 0 < num_elements <= MAX_ELEMENTS or min(shape) < 1:
        raise ModelError(f"{where}: the shape {shape} is not one that a tensor can have")
    if shape[-1] % block:
        raise ModelError(
            f"{where}: rows of {shape[-1]} elements are no multiple of {type_.name}'s block of "
            f"{block}",
        )
    return num_elements // block * block_bytes


def check_disjoint(spans: list[tuple[int, int, str]], where: str) -> None:
    """Raise ModelError when two of the spans (first byte, end, tensor's name) share a byte."""
    for (_, end, name), (start, _, following) in pairwise(sorted(spans)):
        if start < end:
            raise ModelError(f"{where}: tensors {name!r} and {following!r} overlap at byte {start}")
