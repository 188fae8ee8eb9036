"""From a recording to instructions: which ops run, fused how, over which values.

Fusions done here:
  rms_norm, gated → quantised   when linears with quantised weights read them; f32 only if needed
  x + linear(h)                 the linear adds onto x in place, when x is not read later
  gated(linear's halves)        the linear goes on with both, which are never written
  head_norm, rope → attention   which prepares q, k and v and writes k, v to their pages
  attention → quantised         as rms_norm
  rms_norm → linear             one row alone is normalised by each thread that multiplies it
  rms_norm → logits             only the rows whose logits are wanted are normalised
A view is quantised once, as fine as the finest linear needs it, however many read it.
"""

from dataclasses import dataclass, field

from roost.kernels import PackedMatrix, Vector
from roost.programs.builder import Activation, AttentionSpec, Rows
from roost.programs.recording import (
    Add,
    Attention,
    Embed,
    Gated,
    HeadNorm,
    Linear,
    Logits,
    Recording,
    RmsNorm,
    Rope,
    inputs_of,
)


@dataclass(frozen=True, slots=True)
class Value:
    """A buffer before it has a place: f32 rows, or rows quantised in groups of 32.

    num_terms: int8 numbers that make up a quantised one; 0: f32.
    """

    number: int
    width: int
    num_terms: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """Columns [offset, offset + width) of an f32 value."""

    value: Value
    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class EmbedRows:
    table: PackedMatrix
    scale: float
    out: Value


@dataclass(frozen=True, slots=True)
class Norm:
    x: View
    weight: Vector
    eps: float
    out: Value | None
    quantised: Value | None
    is_for_next: bool = False  # the next instruction multiplies it, and nobody else reads it


@dataclass(frozen=True, slots=True)
class Quantise:
    x: View
    quantised: Value


@dataclass(frozen=True, slots=True)
class Multiply:
    """y = x · weightᵀ (+ bias); accumulate: out keeps what it held, and y is added."""

    weight: PackedMatrix
    x: View | None  # for float segments
    quantised: Value | None  # for quantised ones
    bias: Vector | None
    out: Value
    accumulate: bool


@dataclass(frozen=True, slots=True)
class HeadsPart:
    """Heads of x, each normalised and rotated."""

    x: View
    head_dim: int
    norm: HeadNorm | None
    rope: Rope | None


@dataclass(frozen=True, slots=True)
class PrepareHeads:
    part: HeadsPart
    out: Value


@dataclass(frozen=True, slots=True)
class Attend:
    """parts: q, k, v. rotated: takes q of rows that attend to each other."""

    parts: tuple[HeadsPart, HeadsPart, HeadsPart]
    spec: AttentionSpec
    rotated: Value
    out: Value
    quantised: Value | None


@dataclass(frozen=True, slots=True)
class Gate:
    gate: View
    up: View
    activation: Activation
    out: Value | None
    quantised: Value | None


@dataclass(frozen=True, slots=True)
class MultiplyGated:
    """activation(gate) · up of a linear whose first half of columns is the gate, the other up."""

    weight: PackedMatrix
    x: View | None
    quantised_x: Value | None
    bias: Vector | None
    activation: Activation
    out: Value | None
    quantised: Value | None


@dataclass(frozen=True, slots=True)
class Sum:
    x: View
    y: View
    out: Value


@dataclass(frozen=True, slots=True)
class Head:
    x: View
    norm: RmsNorm | None
    weight: PackedMatrix
    scale: float


Instruction = (
    EmbedRows
    | Norm
    | Quantise
    | Multiply
    | PrepareHeads
    | Attend
    | Gate
    | MultiplyGated
    | Sum
    | Head
)
# Columns that are quantised together, and rows of a block of packed weights.
_GROUP, _BLOCK_ROWS = 32, 16


def lower(recording: Recording) -> list[Instruction]:
    """Instructions in the order in which they run; the last one is the only `Head`."""
    return _Lowering(recording).run()


