"""The life of a request as a table: states, events and moves are data.

The diagram in docs/lifecycle.md and the exhaustive test are made from it.
"""

import enum
from typing import Final

from roost.core.events import Accepted, Delta, Ended, Event, Started


class State(enum.Enum):
    """Where a request is, as its client can see it. Retraction is no state: it cannot be seen."""

    SENT = "sent"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class ProtocolViolation(Exception):
    """An event that the table does not allow. A bug of the sender; the state is unchanged."""


TRANSITIONS: Final[dict[State, dict[type, State]]] = {
    State.SENT: {Accepted: State.WAITING, Ended: State.ENDED},
    State.WAITING: {Started: State.RUNNING, Ended: State.ENDED},
    State.RUNNING: {Delta: State.RUNNING, Ended: State.ENDED},
    State.ENDED: {},
}


def advance(state: State, event: Event) -> State:
    """The state after `event`. Raises ProtocolViolation where the table has no such move."""
    try:
        return TRANSITIONS[state][type(event)]
    except KeyError:
        raise ProtocolViolation(f"{type(event).__name__} in {state.name}") from None
