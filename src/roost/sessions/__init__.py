"""Conversations: which turns a session has, and what the whole prompt of the next one is.

Takes session calls, the beginnings and endings of turns, and the time. Gives leases on turns, whole
prompts, and what the end of one turn means for others.
"""

from roost.sessions.listing import SessionView, TurnView
from roost.sessions.session import MAX_TURNS, Rules, close_requested, unknown_turn
from roost.sessions.store import SessionStore
from roost.sessions.tables import (
    SESSION_MOVES,
    TURN_MOVES,
    SessionState,
    TurnState,
    is_kept,
)
from roost.sessions.turn import Settled, Turn

__all__ = [
    "MAX_TURNS",
    "SESSION_MOVES",
    "TURN_MOVES",
    "Rules",
    "SessionState",
    "SessionStore",
    "SessionView",
    "Settled",
    "Turn",
    "TurnState",
    "TurnView",
    "close_requested",
    "is_kept",
    "unknown_turn",
]
