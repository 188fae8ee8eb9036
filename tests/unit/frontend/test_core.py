"""The frontend's core: what it says to the engine, and what its listeners hear, on its own."""

import logging

import pytest
from tests.unit.frontend.front import FACTS, HERE, Front, delta, stop

from roost.core.calls import Abort, ListSessions, SetLogLevel
from roost.core.events import Accepted, Ended, Started, Usage
from roost.core.outcome import Outcome
from roost.core.request import HEALTH_PREFIX, RequestId
from roost.frontend import FrontendSettings
from roost.wire.messages import (
    Audit,
    Audited,
    Cancel,
    Control,
    ControlDone,
    Hello,
    Load,
    Noted,
    Notice,
    Outputs,
)

LEFT = Ended(Outcome.CLIENT_DISCONNECTED)


def cancel(serial: int, message: str = "", *, is_disconnect: bool = True) -> Cancel:
    return Cancel(HERE, serial, is_disconnect, message)


def notice(name: str | None, message: str = "") -> Notice:
    return Notice("n", Abort(None if name is None else RequestId(name), message))


# ---- hello


def test_hello_is_said_again_and_less_often_until_it_is_answered() -> None:
    front = Front()
    front.core.hello()
    times = []
    for _ in range(40):
        if front.take() == [Hello(HERE)]:
            times.append(front.clock.now_s() - 100)
        front.clock.advance(0.5)
        front.core.tick()
    assert times == [0.0, 1.0, 3.0, 7.0, 15.0]
    front.welcome()
    front.wait(1000.0)
    assert front.take() == []


def test_the_welcome_of_a_repeated_hello_changes_nothing() -> None:
    front = Front()
    front.welcome()
    front.runs("r")
    front.welcome()
    assert front.core.ledger.live() == ("r",)
    assert front.core.engine.facts == FACTS


def test_another_life_of_the_engine_ends_what_the_first_one_held() -> None:
    front = Front()
    front.welcome(epoch=1)
    held = front.runs("held")
    front.open("being tokenised")
    front.welcome(epoch=2)
    assert front.heard.endings == [(held, Outcome.ENGINE_FAULT, "The engine was restarted.")]
    assert front.core.ledger.live() == ("being tokenised",)


def test_the_log_level_comes_with_the_welcome_and_with_a_notice() -> None:
    front = Front()
    front.welcome()
    assert front.levels == []
    front.welcome(log_level="debug")
    front.core.hear(Notice("n1", SetLogLevel("error")))
    assert front.levels == ["debug", "error"]
    assert front.take() == [Noted(HERE, "n1", 0)]


# ---- outputs


def test_a_token_of_anybody_is_a_token() -> None:
    front = Front()
    serial = front.go("r")
    assert not front.says("r", serial, Accepted(), Started(0))
    assert front.says("r", serial, delta(0, 5))
    assert front.says("stranger", 99, delta(0, 5))
    assert not front.says("r", serial, stop(1))
    assert front.heard.endings == [(serial, Outcome.STOP, "")]


def test_a_gap_ends_that_request_only(caplog: pytest.LogCaptureFixture) -> None:
    front = Front()
    bad, good = front.runs("bad"), front.runs("good")
    front.says("good", good, delta(0, 5))
    front.take()
    front.says("bad", bad, delta(1, 5))
    front.says("good", good, delta(1, 5), stop(2))
    assert front.heard.endings == [
        (bad, Outcome.ENGINE_FAULT, "Protocol violation: Delta from token 1, after 0 tokens"),
        (good, Outcome.STOP, ""),
    ]
    assert front.take()[-1:] == [cancel(bad)]
    assert b"roost_protocol_violations_total 1" in front.meter.exposition()
    assert [r.levelno for r in caplog.records if r.levelno >= logging.WARNING] == [logging.ERROR]


def test_a_rid_is_used_again_while_the_first_ones_outputs_are_on_their_way() -> None:
    front = Front()
    first = front.runs("r")
    front.core.board.leave([RequestId("r")])
    second = front.go("r")
    # As they were sent: the first's token and receipt, between what is said of the second.
    front.says("r", first, delta(0, 1))
    front.says("r", second, Accepted())
    front.says("r", first, LEFT)
    front.says("r", second, Started(0), delta(0, 9), stop(1))
    assert [e for i, e in front.heard.events if i == second] == [
        Accepted(),
        Started(0),
        delta(0, 9),
        stop(1),
    ]
    assert front.heard.endings[0] == (
        first,
        Outcome.CLIENT_DISCONNECTED,
        "The client disconnected",
    )
    assert len(front.heard.endings) == 2
    assert b'roost_late_outputs_total{cause="client"} 1' in front.meter.exposition()
    assert b'roost_late_outputs_total{cause="unknown"} 0' in front.meter.exposition()


