from tests.sim.requests import request, serial_of

from roost.core.events import Accepted
from roost.core.request import Origin, RequestId
from roost.wire import MemoryCorridor
from roost.wire.messages import Heartbeat, Load, Output, Outputs
from roost.worker import Outbox

HERE, THERE = Origin(0, 1), Origin(1, 1)
BEAT = Heartbeat(1.0, Load())


def accepted(rid: str) -> Output:
    return Output(RequestId(rid), serial_of(rid), Accepted())


def test_what_is_said_in_a_step_leaves_as_one_message_a_worker_in_order() -> None:
    corridor = MemoryCorridor()
    here, there = corridor.connect(HERE), corridor.connect(THERE)
    outbox = Outbox(corridor.engine)
    for rid, origin in (("a", HERE), ("b", THERE), ("c", HERE)):
        outbox.send(request(rid, origin=origin).envelope, Accepted())
    assert here.receive() == []
    assert outbox.flush() == []
    assert here.receive() == [
        Outputs((accepted("a"), accepted("c"))),
    ]
    assert there.receive() == [Outputs((accepted("b"),))]
    assert outbox.flush() == []
    assert here.receive() == []


def test_an_output_names_the_request_as_its_origin_numbered_it() -> None:
    corridor = MemoryCorridor()
    here = corridor.connect(HERE)
    outbox = Outbox(corridor.engine)
    for serial in (7, 8):
        outbox.send(request("again", serial=serial).envelope, Accepted())
    outbox.flush()
    rid = RequestId("again")
    assert here.receive() == [Outputs((Output(rid, 7, Accepted()), Output(rid, 8, Accepted())))]


def test_a_life_that_is_gone_is_named_once_and_counted_from_then_on() -> None:
    corridor = MemoryCorridor()
    outbox = Outbox(corridor.engine)
    envelope = request("a", origin=THERE).envelope
    outbox.send(envelope, Accepted())
    outbox.send(envelope, Accepted())
    assert outbox.flush() == [THERE]
    outbox.send(envelope, Accepted())
    assert outbox.flush() == []
    assert (outbox.num_gone, outbox.num_undelivered) == (1, 3)
    assert not outbox.tell(THERE, BEAT)


def test_lives_before_one_that_is_gone_are_gone_and_later_ones_are_not() -> None:
    corridor = MemoryCorridor()
    outbox = Outbox(corridor.engine)
    outbox.forget(Origin(1, 3))
    outbox.forget(Origin(1, 2))
    assert [outbox.is_gone(Origin(1, epoch)) for epoch in (1, 2, 3, 4)] == [True, True, True, False]
    assert not outbox.is_gone(Origin(0, 1))
    # One event a life that was given up, and none for what was over with it.
    assert outbox.num_gone == 1


def test_a_life_that_greets_again_is_tried_again() -> None:
    corridor = MemoryCorridor()
    outbox = Outbox(corridor.engine)
    assert not outbox.tell(HERE, BEAT)
    here = corridor.connect(HERE)
    assert not outbox.tell(HERE, BEAT)
    outbox.greet(HERE)
    assert outbox.tell(HERE, BEAT)
    assert here.receive() == [BEAT]
    outbox.greet(THERE)  # was never given up
