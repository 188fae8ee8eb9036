"""Model programs: the ops a model may use, and the CPU's way to record and replay them.

Takes a model's calls on a builder, then one `StepInputs` a step. Gives `StepOutputs`.
"""

from roost.programs.builder import (
    Activation,
    AttentionSpec,
    Builder,
    RopeSpec,
    RopeStyle,
    Rows,
    Weight,
)
from roost.programs.cpu import CpuBuilder, CpuProgram, KvShape
from roost.programs.step import HeadRow, Ints, RowSampling, StepInputs, StepOutputs

__all__ = [
    "Activation",
    "AttentionSpec",
    "Builder",
    "CpuBuilder",
    "CpuProgram",
    "HeadRow",
    "Ints",
    "KvShape",
    "RopeSpec",
    "RopeStyle",
    "RowSampling",
    "Rows",
    "StepInputs",
    "StepOutputs",
    "Weight",
]
