"""What a recording becomes: fusions, and buffers that are shared only when they may be."""

import numpy as np

from roost.kernels import PackedMatrix, ThreadPool, Vector, choose_isa
from roost.programs import AttentionSpec, CpuBuilder, KvShape, RopeSpec, Rows, Weight
from roost.programs.lowering import (
    Attend,
    EmbedRows,
    Head,
    Instruction,
    Multiply,
    MultiplyGated,
    Norm,
    Quantise,
    Sum,
    lower,
)
from roost.programs.slots import assign, reads, writes

HIDDEN, Q, KV, FFN, HEAD_DIM = 64, 64, 32, 96, 32
SPEC = AttentionSpec(0, 2, 1, HEAD_DIM, 0.2)
ROPE = RopeSpec("half", (1.0, 0.1))
ONES = Vector(np.ones(HIDDEN))


def floats(rows: int, cols: int) -> PackedMatrix:
    return PackedMatrix.pack(0, np.zeros(rows * cols * 4, np.uint8), rows, cols)


def eights(rows: int, cols: int) -> PackedMatrix:
    return PackedMatrix.pack(8, np.zeros(rows * cols // 32 * 34, np.uint8), rows, cols)


def builder() -> CpuBuilder:
    return CpuBuilder(
        max_rows=4,
        max_logits_rows=4,
        isa=choose_isa(None),
        pool=ThreadPool(1),
        kv=KvShape(2, 1, HEAD_DIM),
        num_pages=1,
        max_context_tokens=16,
    )


def names(instructions: list[Instruction]) -> list[str]:
    return [type(instruction).__name__ for instruction in instructions]


def layer(b: CpuBuilder, x: Rows) -> Rows:
    qkv = b.linear(b.rms_norm(x, ONES, 1e-5), eights(Q + 2 * KV, HIDDEN))
    q, k, v = b.split(qkv, Q, KV, KV)
    q = b.rope(b.head_norm(q, Vector(np.ones(HEAD_DIM)), 1e-6, HEAD_DIM), ROPE, HEAD_DIM)
    a = b.attention(q, b.rope(k, ROPE, HEAD_DIM), v, SPEC)
    x = b.add(x, b.linear(a, eights(HIDDEN, Q)))
    both = b.linear(b.rms_norm(x, ONES, 1e-5), eights(2 * FFN, HIDDEN))
    gate, up = b.split(both, FFN, FFN)
    return b.add(x, b.linear(b.gated(gate, up, "silu"), eights(HIDDEN, FFN)))


def test_a_layer_is_seven_ops() -> None:
    b = builder()
    x = layer(b, b.embed(eights(100, HIDDEN)))
    b.logits(b.rms_norm(x, ONES, 1e-5), eights(100, HIDDEN))
    instructions = lower(b._recording)
    per_layer = ["Norm", "Multiply", "Attend", "Multiply", "Norm", "MultiplyGated", "Multiply"]
    assert names(instructions) == ["EmbedRows", *per_layer, "Head"]
    embed, norm, qkv, attend, out, _, gate, down, head = instructions
    assert isinstance(embed, EmbedRows)
    assert isinstance(norm, Norm)
    assert norm.out is None
    assert norm.quantised is not None
    assert norm.is_for_next
    assert isinstance(qkv, Multiply)
    assert qkv.x is None
    assert qkv.quantised == norm.quantised
    assert not qkv.accumulate
    assert isinstance(attend, Attend)
    assert [part.norm is not None for part in attend.parts] == [True, False, False]
    assert [part.rope is not None for part in attend.parts] == [True, True, False]
    assert isinstance(out, Multiply)
    assert out.quantised == attend.quantised
    assert isinstance(down, Multiply)
    assert out.accumulate
    assert out.out == down.out == embed.out
    assert isinstance(gate, MultiplyGated)
    assert gate.out is None
    assert gate.quantised == down.quantised
    assert isinstance(head, Head)
    assert head.norm is not None


def test_float_weights_read_f32() -> None:
    b = builder()
    x = b.embed(floats(100, HIDDEN))
    h = b.linear(b.rms_norm(x, ONES, 1e-5), floats(HIDDEN, HIDDEN))
    b.logits(h, floats(100, HIDDEN))
    _, norm, multiply, head = lower(b._recording)
    assert isinstance(norm, Norm)
    assert norm.quantised is None
    assert isinstance(multiply, Multiply)
    assert multiply.x is not None
    assert multiply.quantised is None
    assert isinstance(head, Head)
    assert head.norm is None


def test_a_mixed_stack_reads_both_and_quantises_once() -> None:
    b = builder()
    x = b.embed(floats(100, HIDDEN))
    h = b.rms_norm(x, ONES, 1e-5)
    mixed: Weight = PackedMatrix.stack([eights(32, HIDDEN), floats(32, HIDDEN)])
    one, two = b.linear(h, mixed), b.linear(h, eights(HIDDEN, HIDDEN))
    b.logits(b.add(one, two), floats(100, HIDDEN))
    instructions = lower(b._recording)
    assert names(instructions) == ["EmbedRows", "Norm", "Multiply", "Multiply", "Head"]
    first, second = instructions[2:4]
    assert isinstance(first, Multiply)
    assert isinstance(second, Multiply)
    assert first.x is not None
    assert first.quantised == second.quantised is not None
    assert second.accumulate
    assert second.out == first.out


def test_a_residual_that_is_read_later_is_not_added_in_place() -> None:
    b = builder()
    x = b.embed(floats(100, HIDDEN))
    y = b.add(x, b.linear(x, floats(HIDDEN, HIDDEN)))
    b.logits(b.add(y, x), floats(100, HIDDEN))
    assert names(lower(b._recording)) == ["EmbedRows", "Multiply", "Sum", "Sum", "Head"]


def test_a_view_is_quantised_as_such() -> None:
    b = builder()
    x = b.embed(floats(100, 2 * HIDDEN))
    left, right = b.split(x, HIDDEN, HIDDEN)
    a, c = b.linear(left, eights(HIDDEN, HIDDEN)), b.linear(right, eights(HIDDEN, HIDDEN))
    d = b.linear(left, eights(HIDDEN, HIDDEN))
    b.logits(b.add(b.add(a, c), d), floats(100, HIDDEN))
    quantised = [i for i in lower(b._recording) if isinstance(i, Quantise)]
    assert [(i.x.offset, i.x.width) for i in quantised] == [(0, HIDDEN), (HIDDEN, HIDDEN)]


def test_what_one_fine_linear_reads_is_fine_for_all_that_read_it() -> None:
    b = builder()
    x = b.embed(floats(100, HIDDEN))
    h = b.rms_norm(x, ONES, 1e-5)
    one = b.linear(h, eights(HIDDEN, HIDDEN), is_fine=True)
    two = b.linear(h, eights(HIDDEN, HIDDEN))
    other = b.linear(b.rms_norm(two, ONES, 1e-5), eights(HIDDEN, HIDDEN))
    b.logits(b.add(one, other), floats(100, HIDDEN))
    instructions = lower(b._recording)
    made = [i.quantised for i in instructions if isinstance(i, Norm)]
    assert [value.num_terms for value in made if value is not None] == [2, 1]
    read = [i.quantised for i in instructions if isinstance(i, Multiply)]
    assert read == [made[0], made[0], made[1]]


def test_no_buffer_holds_two_living_values() -> None:
    b = builder()
    x = b.embed(eights(100, HIDDEN))
    for _ in range(4):
        x = layer(b, x)
    b.logits(b.rms_norm(x, ONES, 1e-5), eights(100, HIDDEN))
    instructions = lower(b._recording)
    slots = assign(instructions)
    last: dict[int, int] = {}
    for index, instruction in enumerate(instructions):
        for value in (*reads(instruction), *writes(instruction)):
            last[value.number] = index
    holder: dict[int, int] = {}
    for index, instruction in enumerate(instructions):
        for value in reads(instruction):
            assert holder[slots.slot_of[value.number]] == value.number
        for value in writes(instruction):
            slot = slots.slot_of[value.number]
            before = holder.get(slot)
            assert before is None or before == value.number or last[before] < index
            assert slots.widths[slot] >= value.width
            assert slots.num_terms[slot] == value.num_terms
            holder[slot] = value.number
    # Residual, qkv and q beside it, then gate and up: three f32 buffers do, and two quantised ones.
    assert len(slots.widths) <= 6


def test_rope_alone_gets_a_buffer() -> None:
    b = builder()
    x = b.rope(b.embed(floats(100, HIDDEN)), ROPE, HEAD_DIM)
    b.logits(x, floats(100, HIDDEN))
    instructions = lower(b._recording)
    assert names(instructions) == ["EmbedRows", "PrepareHeads", "Head"]
    assert not any(isinstance(instruction, Attend | Sum) for instruction in instructions)
