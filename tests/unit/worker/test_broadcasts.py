"""Who has still to answer a notice, and what the caller is told in the end."""

import math

from roost.core.calls import Abort, SetLogLevel
from roost.core.request import Origin, RequestId
from roost.worker.broadcasts import PATIENCE_S, Broadcasts, Closed

FOUR = [Origin(worker, 1) for worker in range(4)]
ABORT = Abort(RequestId("a"))
LEVEL = SetLogLevel("debug")


def opened(broadcasts: Broadcasts, *, caller: Origin = FOUR[0], now_s: float = 0.0) -> str:
    return broadcasts.open(caller, "c1", ABORT, FOUR, count=5, now_s=now_s)


def test_the_last_of_four_answers_closes_it_with_the_sum() -> None:
    broadcasts = Broadcasts(1)
    notice_id = opened(broadcasts)
    assert [broadcasts.note(origin, notice_id, 2) for origin in FOUR[:3]] == [None, None, None]
    assert broadcasts.note(FOUR[3], notice_id, 1) == Closed(FOUR[0], "c1", ABORT, count=12)
    assert broadcasts.next_deadline_s() == math.inf


def test_a_second_answer_a_strangers_and_a_late_one_change_nothing() -> None:
    broadcasts = Broadcasts(1)
    notice_id = broadcasts.open(FOUR[0], "c1", ABORT, FOUR[:2], count=0, now_s=0.0)
    assert broadcasts.note(FOUR[0], notice_id, 1) is None
    assert broadcasts.note(FOUR[0], notice_id, 10) is None
    assert broadcasts.note(FOUR[2], notice_id, 100) is None
    assert broadcasts.note(Origin(1, 2), notice_id, 1000) is None
    assert broadcasts.note(FOUR[1], "no such notice", 10000) is None
    assert broadcasts.note(FOUR[1], notice_id, 1) == Closed(FOUR[0], "c1", ABORT, count=2)
    assert broadcasts.note(FOUR[1], notice_id, 1) is None


def test_a_worker_that_is_gone_is_not_waited_for() -> None:
    broadcasts = Broadcasts(1)
    notice_id = opened(broadcasts)
    assert broadcasts.note(FOUR[0], notice_id, 1) is None
    assert broadcasts.forget(FOUR[1]) == []
    assert broadcasts.note(FOUR[2], notice_id, 1) is None
    assert broadcasts.forget(FOUR[3]) == [Closed(FOUR[0], "c1", ABORT, count=7)]


def test_two_callers_with_one_call_id_do_not_mix() -> None:
    broadcasts = Broadcasts(3)
    first = broadcasts.open(FOUR[0], "c1", ABORT, FOUR[:2], count=0, now_s=0.0)
    second = broadcasts.open(FOUR[1], "c1", LEVEL, FOUR[:2], count=0, now_s=0.0)
    assert (first, second) == ("3.1", "3.2")
    assert broadcasts.note(FOUR[0], second, 0) is None
    assert broadcasts.note(FOUR[0], first, 4) is None
    assert broadcasts.note(FOUR[1], second, 0) == Closed(FOUR[1], "c1", LEVEL, count=0)
    assert broadcasts.note(FOUR[1], first, 0) == Closed(FOUR[0], "c1", ABORT, count=4)


def test_one_death_can_close_several_and_drops_the_callers_own() -> None:
    broadcasts = Broadcasts(1)
    for caller in FOUR[:3]:
        broadcasts.open(caller, "c1", ABORT, FOUR[2:3], count=0, now_s=0.0)
    assert broadcasts.forget(FOUR[2]) == [
        Closed(FOUR[0], "c1", ABORT, count=0),
        Closed(FOUR[1], "c1", ABORT, count=0),
    ]
    assert broadcasts.next_deadline_s() == math.inf


def test_patience_ends_and_the_silent_are_counted() -> None:
    broadcasts = Broadcasts(1)
    notice_id = opened(broadcasts, now_s=10.0)
    later = broadcasts.open(FOUR[1], "c2", LEVEL, FOUR, count=0, now_s=11.0)
    broadcasts.note(FOUR[0], notice_id, 1)
    assert broadcasts.next_deadline_s() == 10.0 + PATIENCE_S
    assert broadcasts.take_overdue(10.0 + PATIENCE_S - 0.01) == []
    assert broadcasts.take_overdue(10.0 + PATIENCE_S) == [
        Closed(FOUR[0], "c1", ABORT, count=6, num_silent=3)
    ]
    assert broadcasts.note(FOUR[1], notice_id, 1) is None
    assert broadcasts.take_all() == [Closed(FOUR[1], "c2", LEVEL, count=0, num_silent=4)]
    assert broadcasts.note(FOUR[1], later, 1) is None
