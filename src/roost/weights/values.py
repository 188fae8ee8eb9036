"""The values of tensors that hold floats."""

import numpy as np
import numpy.typing as npt

from roost.weights.ggml import GgmlType, RawTensor


def float_values(tensor: RawTensor) -> npt.NDArray[np.float32]:
    """The values of an F32, F16 or BF16 tensor as f32 [num_elements]; F32 is a view, not a copy."""
    match tensor.type:
        case GgmlType.F32:
            # A file may place it anywhere; then it is a copy after all.
            return np.require(np.frombuffer(tensor.data, "<f4"), requirements="A")
        case GgmlType.F16:
            return np.frombuffer(tensor.data, "<f2").astype(np.float32)
        case GgmlType.BF16:
            # The upper half of an f32.
            return (np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16).view(np.float32)
        case _:
            raise AssertionError(f"{tensor.name} is {tensor.type.name}, not a float type")
