"""The ledger: each request ends once, and what comes late is told apart by how it ended."""

import itertools
import math

import pytest

from roost.core.errors import DuplicateRequest
from roost.core.events import Accepted, Delta, Ended, Event, Started, Usage
from roost.core.lifecycle import TRANSITIONS, ProtocolViolation, State
from roost.core.outcome import Outcome
from roost.core.request import HEALTH_PREFIX, Envelope, Origin, RequestId
from roost.frontend.audits import Audits
from roost.frontend.late import Endings, Late, LateCause, LateLine
from roost.frontend.ledger import Ledger, Life
from roost.wire.messages import Audit, Audited, Output

R = RequestId("r")
HERE = Origin(0, 1)
EVENTS: dict[type, Event] = {
    Accepted: Accepted(),
    Started: Started(num_cached_tokens=0),
    Delta: Delta(0, (1, 2)),
    Ended: Ended(Outcome.STOP),
}
# The shortest way into each state.
WAY: dict[State, tuple[type, ...]] = {
    State.SENT: (),
    State.WAITING: (Accepted,),
    State.RUNNING: (Accepted, Started),
    State.ENDED: (Accepted, Started, Ended),
}


def envelope(
    rid: str = "r", serial: int = 1, *, deadline_s: float = math.inf, group: str = ""
) -> Envelope:
    return Envelope(RequestId(rid), HERE, serial, 0.0, deadline_s, 0, "", group)


def out(event: Event, rid: str = "r", serial: int = 1) -> Output:
    return Output(RequestId(rid), serial, event)


def opened(ledger: Ledger, rid: str = "r", serial: int = 1, *, state: State = State.SENT) -> Life:
    life = ledger.open(envelope(rid, serial))
    life.is_sent = True
    for kind in WAY[state]:
        ledger.see(out(EVENTS[kind], rid, serial), 1.0)
    return life


def stop(num_tokens: int = 0) -> Ended:
    return Ended(Outcome.STOP, Usage(num_completion_tokens=num_tokens))


LEFT = Ended(Outcome.CLIENT_DISCONNECTED)


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(TRANSITIONS, EVENTS)), ids=str)
def test_the_ledger_moves_exactly_as_the_table_says(state: State, kind: type) -> None:
    ledger = Ledger()
    life = opened(ledger, state=state)
    assert life.state is state
    if state is State.ENDED:
        seen = ledger.see(out(EVENTS[kind]), 1.5)
        assert seen == Late(LateCause.OURS, is_stray=False)
    elif kind in TRANSITIONS[state]:
        assert ledger.see(out(EVENTS[kind]), 2.0) is life
        assert life.state is TRANSITIONS[state][kind]
        assert life.heard_s == 2.0
    else:
        with pytest.raises(ProtocolViolation):
            ledger.see(out(EVENTS[kind]), 2.0)
        assert (life.state, life.heard_s) == (state, 1.0 if WAY[state] else 0.0)
    assert (R in ledger.live()) == (life.state is not State.ENDED)
    ledger.check()


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("state", [State.SENT, State.WAITING, State.RUNNING])
def test_it_ends_once_from_any_state_and_from_either_side(outcome: Outcome, state: State) -> None:
    ledger = Ledger()
    life = opened(ledger, state=state)
    ended = ledger.end(R, Ended(outcome, message="why"), 2.0)
    assert ended == Ended(outcome, Usage(), message="why")
    assert life.ended == ended
    assert ledger.end(R, Ended(outcome, message="again"), 2.0) is None
    # The engine's own ending is the receipt; one more is late.
    assert ledger.see(out(stop()), 3.0) is None
    by_client = outcome in (Outcome.CLIENT_CANCELLED, Outcome.CLIENT_DISCONNECTED)
    expected = LateCause.CLIENT if by_client else LateCause.OURS
    assert ledger.see(out(stop()), 3.0) == Late(expected, is_stray=False)
    ledger.check()


def test_an_ending_made_here_carries_what_is_known() -> None:
    ledger = Ledger()
    life = opened(ledger, state=State.WAITING)
    life.num_prompt_tokens = 7
    ledger.see(out(Started(3)), 1.0)
    ledger.see(out(Delta(0, (1, 2, 3))), 1.0)
    assert ledger.end(R, Ended(Outcome.DEADLINE), 2.0) == Ended(Outcome.DEADLINE, Usage(7, 3, 3))


