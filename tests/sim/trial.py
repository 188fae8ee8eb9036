"""One script, run and judged; and the least of it that goes wrong in the same way."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from tests.sim import script
from tests.sim.house import House
from tests.sim.judgement import judge


@dataclass(frozen=True, slots=True)
class Verdict:
    """wrong: what is, in words; nothing when all is well. coverage: (stage, happening) → count."""

    wrong: tuple[str, ...]
    coverage: "Counter[tuple[str, str]]" = field(default_factory=Counter)


def run(what: script.Script) -> Verdict:
    house = House(what.layout, what.seed)
    try:
        house.run(what.actions)
        wrong = judge(house)
    except Exception as error:  # noqa: BLE001  whatever it is, it is what the simulation looks for
        wrong = [f"{type(error).__name__}: {error} ({_where(error)})"]
    return Verdict(tuple(wrong), house.coverage)


def _where(error: Exception) -> str:
    """The innermost line of it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def shrink(
    what: script.Script, still_fails: Callable[[script.Script], bool] | None = None
) -> script.Script:
    """Drop actions as long as something goes wrong: halves first, then smaller pieces."""
    fails = (lambda one: bool(run(one).wrong)) if still_fails is None else still_fails
    actions = list(what.actions)
    size = max(len(actions) // 2, 1)
    while True:
        at, has_shrunk = 0, False
        while at < len(actions):
            fewer = actions[:at] + actions[at + size :]
            if fails(msgspec.structs.replace(what, actions=tuple(fewer))):
                actions, has_shrunk = fewer, True
            else:
                at += size
        if size == 1 and not has_shrunk:
            return msgspec.structs.replace(what, actions=tuple(actions))
        size = max(size // 2, 1)
