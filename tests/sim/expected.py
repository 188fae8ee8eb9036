"""What the answers of a house should be: each request's alone, after the history of its turn."""

from collections.abc import Sequence

from tests.sim.asked import Asked
from tests.sim.fake_runner import EOS_ID, alone
from tests.sim.house import BOS_ID, House

from roost.core.outcome import Outcome

_COMMITTED = (Outcome.STOP, Outcome.LENGTH)


def history_of(parent: Sequence[int], output: Sequence[int], asked: Asked) -> tuple[int, ...]:
    """What is kept of a turn's parent."""
    turn = asked.request.turn
    assert turn is not None
    kept = tuple(parent) if turn.drops_output else (*parent, *output)
    if turn.offset > 0:
        return kept[: turn.offset]
    return kept[: turn.offset] if turn.offset < 0 else kept


def prompts_of(house: House, asked: Asked, after: tuple[Asked, ...] = ()) -> set[tuple[int, ...]]:
    """Every whole prompt that the request may rightly have had.

    More than one only where a rid was used for several turns of a session. after: what goes on from
    this one.
    """
    request = asked.request
    turn = request.turn
    if turn is None or turn.parent is None:
        return {request.prompt_ids}
    found: set[tuple[int, ...]] = set()
    for parent in house.asked:
        other = parent.request.turn
        if parent.rid != turn.parent or other is None or other.session_id != turn.session_id:
            continue
        # What goes on from it cannot be its parent, though it may be called like it.
        if parent is asked or parent in after or parent.envelope.arrival_s > asked.ended_s:
            continue
        for prompt in prompts_of(house, parent, (*after, asked)):
            output = alone(prompt, parent.request.sampling)
            history = history_of(prompt, output, asked)
            new = request.prompt_ids
            if history and new[:1] == (BOS_ID,):
                new = new[1:]
            if history[-1:] == (EOS_ID,) and new[:1] == (EOS_ID,):
                new = new[1:]
            found.add((*history, *new))
    return found
