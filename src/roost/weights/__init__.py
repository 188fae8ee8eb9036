"""Weights: finding, reading and packing a model's files; no architecture is known here.

Takes a name or path, and what a model needs by tensor name and shape.
Gives metadata, raw tensors as views of the mapped file, and packed matrices.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from roost.weights.files import ModelFiles, open_model
from roost.weights.ggml import GgmlType, RawTensor
from roost.weights.hub import resolve_model
from roost.weights.plan import MatrixPlan, VectorPlan, WeightPlanner

if TYPE_CHECKING:
    from roost.weights.pack import PackedWeights, PackOptions, pack_weights
    from roost.weights.values import float_values

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

# Loaded when first asked for: a process that only reads a vocabulary needs no native library and
# no arrays.
_HOMES: Final = {
    "PackOptions": "pack",
    "PackedWeights": "pack",
    "pack_weights": "pack",
    "float_values": "values",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"roost.weights.{_HOMES[name]}"), name)