def test_what_runs_on_is_taken_back_again_once_a_second() -> None:
    front = Front()
    serial = front.runs("r")
    front.core.board.leave([RequestId("r")])
    front.take()
    said = []
    for _ in range(10):
        front.clock.advance(0.25)
        front.says("r", serial, delta(0, 1))
        said.append(front.take())
    expected = [[], [], [], [cancel(serial)], [], [], [], [cancel(serial)], [], []]
    assert said == expected


def test_a_strangers_output_is_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    front = Front()
    front.says("stranger", 77, delta(0, 1), delta(1, 1))
    assert front.take() == [cancel(77)]
    front.core.tick()
    front.core.tick()
    (line,) = caplog.records
    assert (line.levelno, line.message) == (
        logging.WARNING,
        "output came for requests that are not known here",
    )
    assert (line.__dict__["num_requests"], line.__dict__["num_outputs"]) == (1, 2)


def test_late_output_of_a_health_check_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    front = Front()
    rid = f"{HEALTH_PREFIX}_1"
    serial = front.runs(rid)
    front.core.board.leave([RequestId(rid)])
    front.says(rid, serial, delta(0, 1))
    front.core.tick()
    assert [r.levelno for r in caplog.records if r.levelno > logging.DEBUG] == []
    assert b'roost_late_outputs_total{cause="health"} 1' in front.meter.exposition()


# ---- abort, wherever it was asked for


def test_a_notice_reaches_what_is_sent_what_is_not_and_nothing_else() -> None:
    front = Front()
    sent = front.go("g_0", "g")
    early = front.open("g_1", "g").envelope.serial
    front.runs("g_")
    over = front.runs("g_2")
    front.says("g_2", over, stop(0))
    front.take()
    front.core.hear(notice("g", "by order"))
    assert front.take() == [cancel(sent, "by order", is_disconnect=False), Noted(HERE, "n", 2)]
    assert front.heard.endings[1:] == [(early, Outcome.CLIENT_CANCELLED, "by order")]
    assert front.core.ledger.live() == ("g_0", "g_")
    # The engine ends what it was told of, and how is heard of.
    front.says("g_0", sent, Accepted(), Ended(Outcome.CLIENT_CANCELLED, message="by order"))
    assert front.heard.endings[2:] == [(sent, Outcome.CLIENT_CANCELLED, "by order")]


@pytest.mark.parametrize("name", ["", "r", "rid_", "id", "rid_00"])
def test_a_notice_names_by_the_whole_name(name: str) -> None:
    front = Front()
    front.go("rid_0", "rid")
    front.take()
    front.core.hear(notice(name))
    assert front.take() == [Noted(HERE, "n", 0)]


def test_a_notice_without_a_name_means_all_but_health_checks() -> None:
    front = Front()
    probe = f"{HEALTH_PREFIX}_1"
    front.go(probe)
    one = front.go("one")
    two = front.open("two").envelope.serial
    front.take()
    front.core.hear(notice(None))
    assert front.take() == [cancel(one, is_disconnect=False), Noted(HERE, "n", 2)]
    assert front.heard.endings == [(two, Outcome.CLIENT_CANCELLED, "Abort in waiting queue")]
    assert front.core.ledger.live() == (probe, "one")


def test_what_ended_while_it_was_tokenised_is_not_sent() -> None:
    front = Front()
    life = front.open("r")
    front.core.hear(notice("r"))
    front.take()
    front.heard.events.clear()
    front.send(life)
    assert front.take() == []
    assert front.heard.endings == [
        (life.envelope.serial, Outcome.CLIENT_CANCELLED, "Abort in waiting queue")
    ]
    front.core.check()


def test_a_client_that_leaves_while_its_prompt_is_tokenised_is_not_told_of() -> None:
    front = Front()
    life = front.open("r")
    front.core.board.leave([RequestId("r")])
    # Its rid is free, and whoever has it now is not mistaken for it.
    front.go("r")
    front.take()
    front.send(life)
    assert front.take() == []
    front.core.check()


# ---- deadlines


def test_a_deadline_ends_what_is_tokenised_at_once_and_what_is_sent_when_the_engine_forgot() -> (
    None
):
    front = Front()
    early = front.open("early", deadline_s=103.0).envelope.serial
    sent = front.go("sent", deadline_s=103.0)
    front.take()
    front.wait(3.0)
    assert front.heard.endings == []
    front.wait(0.5)
    assert front.heard.endings == [(early, Outcome.DEADLINE, "Request waiting timeout reached.")]
    front.wait(4.0)
    front.wait(1.0)
    assert front.heard.endings[1:] == [(sent, Outcome.DEADLINE, "Request running timeout reached.")]
    assert front.take()[-1] == cancel(sent)


