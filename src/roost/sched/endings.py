"""Events with their address, and how the scheduler words an ending."""

from typing import NamedTuple

from roost.core.errors import RequestError
from roost.core.events import Ended, Event, Usage
from roost.core.outcome import Outcome
from roost.core.refusal import ending_of
from roost.core.request import Envelope, GenerateRequest, RequestId
from roost.sched.sequence import Sequence
from roost.sessions import close_requested, unknown_turn


class Addressed(NamedTuple):
    """An event, and whom it is for."""

    envelope: Envelope
    event: Event


def refused(request: GenerateRequest, error: RequestError, now_s: float) -> Addressed:
    """The ending of a request that has not run, and may not."""
    envelope = request.envelope
    usage = Usage(
        num_prompt_tokens=len(request.prompt_ids),
        queue_s=max(now_s - envelope.arrival_s, 0.0),
    )
    return Addressed(envelope, ending_of(error, usage))


def orphaned(seq: Sequence, now_s: float) -> Addressed:
    """What the turn goes on from has not come about."""
    return refused(seq.request, unknown_turn(), now_s)


def closed_on(seq: Sequence, session_id: str, now_s: float) -> Addressed:
    """Its session is being closed, and it has not run."""
    return refused(seq.request, close_requested(session_id), now_s)


def replaced(seq: Sequence, by: RequestId, now_s: float) -> Addressed:
    """Another turn of its session, which was to replace it, has ended well."""
    return cut_short(seq, Outcome.CLIENT_CANCELLED, now_s, f"Replaced by turn {by}")


def cut_short(seq: Sequence, outcome: Outcome, now_s: float, words: str = "") -> Addressed:
    """An ending that has nothing to do with the request's tokens: the client's, the operator's, or
    the engine's own. words: what its client reads; "": the usual.
    """
    match outcome:
        case Outcome.CLIENT_CANCELLED:
            # What clients of the native API know.
            message = "Abort in waiting queue" if seq.kv is None else "Aborted"
            code = ""
        case Outcome.CLIENT_DISCONNECTED:
            message, code = "The client disconnected", ""
        case Outcome.SHUTTING_DOWN:
            message, code = "The server is shutting down", "shutting_down"
        case Outcome.ENGINE_FAULT:
            message, code = "The engine stopped on an internal error", "engine_fault"
        case _:
            raise AssertionError(f"{outcome} is decided by a request's tokens")
    return _ended(seq, outcome, now_s, message=words or message, code=code)


def overdue(seq: Sequence, now_s: float) -> Addressed:
    # What clients of the native API know.
    phase = "running" if seq.has_run else "waiting"
    message = f"Request {phase} timeout reached."
    return _ended(seq, Outcome.DEADLINE, now_s, message=message, code="deadline")


def outranked(seq: Sequence, now_s: float) -> Addressed:
    """Its place in the queue was given to another."""
    # What clients of the native API know.
    message = "The request is aborted by a higher priority request."
    return _ended(seq, Outcome.QUEUE_FULL, now_s, message=message, code="queue_full")


def faulted(seq: Sequence, now_s: float, *, message: str) -> Addressed:
    return _ended(seq, Outcome.ENGINE_FAULT, now_s, message=message, code="engine_fault")


def _ended(seq: Sequence, outcome: Outcome, now_s: float, *, message: str, code: str) -> Addressed:
    event = Ended(outcome=outcome, usage=seq.usage(now_s), message=message, code=code)
    return Addressed(seq.envelope, event)
