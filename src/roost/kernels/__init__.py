"""The typed Python face of the native library: instruction sets, threads, packed weights.

Takes raw GGML blocks or floats. Gives packed matrices, vectors and a thread pool to programs.
"""

from roost.kernels.cgroup import groups_of
from roost.kernels.isa import NUMERICS
from roost.kernels.isa import available as available_isas
from roost.kernels.isa import choose as choose_isa
from roost.kernels.matrix import (
    ALIGNMENT,
    FORMATS_OF_GGML,
    PackedMatrix,
    Segment,
    Vector,
    WeightFormat,
    aligned_bytes,
)
from roost.kernels.pool import ThreadPool
from roost.kernels.threads import usable_cores

__all__ = [
    "ALIGNMENT",
    "FORMATS_OF_GGML",
    "NUMERICS",
    "PackedMatrix",
    "Segment",
    "ThreadPool",
    "Vector",
    "WeightFormat",
    "aligned_bytes",
    "available_isas",
    "choose_isa",
    "groups_of",
    "usable_cores",
]
