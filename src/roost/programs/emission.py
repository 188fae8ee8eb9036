"""Instructions, written into a native program."""

from dataclasses import dataclass, field

from roost import _native
from roost.kernels import PackedMatrix, Vector
from roost.programs import slots
from roost.programs.builder import Activation, RopeSpec, RopeStyle
from roost.programs.lowering import (
    Attend,
    EmbedRows,
    Gate,
    Head,
    HeadsPart,
    Instruction,
    Multiply,
    MultiplyGated,
    Norm,
    PrepareHeads,
    Quantise,
    Sum,
    Value,
    View,
)

NONE = -1  # "no such thing" in the native calls
_STYLES: dict[RopeStyle, int] = {"interleaved": 0, "half": 1}
_ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}
# The head is fine: its rounding goes into the answer as it is, and few rows pass it.
_HEAD_TERMS = 2

NativeView = tuple[int, int, int]  # buffer, offset, width
NativePart = tuple[NativeView, int, int, float, int]


def emit(native: _native.Program, instructions: list[Instruction]) -> None:
    """Make the buffers, register weights and tables, and append every instruction."""
    _Emission(native, slots.assign(instructions)).run(instructions)


@dataclass(slots=True)
class _Emission:
    native: _native.Program
    slots: slots.Slots
    buffers: list[int] = field(default_factory=list)
    matrices: dict[int, int] = field(default_factory=dict)  # id of the object → native number
    vectors: dict[int, int] = field(default_factory=dict)
    ropes: dict[RopeSpec, int] = field(default_factory=dict)

    def run(self, instructions: list[Instruction]) -> None:
        native = self.native
        for width, num_terms in zip(self.slots.widths, self.slots.num_terms, strict=True):
            is_quantised = num_terms > 0
            self.buffers.append(
                native.add_quantised(width, num_terms) if is_quantised else native.add_buffer(width)
            )
        for instruction in instructions:
            self._emit(instruction)

    def _emit(self, instruction: Instruction) -> None:
        native = self.native
        match instruction:
            case EmbedRows(table=table, scale=scale, out=out):
                native.embed(self._matrix(table), scale, self._buffer(out))
            case Norm(x=x, weight=weight, eps=eps, out=out, quantised=quantised):
                outs = self._buffer(out), self._buffer(quantised)
                is_for_next = instruction.is_for_next
                native.rms_norm(self._view(x), self._vector(weight), eps, *outs, is_for_next)
            case Quantise(x=x, quantised=quantised):
                native.quantise(self._view(x), self._buffer(quantised))
            case Multiply(weight=weight, x=x, quantised=quantised, bias=bias):
                ins = self._inputs(weight, x, quantised, bias)
                native.linear(*ins, self._buffer(instruction.out), instruction.accumulate)
            case MultiplyGated(weight=weight, x=x, quantised_x=quantised, bias=bias):
                ins = self._inputs(weight, x, quantised, bias)
                outs = self._buffer(instruction.out), self._buffer(instruction.quantised)
                native.gated_linear(*ins, _ACTIVATIONS[instruction.activation], outs)
            case PrepareHeads(part=part, out=out):
                native.heads(self._part(part), self._buffer(out))
            case Attend(parts=parts, spec=spec):
                shape = spec.layer, spec.num_heads, spec.window or 0
                to = instruction.rotated, instruction.out, instruction.quantised
                rotated, out_buffer, quantised_buffer = map(self._buffer, to)
                places = rotated, out_buffer, quantised_buffer
                native.attention([self._part(part) for part in parts], shape, spec.scale, places)
            case Gate(gate=gate, up=up, activation=act, out=out, quantised=quantised):
                outs = self._buffer(out), self._buffer(quantised)
                native.gated(self._view(gate), self._view(up), _ACTIVATIONS[act], *outs)
            case Sum(x=x, y=y, out=out):
                native.add(self._view(x), self._view(y), self._buffer(out))
            case Head(x=x, norm=norm, weight=weight, scale=scale):
                vector = NONE if norm is None else self._vector(norm.weight)
                eps = 0.0 if norm is None else norm.eps
                native.head(self._view(x), vector, eps, self._matrix(weight), scale, _HEAD_TERMS)

    def _part(self, part: HeadsPart) -> NativePart:
        norm = NONE if part.norm is None else self._vector(part.norm.weight)
        eps = 0.0 if part.norm is None else part.norm.eps
        rope = NONE if part.rope is None else self._rope(part.rope.spec)
        return self._view(part.x), part.head_dim, norm, eps, rope

    def _inputs(
        self, weight: PackedMatrix, x: View | None, quantised: Value | None, bias: Vector | None
    ) -> tuple[int, NativeView, int, int]:
        view = (NONE, 0, 0) if x is None else self._view(x)
        return self._matrix(weight), view, self._buffer(quantised), self._vector(bias)

    def _buffer(self, value: Value | None) -> int:
        return NONE if value is None else self.buffers[self.slots.slot_of[value.number]]

    def _view(self, view: View) -> NativeView:
        return self._buffer(view.value), view.offset, view.width

    def _matrix(self, matrix: PackedMatrix) -> int:
        number = self.matrices.get(id(matrix))
        if number is None:
            parts = [(int(s.format), s.rows, s.cols, s.scale, s.data) for s in matrix.segments]
            number = self.native.add_matrix(parts)
            self.matrices[id(matrix)] = number
        return number

    def _vector(self, vector: Vector | None) -> int:
        if vector is None:
            return NONE
        number = self.vectors.get(id(vector))
        if number is None:
            number = self.native.add_vector(vector.values)
            self.vectors[id(vector)] = number
        return number

    def _rope(self, spec: RopeSpec) -> int:
        number = self.ropes.get(spec)
        if number is None:
            frequencies = list(spec.inverse_frequencies)
            number = self.native.add_rope(frequencies, _STYLES[spec.style], spec.attention_scale)
            self.ropes[spec] = number
        return number
