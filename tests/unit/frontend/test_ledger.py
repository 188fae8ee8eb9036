"""The ledger: each request ends once, and what comes late is told apart by how it ended."""

import itertools
import math

import pytest

from roost.core.errors import DuplicateRequest
from roost.core.events import Accepted, Delta, Ended, Event, Started, Usage
from roost.core.lifecycle import TRANSITIONS, ProtocolViolation, State
from roost.core.outcome import Outcome
from roost.core.request import HEALTH_PREFIX, Envelope, Origin, RequestId
from roost.frontend.ledger import LateCause, LateLine, Ledger, Life
from roost.wire.messages import Output

R = RequestId("r")
EVENTS: dict[type, Event] = {
    Accepted: Accepted(),
    Started: Started(num_cached_tokens=0),
    Delta: Delta((1, 2)),
    Ended: Ended(Outcome.STOP),
}
# The shortest way into each state.
WAY: dict[State, tuple[type, ...]] = {
    State.SENT: (),
    State.WAITING: (Accepted,),
    State.RUNNING: (Accepted, Started),
    State.ENDED: (Accepted, Started, Ended),
}


def envelope(rid: str = "r", deadline_s: float = math.inf, group: str = "") -> Envelope:
    return Envelope(RequestId(rid), Origin(0, 1), 0.0, deadline_s, 0, "", group)


def opened(ledger: Ledger, rid: str = "r", state: State = State.SENT) -> Life:
    life = ledger.open(envelope(rid))
    life.is_sent = True
    for kind in WAY[state]:
        ledger.see(Output(RequestId(rid), EVENTS[kind]), 1.0)
    return life


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(TRANSITIONS, EVENTS)), ids=str)
def test_the_ledger_moves_exactly_as_the_table_says(state: State, kind: type) -> None:
    ledger = Ledger()
    life = opened(ledger, state=state)
    assert life.state is state
    if state is State.ENDED:
        assert ledger.see(Output(R, EVENTS[kind]), 2.0) is LateCause.OURS
    elif kind in TRANSITIONS[state]:
        assert ledger.see(Output(R, EVENTS[kind]), 2.0) is life
        assert life.state is TRANSITIONS[state][kind]
    else:
        with pytest.raises(ProtocolViolation):
            ledger.see(Output(R, EVENTS[kind]), 2.0)
        assert life.state is state
    assert (R in ledger.live()) == (life.state is not State.ENDED)
    ledger.check()


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("state", [State.SENT, State.WAITING, State.RUNNING])
def test_it_ends_once_from_any_state_and_from_either_side(outcome: Outcome, state: State) -> None:
    ledger = Ledger()
    opened(ledger, state=state)
    ended = ledger.end(R, Ended(outcome, message="why"), 2.0)
    assert ended == Ended(outcome, Usage(), message="why")
    assert ledger.end(R, Ended(outcome, message="again"), 2.0) is None
    # The engine's own ending is the receipt; one more is late.
    assert ledger.see(Output(R, Ended(Outcome.STOP)), 3.0) is None
    by_client = outcome in (Outcome.CLIENT_CANCELLED, Outcome.CLIENT_DISCONNECTED)
    expected = LateCause.CLIENT if by_client else LateCause.OURS
    assert ledger.see(Output(R, Ended(Outcome.STOP)), 3.0) is expected
    ledger.check()


def test_an_ending_made_here_carries_what_is_known() -> None:
    ledger = Ledger()
    life = opened(ledger, state=State.RUNNING)
    life.num_prompt_tokens, life.num_cached_tokens = 7, 3
    ledger.see(Output(R, Delta((1, 2, 3))), 1.0)
    ended = ledger.end(R, Ended(Outcome.DEADLINE, message="late"), 2.0)
    assert ended is not None
    assert ended.usage == Usage(7, 3, 3)


def test_late_output_is_told_apart_by_how_its_request_ended() -> None:
    ledger = Ledger()
    health = f"{HEALTH_PREFIX}_1"
    for rid in ("gone", "cancelled", "late", "done", health):
        opened(ledger, rid, State.RUNNING)
    ledger.end(RequestId("gone"), Ended(Outcome.CLIENT_DISCONNECTED), 1.0)
    ledger.end(RequestId("cancelled"), Ended(Outcome.CLIENT_CANCELLED), 1.0)
    ledger.end(RequestId("late"), Ended(Outcome.DEADLINE), 1.0)
    ledger.see(Output(RequestId("done"), Ended(Outcome.STOP)), 1.0)
    ledger.end(RequestId(health), Ended(Outcome.CLIENT_DISCONNECTED), 1.0)

    def cause(rid: str) -> object:
        return ledger.see(Output(RequestId(rid), Delta((1,))), 2.0)

    assert cause("gone") is LateCause.CLIENT
    assert cause("gone") is LateCause.CLIENT
    assert cause("cancelled") is LateCause.CLIENT
    assert cause("late") is LateCause.OURS
    assert cause("done") is LateCause.OURS
    assert cause(health) is LateCause.HEALTH
    assert cause("stranger") is LateCause.UNKNOWN
    assert ledger.take_late_lines() == [
        LateLine(LateCause.CLIENT, num_requests=2, num_outputs=3, example="gone"),
        LateLine(LateCause.OURS, num_requests=2, num_outputs=2, example="late"),
        LateLine(LateCause.HEALTH, num_requests=1, num_outputs=1, example=health),
        LateLine(LateCause.UNKNOWN, num_requests=1, num_outputs=1, example="stranger"),
    ]
    # Once a request: what follows is counted by the metrics, and not said again.
    assert cause("gone") is LateCause.CLIENT
    assert ledger.take_late_lines() == []