def test_the_whole_prompt_of_a_sessions_turn_is_counted() -> None:
    ledger = Ledger()
    life = opened(ledger, state=State.WAITING)
    life.num_prompt_tokens = 2
    ledger.see(out(Started(0, prompt_ids=(1, 2, 3, 4))), 1.0)
    assert life.usage == Usage(4, 0, 0)


@pytest.mark.parametrize("first", [0, 1, 3, 4])
def test_tokens_that_got_lost_are_a_violation_that_changes_nothing(first: int) -> None:
    ledger = Ledger()
    life = opened(ledger, state=State.RUNNING)
    ledger.see(out(Delta(0, (1, 2))), 1.0)
    with pytest.raises(ProtocolViolation, match=f"Delta from token {first}, after 2 tokens"):
        ledger.see(out(Delta(first, (5,))), 2.0)
    assert (life.state, life.num_completion_tokens, life.heard_s) == (State.RUNNING, 2, 1.0)
    assert ledger.see(out(Delta(2, (5,))), 2.0) is life


def test_an_answer_whose_last_tokens_got_lost_is_none() -> None:
    ledger = Ledger()
    life = opened(ledger, state=State.RUNNING)
    ledger.see(out(Delta(0, (1, 2))), 1.0)
    with pytest.raises(ProtocolViolation, match="Ended with 3 tokens, after 2 tokens"):
        ledger.see(out(stop(3)), 2.0)
    assert ledger.see(out(stop(2)), 2.0) is life
    # An ending that gives no answer says what it can.
    other = opened(ledger, serial=2, state=State.RUNNING)
    fault = Ended(Outcome.ENGINE_FAULT, Usage(num_completion_tokens=9))
    assert ledger.see(out(fault, serial=2), 2.0) is other


def test_late_output_is_told_apart_by_how_its_request_ended() -> None:
    ledger = Ledger()
    health = f"{HEALTH_PREFIX}_1"
    rids = ("gone", "cancelled", "late", "done", health)
    for serial, rid in enumerate(rids):
        opened(ledger, rid, serial, state=State.RUNNING)
    ledger.end(RequestId("gone"), LEFT, 1.0)
    ledger.end(RequestId("cancelled"), Ended(Outcome.CLIENT_CANCELLED), 1.0)
    ledger.end(RequestId("late"), Ended(Outcome.DEADLINE), 1.0)
    ledger.see(out(stop(), "done", 3), 1.0)
    ledger.end(RequestId(health), LEFT, 1.0)

    def cause(rid: str, serial: int) -> object:
        late = ledger.see(out(Delta(0, (1,)), rid, serial), 1.5)
        assert isinstance(late, Late)
        return late.cause

    assert cause("gone", 0) is LateCause.CLIENT
    assert cause("gone", 0) is LateCause.CLIENT
    assert cause("cancelled", 1) is LateCause.CLIENT
    assert cause("late", 2) is LateCause.OURS
    assert cause("done", 3) is LateCause.OURS
    assert cause(health, 4) is LateCause.HEALTH
    assert cause("stranger", 5) is LateCause.UNKNOWN
    assert cause("stranger", 5) is LateCause.UNKNOWN
    assert ledger.endings.take_lines() == [
        LateLine(LateCause.CLIENT, num_requests=2, num_outputs=3, example="gone"),
        LateLine(LateCause.OURS, num_requests=2, num_outputs=2, example="late"),
        LateLine(LateCause.HEALTH, num_requests=1, num_outputs=1, example=health),
        LateLine(LateCause.UNKNOWN, num_requests=1, num_outputs=2, example="stranger"),
    ]
    # Once a request: what follows is counted by the metrics, and not said again.
    assert cause("gone", 0) is LateCause.CLIENT
    assert cause("stranger", 5) is LateCause.UNKNOWN
    assert ledger.endings.take_lines() == []
    ledger.check()


