"""Which sessions there are, and until when."""

import math
from array import array

import msgspec
import pytest

from roost.core.calls import OpenSession
from roost.core.errors import QueueFull, RequestError
from roost.core.request import RequestId, SessionTurn
from roost.sessions import (
    SESSION_MOVES,
    Rules,
    SessionState,
    SessionStore,
    SessionView,
    Turn,
    TurnState,
    TurnView,
)

RULES = Rules(bos_id=None, eos_ids=frozenset(), num_chars=lambda token_id: 1)


def store_of(*, max_sessions: int = 4, timeout_s: float = 10.0) -> SessionStore:
    return SessionStore(RULES, max_sessions=max_sessions, timeout_s=timeout_s)


def begin(store: SessionStore, rid: str, parent: str | None = None, session_id: str = "s") -> Turn:
    wish = SessionTurn(session_id, None if parent is None else RequestId(parent))
    turn = store.begin(RequestId(rid), wish, (1, 2))
    if turn.knows_history:
        store.prepare(turn)
    return turn


def commit(store: SessionStore, turn: Turn, now_s: float) -> None:
    turn.start()
    for other in store.commit(turn, array("i", (7,)), now_s).ready:
        store.prepare(other)
    store.check()


# ---- opening


def test_an_id_can_be_opened_once() -> None:
    store = store_of()
    store.open(OpenSession("s"), 0.0)
    with pytest.raises(RequestError) as caught:
        store.open(OpenSession("s"), 0.0)
    assert caught.value.message == (
        "Failed to open the session. Check if a session with the same id is still open."
    )
    assert caught.value.http_status == 400
    store.close("s", 0.0)
    store.open(OpenSession("s"), 0.0)
    assert len(store) == 1


def test_there_is_a_limit_on_sessions() -> None:
    store = store_of(max_sessions=2)
    for session_id in "ab":
        store.open(OpenSession(session_id), 0.0)
    with pytest.raises(QueueFull) as caught:
        store.open(OpenSession("c"), 0.0)
    assert caught.value.message == "max_sessions=2: no more sessions may be open."
    store.close("a", 0.0)
    store.open(OpenSession("c"), 0.0)