def test_a_record_expires_and_then_its_output_is_unknown() -> None:
    ledger = Ledger(record_s=10.0)
    opened(ledger, "a")
    ledger.end(RequestId("a"), Ended(Outcome.CLIENT_DISCONNECTED), now_s=100.0)
    assert ledger.see(Output(RequestId("a"), Delta((1,))), 109.9) is LateCause.CLIENT
    assert ledger.see(Output(RequestId("a"), Delta((1,))), 110.0) is LateCause.UNKNOWN


def test_no_more_records_are_kept_than_allowed() -> None:
    ledger = Ledger(max_records=3)
    for number in range(10):
        opened(ledger, str(number))
        ledger.end(RequestId(str(number)), Ended(Outcome.CLIENT_DISCONNECTED), 1.0)
        ledger.check()
    assert ledger.see(Output(RequestId("6"), Delta((1,))), 1.0) is LateCause.UNKNOWN
    assert ledger.see(Output(RequestId("7"), Delta((1,))), 1.0) is LateCause.CLIENT


def test_a_rid_in_use_is_refused_and_its_owner_is_undisturbed() -> None:
    ledger = Ledger()
    life = opened(ledger, state=State.RUNNING)
    with pytest.raises(DuplicateRequest, match="Duplicate request ID detected: r"):
        ledger.open(envelope())
    assert ledger.see(Output(R, Delta((1,))), 1.0) is life
    ledger.check()


def test_a_rid_may_be_used_again_at_once_and_hears_nothing_of_its_predecessor() -> None:
    ledger = Ledger()
    opened(ledger, state=State.RUNNING)
    ledger.end(R, Ended(Outcome.CLIENT_DISCONNECTED), 1.0)
    second = ledger.open(envelope())
    second.is_sent = True
    # In order, as the channel keeps it: the rest of the first, its ending, then the second.
    assert ledger.see(Output(R, Delta((1,))), 1.0) is LateCause.CLIENT
    assert ledger.see(Output(R, Ended(Outcome.CLIENT_DISCONNECTED)), 1.0) is None
    assert ledger.see(Output(R, Accepted()), 1.0) is second
    assert ledger.see(Output(R, Started(0)), 1.0) is second
    assert second.state is State.RUNNING
    ledger.end(R, Ended(Outcome.CLIENT_DISCONNECTED), 1.0)
    assert ledger.see(Output(R, Ended(Outcome.CLIENT_DISCONNECTED)), 1.0) is None
    ledger.check()


def test_what_was_never_sent_has_no_receipt() -> None:
    ledger = Ledger()
    ledger.open(envelope())
    ledger.end(R, Ended(Outcome.INVALID_REQUEST, message="bad"), 1.0)
    second = opened(ledger)
    assert ledger.see(Output(R, Ended(Outcome.STOP)), 1.0) is second


def test_a_group_is_its_members_and_nothing_that_looks_like_them() -> None:
    ledger = Ledger()
    for rid in ("g_0", "g_1"):
        ledger.open(envelope(rid, group="g"))
    ledger.open(envelope("g_2"))
    ledger.open(envelope("gg"))
    assert set(ledger.members("g")) == {"g_0", "g_1"}
    assert ledger.members("g_2") == ("g_2",)
    assert ledger.members("g_") == ()
    with pytest.raises(DuplicateRequest):
        ledger.open(envelope("g"))
    ledger.end(RequestId("g_0"), Ended(Outcome.STOP), 1.0)
    assert ledger.members("g") == ("g_1",)
    ledger.end(RequestId("g_1"), Ended(Outcome.STOP), 1.0)
    assert ledger.members("g") == ()
    ledger.open(envelope("g"))
    with pytest.raises(DuplicateRequest, match=r"g$"):
        ledger.open(envelope("g_0", group="g"))
    ledger.check()


def test_overdue_is_what_the_engine_should_have_ended() -> None:
    ledger = Ledger()
    ledger.open(envelope("sent", deadline_s=10.0)).is_sent = True
    ledger.open(envelope("being tokenised", deadline_s=10.0))
    ledger.open(envelope("for ever")).is_sent = True
    assert ledger.overdue(15.0) == []
    assert ledger.overdue(15.1) == ["sent"]


def test_another_engine_owes_no_receipts_and_knows_no_request() -> None:
    ledger = Ledger()
    opened(ledger, "running", State.RUNNING)
    ledger.open(envelope("being tokenised"))
    opened(ledger, "left", State.RUNNING)
    ledger.end(RequestId("left"), Ended(Outcome.CLIENT_DISCONNECTED), 1.0)
    assert ledger.engine_changed() == ("running",)
    again = ledger.open(envelope("left"))
    assert ledger.see(Output(RequestId("left"), Accepted()), 1.0) is again