def test_what_runs_on_after_its_end_is_stray_at_most_once_a_second() -> None:
    ledger = Ledger()
    opened(ledger, state=State.RUNNING)
    ledger.end(R, LEFT, 100.0)

    def is_stray(now_s: float, serial: int = 1) -> bool:
        late = ledger.see(out(Delta(0, (1,)), serial=serial), now_s)
        assert isinstance(late, Late)
        return late.is_stray

    times = (100.0, 100.9, 101.0, 101.5, 101.9, 102.0, 102.1)
    assert [is_stray(t) for t in times] == [False, False, True, False, False, True, False]
    # What was never here is one from the start.
    assert [is_stray(t, serial=2) for t in (102.2, 103.1, 103.2)] == [True, False, True]
    # Told once more, the engine answers once more.
    assert ledger.see(out(LEFT), 103.0) is None
    assert ledger.see(out(LEFT), 103.0) == Late(LateCause.CLIENT, is_stray=False)


def test_an_ending_is_never_stray() -> None:
    ledger = Ledger()
    assert ledger.see(out(LEFT), 5.0) == Late(LateCause.UNKNOWN, is_stray=False)


def test_a_record_expires_and_then_its_output_is_unknown() -> None:
    ledger = Ledger(Endings(record_s=10.0))
    opened(ledger)
    ledger.end(R, LEFT, now_s=100.0)
    assert ledger.see(out(Delta(0, (1,))), 109.9) == Late(LateCause.CLIENT, is_stray=True)
    assert ledger.see(out(Delta(0, (1,))), 110.0) == Late(LateCause.UNKNOWN, is_stray=True)


def test_no_more_records_are_kept_than_allowed() -> None:
    ledger = Ledger(Endings(max_records=3))
    for number in range(10):
        opened(ledger, str(number), number)
        ledger.end(RequestId(str(number)), LEFT, 1.0)
        ledger.check()
    assert ledger.see(out(LEFT, "7", 7), 1.0) is None
    late = ledger.see(out(Delta(0, (1,)), "6", 6), 1.0)
    assert isinstance(late, Late)
    assert late.cause is LateCause.UNKNOWN
    ledger.check()


def test_a_rid_in_use_is_refused_and_its_owner_is_undisturbed() -> None:
    ledger = Ledger()
    life = opened(ledger, state=State.RUNNING)
    with pytest.raises(DuplicateRequest, match="Duplicate request ID detected: r"):
        ledger.open(envelope(serial=2))
    assert ledger.see(out(Delta(0, (1,))), 1.0) is life
    ledger.check()


def test_a_rid_may_be_used_again_at_once_and_hears_nothing_of_its_predecessor() -> None:
    ledger = Ledger()
    opened(ledger, state=State.RUNNING)
    ledger.end(R, LEFT, 1.0)
    second = opened(ledger, serial=2)
    assert ledger.see(out(Delta(0, (1,))), 1.0) == Late(LateCause.CLIENT, is_stray=False)
    assert ledger.see(out(Accepted(), serial=2), 1.0) is second
    # Also when what the engine says of the two is mixed, or of the first is lost.
    assert ledger.see(out(LEFT), 1.0) is None
    assert ledger.see(out(Started(0), serial=2), 1.0) is second
    assert second.state is State.RUNNING
    assert ledger.see(out(LEFT, serial=2), 1.0) is second
    assert ledger.live() == ()
    ledger.check()


def test_what_was_never_sent_has_no_receipt() -> None:
    ledger = Ledger()
    ledger.open(envelope())
    ledger.end(R, Ended(Outcome.INVALID_REQUEST, message="bad"), 1.0)
    assert ledger.see(out(stop()), 1.0) == Late(LateCause.OURS, is_stray=False)


def test_a_group_is_its_members_and_nothing_that_looks_like_them() -> None:
    ledger = Ledger()
    for serial, rid in enumerate(("g_0", "g_1")):
        ledger.open(envelope(rid, serial, group="g"))
    ledger.open(envelope("g_2", 2))
    ledger.open(envelope("gg", 3))
    assert ledger.members("g") == ("g_0", "g_1")
    assert ledger.members("g_2") == ("g_2",)
    assert ledger.members("g_") == ()
    assert ledger.members("") == ()
    assert ledger.members(None) == ("g_0", "g_1", "g_2", "gg")
    with pytest.raises(DuplicateRequest):
        ledger.open(envelope("g", 4))
    ledger.end(RequestId("g_0"), stop(), 1.0)
    assert ledger.members("g") == ("g_1",)
    ledger.end(RequestId("g_1"), stop(), 1.0)
    assert ledger.members("g") == ()
    ledger.open(envelope("g", 5))
    with pytest.raises(DuplicateRequest, match=r"g$"):
        ledger.open(envelope("g_0", 6, group="g"))
    ledger.check()


