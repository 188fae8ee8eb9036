"""A model's calls as a graph: what `CpuBuilder` writes down and `lowering` reads."""

from collections.abc import Iterator
from dataclasses import dataclass

from roost.kernels import PackedMatrix, Vector
from roost.programs.builder import Activation, AttentionSpec, RopeSpec, Rows


@dataclass(frozen=True, slots=True)
class Embed:
    table: PackedMatrix
    scale: float


@dataclass(frozen=True, slots=True)
class RmsNorm:
    x: Rows
    weight: Vector
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    x: Rows
    weight: PackedMatrix
    bias: Vector | None
    is_fine: bool


@dataclass(frozen=True, slots=True)
class Rope:
    x: Rows
    spec: RopeSpec
    head_dim: int


@dataclass(frozen=True, slots=True)
class HeadNorm:
    x: Rows
    weight: Vector
    eps: float
    head_dim: int


@dataclass(frozen=True, slots=True)
class Attention:
    q: Rows
    k: Rows
    v: Rows
    spec: AttentionSpec


@dataclass(frozen=True, slots=True)
class Gated:
    gate: Rows
    up: Rows
    activation: Activation


@dataclass(frozen=True, slots=True)
class Add:
    x: Rows
    y: Rows


@dataclass(frozen=True, slots=True)
class Logits:
    x: Rows
    weight: PackedMatrix
    scale: float


Call = Embed | RmsNorm | Linear | Rope | HeadNorm | Attention | Gated | Add | Logits


def inputs_of(call: Call) -> tuple[Rows, ...]:
    match call:
        case Embed():
            return ()
        case Attention(q=q, k=k, v=v):
            return (q, k, v)
        case Gated(gate=gate, up=up):
            return (gate, up)
        case Add(x=x, y=y):
            return (x, y)
        case _:
            return (call.x,)


class Recording:
    """The calls in order; a node's number is its index. Every call but `Logits` makes one node."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.widths: list[int] = []

    def append(self, call: Call, width: int) -> Rows:
        """Write `call` down. Asserts that its inputs are (parts of) nodes made before."""
        for rows in inputs_of(call):
            assert 0 <= rows.node < len(self.calls), "rows of another builder"
            assert rows.offset >= 0, "a view before its node's first column"
            assert rows.offset + rows.width <= self.widths[rows.node], "a view past its node's end"
        self.calls.append(call)
        self.widths.append(width)
        return Rows(len(self.calls) - 1, width)

    def consumers(self) -> list[list[int]]:
        """Per node, the nodes that read it, in order; a node that reads it twice is there twice."""
        readers: list[list[int]] = [[] for _ in self.calls]
        for index, call in enumerate(self.calls):
            for rows in inputs_of(call):
                readers[rows.node].append(index)
        return readers

    def is_whole(self, rows: Rows) -> bool:
        """True when `rows` is its node's full width."""
        return rows.offset == 0 and rows.width == self.widths[rows.node]

    def __iter__(self) -> Iterator[tuple[int, Call]]:
        return iter(enumerate(self.calls))
