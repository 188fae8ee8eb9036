"""From a recording to instructions: which ops run, fused how, over which values.

Fusions done here:
  rms_norm, gated → quantised   when linears with quantised weights read them; f32 only if needed
  x + linear(h)                 the linear adds onto x in place, when x is not read later
  head_norm, rope → attention   one op per row prepares q, k and v and writes k, v to their pages
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
    """Heads of x, each normalised, rotated, and stored to a buffer or to the layer's K or V."""

    x: View
    head_dim: int
    norm: HeadNorm | None
    rope: Rope | None
    sink: Value | str  # "k", "v"


@dataclass(frozen=True, slots=True)
class PrepareHeads:
    parts: tuple[HeadsPart, ...]
    layer: int


@dataclass(frozen=True, slots=True)
class Attend:
    q: Value
    spec: AttentionSpec
    out: Value


@dataclass(frozen=True, slots=True)
class Gate:
    gate: View
    up: View
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


Instruction = EmbedRows | Norm | Quantise | Multiply | PrepareHeads | Attend | Gate | Sum | Head


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
                self.out.append(Norm(view, weight, eps, *self._define_outputs(index)))
            case Gated(gate=gate, up=up, activation=activation):
                views = self._view(gate), self._view(up)
                self.out.append(Gate(*views, activation, *self._define_outputs(index)))
            case Linear():
                self._multiply(call, self._define(index), accumulate=False)
            case Add():
                self._add(index, call)
            case Rope(x=x, head_dim=head_dim):
                part = HeadsPart(self._view(x), head_dim, None, call, self._define(index))
                self.out.append(PrepareHeads((part,), 0))
            case HeadNorm(x=x, head_dim=head_dim):
                part = HeadsPart(self._view(x), head_dim, call, None, self._define(index))
                self.out.append(PrepareHeads((part,), 0))
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
        head_dim = call.spec.head_dim
        q_value = self._new(call.q.width)
        q = self._part(call.q, head_dim, q_value)
        k = self._part(call.k, head_dim, "k")
        v = HeadsPart(self._view(call.v), head_dim, None, None, "v")
        self.out.append(PrepareHeads((q, k, v), call.spec.layer))
        self.out.append(Attend(q_value, call.spec, self._define(index)))

    def _part(self, rows: Rows, head_dim: int, sink: Value | str) -> HeadsPart:
        rope: Rope | None = None
        norm: HeadNorm | None = None
        call = self.recording.calls[rows.node]
        if rows.node in self.folded and isinstance(call, Rope):
            rope, rows = call, call.x
            call = self.recording.calls[rows.node]
        if rows.node in self.folded and isinstance(call, HeadNorm):
            norm, rows = call, call.x
        return HeadsPart(self._view(rows), head_dim, norm, rope, sink)

    def _multiply(self, call: Linear, out: Value, *, accumulate: bool) -> None:
        has_float = call.weight.has_float
        view = self._view(call.x) if has_float else None
        quantised = self._quantise(call.x) if call.weight.has_quantised else None
        self.out.append(Multiply(call.weight, view, quantised, call.bias, out, accumulate))

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
