"""Models: one file an architecture, each a forward pass that reads like its paper.

Takes opened files. Gives a model's traits, and the function that records it on a builder.
"""

from roost.models.architecture import ModelTraits, Outline, Recorder, WeightSource
from roost.models.registry import (
    ARCHITECTURES,
    LoadedModel,
    load_model,
    outline_model,
    plan_weights,
)

__all__ = [
    "ARCHITECTURES",
    "LoadedModel",
    "ModelTraits",
    "Outline",
    "Recorder",
    "WeightSource",
    "load_model",
    "outline_model",
    "plan_weights",
]
