"""Weights: finding, reading and packing a model's files; no architecture is known here.

Takes a name or path, and what a model needs by tensor name and shape.
Gives metadata, raw tensors as views of the mapped file, and packed matrices.
"""

from typing import TYPE_CHECKING

from roost.weights.files import ModelFiles, open_model
from roost.weights.ggml import GgmlType, RawTensor, float_values
from roost.weights.hub import resolve_model
from roost.weights.plan import MatrixPlan, VectorPlan, WeightPlanner

if TYPE_CHECKING:
    from roost.weights.pack import PackedWeights, PackOptions, pack_weights

__all__ = [
    "GgmlType",
    "MatrixPlan",
    "ModelFiles",
    "PackOptions",
    "PackedWeights",
    "RawTensor",
    "VectorPlan",
    "WeightPlanner",
    "float_values",
    "open_model",
    "pack_weights",
    "resolve_model",
]


def __getattr__(name: str) -> object:
    # Late: packing loads the native library, and a process that only reads a vocabulary has none.
    if name in ("PackOptions", "PackedWeights", "pack_weights"):
        from roost.weights import pack

        return getattr(pack, name)
    raise AttributeError(f"module 'roost.weights' has no attribute {name!r}")
