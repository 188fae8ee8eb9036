"""What arrives is heard in order, and no more at a time than is good for the others."""

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.frontend.front import Front, delta, stop

from roost.core.calls import SetLogLevel
from roost.core.events import Delta
from roost.core.request import RequestId
from roost.frontend.mail import Mail
from roost.wire.messages import Heartbeat, Load, Notice, Output, Outputs


def tokens(front: Front) -> list[int]:
    return [
        t for _, event in front.heard.events if isinstance(event, Delta) for t in event.token_ids
    ]


def batch(serial: int, first: int, num: int) -> Outputs:
    return Outputs(
        tuple(Output(RequestId("r"), serial, delta(i, i)) for i in range(first, first + num))
    )


def test_a_large_batch_is_heard_in_helpings_and_what_came_later_waits() -> None:
    front = Front()
    serial = front.runs("r")
    mail = Mail(front.core, most_outputs=4)
    mail.put([batch(serial, 0, 10), Notice("n", SetLogLevel("error"))])
    mail.put([batch(serial, 10, 1)])
    helpings = []
    while not mail.is_empty:
        assert mail.hear_some()
        helpings.append((len(tokens(front)), list(front.levels)))
    assert helpings == [(4, []), (8, []), (11, ["error"])]
    assert not mail.hear_some()


def test_a_heartbeat_waits_for_nobody() -> None:
    front = Front()
    front.welcome()
    serial = front.runs("r")
    mail = Mail(front.core, most_outputs=1)
    mail.put([batch(serial, 0, 3), Heartbeat(120.0, Load(num_running=7))])
    assert (front.core.engine.heard_s, front.core.engine.load.num_running) == (120.0, 7)
    assert tokens(front) == []


def test_a_token_is_said_of_the_helping_it_is_in() -> None:
    front = Front()
    serial = front.runs("r")
    mail = Mail(front.core, most_outputs=1)
    mail.put([batch(serial, 0, 1), Outputs((Output(RequestId("r"), serial, stop(1)),))])
    assert [mail.hear_some(), mail.hear_some(), mail.hear_some()] == [True, False, False]
    assert mail.is_empty


@given(sizes=st.lists(st.integers(0, 7), max_size=8), most=st.integers(1, 9))
def test_nothing_is_lost_or_overtaken_however_it_is_cut(sizes: list[int], most: int) -> None:
    front = Front()
    serial = front.runs("r")
    mail = Mail(front.core, most)
    first = 0
    for size in sizes:
        mail.put([batch(serial, first, size)])
        first += size
    while not mail.is_empty:
        before = len(tokens(front))
        mail.hear_some()
        assert len(tokens(front)) - before <= most
    assert tokens(front) == list(range(first))
