"""What simulations have met: in which stage of a request something happened to it."""

from collections import Counter
from typing import Final

from roost.core.lifecycle import TRANSITIONS, State

STAGES: Final = (
    "tokenising",
    "on the way",
    "held",
    "queued",
    "prefilling",
    "running",
    "retracted",
    "just ended",
)
HAPPENINGS: Final = (
    "client leaves",
    "abort here",
    "abort elsewhere",
    "worker dies",
    "worker stalls",
    "message lost up",
    "message lost down",
    "messages late up",
    "messages late down",
    "row faults",
    "shutdown",
    "pause abort",
    "pause retract",
    "pause in_place",
    "session closed",
)


def moves() -> tuple[tuple[str, str], ...]:
    """Every move of the life-cycle table that is not an ending."""
    return tuple(
        (state.value, event.__name__)
        for state, moves_of in TRANSITIONS.items()
        for event, after in moves_of.items()
        if after is not State.ENDED
    )


def report(coverage: "Counter[tuple[str, str]]") -> str:
    """A table of stages and happenings, and which of them never met."""
    pairs = [(stage, what) for what in HAPPENINGS for stage in STAGES]
    met = [pair for pair in pairs if coverage[pair]]
    lines = [f"{'':<20}" + "".join(f"{stage:>12}" for stage in STAGES)]
    for what in HAPPENINGS:
        lines.append(f"{what:<20}" + "".join(f"{coverage[stage, what]:>12}" for stage in STAGES))
    lines.append(f"{len(met)} of {len(pairs)} pairs of a stage and a happening were met")
    never = ", ".join(f"{what} when {stage}" for stage, what in pairs if not coverage[stage, what])
    if never:
        lines.append(f"never: {never}")
    endings = sorted(key for key in coverage if key[1].startswith("ends "))
    num_moves = sum(bool(coverage[move]) for move in moves())
    lines.append(f"{num_moves} of {len(moves())} moves of the life-cycle table, and these endings:")
    lines += [f"  {state:<8} {what:<26} {coverage[state, what]}" for state, what in endings]
    num = len(met) + num_moves + len(endings)
    lines.append(f"{num} distinct transitions in all")
    return "\n".join(lines)
