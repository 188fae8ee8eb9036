"""All sessions, by id."""

import math
from array import array

from roost.cache import Pin
from roost.core.calls import OpenSession
from roost.core.errors import QueueFull, RequestError
from roost.core.request import RequestId, SessionTurn
from roost.sessions.listing import SessionView, view_of
from roost.sessions.session import Rules, Session, unknown_session
from roost.sessions.turn import Settled, Turn

_MAX_ID_CHARS = 256


class SessionStore:
    """At most `max_sessions` of them; one that closes counts until its last turn has ended.

    timeout_s: idle for so long, a session is removed, unless its opener said otherwise.
    """

    def __init__(self, rules: Rules, *, max_sessions: int, timeout_s: float) -> None:
        self._rules = rules
        self._max_sessions = max_sessions
        self._timeout_s = timeout_s
        self._sessions: dict[str, Session] = {}
        # No session has been idle for too long before this time.
        self._look_s = math.inf

    def __len__(self) -> int:
        return len(self._sessions)

    # ---- verbs

    def open(self, call: OpenSession, now_s: float) -> None:
        """Raises RequestError for an id that is in use or no name, and for bad limits; QueueFull
        when there are as many sessions as may be.
        """
        session_id = call.session_id
        _check_open(call)
        if session_id in self._sessions:
            raise RequestError(
                "Failed to open the session. Check if a session with the same id is still open.",
                param="session_id",
            )
        if len(self._sessions) >= self._max_sessions:
            raise QueueFull(f"max_sessions={self._max_sessions}: no more sessions may be open.")
        session = Session(
            session_id,
            self._rules,
            capacity_chars=call.capacity_chars,
            timeout_s=self._timeout_s if call.timeout_s is None else call.timeout_s,
            now_s=now_s,
        )
        self._sessions[session_id] = session
        self._watch(session)

    def close(self, session_id: str, now_s: float) -> list[Turn]:
        """Take no more turns → those dropped, which had not begun to run.

        Raises RequestError when there is no such session. One that closes already: no harm.
        """
        session = self._find(session_id)
        dropped = session.close(now_s)
        self._tidy(session)
        return dropped

    def begin(self, rid: RequestId, wish: SessionTurn, new_ids: tuple[int, ...]) -> Turn:
        """A turn on lease, held until its parent has ended. Raises RequestError."""
        return self._find(wish.session_id).begin(rid, wish, new_ids)

    def prepare(self, turn: Turn) -> tuple[int, ...]:
        """A held turn's parent has ended well, or it has none → its whole prompt.

        Raises RequestError; the turn is held as before, to be dropped.
        """
        return self._find(turn.wish.session_id).prepare(turn)

    def commit(
        self, turn: Turn, output_ids: "array[int]", now_s: float, pin: Pin | None = None
    ) -> Settled:
        """A turn that ran has ended well with these tokens, a stop token included. pin: of what it
        computed, freed when the turn is gone.
        """
        session = self._find(turn.wish.session_id)
        settled = session.commit(turn, output_ids, now_s, pin)
        self._tidy(session)
        return settled

    def drop(self, turn: Turn, now_s: float) -> Settled:
        """A turn has not come about: its session is as it was before, and what was held for it is
        dropped as well. One that has ended already: nothing happens.
        """
        if not turn.is_live:
            return Settled([], [])
        session = self._find(turn.wish.session_id)
        settled = session.drop(turn, now_s)
        self._tidy(session)
        return settled

    def expire(self, now_s: float) -> list[str]:
        """Remove the sessions that have been idle for too long → their ids."""
        if now_s < self._look_s:
            return []
        gone: list[str] = []
        self._look_s = math.inf
        for session_id, session in list(self._sessions.items()):
            expires_s = session.expires_s
            if expires_s is not None and expires_s <= now_s:
                session.forget()
                del self._sessions[session_id]
                gone.append(session_id)
            else:
                self._watch(session)
        return gone

    # ---- questions

    @property
    def next_expiry_s(self) -> float:
        """When `expire` may have something to do; inf: never. May be early."""
        return self._look_s

    def listing(self, now_s: float) -> tuple[SessionView, ...]:
        """Every session, the oldest first."""
        return tuple(view_of(session, now_s) for session in self._sessions.values())

    def live_turns(self) -> dict[RequestId, Turn]:
        """Of all sessions."""
        return {
            turn.rid: turn
            for session in self._sessions.values()
            if session.num_live
            for turn in session.turns()
            if turn.is_live
        }

    def check(self) -> list[Pin]:
        """Assert that the books balance → the pins of all turns. O(turns)."""
        assert len(self._sessions) <= self._max_sessions, "more sessions than may be"
        for session in self._sessions.values():
            session.check()
            assert not session.is_over, f"session {session.session_id} is over and kept"
            expires_s = session.expires_s
            assert expires_s is None or expires_s >= self._look_s, "nobody looks when it expires"
        turns = (turn for session in self._sessions.values() for turn in session.turns())
        return [turn.pin for turn in turns if turn.pin is not None]

    # ---- parts

    def _find(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise unknown_session(session_id)
        return session

    def _tidy(self, session: Session) -> None:
        if session.is_over:
            session.forget()
            del self._sessions[session.session_id]
        else:
            self._watch(session)

    def _watch(self, session: Session) -> None:
        expires_s = session.expires_s
        if expires_s is not None:
            self._look_s = min(self._look_s, expires_s)


def _check_open(call: OpenSession) -> None:
    session_id = call.session_id
    if not (1 <= len(session_id) <= _MAX_ID_CHARS and session_id.isprintable()):
        raise RequestError(
            f"session_id must be 1 to {_MAX_ID_CHARS} printable characters.", param="session_id"
        )
    if call.capacity_chars < 0:
        raise RequestError(
            f"capacity_of_str_len must be at least 0, got {call.capacity_chars}.",
            param="capacity_of_str_len",
        )
    if call.timeout_s is not None and not call.timeout_s > 0:
        raise RequestError(
            f"timeout must be more than 0 seconds, got {call.timeout_s:g}.", param="timeout"
        )