def test_health_checks_are_no_traffic_and_nobody_names_them() -> None:
    ledger = Ledger()
    probe = f"{HEALTH_PREFIX}_1"
    ledger.open(envelope(probe, 1))
    ledger.open(envelope("r", 2))
    assert (ledger.num_traffic, len(ledger.live())) == (1, 2)
    assert ledger.members(None) == ("r",)
    ledger.end(RequestId(probe), stop(), 1.0)
    assert ledger.num_traffic == 1
    ledger.check()


def test_overdue_is_what_the_engine_should_have_ended_or_was_not_told_of() -> None:
    ledger = Ledger()
    ledger.open(envelope("sent", 1, deadline_s=10.0)).is_sent = True
    ledger.open(envelope("being tokenised", 2, deadline_s=10.0))
    ledger.open(envelope("for ever", 3)).is_sent = True
    assert ledger.overdue(10.0) == []
    assert ledger.overdue(10.1) == ["being tokenised"]
    assert ledger.overdue(15.1) == ["sent", "being tokenised"]


def test_what_is_silent_is_audited_and_again_after_the_same_time() -> None:
    ledger = Ledger()
    audits = Audits(ledger, HERE, after_s=5.0)
    opened(ledger, "a", 1).heard_s = 100.0
    opened(ledger, "b", 2).heard_s = 103.0
    ledger.open(envelope("being tokenised", 3))
    assert audits.due(104.9) is None
    assert audits.due(105.0) == Audit(HERE, 1, (1,))
    assert audits.due(108.0) == Audit(HERE, 2, (2,))
    assert audits.due(109.9) is None
    assert audits.due(110.0) == Audit(HERE, 3, (1,))
    ledger.see(out(Accepted(), "a", 1), 111.0)
    assert audits.due(113.0) == Audit(HERE, 4, (2,))
    assert audits.due(116.0) == Audit(HERE, 5, (1,))


def test_lost_is_what_an_audit_misses_and_nobody_has_heard_of_since_it_asked() -> None:
    ledger = Ledger()
    audits = Audits(ledger, HERE, after_s=5.0)
    for serial, rid in enumerate("abcd", start=1):
        opened(ledger, rid, serial)
    assert audits.due(5.0) == Audit(HERE, 1, (1, 2, 3, 4))
    ledger.see(out(Accepted(), "b", 2), 5.5)
    assert audits.lost(Audited(1, (1, 2))) == ["a"]
    # A later audit that asks again makes an answer to the first no less true.
    assert audits.due(10.0) == Audit(HERE, 2, (1, 3, 4))
    assert audits.lost(Audited(1, (3,))) == ["c"]
    assert audits.lost(Audited(2, (1, 2, 3))) == ["a", "c"]
    # What is silent since the second only, the first says nothing about.
    ledger.see(out(Accepted(), "d", 4), 10.5)
    assert audits.due(15.5) == Audit(HERE, 3, (1, 2, 3, 4))
    assert audits.lost(Audited(2, (4,))) == []
    assert audits.lost(Audited(3, (4,))) == ["d"]
    # The same rid, another request.
    ledger.end(RequestId("a"), stop(), 16.0)
    opened(ledger, "a", 5)
    assert audits.lost(Audited(3, (1,))) == []


def test_another_engine_owes_no_receipts_and_knows_no_request() -> None:
    ledger = Ledger()
    opened(ledger, "running", 1, state=State.RUNNING)
    ledger.open(envelope("being tokenised", 2))
    opened(ledger, "left", 3, state=State.RUNNING)
    ledger.end(RequestId("left"), LEFT, 1.0)
    assert ledger.engine_changed() == ("running",)
    assert ledger.see(out(LEFT, "left", 3), 1.0) == Late(LateCause.CLIENT, is_stray=False)
