"""Memory for packed weights that a decode step streams through from end to end."""

import mmap
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_ALIGNMENT: Final = 64
_HUGE_PAGE: Final = 2 << 20


def huge_bytes(sizes: Sequence[int]) -> list[Bytes]:
    """Zeroed u8 arrays on 64-byte boundaries, in one region of huge pages where there are any."""
    spans = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    # Private: shared memory, which is what mmap gives unasked, has huge pages on few systems.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    region = mmap.mmap(-1, sum(spans) + _HUGE_PAGE, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(region, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE
    arrays: list[Bytes] = []
    for size, span in zip(sizes, spans, strict=True):
        arrays.append(whole[start : start + size])
        start += span
    return arrays