# ---- audits


def test_silence_is_asked_about_and_again_while_nothing_is_heard() -> None:
    front = Front()
    serial = front.runs("r")
    front.open("being tokenised")
    front.take()
    said = []
    for _ in range(12):
        front.wait(1.0)
        said.append(front.take())
    assert [m for m in said if m] == [[Audit(HERE, 1, (serial,))], [Audit(HERE, 2, (serial,))]]
    assert [i for i, m in enumerate(said, start=1) if m] == [5, 10]


def test_a_request_that_the_engine_does_not_hold_is_lost() -> None:
    front = Front()
    lost, held = front.go("lost"), front.go("held")
    front.wait(5.0)
    assert front.take()[-1] == Audit(HERE, 1, (lost, held))
    front.core.hear(Audited(1, (lost,)))
    assert front.heard.endings == [(lost, Outcome.ENGINE_FAULT, "The engine lost the request.")]
    assert front.core.ledger.live() == ("held",)
    front.core.check()


def test_an_ending_that_got_lost_is_made_up_for_with_what_was_heard() -> None:
    front = Front()
    serial = front.runs("r")
    front.says("r", serial, delta(0, 5, 6))
    front.wait(5.0)
    front.core.hear(Audited(1, (serial,)))
    (ended,) = (e for _, e in front.heard.events if isinstance(e, Ended))
    assert ended == Ended(
        Outcome.ENGINE_FAULT,
        Usage(2, 2, 0),
        message="The engine lost the request.",
        code="engine_fault",
    )


def test_what_was_heard_before_the_audits_answer_lives_on() -> None:
    front = Front()
    serial = front.runs("r")
    front.wait(5.0)
    front.says("r", serial, delta(0, 5))
    # Late, and from when the request had not arrived: it means nothing any more.
    front.core.hear(Audited(1, (serial,)))
    assert front.heard.endings == []
    front.wait(5.0)
    front.says("r", serial, stop(1))
    front.core.hear(Audited(2, (serial,)))
    assert front.heard.endings == [(serial, Outcome.STOP, "")]
    assert front.core.ledger.live() == ()


# ---- the engine's silence, calls, room


def test_an_engine_that_is_silent_for_three_timeouts_is_given_up() -> None:
    front = Front(FrontendSettings(heartbeat_timeout_s=10.0))
    front.welcome()
    serial = front.runs("r")
    early = front.open("early").envelope.serial
    front.clock.advance(30.0)
    front.core.tick()
    assert front.heard.endings == []
    front.clock.advance(0.1)
    front.core.tick()
    assert front.heard.endings == [
        (serial, Outcome.ENGINE_FAULT, "The engine does not answer."),
        (early, Outcome.ENGINE_FAULT, "The engine does not answer."),
    ]


def test_calls_are_answered_by_id_and_once() -> None:
    front = Front()
    heard: list[tuple[str, str]] = []
    front.core.call("a", ListSessions(), lambda done: heard.append(("a", done.result)))
    front.core.call("b", SetLogLevel("info"), lambda done: heard.append(("b", done.result)))
    front.core.call("c", ListSessions(), lambda done: heard.append(("c", done.result)))
    assert front.take() == [
        Control(HERE, "a", ListSessions()),
        Control(HERE, "b", SetLogLevel("info")),
        Control(HERE, "c", ListSessions()),
    ]
    front.core.forget("c")
    for call_id in ("b", "a", "c", "a", "never asked"):
        front.core.hear(ControlDone(call_id, is_ok=True, result=f"of {call_id}"))
    assert heard == [("b", "of b"), ("a", "of a")]


def test_there_is_room_for_as_many_as_the_engine_holds() -> None:
    front = Front()
    front.welcome()
    assert front.core.has_room(FACTS.max_requests)
    assert not front.core.has_room(FACTS.max_requests + 1)
    front.open("one")
    front.open(f"{HEALTH_PREFIX}_1")
    assert front.core.has_room(3)
    assert not front.core.has_room(4)


def test_outputs_are_a_sign_of_life_and_beats_count_from_when_they_were_sent() -> None:
    front = Front()
    front.welcome()
    front.clock.advance(8.0)
    front.core.hear(Outputs(()))
    assert front.core.engine.silence_s(front.clock.now_s()) == 0.0
    assert front.core.engine.load == Load()