@pytest.mark.parametrize("session_id", ["", "x" * 257, "a\nb", "\x00"])
def test_an_id_is_a_name(session_id: str) -> None:
    with pytest.raises(RequestError, match="session_id must be 1 to 256 printable characters"):
        store_of().open(OpenSession(session_id), 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (OpenSession("s", -1), "capacity_of_str_len must be at least 0, got -1."),
        (OpenSession("s", 0, 0.0), "timeout must be more than 0 seconds, got 0."),
        (OpenSession("s", 0, -1.5), "timeout must be more than 0 seconds, got -1.5."),
        (OpenSession("s", 0, math.nan), "timeout must be more than 0 seconds, got nan."),
    ],
)
def test_limits_of_a_session_make_sense(call: OpenSession, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        store_of().open(call, 0.0)
    assert caught.value.message == message


def test_an_unknown_session_is_named() -> None:
    store = store_of()
    message = "Invalid request: session id nobody does not exist"
    with pytest.raises(RequestError) as caught:
        begin(store, "a", session_id="nobody")
    assert caught.value.message == message
    with pytest.raises(RequestError) as caught:
        store.close("nobody", 0.0)
    assert caught.value.message == message


# ---- closing


def test_a_session_without_live_turns_is_closed_at_once() -> None:
    store = store_of()
    store.open(OpenSession("s"), 0.0)
    commit(store, begin(store, "a"), 1.0)
    assert store.close("s", 2.0) == []
    assert len(store) == 0
    with pytest.raises(RequestError, match="session id s does not exist"):
        begin(store, "b", "a")


def test_closing_lets_what_runs_end_and_drops_what_waits() -> None:
    store = store_of()
    store.open(OpenSession("s"), 0.0)
    commit(store, begin(store, "a"), 0.0)
    running = begin(store, "run", "a")
    running.start()
    waiting = begin(store, "wait", "a")
    begin(store, "held", "run")
    begin(store, "held too", "wait")
    assert [turn.rid for turn in store.close("s", 1.0)] == ["wait", "held too", "held"]
    store.check()
    assert waiting.state is TurnState.GONE
    assert store.live_turns() == {"run": running}
    # Again, it is no harm; new turns are refused, and so is its id.
    assert store.close("s", 1.0) == []
    with pytest.raises(RequestError) as caught:
        begin(store, "new", "a")
    assert caught.value.message == "Invalid request: close was requested for session s"
    with pytest.raises(RequestError, match="still open"):
        store.open(OpenSession("s"), 1.0)
    (view,) = store.listing(1.0)
    assert (view.is_closing, [turn.rid for turn in view.turns]) == (True, ["a", "run"])
    commit(store, running, 2.0)
    assert len(store) == 0


def test_a_closing_session_is_over_when_its_last_turn_fails() -> None:
    store = store_of()
    store.open(OpenSession("s"), 0.0)
    turn = begin(store, "a")
    turn.start()
    store.close("s", 1.0)
    store.drop(turn, 2.0)
    assert len(store) == 0
    # And its lease is worth nothing in the next session of that id.
    store.open(OpenSession("s"), 3.0)
    store.drop(turn, 3.0)
    store.check()


# ---- expiring


def test_an_idle_session_expires() -> None:
    store = store_of(timeout_s=10.0)
    store.open(OpenSession("mine", 0, 3.0), 0.0)
    store.open(OpenSession("servers"), 0.0)
    assert store.next_expiry_s == 3.0
    assert store.expire(2.9) == []
    assert store.expire(3.0) == ["mine"]
    assert store.next_expiry_s == 10.0
    assert store.expire(10.0) == ["servers"]
    assert store.next_expiry_s == math.inf


def test_the_time_counts_from_the_end_of_the_last_turn() -> None:
    store = store_of(timeout_s=10.0)
    store.open(OpenSession("s"), 0.0)
    turn = begin(store, "a")
    second = begin(store, "b", "a")
    assert store.expire(50.0) == []
    assert store.next_expiry_s == math.inf
    commit(store, turn, 60.0)
    assert store.expire(65.0) == []
    store.drop(second, 65.0)
    assert store.next_expiry_s == 75.0
    assert store.expire(74.9) == []
    assert store.expire(75.0) == ["s"]
    with pytest.raises(RequestError, match="session id s does not exist"):
        begin(store, "c", "a")


def test_a_server_may_keep_sessions_for_ever() -> None:
    store = store_of(timeout_s=math.inf)
    store.open(OpenSession("s"), 0.0)
    assert store.next_expiry_s == math.inf
    assert store.expire(1e12) == []


# ---- the listing


def test_the_listing_shows_the_trees() -> None:
    store = store_of()
    store.open(OpenSession("s"), 0.0)
    store.open(OpenSession("idle"), 1.0)
    commit(store, begin(store, "a"), 1.0)
    commit(store, begin(store, "b"), 1.0)
    begin(store, "a1", "a").start()
    begin(store, "a2", "a")
    begin(store, "a11", "a1")
    first, second = store.listing(4.0)
    assert second == SessionView("idle", False, 0, 3.0, ())
    a, b = RequestId("a"), RequestId("b")
    a1, a2, a11 = RequestId("a1"), RequestId("a2"), RequestId("a11")
    assert first == SessionView(
        id="s",
        is_closing=False,
        num_tokens=12,
        idle_s=0.0,
        turns=(
            TurnView(a, None, TurnState.DONE, 2, 1),
            TurnView(a1, a, TurnState.RUNNING, 5, 0),
            TurnView(a11, a1, TurnState.HELD, 2, 0),
            TurnView(a2, a, TurnState.WAITING, 5, 0),
            TurnView(b, None, TurnState.DONE, 2, 1),
        ),
    )
    assert msgspec.json.decode(msgspec.json.encode(second)) == {
        "id": "idle",
        "is_closing": False,
        "num_tokens": 0,
        "idle_s": 3.0,
        "turns": [],
    }


def test_the_table_of_a_session_ends_in_gone() -> None:
    assert SESSION_MOVES[SessionState.GONE] == {}
    reached = {after for moves in SESSION_MOVES.values() for after in moves.values()}
    assert reached == {SessionState.CLOSING, SessionState.GONE}
