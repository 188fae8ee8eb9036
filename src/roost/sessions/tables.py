"""The lives of a session and of a turn as tables, and which endings of a turn are kept."""

import enum
from typing import Final

from roost.core.outcome import OUTCOMES, Outcome


class SessionState(enum.StrEnum):
    OPEN = "open"
    # Takes no more turns; those that run may end.
    CLOSING = "closing"
    GONE = "gone"


class SessionMove(enum.StrEnum):
    CLOSE = "close"
    # The last turn of a closing session has ended, or an open one was idle for too long.
    FORGET = "forget"


SESSION_MOVES: Final[dict[SessionState, dict[SessionMove, SessionState]]] = {
    SessionState.OPEN: {
        SessionMove.CLOSE: SessionState.CLOSING,
        SessionMove.FORGET: SessionState.GONE,
    },
    SessionState.CLOSING: {SessionMove.FORGET: SessionState.GONE},
    SessionState.GONE: {},
}


class TurnState(enum.StrEnum):
    # Until the turn that it goes on from has ended: nobody knows its prompt before.
    HELD = "held"
    WAITING = "waiting"
    # Also while it is retracted: it has begun to answer.
    RUNNING = "running"
    # It is part of the history. The states before are those of a live turn.
    DONE = "done"
    GONE = "gone"


class TurnMove(enum.StrEnum):
    READY = "ready"
    START = "start"
    COMMIT = "commit"
    DROP = "drop"


TURN_MOVES: Final[dict[TurnState, dict[TurnMove, TurnState]]] = {
    TurnState.HELD: {TurnMove.READY: TurnState.WAITING, TurnMove.DROP: TurnState.GONE},
    TurnState.WAITING: {TurnMove.START: TurnState.RUNNING, TurnMove.DROP: TurnState.GONE},
    TurnState.RUNNING: {TurnMove.COMMIT: TurnState.DONE, TurnMove.DROP: TurnState.GONE},
    TurnState.DONE: {TurnMove.DROP: TurnState.GONE},
    TurnState.GONE: {},
}


def is_kept(outcome: Outcome) -> bool:
    """Whether a turn that ended so becomes part of its session: if it was answered to its end."""
    return OUTCOMES[outcome].finish != "abort"
