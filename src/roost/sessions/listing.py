"""Sessions as `GET /sessions` shows them."""

import msgspec

from roost.core.request import RequestId
from roost.sessions.session import Session
from roost.sessions.tables import SessionState, TurnState


class TurnView(msgspec.Struct, frozen=True):
    """state: held, waiting, running or done.

    num_prompt_tokens: of the whole prompt, and of the new ids alone while it is held.
    num_output_tokens: 0 before it is done. num_cached_tokens: of the prompt, those that the cache
    held when it began to run.
    """

    rid: RequestId
    parent: RequestId | None
    state: TurnState
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0


class SessionView(msgspec.Struct, frozen=True):
    """num_tokens: kept in memory; what turns have in common counts once. idle_s: seconds since its
    last turn ended; 0 while one is alive. turns: each before those that go on from it.
    """

    id: str
    is_closing: bool
    num_tokens: int
    idle_s: float
    turns: tuple[TurnView, ...]


def view_of(session: Session, now_s: float) -> SessionView:
    turns = session.turns()
    return SessionView(
        id=session.session_id,
        is_closing=session.state is SessionState.CLOSING,
        num_tokens=sum(len(turn.own) for turn in turns),
        idle_s=session.idle_s(now_s),
        turns=tuple(
            TurnView(
                rid=turn.rid,
                parent=turn.wish.parent,
                state=turn.state,
                num_prompt_tokens=turn.num_prompt_tokens,
                num_output_tokens=turn.num_output_tokens,
                num_cached_tokens=turn.num_cached,
            )
            for turn in turns
        ),
    )
