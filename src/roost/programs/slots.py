"""Where values live: buffers are shared by values whose lives do not overlap."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from roost.programs.lowering import (
    Attend,
    EmbedRows,
    Gate,
    Head,
    Instruction,
    Multiply,
    MultiplyGated,
    Norm,
    PrepareHeads,
    Quantise,
    Sum,
    Value,
)


@dataclass(slots=True)
class Slots:
    """slot_of: value number → slot. widths, num_terms: of each slot."""

    slot_of: dict[int, int] = field(default_factory=dict)
    widths: list[int] = field(default_factory=list)
    num_terms: list[int] = field(default_factory=list)


def reads(instruction: Instruction) -> Iterator[Value]:
    """Values that must hold when the instruction runs."""
    match instruction:
        case EmbedRows():
            return
        case Norm(x=x) | Quantise(x=x) | Head(x=x):
            yield x.value
        case Multiply(x=x, quantised=quantised, out=out, accumulate=accumulate):
            if x is not None:
                yield x.value
            if quantised is not None:
                yield quantised
            if accumulate:
                yield out
        case PrepareHeads(part=part):
            yield part.x.value
        case Attend(parts=parts):
            yield from (part.x.value for part in parts)
        case MultiplyGated(x=x, quantised_x=quantised):
            if x is not None:
                yield x.value
            if quantised is not None:
                yield quantised
        case Gate(gate=gate, up=up):
            yield from (gate.value, up.value)
        case Sum(x=x, y=y):
            yield from (x.value, y.value)


def writes(instruction: Instruction) -> Iterator[Value]:
    """Values that the instruction makes (or, for an accumulating Multiply, changes)."""
    match instruction:
        case (
            Norm(out=out, quantised=quantised)
            | Gate(out=out, quantised=quantised)
            | MultiplyGated(out=out, quantised=quantised)
        ):
            yield from (value for value in (out, quantised) if value is not None)
        case Attend(rotated=rotated, out=out, quantised=quantised):
            yield from (rotated, out)
            if quantised is not None:
                yield quantised
        case Quantise(quantised=quantised):
            yield quantised
        case EmbedRows(out=out) | Multiply(out=out) | PrepareHeads(out=out) | Sum(out=out):
            yield out
        case Head():
            return


def assign(instructions: list[Instruction]) -> Slots:
    """A linear scan. What an instruction writes never shares memory with what it reads, because
    threads work on different rows at once and widths, so row strides, may differ.
    """
    last_use: dict[int, int] = {}
    for index in range(len(instructions)):
        for value in _used(instructions, index):
            last_use[value.number] = index
    slots = Slots()
    free: list[int] = []
    for index, instruction in enumerate(instructions):
        for value in writes(instruction):
            if value.number not in slots.slot_of:
                slots.slot_of[value.number] = _take(slots, free, value)
        ending = {v.number for v in _used(instructions, index)}
        free += _slots_ending(slots, (n for n in ending if last_use[n] == index))
    return slots


def _used(instructions: list[Instruction], index: int) -> Iterator[Value]:
    """Values that must keep their place while the instruction runs."""
    yield from reads(instructions[index])
    yield from writes(instructions[index])
    before = instructions[index - 1] if index else None
    if isinstance(before, Norm) and before.is_for_next:
        # It may be computed only now.
        yield before.x.value


def _take(slots: Slots, free: list[int], value: Value) -> int:
    """The free slot of the kind whose width fits best, grown if need be, or a new one."""
    fitting = [slot for slot in free if slots.num_terms[slot] == value.num_terms]
    if not fitting:
        slots.widths.append(value.width)
        slots.num_terms.append(value.num_terms)
        return len(slots.widths) - 1

    def waste(slot: int) -> tuple[bool, int]:
        return slots.widths[slot] < value.width, abs(slots.widths[slot] - value.width)

    slot = min(fitting, key=waste)
    free.remove(slot)
    slots.widths[slot] = max(slots.widths[slot], value.width)
    return slot


def _slots_ending(slots: Slots, numbers: Iterable[int]) -> list[int]:
    return sorted(slots.slot_of[number] for number in numbers)
