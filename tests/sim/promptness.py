"""What must be so at once, and not only in the end: a cancel frees everything within one step."""

from collections.abc import Callable, Sequence

from tests.sim.asked import Asked

from roost.core.calls import Abort, CloseSession, Pause
from roost.core.request import GenerateRequest, Origin
from roost.sched import Scheduler
from roost.wire.messages import Cancel, Control, Goodbye, ToEngine


def check_engine(
    scheduler: Scheduler, heard: Sequence[ToEngine], is_gone: Callable[[Origin], bool]
) -> None:
    """After the step in which the engine has heard this, nothing that it ends is left.

    What came behind it in the same step is not meant. is_gone: whose calls come too late.
    """
    newer: set[tuple[Origin, int]] = set()
    for message in reversed(heard):
        match message:
            case GenerateRequest(envelope=envelope):
                newer.add((envelope.origin, envelope.serial))
            case Cancel(origin=origin, serial=serial):
                seq = scheduler._roster.numbered(origin, serial)
                assert seq is None, f"{seq.envelope.rid} was cancelled and goes on"
            case Goodbye(origin=origin):
                held = {(origin, serial) for serial in scheduler.held_serials(origin)}
                assert not held - newer, f"{origin} is gone and its requests go on"
            case Control(origin=origin) if is_gone(origin):
                pass
            case Control(call=Abort(name=name)):
                _check_named(scheduler, name, newer)
            case Control(call=Pause(mode="abort")):
                _check_named(scheduler, None, newer)
            case Control(call=CloseSession(session_id=session_id)):
                _check_closed(scheduler, session_id, newer)
            case _:
                pass


def _check_named(scheduler: Scheduler, name: str | None, newer: set[tuple[Origin, int]]) -> None:
    for seq in scheduler._roster.all_of(None):
        envelope = seq.envelope
        is_meant = name is None or name in (envelope.rid, envelope.group or envelope.rid)
        if is_meant and (envelope.origin, envelope.serial) not in newer:
            raise AssertionError(f"{envelope.rid} was aborted and goes on")


def _check_closed(scheduler: Scheduler, session_id: str, newer: set[tuple[Origin, int]]) -> None:
    for seq in scheduler._roster.all_of(None):
        turn, envelope = seq.request.turn, seq.envelope
        is_waiting = turn is not None and turn.session_id == session_id and not seq.has_run
        if is_waiting and (envelope.origin, envelope.serial) not in newer:
            raise AssertionError(f"{envelope.rid} waits in a session that was closed")


def check_taken_back(asks: Sequence[Asked], sent: Sequence[ToEngine]) -> None:
    """These requests were just ended by their worker, which has sent this: they have ended, and
    those that the engine was told of are taken back.
    """
    taken_back = {message.serial for message in sent if isinstance(message, Cancel)}
    for asked in asks:
        life = asked.life
        assert life is not None, f"{asked.rid} was never opened"
        if life.is_sent:
            assert asked.envelope.serial in taken_back, f"the engine was not told of {asked.rid}"
        else:
            assert life.ended is not None, f"{asked.rid} goes on while it is tokenised"