@dataclass(slots=True)
class _Lowering:
    recording: Recording
    out: list[Instruction] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)  # node → its f32 value
    quantised: dict[Rows, Value] = field(default_factory=dict)
    consumers: list[list[int]] = field(default_factory=list)
    folded: set[int] = field(default_factory=set)  # nodes that a consumer's instruction computes
    num_values: int = 0

    def run(self) -> list[Instruction]:
        self.consumers = self.recording.consumers()
        for index, call in self.recording:
            self._mark_folds(index, call)
        for index, call in self.recording:
            if index not in self.folded:
                self._lower(index, call)
        return self.out

    def _mark_folds(self, index: int, call: object) -> None:
        match call:
            case Logits(x=x) if self._is_only_reader(index, x) and self._is(x, RmsNorm):
                self.folded.add(x.node)
            case Add():
                linear = self._linear_onto(index, call)
                if linear is not None:
                    self.folded.add(linear.node)
            case Gated() if self._is_of_halves(index, call):
                self.folded.add(call.gate.node)
            case Attention(q=q, k=k):
                for rows in (q, k):
                    self._fold_chain(index, rows)
            case _:
                pass

    def _is(self, rows: Rows, kind: type) -> bool:
        return isinstance(self.recording.calls[rows.node], kind)

    def _is_only_reader(self, index: int, rows: Rows) -> bool:
        return self.consumers[rows.node] == [index] and self.recording.is_whole(rows)

    def _linear_onto(self, index: int, call: Add) -> Rows | None:
        """The side of the sum that is a linear and can be added in place onto the other side."""
        for x, y in ((call.x, call.y), (call.y, call.x)):
            is_fresh = self._is(y, Linear) and self._is_only_reader(index, y)
            is_last = self.recording.is_whole(x) and max(self.consumers[x.node]) == index
            if is_fresh and is_last and x.node != y.node and x.node not in self.folded:
                return y
        return None

    def _is_of_halves(self, index: int, call: Gated) -> bool:
        """Whether gate and up are the halves of a linear, each of whole groups and blocks, and
        nobody else reads them.
        """
        linear = self.recording.calls[call.gate.node]
        if not isinstance(linear, Linear) or call.up.node != call.gate.node:
            return False
        width = call.gate.width
        are_halves = call.gate.offset == 0 and call.up.offset == width == linear.weight.rows // 2
        are_whole = width % _GROUP == 0 and all(
            segment.rows % _BLOCK_ROWS == 0 for segment in linear.weight.segments
        )
        return are_halves and are_whole and set(self.consumers[call.gate.node]) == {index}

    def _is_for_next(self, index: int) -> bool:
        """Whether the instruction behind norm `index` multiplies it, to somewhere else than onto
        what it was made of, and nobody else reads it.
        """
        after = index + 1
        if self.consumers[index] != [after]:
            return False
        if not isinstance(self.recording.calls[after], Linear):
            return False
        if after not in self.folded:
            return True
        readers = set(self.consumers[after])
        return readers == {after + 1} and isinstance(self.recording.calls[after + 1], Gated)

    def _fold_chain(self, index: int, rows: Rows) -> None:
        """Mark rope, and a head_norm before it, when nobody else reads them."""
        call = self.recording.calls[rows.node]
        if isinstance(call, Rope) and self._is_only_reader(index, rows):
            self.folded.add(rows.node)
            index, rows = rows.node, call.x
            call = self.recording.calls[rows.node]
        if isinstance(call, HeadNorm) and self._is_only_reader(index, rows):
            self.folded.add(rows.node)

    def _lower(self, index: int, call: object) -> None:
        match call:
            case Embed(table=table, scale=scale):
                self.out.append(EmbedRows(table, scale, self._define(index)))
            case RmsNorm(x=x, weight=weight, eps=eps):
                view = self._view(x)
                outs = self._define_outputs(index)
                self.out.append(Norm(view, weight, eps, *outs, self._is_for_next(index)))
            case Gated() if call.gate.node in self.folded:
                self._multiply_gated(index, call)
            case Gated(gate=gate, up=up, activation=activation):
                views = self._view(gate), self._view(up)
                self.out.append(Gate(*views, activation, *self._define_outputs(index)))
            case Linear():
                self._multiply(call, self._define(index), accumulate=False)
            case Add():
                self._add(index, call)
            case Rope(x=x, head_dim=head_dim):
                part = HeadsPart(self._view(x), head_dim, None, call)
                self.out.append(PrepareHeads(part, self._define(index)))
            case HeadNorm(x=x, head_dim=head_dim):
                part = HeadsPart(self._view(x), head_dim, call, None)
                self.out.append(PrepareHeads(part, self._define(index)))
            case Attention():
                self._attention(index, call)
            case Logits(x=x, weight=weight, scale=scale):
                norm = self.recording.calls[x.node] if x.node in self.folded else None
                assert norm is None or isinstance(norm, RmsNorm)
                source = x if norm is None else norm.x
                self.out.append(Head(self._view(source), norm, weight, scale))
            case _:
                raise AssertionError(f"no lowering for {call}")

    def _add(self, index: int, call: Add) -> None:
        for x, y in ((call.x, call.y), (call.y, call.x)):
            linear = self.recording.calls[y.node]
            if y.node in self.folded and isinstance(linear, Linear):
                value = self.values[x.node]
                self.values[index] = value
                self._multiply(linear, value, accumulate=True)
                return
        x_view, y_view = self._view(call.x), self._view(call.y)
        self.out.append(Sum(x_view, y_view, self._define(index)))

    def _attention(self, index: int, call: Attention) -> None:
        spec = call.spec
        v = HeadsPart(self._view(call.v), spec.head_dim, None, None)
        parts = self._part(call.q, spec.head_dim), self._part(call.k, spec.head_dim), v
        rotated = self._new(call.q.width)
        out: Value | None
        quantised: Value | None
        if spec.num_heads // spec.num_kv_heads * spec.head_dim % _GROUP == 0:
            out, quantised = self._define_outputs(index)
            out = out or self._new(call.q.width)
        else:  # what a thread has of a row is no whole number of groups
            out, quantised = self._define(index), None
        self.out.append(Attend(parts, spec, rotated, out, quantised))

    def _part(self, rows: Rows, head_dim: int) -> HeadsPart:
        rope: Rope | None = None
        norm: HeadNorm | None = None
        call = self.recording.calls[rows.node]
        if rows.node in self.folded and isinstance(call, Rope):
            rope, rows = call, call.x
            call = self.recording.calls[rows.node]
        if rows.node in self.folded and isinstance(call, HeadNorm):
            norm, rows = call, call.x
        return HeadsPart(self._view(rows), head_dim, norm, rope)

    def _multiply(self, call: Linear, out: Value, *, accumulate: bool) -> None:
        view, quantised = self._inputs(call)
        self.out.append(Multiply(call.weight, view, quantised, call.bias, out, accumulate))

    def _multiply_gated(self, index: int, call: Gated) -> None:
        linear = self.recording.calls[call.gate.node]
        assert isinstance(linear, Linear)
        view, quantised = self._inputs(linear)
        outs = self._define_outputs(index)
        self.out.append(
            MultiplyGated(linear.weight, view, quantised, linear.bias, call.activation, *outs)
        )

    def _inputs(self, call: Linear) -> tuple[View | None, Value | None]:
        """What float segments read, and what quantised ones do."""
        view = self._view(call.x) if call.weight.has_float else None
        return view, self._quantise(call.x) if call.weight.has_quantised else None

    def _quantise(self, rows: Rows) -> Value:
        value = self.quantised.get(rows)
        if value is None:
            value = self._new(rows.width, num_terms=self._num_terms(rows))
            self.quantised[rows] = value
            self.out.append(Quantise(self._view(rows), value))
        return value

    def _define_outputs(self, index: int) -> tuple[Value | None, Value | None]:
        """Values for what the readers of node `index` need: f32, and quantised as a whole."""
        whole = Rows(index, self.recording.widths[index])
        needs_f32 = False
        needs_quantised = False
        for reader in self.consumers[index]:
            call = self.recording.calls[reader]
            is_whole = all(rows == whole for rows in inputs_of(call) if rows.node == index)
            if isinstance(call, Linear) and call.weight.has_quantised and is_whole:
                needs_quantised = True
                needs_f32 = needs_f32 or call.weight.has_float
            else:
                needs_f32 = True
        quantised = None
        if needs_quantised:
            quantised = self._new(whole.width, num_terms=self._num_terms(whole))
            self.quantised[whole] = quantised
        is_read = needs_f32 or not needs_quantised
        return (self._define(index) if is_read else None), quantised

    def _define(self, index: int) -> Value:
        value = self._new(self.recording.widths[index])
        self.values[index] = value
        return value

    def _num_terms(self, rows: Rows) -> int:
        """Two where a linear that reads `rows` is fine, else one."""
        readers = (self.recording.calls[reader] for reader in self.consumers[rows.node])
        is_fine = any(isinstance(c, Linear) and c.x == rows and c.is_fine for c in readers)
        return 2 if is_fine else 1

    def _new(self, width: int, *, num_terms: int = 0) -> Value:
        self.num_values += 1
        return Value(self.num_values, width, num_terms)

    def _view(self, rows: Rows) -> View:
        return View(self.values[rows.node], rows.offset, rows.width)
