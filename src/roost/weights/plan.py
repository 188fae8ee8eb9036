"""What a model needs of its files, checked against them before any weight is read."""

from collections.abc import Callable
from dataclasses import dataclass

from roost.core.errors import ModelError, UnsupportedModel
from roost.weights.files import ModelFiles
from roost.weights.ggml import FLOAT_TYPES, PACKABLE_TYPES, GgmlType, RawTensor


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """A matrix [rows outputs, cols inputs] to be packed: `parts`, stacked by rows.

    is_table: an embedding or an output head, which quantisation on load spares the fourth bit.
    """

    parts: tuple[RawTensor, ...]
    is_table: bool

    @property
    def rows(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def cols(self) -> int:
        return self.parts[0].shape[1]


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """f32 [1, cols]: `parts` one after another, `shift` added to each value."""

    parts: tuple[RawTensor, ...]
    shift: float = 0.0

    @property
    def rows(self) -> int:
        return 1

    @property
    def cols(self) -> int:
        return sum(part.shape[0] for part in self.parts)


class WeightPlanner:
    """Takes what a model asks for by name and shape; keeps the list; refuses what does not fit.

    local_name: from the model's name of a tensor (GGUF's) to the name that the files use.
    """

    def __init__(self, files: ModelFiles, local_name: Callable[[str], str]) -> None:
        self._files = files
        self._local_name = local_name
        self._used: set[str] = set()
        self.matrices: dict[tuple[str, ...], MatrixPlan] = {}
        self.vectors: dict[tuple[str, ...], VectorPlan] = {}

    def has(self, name: str) -> bool:
        return self._local_name(name) in self._files.tensors

    def matrix(self, *parts: tuple[str, int], cols: int, is_table: bool = False) -> MatrixPlan:
        """Plan one matrix of `parts` (name, rows), fused by stacking."""
        names = tuple(name for name, _ in parts)
        tensors = tuple(self._take(name, (rows, cols)) for name, rows in parts)
        for tensor in tensors:
            if tensor.type not in PACKABLE_TYPES:
                raise self._unsupported_type(tensor, PACKABLE_TYPES)
        plan = MatrixPlan(tensors, is_table)
        self.matrices[names] = plan
        return plan

    def vector(self, *parts: tuple[str, int], shift: float = 0.0) -> VectorPlan:
        """Plan one vector of `parts` (name, size), one after another."""
        names = tuple(name for name, _ in parts)
        tensors = tuple(self._take(name, (size,)) for name, size in parts)
        for tensor in tensors:
            if tensor.type not in FLOAT_TYPES:
                raise self._unsupported_type(tensor, FLOAT_TYPES)
        plan = VectorPlan(tensors, shift)
        self.vectors[names] = plan
        return plan

    def check_all_used(self, ignored: Callable[[str], bool]) -> None:
        """Refuse files that hold more than the model takes: it would compute something else."""
        left = [
            name for name in self._files.tensors if name not in self._used and not ignored(name)
        ]
        if left:
            raise UnsupportedModel(
                f"{self._files.path}: {len(left)} tensors are not part of the architecture "
                f"{self._files.architecture!r} as roost knows it: {', '.join(left[:4])}"
                f"{', …' if len(left) > 4 else ''}",
            )

    def _take(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        local = self._local_name(name)
        tensor = self._files.tensors.get(local)
        if tensor is None:
            raise ModelError(f"{self._files.path}: tensor {local!r} is missing")
        if tensor.shape != shape:
            raise ModelError(
                f"{self._files.path}: tensor {local!r} has the shape {list(tensor.shape)}; "
                f"the hyperparameters say {list(shape)}",
            )
        self._used.add(local)
        return tensor

    def _unsupported_type(self, tensor: RawTensor, wanted: frozenset[GgmlType]) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self._files.path}: tensor {tensor.name!r} is of type {tensor.type.name}; "
            f"{', '.join(sorted(type_.name for type_ in wanted))} are computed with",
        )
