"""Calls on the whole engine."""

from dataclasses import dataclass

import msgspec

from roost.core.outcome import Outcome
from roost.core.plan import PAGE_TOKENS
from roost.sched import Addressed, Scheduler
from roost.wire.messages import Control, ControlDone, Load


@dataclass(slots=True)
class Switch:
    """Whether new steps are planned."""

    is_paused: bool = False


def load_of(scheduler: Scheduler) -> Load:
    load = scheduler.load()
    return Load(
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_used_tokens=load.num_used_pages * PAGE_TOKENS,
        num_kv_tokens=load.num_pages * PAGE_TOKENS,
        num_steps=load.num_steps,
        generated_tokens_total=load.generated_tokens_total,
    )


def obey(
    call: Control, scheduler: Scheduler, switch: Switch, now_s: float
) -> tuple[list[Addressed], ControlDone]:
    """Do what a control call asks → what is said to the requests it touched, and the answer.

    A verb that the engine does not know is answered as such: it comes from another version of a
    front, and is no reason to stop.
    """
    said: list[Addressed] = []
    message = ""
    match call.verb:
        case "abort_all":
            said = scheduler.end_all(Outcome.CLIENT_CANCELLED, now_s)
            message = f"{len(said)} requests aborted"
        case "flush_cache":
            # Pages are held by live requests alone, and stay with them.
            message = "nothing is cached"
        case "pause":
            switch.is_paused = True
        case "resume":
            switch.is_paused = False
        case "load":
            message = msgspec.json.encode(msgspec.structs.asdict(load_of(scheduler))).decode()
        case _:
            return [], ControlDone(call.call_id, is_ok=False, message=f"unknown verb {call.verb!r}")
    return said, ControlDone(call.call_id, is_ok=True, message=message)
